//! The changing side of a snapshot: what health checks, scrapes and operators said of each endpoint last.

use super::ejection::{Ejection, EjectionLimits, Standing};
use super::endpoint::Endpoint;
use super::health::{Health, Thresholds};
use super::snapshot::{Entry, Snapshot, State};
use super::stand_still::StandStill;
use crate::datalayer::vllm::EngineMetrics;
use crate::prefix::EndpointId;
use crate::scheduling::Scraped;
use crate::time::Mono;
use std::sync::Arc;

/// What is known of one endpoint.
#[derive(Clone, Debug)]
pub struct Status {
    endpoint: Arc<Endpoint>,
    health: Health,
    /// Why the newest check failed.
    health_reason: Arc<str>,
    checked: bool,
    draining: bool,
    asleep: bool,
    ejection: Ejection,
    stand_still: StandStill,
    ready_since: Option<Mono>,
    engine: EngineMetrics,
    sampled_at: Option<Mono>,
    picked_at_sample: u64,
    just_came: u64,
    ended_at_sample: u64,
}

impl Status {
    /// An endpoint that was never heard of.
    pub fn new(endpoint: Arc<Endpoint>) -> Self {
        Self {
            endpoint,
            health: Health::default(),
            health_reason: "not checked yet".into(),
            checked: false,
            draining: false,
            asleep: false,
            ejection: Ejection::default(),
            stand_still: StandStill::default(),
            ready_since: None,
            engine: EngineMetrics::default(),
            sampled_at: None,
            picked_at_sample: 0,
            just_came: 0,
            ended_at_sample: 0,
        }
    }

    /// Takes the outcome of a health check; true when it changes what others see.
    pub fn health_checked(&mut self, now: Mono, outcome: Result<(), &str>, thresholds: Thresholds) -> bool {
        let first = !std::mem::replace(&mut self.checked, true);
        let changed = self.health.observe(outcome.is_ok(), thresholds);
        if changed && self.health.is_ready() {
            self.ready_since = Some(now);
            // It was away: most likely it is a new process.
            self.ejection.forget();
            self.endpoint.outcomes.reset(false);
        }
        let reason_changed = match outcome {
            Err(reason) if *self.health_reason != *reason => {
                self.health_reason = reason.into();
                !self.health.is_ready()
            }
            _ => false,
        };
        first || changed || reason_changed
    }

    /// Takes a scrape; `picked` is what the endpoint's load counted when the page was asked for.
    pub fn scraped(&mut self, now: Mono, picked: u64, engine: EngineMetrics) {
        let load = self.endpoint.load.sample();
        self.just_came = picked.saturating_sub(std::mem::replace(&mut self.picked_at_sample, picked));
        self.ended_at_sample = load.ended();
        self.asleep = engine.awake == Some(false);
        self.stand_still
            .observe(now, load.inflight > 0, &engine, self.endpoint.outcomes.heads());
        self.engine = engine;
        self.sampled_at = Some(now);
    }

    /// Takes a load report that came with a response: gauges only, as fresh as a scrape.
    pub fn load_reported(&mut self, now: Mono, gauges: Scraped) {
        let load = self.endpoint.load.sample();
        self.just_came = load.picked.saturating_sub(self.picked_at_sample);
        self.ended_at_sample = load.ended();
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

    /// The endpoint's key in the prefix index.
    pub fn id(&self) -> EndpointId {
        self.endpoint.id
    }

    /// Whether its health was ever checked.
    pub const fn is_checked(&self) -> bool {
        self.checked
    }

    /// Whether it takes requests.
    pub fn is_ready(&self) -> bool {
        self.state().0 == State::Ready
    }

    /// Whether it is set aside or on trial.
    pub const fn is_ejected(&self) -> bool {
        !matches!(self.ejection.standing(), Standing::In)
    }

    /// Sets it aside; false when it is already.
    pub fn eject(&mut self, now: Mono, why: &str, limits: &EjectionLimits) -> bool {
        let ejected = self.ejection.eject(now, why, limits);
        if ejected {
            self.endpoint.outcomes.reset(false);
            self.stand_still = StandStill::default();
        }
        ejected
    }

    /// A request on trial went well; true when that changed something.
    pub fn acquit(&mut self, now: Mono) -> bool {
        let acquitted = self.ejection.acquit(now);
        if acquitted {
            self.endpoint.outcomes.reset(false);
            self.ready_since = Some(now);
        }
        acquitted
    }

    /// Time passes; true when that changed something.
    pub fn tick(&mut self, now: Mono) -> bool {
        let on_trial = self.ejection.tick(now);
        if on_trial {
            self.endpoint.outcomes.reset(true);
        }
        on_trial
    }

    /// How long the engine has held requests without a sign of work.
    pub fn stands_still_for(&self, now: Mono) -> std::time::Duration {
        self.stand_still.time(now)
    }

    fn state(&self) -> (State, Arc<str>) {
        if self.draining {
            (State::Draining, "drained by an operator".into())
        } else if !self.health.is_ready() {
            (State::Unready, self.health_reason.clone())
        } else if self.asleep {
            (State::Unready, "the engine is asleep".into())
        } else {
            match self.ejection.standing() {
                Standing::Out { why, .. } => (State::Ejected, why.clone()),
                Standing::OnTrial { why } => (State::Ready, format!("on trial: {why}").into()),
                Standing::In => (State::Ready, "".into()),
            }
        }
    }

    fn entry(&self) -> Entry {
        let (state, reason) = self.state();
        Entry {
            endpoint: self.endpoint.clone(),
            state,
            reason,
            on_trial: matches!(self.ejection.standing(), Standing::OnTrial { .. }),
            ready_since: self.ready_since,
            engine: self.engine.clone(),
            sampled_at: self.sampled_at,
            picked_at_sample: self.picked_at_sample,
            just_came: self.just_came,
            ended_at_sample: self.ended_at_sample,
        }
    }
}

/// All statuses as one value.
pub fn snapshot(statuses: &[Status]) -> Snapshot {
    Snapshot::new(statuses.iter().map(Status::entry).collect())
}
