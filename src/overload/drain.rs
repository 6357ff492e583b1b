//! How fast a queue drains: what an honest `Retry-After` is made of.

use super::kept;
use crate::time::Mono;

/// Half-life of what was observed, in seconds: long against one prefill, short against a change of traffic.
const HALF_LIFE_S: f64 = 20.0;

/// Seconds of observation that the rate assumed at the start weighs as much as,
const START_STRENGTH_S: f64 = 1.0;

/// and how soon half of that is forgotten, in seconds: an assumption that is far too high would otherwise outweigh what
/// is seen by as much as it is wrong.
const START_HALF_LIFE_S: f64 = 0.5;

/// Work that left a queue per second of its being in use, with exponential forgetting.
#[derive(Clone, Debug)]
pub struct Drain {
    work: f64,
    busy_s: f64,
    /// What the assumption still weighs, in seconds.
    assumed_s: f64,
    settled: Mono,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            work: 0.0,
            busy_s: 0.0,
            assumed_s: START_STRENGTH_S,
            settled: Mono::ZERO,
        }
    }
}

impl Drain {
    /// Time passes; `busy` says whether anybody waited since the last call.
    pub fn pass(&mut self, now: Mono, busy: bool) {
        if busy {
            let elapsed = now.since(self.settled);
            let keep = kept(elapsed, HALF_LIFE_S);
            self.work *= keep;
            self.assumed_s *= kept(elapsed, START_HALF_LIFE_S);
            self.busy_s = self.busy_s * keep + elapsed.as_secs_f64();
        }
        self.settled = self.settled.max(now);
    }

    /// `work` left the queue, in the caller's unit.
    pub fn placed(&mut self, work: f64) {
        self.work += work;
    }

    /// Work per second. `assumed` stands in until enough was seen.
    pub fn rate(&self, assumed: f64) -> f64 {
        (self.work + assumed * self.assumed_s) / (self.busy_s + self.assumed_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(rate: f64, from_s: f64, to_s: f64, drain: &mut Drain) {
        let mut now_s = from_s;
        while now_s < to_s {
            now_s += 0.1;
            drain.pass(Mono::from_secs_f64(now_s), true);
            drain.placed(rate * 0.1);
        }
    }

    #[test]
    fn starts_at_the_assumption_and_follows_what_is_seen() {
        let mut drain = Drain::default();
        assert_eq!(drain.rate(500.0), 500.0);
        drained(100.0, 0.0, 120.0, &mut drain);
        assert!((drain.rate(500.0) - 100.0).abs() < 5.0, "{}", drain.rate(500.0));
        drained(400.0, 120.0, 240.0, &mut drain);
        assert!((drain.rate(500.0) - 400.0).abs() < 30.0, "{}", drain.rate(500.0));
    }

    #[test]
    fn an_assumption_that_is_wrong_by_a_hundred_is_outweighed_within_seconds() {
        for assumed in [1.0, 100.0, 10_000.0] {
            let mut drain = Drain::default();
            drained(100.0, 0.0, 4.0, &mut drain);
            let rate = drain.rate(assumed);
            assert!((50.0..200.0).contains(&rate), "{rate} for an assumed {assumed}");
        }
    }

    #[test]
    fn idle_time_teaches_nothing() {
        let mut drain = Drain::default();
        drained(100.0, 0.0, 60.0, &mut drain);
        let before = drain.rate(0.0);
        drain.pass(Mono::from_secs_f64(3600.0), false);
        assert_eq!(drain.rate(0.0), before);
    }
}
