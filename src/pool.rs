//! Pools of endpoints: what is known of them, and the choice of one for a request.

pub mod ejection;
pub mod endpoint;
pub mod exact;
pub mod gate;
pub mod health;
pub mod keys;
pub mod load;
pub mod plan;
pub mod prompt;
pub mod retry_budget;
pub mod snapshot;
pub mod status;
pub mod tokens;
pub mod trust;
pub mod waiting;

mod pick;
mod prefill_due;
mod slow_start;
mod stand_still;
#[cfg(test)]
mod testing;

pub use endpoint::{Endpoint, Identity};
pub use exact::Exact;
pub use keys::{BlockKeys, Keys};
pub use plan::{Attempt, Blocks, Plan};
pub use prompt::{Prompt, PromptShape, kept_name};
pub use snapshot::{Entry, Snapshot, State};

use crate::datalayer::tokenize::TokenSource;
use crate::prefix::{EndpointId, PrefixIndex};
use crate::scheduling::{Constants, Decision, Dispatch, Scheduler};
use crate::telemetry::Metrics;
use crate::time::Mono;
use arc_swap::ArcSwap;
use ejection::EjectionLimits;
use gate::{Gate, GateSettings};
use http::HeaderValue;
use parking_lot::Mutex;
use prefill_due::PrefillDue;
use prometheus::Histogram;
use rand_pcg::Pcg64Mcg;
use retry_budget::{RetryBudget, RetryLimits};
use status::Status;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokens::TokenRates;
use tokio::sync::Notify;
use waiting::{WaitingRoom, WaitingSettings};

/// Engine block size assumed until the endpoint has told: vLLM's default on GPUs.
pub const DEFAULT_BLOCK_TOKENS: u32 = 16;

/// Bytes of prompt content per key of the index: 64 tokens at 4 bytes each. Fixed, so that a better estimate of
/// bytes per token changes what a match is worth and never which prompts match.
pub const CHUNK_BYTES: usize = 256;
/// Keys per request at most, 2 MiB of text: what lies beyond is not matched.
pub const MAX_CHUNKS: usize = 8_192;

/// What a pool's configuration says of its requests.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Models that it serves; empty: any.
    pub models: Vec<String>,
    /// Other endpoints tried after a failure.
    pub retries: u32,
    /// Statuses by which an endpoint says that another may serve the request.
    pub retry_on: Vec<u16>,
    pub retry_limits: RetryLimits,
    pub ejection: EjectionLimits,
    /// How long an endpoint that became ready is spared.
    pub slow_start: Duration,
    /// `Authorization` of requests to the endpoints, instead of the client's.
    pub api_key: Option<HeaderValue>,
    /// A stream that breaks ends with an error event instead of a cut connection.
    pub error_event: bool,
    /// Scraped values older than this are unknown.
    pub stale_after: Duration,
    pub connect_timeout: Duration,
    /// Until the response headers.
    pub first_byte_timeout: Duration,
    /// Between two reads of a response.
    pub idle_timeout: Duration,
    /// Engine block size, instead of what the endpoints report.
    pub block_tokens: Option<u32>,
    /// KV capacity per endpoint in tokens, instead of what the endpoints report.
    pub capacity_tokens: Option<u64>,
    /// How requests wait; `None`: they do not.
    pub waiting: Option<WaitingSettings>,
    /// Which conversations may begin; `None`: all.
    pub gate: Option<GateSettings>,
}

