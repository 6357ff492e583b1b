//! The gateway's own count of what it has sent to an endpoint, exact on every path.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Counters of one endpoint, shared by all worker threads. Each is the sum over live [`Reservation`]s, so
/// each is 0 at rest and never negative.
#[derive(Debug, Default)]
pub struct Load {
    inflight: AtomicI64,
    pending_prefill_tokens: AtomicI64,
    active_tokens: AtomicI64,
    picked: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSample {
    /// Requests picked for the endpoint whose response has not ended.
    pub inflight: u32,
    /// Uncached prompt tokens sent and not yet at their first response byte.
    pub pending_prefill_tokens: u64,
    /// Context tokens of the in-flight requests.
    pub active_tokens: u64,
    /// Requests ever picked for the endpoint; only differences mean anything.
    pub picked: u64,
}

impl LoadSample {
    /// Requests picked for the endpoint whose response has ended; only differences mean anything.
    pub fn ended(&self) -> u64 {
        self.picked.saturating_sub(self.inflight.into())
    }
}

impl Load {
    /// Reads the counters. They are written under the pool's pick lock or by a single release, so relaxed
    /// loads see at worst a release that is a moment old.
    pub fn sample(&self) -> LoadSample {
        LoadSample {
            inflight: u32::try_from(self.inflight.load(Ordering::Relaxed)).unwrap_or(0),
            pending_prefill_tokens: u64::try_from(self.pending_prefill_tokens.load(Ordering::Relaxed))
                .unwrap_or(0),
            active_tokens: u64::try_from(self.active_tokens.load(Ordering::Relaxed)).unwrap_or(0),
            picked: self.picked.load(Ordering::Relaxed),
        }
    }
}

impl Load {
    /// Requests in flight and pending prefill tokens as they are counted, for the metrics: a fault of the counting
    /// would show there as a negative number.
    pub fn counts(&self) -> (i64, i64) {
        (
            self.inflight.load(Ordering::Relaxed),
            self.pending_prefill_tokens.load(Ordering::Relaxed),
        )
    }
}

/// One request's share of an endpoint's load, taken when the endpoint is picked and given back by drop.
#[derive(Debug)]
pub struct Reservation {
    pending: Arc<PendingPrefill>,
    active_tokens: i64,
}

/// Its uncached tokens until its prefill is done.
#[derive(Debug)]
pub struct PendingPrefill {
    load: Arc<Load>,
    tokens: AtomicI64,
}

impl PendingPrefill {
    /// The prefill is done. Later calls do nothing.
    pub fn release(&self) {
        let tokens = self.tokens.swap(0, Ordering::Relaxed);
        self.load
            .pending_prefill_tokens
            .fetch_sub(tokens, Ordering::Relaxed);
    }
}

impl Reservation {
    /// Counts a request with `uncached_tokens` to prefill and `context_tokens` of context.
    pub fn take(load: &Arc<Load>, uncached_tokens: u32, context_tokens: u32) -> Self {
        let (tokens, active_tokens) = (i64::from(uncached_tokens), i64::from(context_tokens));
        load.picked.fetch_add(1, Ordering::Relaxed);
        load.inflight.fetch_add(1, Ordering::Relaxed);
        load.pending_prefill_tokens.fetch_add(tokens, Ordering::Relaxed);
        load.active_tokens.fetch_add(active_tokens, Ordering::Relaxed);
        let pending = PendingPrefill {
            load: load.clone(),
            tokens: AtomicI64::new(tokens),
        };
        Self {
            pending: Arc::new(pending),
            active_tokens,
        }
    }

    /// The first response byte came: the prefill is done. Later calls do nothing.
    pub fn prefill_done(&self) {
        self.pending.release();
    }

    /// The part that ends with the prefill.
    pub const fn pending(&self) -> &Arc<PendingPrefill> {
        &self.pending
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.prefill_done();
        let load = &self.pending.load;
        load.active_tokens
            .fetch_sub(self.active_tokens, Ordering::Relaxed);
        load.inflight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_return_to_zero_on_every_path() {
        let load = Arc::new(Load::default());
        let streaming = Reservation::take(&load, 900, 1_000);
        let dropped_early = Reservation::take(&load, 50, 80);
        assert_eq!(
            load.sample(),
            LoadSample {
                inflight: 2,
                pending_prefill_tokens: 950,
                active_tokens: 1_080,
                picked: 2
            }
        );
        streaming.prefill_done();
        streaming.prefill_done();
        assert_eq!(load.sample().pending_prefill_tokens, 50);
        drop(dropped_early);
        assert_eq!(
            load.sample(),
            LoadSample {
                inflight: 1,
                pending_prefill_tokens: 0,
                active_tokens: 1_000,
                picked: 2
            }
        );
        drop(streaming);
        assert_eq!(
            load.sample(),
            LoadSample {
                picked: 2,
                ..LoadSample::default()
            }
        );
    }
}
