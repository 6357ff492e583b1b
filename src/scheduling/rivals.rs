//! The rules of other routers, as policies for `homing replay`: same inputs, same engine, their formula.
//!
//! N in-flight requests, L prompt tokens, h cached ones, P pending prefill tokens, A active context tokens; own words and
//! own code after each project's published rule.

use super::field::{Field, Order};
use super::least_cost::model::{Constants, FleetModel};
use super::sticky::work_tokens;
use super::view::{Decision, EndpointView};
use crate::prefix::EndpointId;
use crate::time::Mono;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Blocks of a prompt that [`Rival::Chwbl`] places by.
pub const PREFIX_KEY_BLOCKS: usize = 4;

/// A published rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Power of two choices: the fewer in flight of two random endpoints (Mitzenmacher 2001).
    P2c,
    /// SGLang's router: best match above 0.3 unless the fleet is out of balance, else least loaded.
    SglangCacheAware,
    /// NVIDIA Dynamo: argmin of prefill plus decode blocks, here in tokens.
    Dynamo,
    /// LMetric: argmin of (P + L - h) x batch.
    Lmetric,
    /// argmin of estimated time to first token.
    TtftEstimate,
    /// Preble's E2: exploit a match that saves more than half, else the lightest recent load.
    Preble,
    /// Consistent hashing with bounded loads (Mirrokni et al. 2018), on the prompt's first blocks.
    Chwbl,
    /// SMG: best match above 0.3 if its load is near the mean, else the shortest expected wait.
    Smg,
}

/// Every rival with its name on the command line.
pub(super) const RIVALS: &[(&str, Rival)] = &[
    ("p2c", Rival::P2c),
    ("cache_aware", Rival::SglangCacheAware),
    ("dynamo", Rival::Dynamo),
    ("lmetric", Rival::Lmetric),
    ("ttft-estimate", Rival::TtftEstimate),
    ("preble", Rival::Preble),
    ("chwbl", Rival::Chwbl),
    ("smg", Rival::Smg),
];

/// SGLang: difference of in-flight requests that is out of balance,
const SGLANG_BALANCE_ABS: u32 = 64;
/// and ratio that it takes besides.
const SGLANG_BALANCE_REL: f64 = 1.5;
/// SGLang and SMG: share of the prompt from which a match is followed.
const MATCH_THRESHOLD: f64 = 0.3;
/// CHWBL: load above the mean at which an endpoint is passed over.
const CHWBL_LOAD_FACTOR: f64 = 1.25;
/// SMG: load above the mean up to which a match is followed,
const SMG_LOAD_FACTOR: f64 = 1.5;
/// and requests of slack besides.
const SMG_SLACK: f64 = 2.0;
/// SMG: seconds charged for KV pressure k as k / (1 - k).
const SMG_KV_S: f64 = 0.15;
/// Preble: seconds over which load is remembered.
const PREBLE_WINDOW_S: f64 = 180.0;
/// Preble: load of the heaviest over the lightest from which a match is no longer followed.
const PREBLE_IMBALANCE: f64 = 2.0;

/// Names of a rival's only term.
pub(super) const TERMS: &[&str] = &["cost"];

/// A rule with the state that it keeps.
#[derive(Clone, Debug)]
pub(super) struct RivalState {
    rival: Rival,
    name: &'static str,
    /// The same learnt constants as `least-cost`'s, for the rules that count in seconds.
    pub fleet: FleetModel,
    /// Preble: recent load in seconds of work, and when it was brought up to date.
    window: Vec<(f64, Mono)>,
}

