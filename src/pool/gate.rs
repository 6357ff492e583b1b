//! The working-set gate of a pool: [`WorkingSet`] behind a lock, and each request's part in it as a guard.

use super::pick::Match;
use super::{Entry, Pool, Prompt, State};
use crate::overload::queue::Verdict;
use crate::overload::working_set::{Held, Kind, Place, Stay, Visit, WorkingSet, WorkingSetSettings};
use crate::prefix::EndpointId;
use crate::scheduling::index_margin;
use crate::telemetry::WorkingSetMetrics;
use crate::time::Mono;
use http::{HeaderMap, HeaderName};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// What a pool's configuration says of the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct GateSettings {
    pub working_set: WorkingSetSettings,
    /// Request headers that may name the conversation, the first that is there.
    pub session_headers: Vec<HeaderName>,
    /// Longest wait for room.
    pub timeout: Duration,
}

impl GateSettings {
    /// Hash of the conversation's name, when the client sent one.
    pub fn session(&self, headers: &HeaderMap) -> Option<u64> {
        let named = self.session_headers.iter().find_map(|name| headers.get(name));
        named.map(|value| xxh3_64(value.as_bytes()))
    }
}

/// One pool's conversations.
pub struct Gate {
    metrics: WorkingSetMetrics,
    inner: Mutex<Inner>,
}

/// What the lock protects. It is taken after those of the queue and the picker.
pub(super) struct Inner {
    pub set: WorkingSet,
    /// Newest time told, for those who leave without knowing it.
    now: Mono,
}

/// What the gate made of a request that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It continues a conversation.
    Continued,
    /// So it does, and there was room for its context, which had been evicted.
    Returned,
    /// It brings little that is new.
    Known,
    /// A new conversation, while the gate is open: nothing is being evicted too early.
    Open,
    /// A new conversation for which there was room.
    Fits,
}

impl Admitted {
    /// All of them, for metrics.
    pub const ALL: [Self; 5] = [
        Self::Continued,
        Self::Returned,
        Self::Known,
        Self::Open,
        Self::Fits,
    ];

    /// The word in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Continued => "continued",
            Self::Returned => "returned",
            Self::Known => "known",
            Self::Open => "open",
            Self::Fits => "fits",
        }
    }

    const fn of(kind: Kind, is_closing: bool) -> Self {
        match (kind, is_closing) {
            (Kind::Returning, _) => Self::Returned,
            (Kind::Continued, _) => Self::Continued,
            (Kind::Known, _) => Self::Known,
            (Kind::Fresh, false) => Self::Open,
            (Kind::Fresh, true) => Self::Fits,
        }
    }
}

/// The gate at one moment, for metrics and admin pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GateSample {
    pub conversations: usize,
    /// Theta, 0..=1.
    pub regret: f64,
    /// Whether a new conversation needs room in a cache.
    pub is_closing: bool,
    /// Share of a capacity that may be held when a conversation is admitted.
    pub fraction: f64,
}

impl Gate {
    /// A gate that knows nothing yet, and is open.
    pub fn new(settings: WorkingSetSettings, metrics: WorkingSetMetrics) -> Self {
        Self {
            metrics,
            inner: Mutex::new(Inner {
                set: WorkingSet::new(settings),
                now: Mono::ZERO,
            }),
        }
    }

    /// Handles of its metric series.
    pub const fn metrics(&self) -> &WorkingSetMetrics {
        &self.metrics
    }

