//! Readiness as a set of named tasks: `/readyz` says which are pending.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tasks that must be done before the gateway is ready, and those that make it unready again.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    pending: Arc<RwLock<BTreeMap<String, String>>>,
}

impl Readiness {
    /// `task` is not done; `why` says what is awaited.
    pub fn pend(&self, task: &str, why: &str) {
        self.pending.write().insert(task.to_owned(), why.to_owned());
    }

    /// `task` is done.
    pub fn done(&self, task: &str) {
        if self.pending.read().contains_key(task) {
            self.pending.write().remove(task);
        }
    }

    /// What is pending, as `(task, why)` in order; empty when ready.
    pub fn pending(&self) -> Vec<(String, String)> {
        self.pending
            .read()
            .iter()
            .map(|(task, why)| (task.clone(), why.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_nothing_is_pending() {
        let readiness = Readiness::default();
        assert!(readiness.pending().is_empty());
        readiness.pend("pool default", "no endpoint is ready");
        readiness.pend("listeners", "not bound");
        readiness.done("listeners");
        readiness.done("never pended");
        assert_eq!(
            readiness.pending(),
            [("pool default".to_owned(), "no endpoint is ready".to_owned())]
        );
        readiness.done("pool default");
        assert!(readiness.pending().is_empty());
    }
}
