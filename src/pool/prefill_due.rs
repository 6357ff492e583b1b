//! The end of a prefill that no byte announces.
//!
//! A stream's first byte tells that its prefill is done. A JSON response comes when everything is generated, so its
//! request would count as pending prefill all through its decode, and its endpoint would look busier than it is. It
//! counts until it is well past the time that the scheduler predicted.

use super::load::PendingPrefill;
use crate::time::Mono;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A prediction is trusted no further than this much longer than it says.
const PATIENCE: f64 = 1.5;

/// Requests whose prefill ends at a predicted time; as many as were picked within their predictions.
#[derive(Debug, Default)]
pub struct PrefillDue {
    heap: BinaryHeap<Due>,
}

#[derive(Debug)]
struct Due {
    at: Mono,
    pending: Weak<PendingPrefill>,
}

impl PrefillDue {
    /// `pending` was sent at `now` and should be through its prefill after `predicted_s` seconds.
    pub fn expect(&mut self, now: Mono, predicted_s: f64, pending: &Arc<PendingPrefill>) {
        let Ok(wait) = Duration::try_from_secs_f64(predicted_s * PATIENCE) else {
            return;
        };
        let pending = Arc::downgrade(pending);
        self.heap.push(Due {
            at: now + wait,
            pending,
        });
    }

    /// Releases what was due by `now`.
    pub fn release(&mut self, now: Mono) {
        while self.heap.peek().is_some_and(|due| due.at <= now) {
            if let Some(pending) = self.heap.pop().and_then(|due| due.pending.upgrade()) {
                pending.release();
            }
        }
    }
}

/// The earliest one is the greatest, as the heap wants it.
impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::load::{Load, Reservation};

    #[test]
    fn pending_tokens_end_at_their_time_in_whatever_order_they_came() {
        let load = Arc::new(Load::default());
        let (late, early) = (Reservation::take(&load, 700, 0), Reservation::take(&load, 40, 0));
        let gone = Reservation::take(&load, 5, 0);
        let mut due = PrefillDue::default();
        due.expect(Mono::ZERO, 2.0, late.pending());
        due.expect(Mono::ZERO, 1.0, early.pending());
        due.expect(Mono::ZERO, f64::NAN, early.pending());
        due.expect(Mono::ZERO, 0.1, gone.pending());
        drop(gone);
        let pending = |load: &Load| load.sample().pending_prefill_tokens;
        due.release(Mono::from_secs_f64(1.4));
        assert_eq!(pending(&load), 740);
        due.release(Mono::from_secs_f64(1.5));
        assert_eq!(pending(&load), 700);
        due.release(Mono::from_secs_f64(3.0));
        assert_eq!(pending(&load), 0);
        drop((late, early));
        assert_eq!(pending(&load), 0, "nothing is given back twice");
    }
}
