//! Modelled endpoints: an engine each, and what the gateway knows of it.

use crate::prefix::{BlockHash, EndpointId, PrefixIndex};
use crate::scheduling::{Constants, EndpointView, Scraped};
use crate::sim::engine::{Engine, EngineSpec, TimingModel};
use crate::time::Mono;

/// How a fleet is built.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSpec {
    /// One engine of speed 1.
    pub engine: EngineSpec,
    pub endpoints: usize,
    /// Relative speed per endpoint; 1 for those beyond the list.
    pub speeds: Vec<f64>,
    /// What the gateway takes the engines' caches for, relative to their true size.
    pub index_ratio: f64,
    /// How often gauges are sampled, in seconds; 0: before every decision.
    pub scrape_interval_s: f64,
    pub changes: Vec<Change>,
    /// Tell policies what the endpoints truly take, instead of letting them learn.
    pub told: bool,
}

/// Something that happens to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub at_s: f64,
    pub endpoint: usize,
    pub kind: ChangeKind,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It takes requests from now on; until then it took none.
    Join,
    /// It takes no new requests and finishes the ones it has.
    Leave,
    /// It loses its cache and the requests that it had, and comes back at once.
    Restart,
}

/// All endpoints with the index over them.
pub(super) struct Fleet {
    pub pods: Vec<Pod>,
    pub index: PrefixIndex,
    /// Matched blocks by endpoint id, for the prompt looked up last.
    matched: Vec<u32>,
    block_size: u32,
    scrape_interval_s: f64,
}

/// One endpoint.
pub(super) struct Pod {
    pub id: EndpointId,
    pub name: String,
    pub engine: Engine,
    /// When the engine has something to do next.
    pub next_at: Mono,
    pub in_rotation: bool,
    pub load: Load,
    scraped: Scraped,
    /// Number of the sampling interval that `scraped` is from.
    sample: u64,
}

/// The gateway's own counts of what an endpoint has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub inflight: u32,
    pub pending_tokens: u64,
    pub active_tokens: u64,
}

/// Later than anything that happens.
pub(super) const NEVER: Mono = Mono::from_nanos(u64::MAX);

impl Fleet {
    /// The index remembers `index_margin` times what the engines are taken to hold.
    pub fn new(spec: &FleetSpec, index_margin: f64) -> Self {
        let capacity = (f64::from(spec.engine.num_blocks) * index_margin * spec.index_ratio).ceil() as usize;
        // Generous: the index must be limited by its capacity per endpoint, not by its memory.
        let index = PrefixIndex::new((spec.endpoints * capacity * 128).max(16 << 20));
        let joins = |endpoint| {
            spec.changes
                .iter()
                .any(|change| change.endpoint == endpoint && change.kind == ChangeKind::Join)
        };
        let pod = |endpoint| {
            let speed = spec.speeds.get(endpoint).copied().unwrap_or(1.0);
            let engine = EngineSpec {
                timing: at_speed(&spec.engine.timing, speed),
                ..spec.engine
            };
            Pod {
                id: index.register(capacity).unwrap_or(EndpointId(u16::MAX)),
                name: format!("pod-{endpoint}"),
                engine: Engine::new(engine),
                next_at: NEVER,
                in_rotation: !joins(endpoint),
                load: Load::default(),
                scraped: Scraped::default(),
                sample: 0,
            }
        };
        let pods: Vec<Pod> = (0..spec.endpoints).map(pod).collect();
        Self {
            matched: vec![
                0;
                pods.iter()
                    .map(|pod| usize::from(pod.id.0) + 1)
                    .max()
                    .unwrap_or(0)
            ],
            pods,
            index,
            block_size: spec.engine.block_size,
            scrape_interval_s: spec.scrape_interval_s,
        }
    }

    /// The endpoint that has something to do first, and when.
    pub fn next_event(&self) -> (usize, Mono) {
        let next = self.pods.iter().enumerate().min_by_key(|(_, pod)| pod.next_at);
        next.map_or((0, NEVER), |(index, pod)| (index, pod.next_at))
    }

