//! What those who wait can expect.

use super::flow::Flow;
use super::{Arrival, Queue};

/// What waits takes at least this long to prefill, in seconds.
const SHORTEST_S: f64 = 1e-3;

/// What a request can expect that would enter now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// Waiting requests of its flow that go before it.
    pub ahead: usize,
    /// Seconds until its turn.
    pub wait_s: f64,
}

impl<T> Queue<T> {
    /// What a request can expect that would enter now. `endpoints` that prefill side by side are all that is known of
    /// the pace until the queue was seen to drain.
    pub fn outlook(&self, arrival: &Arrival, endpoints: u32) -> Outlook {
        let key = self.key(arrival);
        let own = self.flows.get(&arrival.flow);
        let (ahead, mut work) = own.map_or((0, 0.0), |flow| flow.ahead_of(key));
        // Others go in between as far as their weight allows.
        let per_weight = (work + arrival.work) / arrival.weight.max(f64::MIN_POSITIVE);
        let others = self.flows.iter().filter(|(id, _)| **id != arrival.flow);
        work += others
            .map(|(_, flow)| flow.work().min(per_weight * flow.weight))
            .sum::<f64>();
        let mut wait_s = work / self.rate(endpoints);
        if arrival.fresh {
            let fresh = self.flows.values().flat_map(Flow::iter);
            let ahead = fresh.filter(|(other, _)| other.fresh && self.key(other) <= key);
            wait_s = wait_s.max(self.fresh_wait_s(ahead.count() + 1, endpoints));
        }
        Outlook { ahead, wait_s }
    }

    /// Seconds until all that waits now has left the queue; `endpoints` as for [`Queue::outlook`].
    pub fn drained_in_s(&self, endpoints: u32) -> f64 {
        let prefilled_s = self.work() / self.rate(endpoints);
        prefilled_s.max(self.fresh_wait_s(self.fresh, endpoints))
    }

    /// Work that leaves the queue per second. Until that was seen: what waits, in the time that its prefill takes.
    /// The work is more than that, it has the tokens to be generated in it, so no pace of prefill says how fast it goes.
    fn rate(&self, endpoints: u32) -> f64 {
        let miss_s: f64 = self.flows.values().map(Flow::miss_s).sum();
        let prefilled_in_s = (miss_s / f64::from(endpoints.max(1))).max(SHORTEST_S);
        let assumed = self.work() / prefilled_in_s;
        self.drain.rate(assumed).max(f64::MIN_POSITIVE)
    }

    /// Seconds until `count` fresh requests have been admitted; until that was seen, as long as their share of the
    /// work takes.
    fn fresh_wait_s(&self, count: usize, endpoints: u32) -> f64 {
        let assumed = self.rate(endpoints) * self.len as f64 / self.work().max(1.0);
        count as f64 / self.fresh_drain.rate(assumed).max(f64::MIN_POSITIVE)
    }
}
