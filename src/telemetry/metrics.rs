//! The gateway's metric families, built once and passed in; nothing uses a global registry.

use super::cost::CostFamilies;
use super::endpoints::{EndpointFamilies, EndpointMetrics, code_label};
use super::kv::KvFamilies;
use super::models::ModelFamilies;
use super::names;
use super::queue::{QueueFamilies, QueueMetrics};
use super::series::Forget;
use super::working_set::{WorkingSetFamilies, WorkingSetMetrics};
use crate::discovery::Origin;
use crate::proxy::error::Reason;
use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    CounterVec, Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

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
    pub(super) per_endpoint: Arc<[Box<dyn Forget>]>,
    pub(super) endpoints: EndpointFamilies,
    decision_duration: HistogramVec,
    /// Bytes that the prefix index holds.
    pub index_bytes: IntGauge,
    errors: IntCounterVec,
    pub(super) cost: CostFamilies,
    discovery_lookups: IntCounterVec,
    pub(super) models: ModelFamilies,
    pub(super) kv: KvFamilies,
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
        let endpoints = EndpointFamilies::new(&build)?;
        let queue = QueueFamilies::new(&build)?;
        let cost = CostFamilies::new(&build)?;
        let kv = KvFamilies::new(&build)?;
        let models = ModelFamilies::new(&build)?;
        let working_set = WorkingSetFamilies::new(&build)?;
        Ok(Self {
            decision_duration: build.histograms(
                names::DECISION_DURATION,
                "Parse, hash, lookup, score and pick.",
                &["pool"],
                MICROSECOND_BUCKETS,
            )?,
            discovery_lookups: build.counters(
                names::DISCOVERY_LOOKUPS,
                "Looks for endpoints beside the configuration's list, by source (dns, file) and outcome.",
                &["pool", "source", "outcome"],
            )?,
            config_reloads,
            config_last_reload_successful: last_reload,
            endpoints,
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
        EndpointMetrics::new(self, pool, endpoint)
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
        self.endpoints
            .requests
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
