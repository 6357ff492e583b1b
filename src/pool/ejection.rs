//! Passive ejection: an endpoint whose requests fail is set aside for a while, then tried with one request at a time.

use crate::time::Mono;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// When endpoints are set aside, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EjectionLimits {
    /// Failures in a row; 0: never for this reason.
    pub consecutive_failures: u32,
    /// Share of failed requests in a window, above 0 up to 1.
    pub failure_ratio: f64,
    /// Requests in a window below which the share says nothing.
    pub min_requests: u32,
    /// Length of a window.
    pub window: Duration,
    /// First time out; doubled with each further one in a row.
    pub first_time: Duration,
    /// Longest time out.
    pub longest_time: Duration,
    /// How long an engine may hold requests without a sign of work.
    pub hung_after: Duration,
}

/// Whether an endpoint is set aside.
#[derive(Clone, Debug, Default)]
pub enum Standing {
    /// Takes requests.
    #[default]
    In,
    /// Takes none until then.
    Out { until: Mono, why: Arc<str> },
    /// Takes one request at a time; the next outcome decides.
    OnTrial { why: Arc<str> },
}

/// One endpoint's ejections as a state machine: outcomes and time in, standing out.
#[derive(Clone, Debug, Default)]
pub struct Ejection {
    standing: Standing,
    /// Ejections without a good spell in between.
    in_a_row: u32,
    /// When it was taken back for good.
    back_since: Mono,
}

impl Ejection {
    /// Whether the endpoint is set aside.
    pub const fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Sets the endpoint aside; false when it is already.
    pub fn eject(&mut self, now: Mono, why: &str, limits: &EjectionLimits) -> bool {
        if matches!(self.standing, Standing::Out { .. }) {
            return false;
        }
        if matches!(self.standing, Standing::In) && now.since(self.back_since) > limits.longest_time {
            self.in_a_row = 0;
        }
        let time = limits
            .first_time
            .saturating_mul(1 << self.in_a_row.min(16))
            .min(limits.longest_time);
        self.in_a_row += 1;
        self.standing = Standing::Out {
            until: now + time,
            why: why.into(),
        };
        true
    }

    /// Time passes: an endpoint that was out long enough is tried. True when that changed something.
    pub fn tick(&mut self, now: Mono) -> bool {
        match &self.standing {
            Standing::Out { until, why } if *until <= now => {
                self.standing = Standing::OnTrial { why: why.clone() };
                true
            }
            _ => false,
        }
    }

    /// A request on trial went well; false when the endpoint was not on trial.
    pub fn acquit(&mut self, now: Mono) -> bool {
        let on_trial = matches!(self.standing, Standing::OnTrial { .. });
        if on_trial {
            self.standing = Standing::In;
            self.back_since = now;
        }
        on_trial
    }

    /// The process behind the endpoint is a new one: nothing of the old one counts. True when it was set aside.
    pub fn forget(&mut self) -> bool {
        let was = !matches!(self.standing, Standing::In);
        *self = Self::default();
        was
    }
}

/// What became of an endpoint's requests, counted by all workers without a lock.
#[derive(Debug, Default)]
pub struct Outcomes {
    failures_in_a_row: AtomicU32,
    window_start_s: AtomicU64,
    successes: AtomicU32,
    failures: AtomicU32,
    /// Heads of responses since the start, of any status.
    heads: AtomicU64,
    /// Whether the next outcome decides over the endpoint.
    on_trial: AtomicBool,
}

impl Outcomes {
    /// The endpoint answered: a sign of life, whatever the answer.
    pub fn head(&self) {
        self.heads.fetch_add(1, Ordering::Relaxed);
    }

    /// Heads of responses since the start.
    pub fn heads(&self) -> u64 {
        self.heads.load(Ordering::Relaxed)
    }