/// The endpoints that serve one set of models.
pub struct Pool {
    pub name: Arc<str>,
    pub settings: Settings,
    pub index: Arc<PrefixIndex>,
    pub rates: Arc<TokenRates>,
    pub decision_duration: Histogram,
    pub retry_budget: RetryBudget,
    /// What a pool has whose engines publish KV events.
    pub exact: Option<Exact>,
    /// Where the token ids of texts come from.
    pub tokenizer: Option<Arc<TokenSource>>,
    /// Where requests wait while every endpoint has enough to do.
    pub waiting: Arc<WaitingRoom>,
    /// What keeps the working set inside the caches; `None`: nothing.
    pub gate: Option<Arc<Gate>>,
    /// The pool that took this one's place.
    next: OnceLock<Arc<Self>>,
    /// What is observed of the endpoints, to be changed through [`Pool::update`] only.
    statuses: Mutex<Vec<Status>>,
    snapshot: ArcSwap<Snapshot>,
    /// Whether requests need not wait for the first health checks any more.
    settled: AtomicBool,
    settling: Notify,
    /// Held from the reading of the load to the reservation, so that concurrent picks see each other. Never
    /// across an await.
    picker: Arc<Mutex<Picker>>,
}

/// What a pick changes.
struct Picker {
    scheduler: Scheduler,
    rng: Pcg64Mcg,
    prefill_due: PrefillDue,
}

impl Pool {
    /// A pool of `endpoints`, none of them ready yet.
    pub fn new(
        name: Arc<str>,
        settings: Settings,
        index: Arc<PrefixIndex>,
        scheduler: Scheduler,
        endpoints: Vec<Arc<Endpoint>>,
        metrics: &Metrics,
        seed: u64,
    ) -> Self {
        let statuses: Vec<_> = endpoints.into_iter().map(Status::new).collect();
        let snapshot = ArcSwap::from_pointee(status::snapshot(&statuses));
        Self {
            decision_duration: metrics.decision_duration(&name),
            retry_budget: RetryBudget::new(settings.retry_limits),
            exact: None,
            tokenizer: None,
            waiting: Arc::new(WaitingRoom::new(settings.waiting.as_ref(), metrics.queue(&name))),
            gate: gate(&name, &settings, metrics),
            next: OnceLock::new(),
            name,
            settings,
            index,
            rates: Arc::default(),
            statuses: Mutex::new(statuses),
            snapshot,
            settled: AtomicBool::new(false),
            settling: Notify::new(),
            picker: Arc::new(Mutex::new(Picker {
                scheduler,
                rng: Pcg64Mcg::new(u128::from(seed)),
                prefill_due: PrefillDue::default(),
            })),
        }
    }

    /// The pool that takes this one's place after a change of its configuration. It knows what this one knows of the
    /// endpoints that are in both; with a new `scheduler` it learns its rates anew. What
    /// it has of events and tokens is to be given to it, as to a new one.
    pub fn successor(
        &self,
        settings: Settings,
        scheduler: Option<Scheduler>,
        endpoints: Vec<Arc<Endpoint>>,
        metrics: &Metrics,
    ) -> Self {
        let known = self.statuses.lock();
        let mut newcomers = Vec::new();
        let mut status = |endpoint: Arc<Endpoint>| {
            let known = known.iter().find(|status| status.id() == endpoint.id);
            known.cloned().unwrap_or_else(|| {
                newcomers.push(endpoint.id);
                Status::new(endpoint)
            })
        };
        let statuses: Vec<_> = endpoints.into_iter().map(&mut status).collect();
        let picker = match scheduler {
            None => {
                // Their ids may have been others' before.
                let mut picker = self.picker.lock();
                newcomers.into_iter().for_each(|id| picker.scheduler.forget(id));
                drop(picker);
                self.picker.clone()
            }
            Some(scheduler) => Arc::new(Mutex::new(Picker {
                scheduler,
                rng: self.picker.lock().rng.clone(),
                prefill_due: PrefillDue::default(),
            })),
        };
        let known_gate = self.gate.clone().filter(|_| settings.gate.is_some());
        let gate = known_gate.or_else(|| gate(&self.name, &settings, metrics));
        Self {
            name: self.name.clone(),
            exact: None,
            tokenizer: None,
            waiting: self.waiting.clone(),
            gate,
            next: OnceLock::new(),
            index: self.index.clone(),
            rates: self.rates.clone(),
            decision_duration: self.decision_duration.clone(),
            retry_budget: RetryBudget::new(settings.retry_limits),
            snapshot: ArcSwap::from_pointee(status::snapshot(&statuses)),
            settled: AtomicBool::new(is_settled(&statuses)),
            settling: Notify::new(),
            statuses: Mutex::new(statuses),
            settings,
            picker,
        }
    }