    /// What scheduling sees of the endpoints in rotation, for a prompt with these keys.
    pub fn views<'a>(
        &'a mut self,
        now: Mono,
        prompt_tokens: u32,
        keys: &[BlockHash],
        views: &mut Vec<EndpointView<'a>>,
    ) {
        let sample = self.sample_number(now);
        self.index.matches(keys, &mut self.matched);
        let capacity = f64::from(self.pods.first().map_or(0, |pod| pod.engine.spec().num_blocks));
        for pod in self.pods.iter_mut().filter(|pod| pod.in_rotation) {
            pod.sample(sample);
            let blocks = self.matched.get(usize::from(pod.id.0)).copied().unwrap_or(0);
            let reusable = prompt_tokens.saturating_sub(1) / self.block_size;
            let held_tokens = (f64::from(blocks) * f64::from(self.block_size)).min(f64::from(prompt_tokens));
            views.push(EndpointView {
                match_tokens: blocks.min(reusable) * self.block_size,
                match_ratio: held_tokens / f64::from(prompt_tokens.max(1)),
                scraped: pod.scraped,
                inflight: pod.load.inflight,
                pending_prefill_tokens: pod.load.pending_tokens,
                active_tokens: pod.load.active_tokens,
                cached_tokens: self.index.blocks(pod.id) as u64 * u64::from(self.block_size),
                capacity_tokens: Some((capacity * f64::from(self.block_size)) as u64),
                ..EndpointView::idle(pod.id, &pod.name)
            });
        }
    }

    pub fn pod_of(&self, id: EndpointId) -> usize {
        self.pods.iter().position(|pod| pod.id == id).unwrap_or(0)
    }

    /// Lets one endpoint work up to `now`; gauges that were sampled before keep what they showed then.
    pub fn advance(&mut self, pod: usize, now: Mono, events: &mut Vec<crate::sim::engine::EngineEvent>) {
        let sample = self.sample_number(now);
        let pod = &mut self.pods[pod];
        pod.sample(sample);
        pod.engine.advance(now, events);
        pod.next_at = pod.engine.next_event_at().unwrap_or(NEVER);
    }

    /// The engine process starts anew, with an empty cache.
    pub fn restart(&mut self, pod: usize, now: Mono) {
        let pod = &mut self.pods[pod];
        let mut engine = Engine::new(*pod.engine.spec());
        engine.set_paused(Mono::ZERO, true);
        engine.set_paused(now, false);
        pod.engine = engine;
        pod.next_at = NEVER;
        pod.load = Load::default();
        self.index.clear(pod.id);
    }

    fn sample_number(&self, now: Mono) -> u64 {
        if self.scrape_interval_s <= 0.0 {
            return u64::MAX;
        }
        (now.as_secs_f64() / self.scrape_interval_s) as u64 + 1
    }
}

impl Pod {
    /// Share of the KV cache in use, as sampled last.
    pub fn kv_share(&self) -> Option<f64> {
        self.scraped.kv_usage
    }

    /// Counters move at step ends only, so what they show now is what they showed at the sampling.
    fn sample(&mut self, sample: u64) {
        if self.sample < sample || sample == u64::MAX {
            self.sample = sample;
            let counters = self.engine.counters();
            self.scraped = Scraped {
                waiting: Some(f64::from(counters.requests_waiting)),
                running: Some(f64::from(counters.requests_running)),
                kv_usage: Some(counters.kv_cache_usage),
            };
        }
    }
}

/// What a policy would have learnt of an engine with this timing, had it learnt perfectly.
pub(super) fn true_constants(timing: &TimingModel) -> Constants {
    Constants {
        prefill_s_per_token: timing.prefill_token + timing.admit_token,
        attention_s_per_pair: timing.attention_pair,
        step_s: timing.step_overhead + timing.weight_read + timing.admit_request,
        context_s_per_token: timing.decode_context_token,
        decode_s_per_request: timing.decode_request,
    }
}

/// The same engine, `speed` times as fast.
fn at_speed(timing: &TimingModel, speed: f64) -> TimingModel {
    let speed = speed.max(1e-3);
    TimingModel {
        step_overhead: timing.step_overhead / speed,
        weight_read: timing.weight_read / speed,
        prefill_token: timing.prefill_token / speed,
        attention_pair: timing.attention_pair / speed,
        admit_request: timing.admit_request / speed,
        admit_token: timing.admit_token / speed,
        decode_request: timing.decode_request / speed,
        decode_context_token: timing.decode_context_token / speed,
    }
}
