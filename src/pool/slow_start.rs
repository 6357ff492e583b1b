//! Slow start: an endpoint that has just joined looks idle to every rule; without a bound it would get a burst while
//! it still compiles kernels and fills its cache.

use super::snapshot::{Entry, Snapshot, State};
use crate::time::Mono;
use std::time::Duration;

/// The bound on endpoints that joined within the period, measured by those that did not.
pub struct SlowStart {
    period: Duration,
    /// Requests in flight per settled endpoint; `None` when there is none to compare with.
    settled_inflight: Option<f64>,
}

impl SlowStart {
    /// Looks at the pool as it is now.
    pub fn of(snapshot: &Snapshot, now: Mono, period: Duration) -> Self {
        let joining = |entry: &Entry| entry.ready_since.is_some_and(|since| now.since(since) < period);
        let mut settled_inflight = None;
        if snapshot.ready().any(joining) {
            let settled = snapshot.ready().filter(|entry| !joining(entry));
            let (sum, count) = settled.fold((0.0, 0.0), |(sum, count), entry| {
                (
                    sum + f64::from(entry.endpoint.load.sample().inflight),
                    count + 1.0,
                )
            });
            settled_inflight = (count > 0.0).then(|| sum / count);
        }
        Self {
            period,
            settled_inflight,
        }
    }

    /// Why an endpoint takes no request now: it has its share of a settled endpoint's requests, which grows from one
    /// request to all of them over the period.
    pub fn unavailable(&self, entry: &Entry, now: Mono) -> Option<&'static str> {
        let settled = self.settled_inflight?;
        let share = share(entry, now, self.period);
        let allowed = (share * settled).floor() + 1.0;
        let full = share < 1.0 && f64::from(entry.endpoint.load.sample().inflight) >= allowed;
        (entry.state == State::Ready && full).then_some("slow start")
    }
}

/// How far through the period an endpoint is, from 0 to 1.
fn share(entry: &Entry, now: Mono, period: Duration) -> f64 {
    let Some(since) = entry.ready_since else {
        return 1.0;
    };
    if period.is_zero() {
        return 1.0;
    }
    (now.since(since).as_secs_f64() / period.as_secs_f64()).min(1.0)
}
