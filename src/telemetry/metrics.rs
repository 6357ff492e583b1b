//! The gateway's metric families, built once and passed in; nothing uses a global registry.

use super::cost::{CostFamilies, CostMetrics};
use super::kv::{KvFamilies, KvMetrics};
use super::models::{ModelFamilies, ModelMetrics, SeenModels};
use super::names;
use super::queue::{QueueFamilies, QueueMetrics};
use super::series::Forget;
use super::working_set::{WorkingSetFamilies, WorkingSetMetrics};
use crate::discovery::Origin;
use crate::proxy::error::Reason;
use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    CounterVec, Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Seconds from 1 us, for what happens inside the gateway.
const MICROSECOND_BUCKETS: &[f64] = &[
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1,
];
/// Seconds for what engines do: from a cache hit on a small model to a long generation.
pub(super) const SECOND_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0,
    600.0,
];

/// All families. Cloning is cheap: every part is shared.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// Families with series of endpoints.
    per_endpoint: Arc<[Box<dyn Forget>]>,
    requests: IntCounterVec,
    request_duration: HistogramVec,
    first_byte: HistogramVec,
    decision_duration: HistogramVec,
    decisions: IntCounterVec,
    prompt_blocks: IntCounterVec,
    matched_blocks: IntCounterVec,
    inflight: IntGaugeVec,
    pending_prefill: IntGaugeVec,
    state: IntGaugeVec,
    index_blocks: IntGaugeVec,
    /// Bytes that the prefix index holds.
    pub index_bytes: IntGauge,
    errors: IntCounterVec,
    retries: IntCounterVec,
    scrapes: IntCounterVec,
    cost: CostFamilies,
    discovery_lookups: IntCounterVec,
    models: ModelFamilies,
    kv: KvFamilies,
    queue: QueueFamilies,
    working_set: WorkingSetFamilies,
    /// Reloads by outcome (`success`, `failure`).
    pub config_reloads: IntCounterVec,
    /// 1 when the newest configuration is in use.
    pub config_last_reload_successful: Gauge,
}