    /// From now on `next` is the pool that places requests; those that wait in this one as well.
    pub fn replaced_by(&self, next: &Arc<Self>) {
        self.waiting.follow(next.settings.waiting.as_ref());
        if let (Some(gate), Some(settings)) = (&next.gate, &next.settings.gate) {
            gate.retune(settings.working_set);
        }
        // A pool is replaced once.
        let _ = self.next.set(next.clone());
    }

    /// The pool that places requests now: this one or the last that took its place.
    pub fn newest(self: &Arc<Self>) -> &Arc<Self> {
        let mut newest = self;
        while let Some(next) = newest.next.get() {
            newest = next;
        }
        newest
    }

    /// What is known of the endpoints now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Changes what is known of the endpoint at `at` and publishes the result when `change` says so.
    pub fn update(&self, at: usize, change: impl FnOnce(&mut Status) -> bool) {
        let mut statuses = self.statuses.lock();
        if statuses.get_mut(at).is_some_and(change) {
            self.publish(&statuses);
        }
    }

    fn publish(&self, statuses: &[Status]) {
        self.snapshot.store(Arc::new(status::snapshot(statuses)));
        if !self.settled.load(Ordering::Relaxed) && is_settled(statuses) {
            self.settled.store(true, Ordering::Release);
            self.settling.notify_waiters();
        }
    }

    /// Waits until an endpoint is ready or all have been checked once, at most `limit`: requests that a process gets
    /// as it starts are not to be refused for want of a look at the endpoints.
    pub async fn settle(&self, limit: Duration) {
        if self.settled.load(Ordering::Acquire) {
            return;
        }
        // Registered before the second look, so a change in between is not missed.
        let settling = self.settling.notified();
        if !self.settled.load(Ordering::Acquire) {
            // Out of time, the request is refused as it would have been.
            let _ = tokio::time::timeout(limit, settling).await;
        }
    }

    /// As [`Pool::update`], for the endpoint that `is` describes; false when there is none.
    pub fn update_where(
        &self,
        is: impl Fn(&Endpoint) -> bool,
        change: impl FnOnce(&mut Status) -> bool,
    ) -> bool {
        let at = self
            .snapshot
            .load()
            .entries
            .iter()
            .position(|entry| is(&entry.endpoint));
        let Some(at) = at else { return false };
        self.update(at, change);
        true
    }

    /// A request to the endpoint ended well.
    pub fn succeeded(self: &Arc<Self>, endpoint: &Endpoint, now: Mono) {
        if endpoint.outcomes.success() {
            self.newest()
                .update_where(|other| other.id == endpoint.id, |status| status.acquit(now));
        }
    }

    /// The endpoint failed a request: it may be set aside.
    pub fn failed(self: &Arc<Self>, endpoint: &Endpoint, now: Mono) {
        let newest = self.newest();
        if let Some(why) = endpoint.outcomes.failure(now, &newest.settings.ejection) {
            newest.set_aside(endpoint, now, &why);
        }
    }

    /// Sets the endpoint aside, unless it is the last that is ready or half of the pool is set aside already.
    pub fn eject(self: &Arc<Self>, endpoint: &Endpoint, now: Mono, why: &str) {
        self.newest().set_aside(endpoint, now, why);
    }

