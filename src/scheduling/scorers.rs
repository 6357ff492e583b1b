//! Scorers: one number in 0..=1 per candidate, higher is better.
//!
//! Formulas follow llm-d-router's plugins of the same names. Where they read a gauge that was never seen or is stale,
//! the mean of the known ones stands in: unknown is neutral, never best.

use super::field::Field;
use super::view::{AdapterStanding, DecisionKind, EndpointView, Scraped};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// In-flight tokens at which `token-load-scorer` reaches 0: llm-d-router's default.
pub const TOKEN_LOAD_THRESHOLD: f64 = 4_194_304.0;

/// What an unknown KV usage counts as when no candidate's is known: in the middle, so that it decides nothing.
const UNKNOWN_KV_USAGE: f64 = 0.5;

/// What an unknown standing to an adapter counts as when no candidate's is known.
const UNKNOWN_ADAPTER: f64 = 0.5;

/// One way to value a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scorer {
    /// Share of the prompt that the candidate itself holds contiguously from its start.
    PrefixCache,
    /// `vllm:num_requests_waiting`, best for the shortest queue among the candidates.
    Queue,
    /// 1 - `vllm:kv_cache_usage_perc`.
    KvCacheUtilization,
    /// Cold prompts go to the endpoint that was least recently given one; warm ones score 0.5 everywhere.
    NoHitLru,
    /// `vllm:num_requests_running`, best for the fewest among the candidates.
    RunningRequests,
    /// The gateway's own in-flight requests, best for the fewest among the candidates.
    ActiveRequests,
    /// 1 - uncached tokens in flight (this request's included) / threshold.
    TokenLoad {
        /// Tokens at which the score reaches 0.
        threshold_tokens: f64,
    },
    /// 1 for the endpoint that the session's hash falls on, 0 elsewhere; 0.5 without a session.
    SessionAffinity,
    /// Where the LoRA adapter that is asked for runs 1, with a free slot for it 0.8, where it waits for one 0.6, else 0.
    LoraAffinity,
}

impl Scorer {
    /// The plugin's `type:` in configuration, and its term's name in a decision.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PrefixCache => "prefix-cache-scorer",
            Self::Queue => "queue-scorer",
            Self::KvCacheUtilization => "kv-cache-utilization-scorer",
            Self::NoHitLru => "no-hit-lru-scorer",
            Self::RunningRequests => "running-requests-size-scorer",
            Self::ActiveRequests => "active-request-scorer",
            Self::TokenLoad { .. } => "token-load-scorer",
            Self::SessionAffinity => "session-affinity-scorer",
            Self::LoraAffinity => "lora-affinity-scorer",
        }
    }

    /// Reads from all candidates what the score of each one depends on.
    pub(super) fn prepare(self, field: &Field) -> Prepared {
        let kept = field.kept();
        match self {
            Self::PrefixCache => Prepared::PrefixCache,
            Self::Queue => Prepared::Range(Gauge::Waiting, Range::over(kept, Gauge::Waiting)),
            Self::RunningRequests => Prepared::Range(Gauge::Running, Range::over(kept, Gauge::Running)),
            Self::ActiveRequests => Prepared::Range(Gauge::Inflight, Range::over(kept, Gauge::Inflight)),
            Self::KvCacheUtilization => {
                let known = mean(kept.iter().filter_map(|view| kv_usage(&view.scraped)));
                Prepared::KvCacheUtilization {
                    unknown: known.unwrap_or(UNKNOWN_KV_USAGE),
                }
            }
            Self::NoHitLru if field.kind == DecisionKind::Cold => Prepared::NoHitLru(cold_places(field)),
            Self::NoHitLru => Prepared::Neutral,
            Self::TokenLoad { threshold_tokens } => Prepared::TokenLoad {
                prompt_tokens: field.req.prompt_tokens,
                threshold_tokens,
            },
            Self::SessionAffinity => match field.req.session {
                Some(session) => Prepared::SessionAffinity(session_home(kept, session)),
                None => Prepared::Neutral,
            },
            Self::LoraAffinity => {
                let known = mean(kept.iter().filter_map(|view| view.adapter.map(adapter_score)));
                Prepared::LoraAffinity {
                    unknown: known.unwrap_or(UNKNOWN_ADAPTER),
                }
            }
        }
    }
}