impl Metrics {
    /// Registers all families in a registry of their own.
    ///
    /// # Errors
    /// Only when two families have one name, which a test would show.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let build = Families {
            registry: &registry,
            per_endpoint: RefCell::default(),
        };
        let info = build.gauges(
            names::BUILD_INFO,
            "Version and commit of this binary.",
            &["version", "commit"],
        )?;
        let commit = option_env!("HOMING_COMMIT").unwrap_or("unknown");
        info.with_label_values(&[env!("CARGO_PKG_VERSION"), commit])
            .set(1.0);
        let errors = build.counters(names::ERRORS, "Answers made by the gateway itself.", &["reason"])?;
        for reason in Reason::ALL {
            errors.with_label_values(&[reason.label()]);
        }
        let config_reloads = build.counters(names::CONFIG_RELOADS, "Configuration reloads.", &["outcome"])?;
        for outcome in ["success", "failure"] {
            config_reloads.with_label_values(&[outcome]);
        }
        let last_reload = Gauge::with_opts(Opts::new(
            names::CONFIG_LAST_RELOAD_SUCCESSFUL,
            "1 when the newest configuration is in use.",
        ))?;
        last_reload.set(1.0);
        registry.register(Box::new(last_reload.clone()))?;
        let index_bytes = IntGauge::new(names::PREFIX_INDEX_BYTES, "Memory of the prefix index.")?;
        registry.register(Box::new(index_bytes.clone()))?;
        let on_endpoint = ["pool", "endpoint"];
        let queue = QueueFamilies::new(&build)?;
        let cost = CostFamilies::new(&build)?;
        let kv = KvFamilies::new(&build)?;
        let models = ModelFamilies::new(&build)?;
        let working_set = WorkingSetFamilies::new(&build)?;
        Ok(Self {
            requests: build.counters(
                names::REQUESTS,
                "Requests answered, by status code and kind of path.",
                &["pool", "endpoint", "code", "path_kind"],
            )?,
            request_duration: build.histograms(
                names::REQUEST_DURATION,
                "From the request's headers to the response's last byte.",
                &on_endpoint,
                SECOND_BUCKETS,
            )?,
            first_byte: build.histograms(
                names::TIME_TO_FIRST_BYTE,
                "From the choice of the endpoint to the first byte of the response body.",
                &on_endpoint,
                SECOND_BUCKETS,
            )?,
            decision_duration: build.histograms(
                names::DECISION_DURATION,
                "Parse, hash, lookup, score and pick.",
                &["pool"],
                MICROSECOND_BUCKETS,
            )?,
            decisions: build.counters(
                names::DECISIONS,
                "Decisions by the endpoint chosen and by kind (warm, cold, unkeyed).",
                &["pool", "endpoint", "kind"],
            )?,
            prompt_blocks: build.counters(
                names::PROMPT_BLOCKS,
                "KV blocks of the prompts sent to the endpoint.",
                &on_endpoint,
            )?,
            matched_blocks: build.counters(
                names::PREFIX_MATCHED_BLOCKS,
                "KV blocks of those that the prefix index believed cached there.",
                &on_endpoint,
            )?,
            inflight: build.int_gauges(
                names::ENDPOINT_INFLIGHT,
                "Requests picked for the endpoint whose response has not ended.",
                &on_endpoint,
            )?,
            pending_prefill: build.int_gauges(
                names::ENDPOINT_PENDING_PREFILL,
                "Uncached prompt tokens sent to the endpoint and not yet at their first response byte.",
                &on_endpoint,
            )?,
            state: build.int_gauges(
                names::ENDPOINT_STATE,
                "1 for the state that the endpoint is in.",
                &["pool", "endpoint", "state"],
            )?,
            index_blocks: build.int_gauges(
                names::PREFIX_INDEX_BLOCKS,
                "Blocks that the prefix index credits to the endpoint.",
                &on_endpoint,
            )?,
            retries: build.counters(
                names::RETRIES,
                "Tries that failed on the endpoint and were repeated elsewhere, by cause.",
                &["pool", "endpoint", "cause"],
            )?,
            scrapes: build.counters(
                names::SCRAPES,
                "Scrapes of the endpoint's metrics, by outcome.",
                &["pool", "endpoint", "outcome"],
            )?,
            discovery_lookups: build.counters(
                names::DISCOVERY_LOOKUPS,
                "Looks for endpoints beside the configuration's list, by source (dns, file) and outcome.",
                &["pool", "source", "outcome"],
            )?,
            config_reloads,
            config_last_reload_successful: last_reload,
            cost,
            kv,
            models,
            queue,
            working_set,
            index_bytes,
            errors,
            per_endpoint: build.per_endpoint.into_inner().into(),
            registry,
        })
    }

    /// The handles of one endpoint.
    pub fn endpoint(&self, pool: &str, endpoint: &str) -> EndpointMetrics {
        let labels = [pool, endpoint];
        EndpointMetrics {
            pool: pool.into(),
            endpoint: endpoint.into(),
            request_duration: self.request_duration.with_label_values(&labels),
            first_byte: self.first_byte.with_label_values(&labels),
            prompt_blocks: self.prompt_blocks.with_label_values(&labels),
            matched_blocks: self.matched_blocks.with_label_values(&labels),
            inflight: self.inflight.with_label_values(&labels),
            pending_prefill: self.pending_prefill.with_label_values(&labels),
            index_blocks: self.index_blocks.with_label_values(&labels),
            decisions: ["warm", "cold", "unkeyed"]
                .map(|kind| self.decisions.with_label_values(&[pool, endpoint, kind])),
            cost: self.cost.endpoint(pool, endpoint),
            kv: self.kv.endpoint(pool, endpoint),
            families: self.clone(),
            models: SeenModels::default(),
            gone: AtomicBool::new(false),
        }
    }

    /// The histogram of decision times of one pool.
    pub fn decision_duration(&self, pool: &str) -> Histogram {
        self.decision_duration.with_label_values(&[pool])
    }

    /// The handles of one pool's working-set gate.
    pub fn working_set(&self, pool: &str) -> WorkingSetMetrics {
        self.working_set.of(pool)
    }

    /// The handles of one pool's queue.
    pub fn queue(&self, pool: &str) -> QueueMetrics {
        self.queue.of(pool)
    }

    /// Counts an answer that the gateway made itself.
    pub fn count_error(&self, reason: Reason) {
        self.errors.with_label_values(&[reason.label()]).inc();
    }

    /// Answers made by the gateway itself so far, by reason.
    pub fn error_counts(&self) -> BTreeMap<String, u64> {
        Reason::ALL
            .iter()
            .map(|reason| {
                let label = reason.label();
                (label.to_owned(), self.errors.with_label_values(&[label]).get())
            })
            .collect()
    }

    /// Counts a look for endpoints.
    pub fn count_discovery(&self, pool: &str, source: Origin, found: bool) {
        let outcome = if found { "success" } else { "failure" };
        self.discovery_lookups
            .with_label_values(&[pool, source.as_str(), outcome])
            .inc();
    }

    /// Counts a request that no endpoint answered.
    pub fn count_unrouted(&self, pool: &str, code: u16, path_kind: &str) {
        self.requests
            .with_label_values(&[pool, "", code_label(code).as_ref(), path_kind])
            .inc();
    }

    /// Counts an attempt at token ids by its outcome.
    pub fn count_tokenization(&self, pool: &str, outcome: &str) {
        self.kv.count_tokenization(pool, outcome);
    }

    /// The text exposition of everything.
    ///
    /// # Errors
    /// When a family cannot be encoded.
    pub fn encode(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(32 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// One endpoint's handles, fetched once: the hot path looks nothing up but the status code's counter.
pub struct EndpointMetrics {
    pool: Arc<str>,
    endpoint: Arc<str>,
    pub request_duration: Histogram,
    pub first_byte: Histogram,
    pub prompt_blocks: IntCounter,
    pub matched_blocks: IntCounter,
    pub inflight: IntGauge,
    pub pending_prefill: IntGauge,
    pub index_blocks: IntGauge,
    /// What requests were reckoned to cost.
    pub cost: CostMetrics,
    /// KV events and predictions.
    pub kv: KvMetrics,
    decisions: [IntCounter; 3],
    families: Metrics,
    models: SeenModels,
    /// The endpoint left: requests that are still on it make no series anew.
    gone: AtomicBool,
}

impl EndpointMetrics {
    /// Counts a decision for this endpoint.
    pub fn count_decision(&self, kind: crate::scheduling::DecisionKind) {
        use crate::scheduling::DecisionKind::{Cold, Unkeyed, Warm};
        let at = match kind {
            Warm => 0,
            Cold => 1,
            Unkeyed => 2,
        };
        self.decisions[at].inc();
    }

    /// Decisions for this endpoint so far: warm, cold, unkeyed.
    pub fn decision_counts(&self) -> [u64; 3] {
        self.decisions.each_ref().map(IntCounter::get)
    }

    /// Removes all series of the endpoint, which is gone. What is counted from now on is not shown.
    pub fn forget(&self) {
        self.gone.store(true, Ordering::SeqCst);
        for family in &*self.families.per_endpoint {
            family.forget(&self.pool, &self.endpoint);
        }
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Counts an answered request.
    pub fn count_request(&self, code: u16, path_kind: &str) {
        if self.is_gone() {
            return;
        }
        let code = code_label(code);
        let labels = [&*self.pool, &*self.endpoint, code.as_ref(), path_kind];
        self.families.requests.with_label_values(&labels).inc();
    }

    /// The handles of `model`, which the endpoint answered well; `None` when the endpoint is gone.
    pub fn model(&self, model: &str) -> Option<Arc<ModelMetrics>> {
        let families = &self.families.models;
        (!self.is_gone()).then(|| self.models.get(families, &self.pool, &self.endpoint, model))
    }

    /// Counts a failed try that is repeated elsewhere.
    pub fn count_retry(&self, cause: &str) {
        if self.is_gone() {
            return;
        }
        self.families
            .retries
            .with_label_values(&[&*self.pool, &*self.endpoint, cause])
            .inc();
    }

    /// Counts a scrape.
    pub fn count_scrape(&self, outcome: &str) {
        if self.is_gone() {
            return;
        }
        self.families
            .scrapes
            .with_label_values(&[&*self.pool, &*self.endpoint, outcome])
            .inc();
    }

    /// Shows the state that the endpoint is in.
    pub fn show_state(&self, state: crate::pool::State) {
        if self.is_gone() {
            return;
        }
        for each in crate::pool::State::ALL {
            let labels = [&*self.pool, &*self.endpoint, each.as_str()];
            self.families
                .state
                .with_label_values(&labels)
                .set(i64::from(each == state));
        }
    }
}

impl std::fmt::Debug for EndpointMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointMetrics")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// The label of a status code without an allocation for those that occur.
fn code_label(code: u16) -> std::borrow::Cow<'static, str> {
    match code {
        200 => "200".into(),
        400 => "400".into(),
        404 => "404".into(),
        429 => "429".into(),
        499 => "499".into(),
        500 => "500".into(),
        502 => "502".into(),
        503 => "503".into(),
        other => other.to_string().into(),
    }
}

/// Makes and registers families.
pub(super) struct Families<'a> {
    registry: &'a Registry,
    /// Those with series of endpoints.
    per_endpoint: RefCell<Vec<Box<dyn Forget>>>,
}

impl Families<'_> {
    fn register<T>(&self, family: MetricVec<T>, labels: &[&str]) -> prometheus::Result<MetricVec<T>>
    where
        T: MetricVecBuilder + 'static,
        MetricVec<T>: Collector,
    {
        self.registry.register(Box::new(family.clone()))?;
        if labels.contains(&"endpoint") {
            self.per_endpoint.borrow_mut().push(Box::new(family.clone()));
        }
        Ok(family)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels)?, labels)
    }

    pub(super) fn float_counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<CounterVec> {
        self.register(CounterVec::new(Opts::new(name, help), labels)?, labels)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        self.register(GaugeVec::new(Opts::new(name, help), labels)?, labels)
    }

    pub(super) fn int_gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels)?, labels)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        self.register(
            HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?,
            labels,
        )
    }
}