    fn set_aside(&self, endpoint: &Endpoint, now: Mono, why: &str) {
        let mut statuses = self.statuses.lock();
        let others = statuses.iter().filter(|status| status.id() != endpoint.id);
        let (mut ready, mut ejected) = (0, 0);
        for other in others {
            ready += usize::from(other.is_ready());
            ejected += usize::from(other.is_ejected());
        }
        if ready == 0 || ejected + 1 > statuses.len() / 2 {
            return;
        }
        let limits = &self.settings.ejection;
        let found = statuses.iter_mut().find(|status| status.id() == endpoint.id);
        if found.is_some_and(|status| status.eject(now, why, limits)) {
            tracing::warn!(pool = %self.name, endpoint = %endpoint.name, why, "the endpoint is set aside");
            self.publish(&statuses);
        }
    }

    /// Whether the pool serves `model`.
    pub fn serves(&self, model: &str) -> bool {
        self.settings.models.iter().any(|served| served == model)
    }

    /// Tokens per KV block of an endpoint.
    pub fn block_tokens(&self, entry: &Entry) -> u32 {
        self.settings
            .block_tokens
            .or(entry.engine.block_size)
            .unwrap_or(DEFAULT_BLOCK_TOKENS)
    }

    /// Tokens per KV block of the endpoint that a decision over `snapshot` chose; 0 when it chose none.
    pub fn chosen_block_tokens(&self, decision: &Decision, snapshot: &Snapshot) -> u32 {
        let entry = decision.chosen().and_then(|chosen| snapshot.by_id(chosen.id));
        entry.map_or(0, |entry| self.block_tokens(entry))
    }

    /// KV capacity of an endpoint in tokens, if known.
    pub fn capacity_tokens(&self, entry: &Entry) -> Option<u64> {
        self.settings.capacity_tokens.or(entry.engine.capacity_tokens)
    }

    /// Name of the rule that decides.
    pub fn policy_name(&self) -> &'static str {
        self.picker.lock().scheduler.policy_name()
    }

    /// Bytes of prompt content per token, over all models of the pool.
    pub fn bytes_per_token(&self) -> f64 {
        self.rates.overall.bytes_per_token()
    }

    /// Output tokens that an answer of `model` is reckoned to have.
    pub fn expected_output_tokens(&self, model: &str, max_output_tokens: Option<u32>) -> u32 {
        let picker = self.picker.lock();
        picker.scheduler.expected_output_tokens(model, max_output_tokens)
    }

    /// What the scheduler believes of an endpoint.
    pub fn learnt(&self, now: Mono, id: EndpointId) -> Constants {
        self.picker.lock().scheduler.learnt(now, id)
    }

    /// Lets the scheduler learn from what was observed of a request that ran undisturbed.
    pub fn learn(&self, observe: impl FnOnce(&mut Scheduler)) {
        observe(&mut self.picker.lock().scheduler);
    }

    fn revert(&self, dispatch: &Dispatch) {
        self.picker.lock().scheduler.revert(dispatch);
    }
}

fn is_settled(statuses: &[Status]) -> bool {
    statuses.iter().any(Status::is_ready) || statuses.iter().all(Status::is_checked)
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// All pools of the gateway.
#[derive(Debug, Default)]
pub struct Pools {
    pools: Vec<Arc<Pool>>,
}

impl Pools {
    /// In the order of the configuration.
    pub fn new(pools: Vec<Arc<Pool>>) -> Self {
        Self { pools }
    }

    /// The pool that serves `model`: the one that names it, else the first that serves any model. A request
    /// that names no model goes to the latter, else to the first pool.
    pub fn for_model(&self, model: &str) -> Option<&Arc<Pool>> {
        let any = || self.pools.iter().find(|pool| pool.settings.models.is_empty());
        if model.is_empty() {
            return any().or_else(|| self.pools.first());
        }
        self.pools.iter().find(|pool| pool.serves(model)).or_else(any)
    }

    /// The pool named `name`.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| &*pool.name == name)
    }

    /// All pools.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.pools.iter()
    }
}

fn gate(pool: &str, settings: &Settings, metrics: &Metrics) -> Option<Arc<Gate>> {
    let settings = settings.gate.as_ref()?;
    Some(Arc::new(Gate::new(
        settings.working_set,
        metrics.working_set(pool),
    )))
}
