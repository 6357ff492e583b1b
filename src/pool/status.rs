//! The changing side of a snapshot: what health checks, scrapes and operators said of each endpoint last.

use super::endpoint::Endpoint;
use super::health::{Health, Thresholds};
use super::snapshot::{Entry, Snapshot, State};
use crate::datalayer::vllm::EngineMetrics;
use crate::scheduling::Scraped;
use crate::time::Mono;
use std::sync::Arc;

/// What is known of one endpoint.
#[derive(Debug)]
pub struct Status {
    endpoint: Arc<Endpoint>,
    health: Health,
    /// Why the newest check failed.
    health_reason: Arc<str>,
    draining: bool,
    asleep: bool,
    ready_since: Option<Mono>,
    engine: EngineMetrics,
    sampled_at: Option<Mono>,
    picked_at_sample: u64,
}

impl Status {
    /// An endpoint that was never heard of.
    pub fn new(endpoint: Arc<Endpoint>) -> Self {
        Self {
            endpoint,
            health: Health::default(),
            health_reason: "not checked yet".into(),
            draining: false,
            asleep: false,
            ready_since: None,
            engine: EngineMetrics::default(),
            sampled_at: None,
            picked_at_sample: 0,
        }
    }

    /// Takes the outcome of a health check; true when it changes what others see.
    pub fn health_checked(&mut self, now: Mono, outcome: Result<(), &str>, thresholds: Thresholds) -> bool {
        let changed = self.health.observe(outcome.is_ok(), thresholds);
        if changed && self.health.is_ready() {
            self.ready_since = Some(now);
        }
        let reason_changed = match outcome {
            Err(reason) if *self.health_reason != *reason => {
                self.health_reason = reason.into();
                !self.health.is_ready()
            }
            _ => false,
        };
        changed || reason_changed
    }

    /// Takes a scrape; `picked` is what the endpoint's load counted when the page was asked for.
    pub fn scraped(&mut self, now: Mono, picked: u64, engine: EngineMetrics) {
        self.picked_at_sample = picked;
        self.asleep = engine.awake == Some(false);
        self.engine = engine;
        self.sampled_at = Some(now);
    }

    /// Takes a load report that came with a response: gauges only, as fresh as a scrape.
    pub fn load_reported(&mut self, now: Mono, gauges: Scraped) {
        self.engine.waiting = gauges.waiting.or(self.engine.waiting);
        self.engine.running = gauges.running.or(self.engine.running);
        self.engine.kv_usage = gauges.kv_usage.or(self.engine.kv_usage);
        self.sampled_at = Some(now);
    }

    /// The newest scrape.
    pub const fn engine(&self) -> &EngineMetrics {
        &self.engine
    }

    /// Takes the endpoint out of selection, or back into it; true when that changed something.
    pub const fn set_draining(&mut self, draining: bool) -> bool {
        let changed = self.draining != draining;
        self.draining = draining;
        changed
    }

    fn state(&self) -> (State, Arc<str>) {
        if self.draining {
            (State::Draining, "drained by an operator".into())
        } else if !self.health.is_ready() {
            (State::Unready, self.health_reason.clone())
        } else if self.asleep {
            (State::Unready, "the engine is asleep".into())
        } else {
            (State::Ready, "".into())
        }
    }

    fn entry(&self) -> Entry {
        let (state, reason) = self.state();
        Entry {
            endpoint: self.endpoint.clone(),
            state,
            reason,
            ready_since: self.ready_since,
            engine: self.engine.clone(),
            sampled_at: self.sampled_at,
            picked_at_sample: self.picked_at_sample,
        }
    }
}

/// All statuses as one value.
pub fn snapshot(statuses: &[Status]) -> Snapshot {
    Snapshot {
        entries: statuses.iter().map(Status::entry).collect(),
    }
}