/// A scorer that has seen all candidates.
pub(super) enum Prepared {
    PrefixCache,
    Range(Gauge, Range),
    KvCacheUtilization {
        unknown: f64,
    },
    /// Score by position among the kept candidates.
    NoHitLru(SmallVec<[f64; 16]>),
    TokenLoad {
        prompt_tokens: u32,
        threshold_tokens: f64,
    },
    /// Position of the session's home.
    SessionAffinity(usize),
    LoraAffinity {
        unknown: f64,
    },
    /// Says nothing about this request.
    Neutral,
}

impl Prepared {
    /// Score of the candidate at `index`, within 0..=1 and never NaN.
    pub fn score(&self, index: usize, view: &EndpointView) -> f64 {
        let score = match self {
            Self::PrefixCache => view.match_ratio,
            Self::Range(gauge, range) => range.score(gauge.read(view)),
            Self::KvCacheUtilization { unknown } => 1.0 - kv_usage(&view.scraped).unwrap_or(*unknown),
            Self::NoHitLru(places) => places.get(index).copied().unwrap_or(0.0),
            Self::TokenLoad {
                prompt_tokens,
                threshold_tokens,
            } => {
                let missing = prompt_tokens.saturating_sub(view.match_tokens);
                let load = view.pending_prefill_tokens as f64 + f64::from(missing);
                1.0 - load.min(*threshold_tokens) / threshold_tokens
            }
            Self::SessionAffinity(home) => f64::from(u8::from(index == *home)),
            Self::LoraAffinity { unknown } => view.adapter.map_or(*unknown, adapter_score),
            Self::Neutral => 0.5,
        };
        if score.is_nan() {
            0.0
        } else {
            score.clamp(0.0, 1.0)
        }
    }
}

/// A count that is compared among the candidates.
#[derive(Clone, Copy)]
pub(super) enum Gauge {
    Waiting,
    Running,
    Inflight,
}

impl Gauge {
    fn read(self, view: &EndpointView) -> Option<f64> {
        match self {
            Self::Waiting => trusted(view.scraped.waiting),
            Self::Running => trusted(view.scraped.running),
            Self::Inflight => Some(f64::from(view.inflight)),
        }
    }
}

/// Extremes of a count among the candidates.
pub(super) struct Range {
    min: f64,
    max: f64,
    /// Stands in for an unknown count.
    mean: f64,
}

impl Range {
    fn over(views: &[&EndpointView], gauge: Gauge) -> Self {
        let known = || views.iter().filter_map(|view| gauge.read(view));
        let mean = mean(known()).unwrap_or(0.0);
        Self {
            min: known().fold(mean, f64::min),
            max: known().fold(mean, f64::max),
            mean,
        }
    }

    /// (max - x) / (max - min); 1 for everybody when all are equal.
    fn score(&self, count: Option<f64>) -> f64 {
        if self.max <= self.min {
            return 1.0;
        }
        (self.max - count.unwrap_or(self.mean)) / (self.max - self.min)
    }
}

/// A scraped count, unless it is no number that a count could have.
fn trusted(gauge: Option<f64>) -> Option<f64> {
    gauge.filter(|value| value.is_finite() && *value >= 0.0)
}

/// The scraped KV usage as a share.
pub(super) fn kv_usage(scraped: &Scraped) -> Option<f64> {
    trusted(scraped.kv_usage).map(|usage| usage.min(1.0))
}

const fn adapter_score(standing: AdapterStanding) -> f64 {
    match standing {
        AdapterStanding::Running => 1.0,
        AdapterStanding::FreeSlot => 0.8,
        AdapterStanding::Waiting => 0.6,
        AdapterStanding::NoSlot => 0.0,
    }
}

/// `None` without any value.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// The i-th of n in the order "least recently given a cold prompt first" gets 1 - i/(n - 1).
fn cold_places(field: &Field) -> SmallVec<[f64; 16]> {
    let kept = field.kept();
    let mut order: SmallVec<[u16; 32]> = (0..kept.len() as u16).collect();
    order.sort_unstable_by(|&a, &b| field.fair_order(kept[usize::from(a)].id, kept[usize::from(b)].id));
    let last = kept.len().saturating_sub(1).max(1) as f64;
    let mut places = SmallVec::from_elem(0.0, kept.len());
    for (place, index) in order.into_iter().enumerate() {
        places[usize::from(index)] = 1.0 - place as f64 / last;
    }
    places
}

/// Rendezvous hashing over names: an endpoint that leaves moves only its own sessions.
fn session_home(kept: &[&EndpointView], session: u64) -> usize {
    let weight = |view: &EndpointView| xxh3_64_with_seed(view.name.as_bytes(), session);
    (0..kept.len())
        .max_by_key(|&index| weight(kept[index]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
