//! `GET /stats`: everything that the dashboard and `homing top` draw, in one small answer.
//!
//! Rates are the reader's business: counters stand here as counters, and a reader that polls takes differences. So
//! any number of readers may poll at any interval.

use crate::pool::{Entry, Pool};
use crate::proxy::Gateway;
use crate::telemetry::BucketCounts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// The gateway at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub version: String,
    /// Milliseconds since the process started, from a monotonic clock: rates divide by its differences.
    pub uptime_ms: u64,
    pub unix_ms: u64,
    /// What keeps the gateway from being ready, as `task: why`; empty when it is ready.
    pub pending: Vec<String>,
    /// Requests on the data port that have not ended.
    pub inflight_requests: u64,
    /// Memory of the prefix index.
    pub index_bytes: u64,
    /// Answers made by the gateway itself, by reason.
    pub errors: BTreeMap<String, u64>,
    pub pools: Vec<PoolStats>,
}

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStats {
    pub name: String,
    /// Preset, or `plugins`.
    pub policy: String,
    /// Models that it serves; empty: any.
    pub models: Vec<String>,
    /// Choice of the endpoint to first byte of the response, over all endpoints.
    pub first_byte: BucketCounts,
    /// Parse, hash, lookup, score and pick.
    pub decision: BucketCounts,
    /// Requests that wait in the router; `None` without a queue.
    pub queue: Option<QueueStats>,
    /// The working-set gate; `None` without one.
    pub working_set: Option<WorkingSetStats>,
    pub endpoints: Vec<EndpointStats>,
}

/// A pool's queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueStats {
    pub requests: u64,
    /// Those of them that would begin a conversation.
    pub fresh_requests: u64,
    pub bytes: u64,
    /// How long the request waits that waits longest.
    pub oldest_s: f64,
    /// When what waits now will have left.
    pub drained_in_s: f64,
    /// Requests that had to wait, since start.
    pub held: u64,
    /// Requests that were turned away, by reason, since start.
    pub refused: BTreeMap<String, u64>,
}

/// A pool's conversations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkingSetStats {
    pub conversations: u64,
    /// Share of the tokens computed anew that had been in a cache a moment ago, 0..=1.
    pub regret: f64,
    /// Whether a new conversation needs room in a cache now.
    pub closing: bool,
    /// Requests that were sent on, by what they were to the working set, since start.
    pub admitted: BTreeMap<String, u64>,
}

/// One endpoint: gauges of this moment, and counters since the gateway (or, where said, the engine) started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointStats {
    pub name: String,
    pub url: String,
    /// `ready`, `unready`, `ejected` or `draining`.
    pub state: String,
    /// Why the state is what it is; empty when ready.
    pub reason: String,
    /// Requests picked for the endpoint whose response has not ended.
    pub inflight_requests: u32,
    /// Uncached prompt tokens sent and not yet at their first response byte.
    pub pending_prefill_tokens: u64,
    /// Blocks that the prefix index credits to the endpoint.
    pub index_blocks: u64,
    /// The engine's queue.
    pub waiting: Option<f64>,
    /// The engine's batch.
    pub running: Option<f64>,
    /// Share of the engine's KV blocks in use, 0..=1.
    pub kv_usage: Option<f64>,
    /// Tokens of conversations that are in use, and of idle ones that are likely to come back; with a gate.
    pub working_set_tokens: Option<[u64; 2]>,
    /// How many there may be when another conversation is admitted.
    pub working_set_limit_tokens: Option<u64>,
    /// Age of the newest scrape.
    pub sampled_age_ms: Option<u64>,
    /// Tokens per KV block.
    pub block_tokens: u32,
    /// Requests that ended.
    pub requests: u64,
    /// Sum over requests of the time to the first byte, and how many had one.
    pub first_byte_sum_s: f64,
    pub first_byte_count: u64,
    /// Decisions by kind.
    pub warm: u64,
    pub cold: u64,
    pub unkeyed: u64,
    /// KV blocks of the prompts sent, and those of them that the index believed cached.
    pub prompt_blocks: u64,
    pub matched_blocks: u64,
    /// Since the engine started: tokens looked up in its prefix cache, and found there.
    pub engine_cache_queries_tokens: Option<f64>,
    pub engine_cache_hits_tokens: Option<f64>,
    /// Since the engine started: prompt tokens and generated tokens.
    pub engine_prompt_tokens: Option<f64>,
    pub engine_generation_tokens: Option<f64>,
}