    pub(super) fn lock(&self, now: Mono) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        inner.now = inner.now.max(now);
        inner
    }

    /// Other settings from now on; what was learnt stays.
    pub(super) fn retune(&self, settings: WorkingSetSettings) {
        self.inner.lock().set.retune(settings);
    }

    /// The endpoint's cache is gone.
    pub fn forget_endpoint(&self, endpoint: EndpointId) {
        self.inner.lock().set.forget_endpoint(endpoint);
    }

    /// The gate at this moment.
    pub fn sample(&self, now: Mono) -> GateSample {
        let mut inner = self.lock(now);
        inner.set.pass(now);
        GateSample {
            conversations: inner.set.len(),
            regret: inner.set.regret(),
            is_closing: inner.set.is_closing(),
            fraction: inner.set.settings().fraction,
        }
    }

    /// Tokens that conversations hold on `endpoint`.
    pub fn held(&self, endpoint: EndpointId) -> Held {
        self.inner.lock().set.held(endpoint)
    }

    /// The request goes to `endpoint`, which holds `match_tokens` of it.
    pub(super) fn dispatched(
        self: &Arc<Self>,
        now: Mono,
        visit: &Visit,
        endpoint: EndpointId,
        match_tokens: u32,
    ) -> Option<Staying> {
        let mut inner = self.lock(now);
        let admitted = Admitted::of(inner.set.kind(now, visit), inner.set.is_closing());
        self.metrics.count_admitted(admitted);
        let stay = inner.set.dispatched(now, visit, endpoint, match_tokens)?;
        Some(self.staying(stay))
    }

    /// The request begins to wait; `None` when it continues no conversation.
    pub(super) fn announce(self: &Arc<Self>, now: Mono, visit: &Visit) -> Option<Staying> {
        let stay = self.lock(now).set.announce(now, visit)?;
        Some(self.staying(stay))
    }

    fn staying(self: &Arc<Self>, stay: Stay) -> Staying {
        Staying {
            gate: self.clone(),
            stay,
            output_tokens: 0,
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// A request's part in the working set, given back by drop.
#[derive(Debug)]
pub struct Staying {
    gate: Arc<Gate>,
    stay: Stay,
    output_tokens: u32,
}

impl Staying {
    /// The answer had this many tokens.
    pub fn said(&mut self, now: Mono, output_tokens: u32) {
        self.output_tokens = output_tokens;
        drop(self.gate.lock(now));
    }

    /// The request is tried at another endpoint.
    pub(super) fn moved(&self, now: Mono, endpoint: EndpointId) {
        self.gate.lock(now).set.moved(self.stay, endpoint);
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        let mut inner = self.gate.inner.lock();
        let now = inner.now;
        inner.set.ended(now, self.stay, self.output_tokens);
    }
}

impl Prompt {
    /// The request as the gate sees it after it has `waited`, when some endpoint holds `best_match_tokens` of it.
    pub(super) fn visit(&self, best_match_tokens: u32, waited: Duration) -> Visit<'_> {
        Visit {
            session: self.conversation,
            blocks: self.whole_blocks(),
            prompt_tokens: self.tokens,
            best_match_tokens,
            waited,
        }
    }
}

/// What the gate would make of a request that came now.
#[derive(Clone, Debug)]
pub struct GateOutlook {
    pub kind: Kind,
    /// Theta, 0..=1.
    pub regret: f64,
    pub is_closing: bool,
    /// Name of each ready endpoint, tokens held there, how many there may be, and whether it would take the request.
    pub endpoints: Vec<(Box<str>, u64, Option<u64>, bool)>,
}

impl Pool {
    /// What the gate would make of `prompt` now; `None` without a gate.
    pub fn gate_outlook(&self, prompt: &Prompt, now: Mono) -> Option<GateOutlook> {
        let gate = self.gate_for(prompt)?;
        let snapshot = self.snapshot();
        let matches = self.look_up(&snapshot, prompt);
        let picker = self.picker.lock();
        let wait = self.assess(&snapshot, prompt, &matches, &picker, Verdict::Stop, now);
        drop(picker);
        let mut inner = gate.lock(now);
        inner.set.pass(now);
        let set = &inner.set;
        let visit = prompt.visit(wait.best_match_tokens, Duration::ZERO);
        let kind = set.kind(now, &visit);
        let place = |(entry, found): (&Entry, &Match)| Place {
            endpoint: entry.endpoint.id,
            match_tokens: found.tokens,
            capacity_tokens: self.capacity_tokens(entry),
        };
        let known = snapshot.entries.iter().zip(&matches);
        let ready = known.filter(|(entry, _)| entry.state == State::Ready);
        let places: Vec<Place> = ready.map(place).collect();
        let full = set.full(now, kind, &visit, wait.output_tokens, &places, wait.tokens_per_s);
        let endpoint = |entry: &Entry| {
            let id = entry.endpoint.id;
            (
                entry.endpoint.name.as_ref().into(),
                set.held(id).tokens(),
                self.working_set_limit(entry),
                !full.contains(&id),
            )
        };
        Some(GateOutlook {
            kind,
            regret: set.regret(),
            is_closing: set.is_closing(),
            endpoints: snapshot.ready().map(endpoint).collect(),
        })
    }

    /// The gate, for requests that leave something in a cache.
    pub(super) fn gate_for(&self, prompt: &Prompt) -> Option<&Arc<Gate>> {
        self.gate.as_ref().filter(|_| prompt.fills_cache)
    }

    /// Tokens that conversations may hold on an endpoint when another is admitted there; `None` without a gate, or
    /// while the capacity is not known.
    pub fn working_set_limit(&self, entry: &Entry) -> Option<u64> {
        let fraction = self.settings.gate.as_ref()?.working_set.fraction;
        Some((self.capacity_tokens(entry)? as f64 * fraction) as u64)
    }

    /// What the index remembers of an endpoint, relative to what its engine is said to hold.
    pub fn index_margin(&self) -> f64 {
        index_margin(self.settings.gate.is_some())
    }

    /// What an endpoint's engine had cached is gone.
    pub fn cache_lost(&self, endpoint: EndpointId) {
        if let Some(gate) = &self.gate {
            gate.forget_endpoint(endpoint);
        }
    }
}

#[cfg(test)]
mod tests;
