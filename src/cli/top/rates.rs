//! Rates and shares from the admin port's counters, over the last seconds.

use crate::admin::stats::{EndpointStats, PoolStats, Stats};
use std::collections::VecDeque;

/// Rates are taken over this many milliseconds.
const WINDOW_MS: u64 = 15_000;

/// The looks of the last seconds, newest last.
#[derive(Debug, Default)]
pub struct Window {
    looks: VecDeque<Stats>,
}

/// What happened on one endpoint between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub requests_per_s: f64,
    pub prompt_tokens_per_s: f64,
    /// Generated, as the engine counts.
    pub output_tokens_per_s: f64,
    /// Share of prompt blocks predicted cached; `None` when none was sent.
    pub predicted_hits: Option<f64>,
    /// Share of prompt tokens that the engine found cached.
    pub engine_hits: Option<f64>,
    /// Mean time to the first byte.
    pub first_byte_s: Option<f64>,
}

impl Window {
    /// Takes a look.
    pub fn push(&mut self, stats: Stats) {
        // A restarted gateway counts from 0.
        if self
            .looks
            .back()
            .is_some_and(|last| stats.uptime_ms < last.uptime_ms)
        {
            self.looks.clear();
        }
        self.looks.push_back(stats);
        let now = self.newest().map_or(0, |stats| stats.uptime_ms);
        while self
            .looks
            .get(1)
            .is_some_and(|second| now - second.uptime_ms >= WINDOW_MS)
        {
            self.looks.pop_front();
        }
    }

    /// The newest look.
    pub fn newest(&self) -> Option<&Stats> {
        self.looks.back()
    }

    /// The pool at `at` as it was at the start of the window.
    pub fn earlier_pool(&self, at: usize) -> Option<&PoolStats> {
        let name = &self.newest()?.pools.get(at)?.name;
        self.looks.front()?.pools.iter().find(|pool| pool.name == *name)
    }

    /// Rates per endpoint of the pool at `at`, in its order.
    pub fn rates(&self, at: usize) -> Vec<Rates> {
        let (Some(now), Some(earlier)) = (
            self.newest().and_then(|stats| stats.pools.get(at)),
            self.earlier_pool(at),
        ) else {
            return Vec::new();
        };
        let elapsed_s = self.elapsed_s();
        let of = |endpoint: &EndpointStats| {
            let before = earlier.endpoints.iter().find(|e| e.name == endpoint.name);
            before.map_or_else(Rates::default, |before| {
                Rates::between(before, endpoint, elapsed_s)
            })
        };
        now.endpoints.iter().map(of).collect()
    }

    fn elapsed_s(&self) -> f64 {
        let ends = self.looks.front().zip(self.looks.back());
        ends.map_or(0.0, |(first, last)| {
            (last.uptime_ms - first.uptime_ms) as f64 / 1e3
        })
    }
}

impl Rates {
    fn between(before: &EndpointStats, now: &EndpointStats, elapsed_s: f64) -> Self {
        let per_s = |grown: f64| if elapsed_s > 0.0 { grown / elapsed_s } else { 0.0 };
        let grown = |of: fn(&EndpointStats) -> u64| of(now).saturating_sub(of(before)) as f64;
        let blocks = grown(|e| e.prompt_blocks);
        let engine = |of: fn(&EndpointStats) -> Option<f64>| Some((of(now)? - of(before)?).max(0.0));
        let queries = engine(|e| e.engine_cache_queries_tokens).unwrap_or(0.0);
        Self {
            requests_per_s: per_s(grown(|e| e.requests)),
            prompt_tokens_per_s: per_s(blocks * f64::from(now.block_tokens)),
            output_tokens_per_s: per_s(engine(|e| e.engine_generation_tokens).unwrap_or(0.0)),
            predicted_hits: ratio(grown(|e| e.matched_blocks), blocks),
            engine_hits: engine(|e| e.engine_cache_hits_tokens).and_then(|hits| ratio(hits, queries)),
            first_byte_s: ratio(
                now.first_byte_sum_s - before.first_byte_sum_s,
                grown(|e| e.first_byte_count),
            ),
        }
    }
}

/// `part / whole`; `None` of nothing.
pub fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}