    /// Counts a request that ended well; true when the endpoint was on trial.
    pub fn success(&self) -> bool {
        if self.failures_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failures_in_a_row.store(0, Ordering::Relaxed);
        }
        self.successes.fetch_add(1, Ordering::Relaxed);
        self.on_trial.load(Ordering::Relaxed)
    }

    /// Counts a request that the endpoint failed; says why it should be set aside now, if it should.
    pub fn failure(&self, now: Mono, limits: &EjectionLimits) -> Option<String> {
        self.turn_window(now, limits.window);
        let in_a_row = self.failures_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let all = failures + self.successes.load(Ordering::Relaxed);
        if self.on_trial.load(Ordering::Relaxed) {
            Some("failed again when tried".to_owned())
        } else if limits.consecutive_failures > 0 && in_a_row >= limits.consecutive_failures {
            Some(format!("{in_a_row} requests in a row failed"))
        } else if all >= limits.min_requests && f64::from(failures) >= limits.failure_ratio * f64::from(all) {
            Some(format!("{failures} of {all} requests failed"))
        } else {
            None
        }
    }

    /// Starts over, after the endpoint was set aside or taken back.
    pub fn reset(&self, on_trial: bool) {
        self.on_trial.store(on_trial, Ordering::Relaxed);
        self.failures_in_a_row.store(0, Ordering::Relaxed);
        self.successes.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Windows follow each other; counts of an old one are dropped when the first failure after it is counted.
    fn turn_window(&self, now: Mono, window: Duration) {
        let now_s = now.as_secs_f64() as u64;
        let start_s = self.window_start_s.load(Ordering::Relaxed);
        if now_s.saturating_sub(start_s) >= window.as_secs().max(1) {
            self.window_start_s.store(now_s, Ordering::Relaxed);
            self.successes.store(0, Ordering::Relaxed);
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: EjectionLimits = EjectionLimits {
        consecutive_failures: 3,
        failure_ratio: 0.5,
        min_requests: 10,
        window: Duration::from_secs(10),
        first_time: Duration::from_secs(5),
        longest_time: Duration::from_secs(60),
        hung_after: Duration::from_secs(60),
    };

    fn at(seconds: f64) -> Mono {
        Mono::from_secs_f64(seconds)
    }

    /// How long the endpoint stays out when it is ejected at `now`.
    fn time_out(ejection: &mut Ejection, now: f64) -> f64 {
        assert!(ejection.eject(at(now), "test", &LIMITS));
        let Standing::Out { until, .. } = ejection.standing() else {
            panic!("ejected");
        };
        until.since(at(now)).as_secs_f64()
    }

    #[test]
    fn each_failed_trial_doubles_the_time_out() {
        let mut ejection = Ejection::default();
        let mut now = 100.0;
        let mut times = Vec::new();
        for _ in 0..6 {
            let time = time_out(&mut ejection, now);
            assert!(!ejection.tick(at(now + time - 0.1)));
            now += time;
            assert!(ejection.tick(at(now)));
            times.push(time);
        }
        assert_eq!(times, [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]);
        assert!(ejection.acquit(at(now)));
        assert_eq!(time_out(&mut ejection, now + 30.0), 60.0, "soon again");
        ejection.tick(at(now + 100.0));
        assert!(ejection.acquit(at(now + 100.0)));
        assert_eq!(time_out(&mut ejection, now + 200.0), 5.0, "after a good spell");
    }

    #[test]
    fn failures_in_a_row_eject_and_a_success_breaks_the_row() {
        let outcomes = Outcomes::default();
        for _ in 0..3 {
            assert_eq!(outcomes.failure(at(1.0), &LIMITS), None);
            assert_eq!(outcomes.failure(at(1.0), &LIMITS), None);
            assert!(!outcomes.success());
        }
        outcomes.reset(false);
        outcomes.failure(at(2.0), &LIMITS);
        outcomes.failure(at(2.0), &LIMITS);
        assert_eq!(
            outcomes.failure(at(2.0), &LIMITS).as_deref(),
            Some("3 requests in a row failed")
        );
    }

    #[test]
    fn half_of_a_window_ejects() {
        let outcomes = Outcomes::default();
        outcomes.failure(at(20.0), &LIMITS);
        for _ in 0..4 {
            outcomes.success();
            outcomes.success();
            assert_eq!(outcomes.failure(at(21.0), &LIMITS), None, "less than half failed");
        }
        outcomes.reset(false);
        let mut said = Vec::new();
        for _ in 0..5 {
            outcomes.success();
            said.push(outcomes.failure(at(22.0), &LIMITS));
        }
        assert_eq!(said.pop().unwrap().as_deref(), Some("5 of 10 requests failed"));
        assert!(said.iter().all(Option::is_none));
    }

    #[test]
    fn one_failure_on_trial_is_enough() {
        let outcomes = Outcomes::default();
        outcomes.reset(true);
        assert!(outcomes.failure(at(1.0), &LIMITS).is_some());
        assert!(outcomes.success());
    }
}