impl Stats {
    /// Reads the gateway; `pending` is what its readiness lists.
    pub fn of(gateway: &Gateway, pending: Vec<String>) -> Self {
        let pools = gateway.pools.load();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: gateway.origin.elapsed().as_millis() as u64,
            unix_ms: SystemTime::UNIX_EPOCH
                .elapsed()
                .map_or(0, |since| since.as_millis() as u64),
            pending,
            inflight_requests: gateway.drain.count(),
            index_bytes: gateway.index.bytes() as u64,
            errors: gateway.metrics.error_counts(),
            pools: pools.iter().map(|pool| PoolStats::of(gateway, pool)).collect(),
        }
    }
}

impl PoolStats {
    fn of(gateway: &Gateway, pool: &Pool) -> Self {
        let snapshot = pool.snapshot();
        let mut first_byte = BucketCounts::default();
        for entry in &snapshot.entries {
            first_byte.add(&BucketCounts::of(&entry.endpoint.metrics.first_byte));
        }
        Self {
            name: pool.name.to_string(),
            policy: pool.policy_name().to_owned(),
            models: pool.settings.models.clone(),
            first_byte,
            decision: BucketCounts::of(&pool.decision_duration),
            queue: QueueStats::of(gateway, pool),
            working_set: WorkingSetStats::of(gateway, pool),
            endpoints: snapshot
                .entries
                .iter()
                .map(|entry| EndpointStats::of(gateway, pool, entry))
                .collect(),
        }
    }
}

impl QueueStats {
    fn of(gateway: &Gateway, pool: &Pool) -> Option<Self> {
        pool.settings.waiting.as_ref()?;
        let metrics = pool.waiting.metrics();
        let sample = pool.queue_sample(gateway.now());
        Some(Self {
            requests: sample.requests as u64,
            fresh_requests: sample.fresh as u64,
            bytes: sample.bytes,
            oldest_s: sample.oldest.as_secs_f64(),
            drained_in_s: sample.drained_in.as_secs_f64(),
            held: metrics.held.get(),
            refused: metrics.refused_counts(),
        })
    }
}

impl WorkingSetStats {
    fn of(gateway: &Gateway, pool: &Pool) -> Option<Self> {
        let gate = pool.gate.as_ref()?;
        let sample = gate.sample(gateway.now());
        Some(Self {
            conversations: sample.conversations as u64,
            regret: sample.regret,
            closing: sample.is_closing,
            admitted: gate.metrics().admitted_counts(),
        })
    }
}

impl EndpointStats {
    fn of(gateway: &Gateway, pool: &Pool, entry: &Entry) -> Self {
        let load = entry.endpoint.load.sample();
        let metrics = &entry.endpoint.metrics;
        let [warm, cold, unkeyed] = metrics.decision_counts();
        Self {
            name: entry.endpoint.name.to_string(),
            url: entry.endpoint.url.to_string(),
            state: entry.state.as_str().to_owned(),
            reason: entry.reason.to_string(),
            inflight_requests: load.inflight,
            pending_prefill_tokens: load.pending_prefill_tokens,
            index_blocks: pool.index.blocks(entry.endpoint.id) as u64,
            waiting: entry.engine.waiting,
            running: entry.engine.running,
            kv_usage: entry.engine.kv_usage,
            working_set_tokens: pool.gate.as_ref().map(|gate| {
                let held = gate.held(entry.endpoint.id);
                [held.in_use_tokens, held.idle_tokens]
            }),
            working_set_limit_tokens: pool.working_set_limit(entry),
            sampled_age_ms: entry
                .sampled_at
                .map(|at| gateway.now().since(at).as_millis() as u64),
            block_tokens: pool.block_tokens(entry),
            requests: metrics.request_duration.get_sample_count(),
            first_byte_sum_s: metrics.first_byte.get_sample_sum(),
            first_byte_count: metrics.first_byte.get_sample_count(),
            warm,
            cold,
            unkeyed,
            prompt_blocks: metrics.prompt_blocks.get(),
            matched_blocks: metrics.matched_blocks.get(),
            engine_cache_queries_tokens: entry.engine.prefix_cache_queries_tokens,
            engine_cache_hits_tokens: entry.engine.prefix_cache_hits_tokens,
            engine_prompt_tokens: entry.engine.prompt_tokens,
            engine_generation_tokens: entry.engine.generation_tokens,
        }
    }
}
