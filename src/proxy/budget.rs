//! One bound on all request bodies held in memory at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may still be buffered, over all clients.
#[derive(Clone, Debug)]
pub struct BodyBudget {
    free_bytes: Arc<AtomicU64>,
}

/// A share of the budget; its drop gives it back.
#[derive(Debug)]
pub struct BodyShare {
    free_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl BodyBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self {
            free_bytes: Arc::new(AtomicU64::new(bytes)),
        }
    }

    /// An empty share, to be grown while a body arrives.
    pub fn share(&self) -> BodyShare {
        BodyShare {
            free_bytes: self.free_bytes.clone(),
            bytes: 0,
        }
    }
}

impl BodyShare {
    /// Grows the share to `bytes` in all; false, and unchanged, when the budget has no room.
    #[must_use]
    pub fn grow_to(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let taken = self
            .free_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(more)
            });
        if taken.is_ok() {
            self.bytes += more;
        }
        taken.is_ok()
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.free_bytes.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_budget_and_come_back() {
        let budget = BodyBudget::new(100);
        let (mut first, mut second) = (budget.share(), budget.share());
        assert!(first.grow_to(60));
        assert!(first.grow_to(40), "a share never shrinks");
        assert!(!second.grow_to(41));
        assert!(second.grow_to(40));
        drop(first);
        assert!(second.grow_to(100));
        drop(second);
        assert_eq!(budget.free_bytes.load(Ordering::Relaxed), 100);
    }
}
