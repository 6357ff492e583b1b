//! Requests in flight, and the wait for them before the process exits.
//!
//! Pingora's own graceful shutdown sleeps its whole grace period and then cancels what still runs; streams of
//! tokens live longer than that. So the gateway counts its requests, and the connections on which one may come, and
//! exits when the last one has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What remains for the answers to those whose wait was ended.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Counts requests and connections; shared by all workers.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    count: AtomicU64,
    /// Set once somebody waits: until then the end of a request costs one subtraction.
    awaited: AtomicBool,
    idle: Notify,
    /// Cancelled when nobody can wait any longer.
    over: CancellationToken,
}

/// One request in flight or one open connection; its drop ends it.
#[derive(Debug)]
pub struct InFlight {
    shared: Arc<Shared>,
}

impl Drain {
    /// Counts one more request or connection.
    pub fn enter(&self) -> InFlight {
        self.shared.count.fetch_add(1, Ordering::SeqCst);
        InFlight {
            shared: self.shared.clone(),
        }
    }

    /// Requests in flight and connections open now.
    pub fn count(&self) -> u64 {
        self.shared.count.load(Ordering::SeqCst)
    }

    /// Waits until nothing is counted, at most `limit`; false when the limit was reached.
    pub async fn wait(&self, limit: Duration) -> bool {
        self.shared.awaited.store(true, Ordering::SeqCst);
        let idle = async {
            loop {
                // Registered before the count is read, so an end in between is not missed.
                let ended = self.shared.idle.notified();
                if self.count() == 0 {
                    return;
                }
                ended.await;
            }
        };
        tokio::time::timeout(limit, idle).await.is_ok()
    }

    /// Ends the waits of requests that no endpoint has got yet, and gives their answers time to go out.
    pub async fn end_waits(&self) {
        self.shared.over.cancel();
        self.wait(LAST_WORDS).await;
    }

    /// Returns when a request that still waits for an endpoint must be answered by the gateway itself.
    pub async fn over(&self) {
        self.shared.over.cancelled().await;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let before = self.shared.count.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.shared.awaited.load(Ordering::SeqCst) {
            self.shared.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_last_request_and_no_longer() {
        let drain = Drain::default();
        let (first, second) = (drain.enter(), drain.enter());
        assert!(!drain.wait(Duration::from_secs(5)).await);
        drop(first);
        assert_eq!(drain.count(), 1);
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.wait(Duration::from_secs(60)).await }
        });
        drop(second);
        assert!(waiting.await.unwrap());
    }
}
