//! What the admin port shows of the fleet.

use crate::kv_events::subscriber::Status;
use crate::pool::{Entry, Pool};
use crate::proxy::Gateway;
use serde_json::{Value, json};

/// Every endpoint of every pool.
pub fn endpoints(gateway: &Gateway) -> Value {
    let pools = gateway.pools.load();
    let all = pools.iter().flat_map(|pool| {
        let snapshot = pool.snapshot();
        snapshot
            .entries
            .iter()
            .enumerate()
            .map(|(at, entry)| endpoint(gateway, pool, at, entry))
            .collect::<Vec<_>>()
    });
    Value::Array(all.collect())
}

fn endpoint(gateway: &Gateway, pool: &Pool, at: usize, entry: &Entry) -> Value {
    let load = entry.endpoint.load.sample();
    let age_ms = entry
        .sampled_at
        .map(|at| gateway.now().since(at).as_millis() as u64);
    json!({
        "pool": &*pool.name,
        "name": &*entry.endpoint.name,
        "url": entry.endpoint.url.to_string(),
        "labels": entry.endpoint.labels,
        "state": entry.state,
        "reason": &*entry.reason,
        "waiting": entry.engine.waiting,
        "running": entry.engine.running,
        "kv_usage": entry.engine.kv_usage,
        "block_size": pool.block_tokens(entry),
        "capacity_tokens": pool.capacity_tokens(entry),
        "inflight_requests": load.inflight,
        "pending_prefill_tokens": load.pending_prefill_tokens,
        "active_tokens": load.active_tokens,
        "index_blocks": pool.index.blocks(entry.endpoint.id),
        "sampled_age_ms": age_ms,
        "kv_events": kv_events(entry),
        "adapters": pool.exact.as_ref().and_then(|exact| exact.adapters(at)),
        "prefix_cache_hits_tokens": entry.engine.prefix_cache_hits_tokens,
        "prefix_cache_queries_tokens": entry.engine.prefix_cache_queries_tokens,
        "prompt_tokens": entry.engine.prompt_tokens,
        "generation_tokens": entry.engine.generation_tokens,
    })
}

/// What is known of the endpoint's KV event streams, one per data-parallel rank; null where none is listened to.
fn kv_events(entry: &Entry) -> Value {
    let Some(feed) = &entry.endpoint.feed else {
        return Value::Null;
    };
    let statuses = feed.statuses();
    let rank = |status: &Status| {
        json!({
            "connected": status.connected,
            "error": status.error,
            "last_sequence": status.last_sequence,
            "block_size": status.block_size,
            "owned_blocks": status.owned_blocks,
            "gaps": status.stream.gaps,
            "lost_messages": status.stream.lost_messages,
            "restarts": status.stream.restarts,
            "clears": status.events.clears,
            "replays": status.replays,
            "failed_replays": status.failed_replays,
            "stored_blocks": status.events.stored_blocks,
            "removed_blocks": status.events.removed_blocks,
            "unknown_events": status.stream.unknown_events,
            "malformed_messages": status.stream.undecodable_messages + status.foreign_messages,
        })
    };
    statuses.iter().map(rank).collect()
}

/// Sets the gauges that are read when somebody looks, not written on every request.
pub fn refresh_gauges(gateway: &Gateway) {
    let pools = gateway.pools.load();
    gateway.metrics.index_bytes.set(gateway.index.bytes() as i64);
    for pool in pools.iter() {
        pool.waiting.metrics().show(&pool.queue_sample(gateway.now()));
        if let Some(gate) = &pool.gate {
            gate.metrics().show(&gate.sample(gateway.now()));
        }
        for entry in &pool.snapshot().entries {
            if let Some(gate) = &pool.gate {
                let held = gate.held(entry.endpoint.id);
                gate.metrics()
                    .show_endpoint(&entry.endpoint.name, &held, pool.working_set_limit(entry));
            }
            let metrics = &entry.endpoint.metrics;
            let (inflight, pending_prefill_tokens) = entry.endpoint.load.counts();
            metrics.inflight.set(inflight);
            metrics.pending_prefill.set(pending_prefill_tokens);
            metrics
                .index_blocks
                .set(pool.index.blocks(entry.endpoint.id) as i64);
            if let Some(feed) = &entry.endpoint.feed {
                metrics.kv.show(&feed.statuses());
            }
            metrics.show_state(entry.state);
            metrics.cost.show(&pool.learnt(gateway.now(), entry.endpoint.id));
        }
    }
}
