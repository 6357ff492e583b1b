//! Active health checks as a state machine: consecutive outcomes in, readiness out.

/// How many consecutive outcomes change an endpoint's readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Consecutive failures after which a ready endpoint is unready.
    pub unhealthy_after: u32,
    /// Consecutive successes after which an unready endpoint is ready.
    pub healthy_after: u32,
}

/// Readiness of one endpoint. It starts unready: nothing is sent to an endpoint that never answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    ready: bool,
    /// Outcomes in a row that speak against the present readiness.
    against: u32,
}

impl Health {
    /// Whether the checks say that it takes requests.
    pub const fn is_ready(self) -> bool {
        self.ready
    }

    /// Takes one outcome; true when the readiness changed.
    pub fn observe(&mut self, success: bool, thresholds: Thresholds) -> bool {
        if success == self.ready {
            self.against = 0;
            return false;
        }
        self.against += 1;
        let needed = if success {
            thresholds.healthy_after
        } else {
            thresholds.unhealthy_after
        };
        if self.against < needed {
            return false;
        }
        *self = Self {
            ready: success,
            against: 0,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_DOWN_ONE_UP: Thresholds = Thresholds {
        unhealthy_after: 2,
        healthy_after: 1,
    };

    #[test]
    fn needs_consecutive_outcomes() {
        let mut health = Health::default();
        assert!(!health.is_ready());
        let outcomes = [true, false, true, false, false, false, true];
        let ready: Vec<bool> = outcomes
            .iter()
            .map(|&success| {
                health.observe(success, TWO_DOWN_ONE_UP);
                health.is_ready()
            })
            .collect();
        assert_eq!(ready, [true, true, true, true, false, false, true]);
    }

    #[test]
    fn reports_only_changes() {
        let mut health = Health::default();
        assert!(health.observe(true, TWO_DOWN_ONE_UP));
        assert!(!health.observe(true, TWO_DOWN_ONE_UP));
        assert!(!health.observe(false, TWO_DOWN_ONE_UP));
        assert!(health.observe(false, TWO_DOWN_ONE_UP));
        assert!(!health.observe(false, TWO_DOWN_ONE_UP));
    }
}
