//! Metric families with series of endpoints, and one endpoint's handles.

use super::cost::CostMetrics;
use super::kv::KvMetrics;
use super::metrics::{Families, Metrics, SECOND_BUCKETS};
use super::models::{ModelMetrics, SeenModels};
use super::names;
use crate::pool::State;
use crate::scheduling::DecisionKind;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The families of requests and gauges. Those of costs, KV events and models stand apart.
#[derive(Clone)]
pub(super) struct EndpointFamilies {
    pub requests: IntCounterVec,
    request_duration: HistogramVec,
    first_byte: HistogramVec,
    decisions: IntCounterVec,
    prompt_blocks: IntCounterVec,
    matched_blocks: IntCounterVec,
    inflight: IntGaugeVec,
    pending_prefill: IntGaugeVec,
    state: IntGaugeVec,
    index_blocks: IntGaugeVec,
    retries: IntCounterVec,
    scrapes: IntCounterVec,
}

impl EndpointFamilies {
    pub fn new(build: &Families) -> prometheus::Result<Self> {
        let on_endpoint = ["pool", "endpoint"];
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
        })
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
    all: Metrics,
    models: SeenModels,
    /// The endpoint left: requests that are still on it make no series anew.
    gone: AtomicBool,
}

impl EndpointMetrics {
    pub(super) fn new(all: &Metrics, pool: &str, endpoint: &str) -> Self {
        let of = &all.endpoints;
        let labels = [pool, endpoint];
        Self {
            pool: pool.into(),
            endpoint: endpoint.into(),
            request_duration: of.request_duration.with_label_values(&labels),
            first_byte: of.first_byte.with_label_values(&labels),
            prompt_blocks: of.prompt_blocks.with_label_values(&labels),
            matched_blocks: of.matched_blocks.with_label_values(&labels),
            inflight: of.inflight.with_label_values(&labels),
            pending_prefill: of.pending_prefill.with_label_values(&labels),
            index_blocks: of.index_blocks.with_label_values(&labels),
            decisions: ["warm", "cold", "unkeyed"]
                .map(|kind| of.decisions.with_label_values(&[pool, endpoint, kind])),
            cost: all.cost.endpoint(pool, endpoint),
            kv: all.kv.endpoint(pool, endpoint),
            all: all.clone(),
            models: SeenModels::default(),
            gone: AtomicBool::new(false),
        }
    }

    /// Counts a decision for this endpoint.
    pub fn count_decision(&self, kind: DecisionKind) {
        let at = match kind {
            DecisionKind::Warm => 0,
            DecisionKind::Cold => 1,
            DecisionKind::Unkeyed => 2,
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
        for family in &*self.all.per_endpoint {
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
        self.all.endpoints.requests.with_label_values(&labels).inc();
    }

    /// The handles of `model`, which the endpoint answered well; `None` when the endpoint is gone.
    pub fn model(&self, model: &str) -> Option<Arc<ModelMetrics>> {
        let families = &self.all.models;
        (!self.is_gone()).then(|| self.models.get(families, &self.pool, &self.endpoint, model))
    }

    /// Counts a failed try that is repeated elsewhere.
    pub fn count_retry(&self, cause: &str) {
        if self.is_gone() {
            return;
        }
        self.all
            .endpoints
            .retries
            .with_label_values(&[&*self.pool, &*self.endpoint, cause])
            .inc();
    }

    /// Counts a scrape.
    pub fn count_scrape(&self, outcome: &str) {
        if self.is_gone() {
            return;
        }
        self.all
            .endpoints
            .scrapes
            .with_label_values(&[&*self.pool, &*self.endpoint, outcome])
            .inc();
    }

    /// Shows the state that the endpoint is in.
    pub fn show_state(&self, state: State) {
        if self.is_gone() {
            return;
        }
        for each in State::ALL {
            let labels = [&*self.pool, &*self.endpoint, each.as_str()];
            self.all
                .endpoints
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
pub(super) fn code_label(code: u16) -> Cow<'static, str> {
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