impl RivalState {
    pub fn new(rival: Rival, start: Constants, step_tokens: f64, learn: bool) -> Self {
        let name = RIVALS
            .iter()
            .find(|(_, known)| *known == rival)
            .map_or("rival", |(name, _)| *name);
        Self {
            rival,
            name,
            fleet: FleetModel::new(start, step_tokens, learn),
            window: Vec::new(),
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A pick: what the window remembers of it.
    pub fn commit(&mut self, now: Mono, prompt_tokens: u32, output_tokens: f64, view: &EndpointView) {
        if self.rival != Rival::Preble {
            return;
        }
        let index = usize::from(view.id.0);
        if index >= self.window.len() {
            self.window.resize(index + 1, (0.0, Mono::ZERO));
        }
        let constants = self.fleet.constants(now, view.id);
        let decode_s = output_tokens * constants.decode_step_s(f64::from(prompt_tokens), 1.0);
        let own = constants.prefill_s(f64::from(prompt_tokens), f64::from(view.match_tokens)) + decode_s;
        self.window[index] = (self.recent_load(now, view.id) + own, now);
    }

    pub fn decide(&self, now: Mono, mut field: Field, term_names: &Arc<[&'static str]>) -> Decision {
        let prompt_tokens = field.req.prompt_tokens;
        let missing = |view: &EndpointView| prompt_tokens.saturating_sub(view.match_tokens);
        match self.rival {
            Rival::P2c => {
                let (first, second) = two_random(&field);
                field.set_aside("not drawn", |view| view.id == first || view.id == second);
                self.rank(field, term_names, inflight)
            }
            Rival::SglangCacheAware => {
                sglang(&mut field);
                self.rank(field, term_names, inflight)
            }
            Rival::Dynamo => self.rank(field, term_names, |view| {
                work_tokens(prompt_tokens, view) as f64 + view.active_tokens as f64 + f64::from(prompt_tokens)
            }),
            Rival::Lmetric => self.rank(field, term_names, |view| {
                work_tokens(prompt_tokens, view) as f64 * f64::from(view.inflight + 1)
            }),
            Rival::TtftEstimate => self.rank(field, term_names, |view| {
                let constants = self.fleet.constants(now, view.id);
                constants.prefill_s_per_token * view.pending_prefill_tokens as f64
                    + constants.prefill_s(f64::from(prompt_tokens), f64::from(view.match_tokens))
            }),
            Rival::Preble => {
                self.preble_exploit(now, &mut field);
                self.rank(field, term_names, |view| {
                    let constants = self.fleet.constants(now, view.id);
                    let evicted = evicted_tokens(missing(view), view) * constants.prefill_s_per_token;
                    let own = constants.prefill_s(f64::from(prompt_tokens), f64::from(view.match_tokens));
                    self.recent_load(now, view.id) + evicted + own
                })
            }
            Rival::Chwbl => {
                let key = field.req.prefix_key;
                chwbl_bound(&mut field);
                self.rank(field, term_names, |view| ring_distance(key, view))
            }
            Rival::Smg => {
                smg_follow(&mut field);
                self.rank(field, term_names, |view| {
                    let constants = self.fleet.constants(now, view.id);
                    let wait = constants.prefill_s_per_token * work_tokens(prompt_tokens, view) as f64;
                    wait + SMG_KV_S * kv_pressure(view)
                })
            }
        }
    }

    fn rank(
        &self,
        field: Field,
        term_names: &Arc<[&'static str]>,
        cost: impl Fn(&EndpointView) -> f64,
    ) -> Decision {
        field.rank(self.name, term_names, Order::LowestFirst, |_, view| {
            let cost = cost(view);
            (cost, smallvec![cost])
        })
    }

    /// Seconds of work sent there lately; an exponential window of Preble's length.
    fn recent_load(&self, now: Mono, id: EndpointId) -> f64 {
        let Some((load, at)) = self.window.get(usize::from(id.0)) else {
            return 0.0;
        };
        load * (-now.since(*at).as_secs_f64() / PREBLE_WINDOW_S).exp()
    }

    /// E2: the best-match endpoints, when they save more than what is left to compute and are not overloaded.
    fn preble_exploit(&self, now: Mono, field: &mut Field) {
        let best = field
            .kept()
            .iter()
            .map(|view| view.match_tokens)
            .max()
            .unwrap_or(0);
        if best <= field.req.prompt_tokens.saturating_sub(best) {
            return;
        }
        let load = |view: &EndpointView| self.recent_load(now, view.id);
        let loads: SmallVec<[f64; 64]> = field.kept().iter().map(|view| load(view)).collect();
        let heaviest = loads.iter().copied().fold(0.0, f64::max);
        let lightest = loads.iter().copied().fold(f64::MAX, f64::min);
        let homes = field.kept().iter().filter(|view| view.match_tokens == best);
        let home_load = homes.map(|view| load(view)).fold(f64::MAX, f64::min);
        let overloaded = home_load >= heaviest && heaviest > PREBLE_IMBALANCE * lightest.max(1.0);
        if !overloaded {
            field.set_aside("not the best match", |view| view.match_tokens == best);
        }
    }
}

fn inflight(view: &EndpointView) -> f64 {
    f64::from(view.inflight)
}

fn two_random(field: &Field) -> (EndpointId, EndpointId) {
    let mut order: SmallVec<[EndpointId; 64]> = field.kept().iter().map(|view| view.id).collect();
    order.sort_unstable_by_key(|id| field.shuffled(*id));
    let first = order.first().copied().unwrap_or(EndpointId(0));
    (first, order.get(1).copied().unwrap_or(first))
}

fn sglang(field: &mut Field) {
    let counts = || field.kept().iter().map(|view| view.inflight);
    let (min, max) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    let unbalanced = max - min > SGLANG_BALANCE_ABS && f64::from(max) > SGLANG_BALANCE_REL * f64::from(min);
    if !unbalanced {
        follow_best_match(field);
    }
}

/// Leaves the endpoints of the longest match, if it is long enough to follow.
fn follow_best_match(field: &mut Field) {
    let best = field
        .kept()
        .iter()
        .map(|view| view.match_tokens)
        .max()
        .unwrap_or(0);
    if f64::from(best) > MATCH_THRESHOLD * f64::from(field.req.prompt_tokens) {
        field.set_aside("not the best match", |view| view.match_tokens == best);
    }
}

fn smg_follow(field: &mut Field) {
    let kept = field.kept();
    let mean = kept.iter().map(|view| inflight(view)).sum::<f64>() / kept.len().max(1) as f64;
    let best = kept
        .iter()
        .max_by_key(|view| (view.match_tokens, std::cmp::Reverse(view.inflight)));
    if best.is_some_and(|view| inflight(view) <= SMG_LOAD_FACTOR * mean + SMG_SLACK) {
        follow_best_match(field);
    }
}

/// Sets aside who would exceed the bound on load with one more request.
fn chwbl_bound(field: &mut Field) {
    let kept = field.kept();
    let total = kept.iter().map(|view| inflight(view)).sum::<f64>() + 1.0;
    let bound = (CHWBL_LOAD_FACTOR * total / kept.len().max(1) as f64).ceil();
    field.set_aside("over the load bound", |view| inflight(view) + 1.0 <= bound);
}

/// Way from the key to the endpoint's nearest point on a ring of [`RING_POINTS`] points each, 0..1.
fn ring_distance(key: Option<u64>, view: &EndpointView) -> f64 {
    let Some(key) = key else { return inflight(view) };
    let points = (0..RING_POINTS).map(|point| xxh3_64_with_seed(view.name.as_bytes(), point));
    points
        .map(|point| point.wrapping_sub(key))
        .min()
        .unwrap_or(u64::MAX) as f64
        / u64::MAX as f64
}

/// Points of an endpoint on the hash ring.
const RING_POINTS: u64 = 32;

fn evicted_tokens(missing: u32, view: &EndpointView) -> f64 {
    let room = view
        .capacity_tokens
        .map_or(u64::MAX, |capacity| capacity.saturating_sub(view.cached_tokens));
    u64::from(missing).saturating_sub(room) as f64
}

fn kv_pressure(view: &EndpointView) -> f64 {
    let usage = super::scorers::kv_usage(&view.scraped).unwrap_or(0.5).min(0.99);
    usage / (1.0 - usage)
}

#[cfg(test)]
mod tests;
