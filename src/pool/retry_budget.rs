//! How many retries a pool may add to its load: when many endpoints fail at once, repeating every request elsewhere
//! would bring the rest down too.

use crate::time::Mono;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seconds that are looked back over.
const WINDOW_S: u64 = 10;

/// Bounds on retries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryLimits {
    /// Retries per request, over the last ten seconds.
    pub ratio: f64,
    /// Retries per second that are always allowed.
    pub min_per_second: u32,
}

/// Requests and retries of the last seconds, counted without a lock: one cell per second, reused in a circle.
#[derive(Debug)]
pub struct RetryBudget {
    limits: RetryLimits,
    requests: [Cell; WINDOW_S as usize],
    retries: [Cell; WINDOW_S as usize],
}

/// The count of one second: the second's number in the upper half, the count in the lower.
#[derive(Debug, Default)]
struct Cell(AtomicU64);

impl RetryBudget {
    /// A budget with nothing counted yet.
    pub fn new(limits: RetryLimits) -> Self {
        Self {
            limits,
            requests: Default::default(),
            retries: Default::default(),
        }
    }

    /// Counts a request.
    pub fn request(&self, now: Mono) {
        count(&self.requests, second(now));
    }

    /// Takes one retry out of the budget; false when it is used up. Concurrent calls may overdraw it by their number.
    pub fn withdraw(&self, now: Mono) -> bool {
        let second = second(now);
        let floor = u64::from(self.limits.min_per_second) * WINDOW_S;
        let allowed = floor as f64 + self.limits.ratio * sum(&self.requests, second) as f64;
        let granted = ((sum(&self.retries, second) + 1) as f64) <= allowed;
        if granted {
            count(&self.retries, second);
        }
        granted
    }
}

/// Seconds since the origin; a `u32` of them lasts 136 years.
fn second(now: Mono) -> u32 {
    (now.as_nanos() / 1_000_000_000) as u32
}

fn count(cells: &[Cell], second: u32) {
    let cell = &cells[second as usize % cells.len()].0;
    let fresh = u64::from(second) << 32;
    // A failed exchange means that another thread has counted or turned the cell over: the next round sees that.
    let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |value| {
        Some(if value >> 32 == fresh >> 32 {
            value + 1
        } else {
            fresh | 1
        })
    });
}

fn sum(cells: &[Cell], second: u32) -> u64 {
    let recent = |value: u64| u64::from(second).saturating_sub(value >> 32) < WINDOW_S;
    cells
        .iter()
        .map(|cell| cell.0.load(Ordering::Relaxed))
        .filter(|&value| recent(value))
        .map(|value| value & u64::from(u32::MAX))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Mono {
        Mono::from_secs_f64(seconds)
    }

    fn granted(budget: &RetryBudget, now: Mono, tries: usize) -> usize {
        (0..tries).filter(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn a_share_of_the_requests_of_ten_seconds() {
        let budget = RetryBudget::new(RetryLimits {
            ratio: 0.2,
            min_per_second: 0,
        });
        assert_eq!(granted(&budget, at(0.5), 10), 0);
        for n in 0..100 {
            budget.request(at(1.0 + f64::from(n) * 0.05));
        }
        assert_eq!(granted(&budget, at(6.0), 100), 20);
        assert_eq!(granted(&budget, at(7.0), 100), 0, "those 20 still count");
        // At 12.5 s the requests of seconds 1 and 2 are forgotten: 60 of 100 are left, and the 20 retries.
        assert_eq!(granted(&budget, at(12.5), 100), 0);
        assert_eq!(granted(&budget, at(30.0), 100), 0, "without requests no retries");
    }

    #[test]
    fn a_floor_for_quiet_pools() {
        let budget = RetryBudget::new(RetryLimits {
            ratio: 0.0,
            min_per_second: 3,
        });
        assert_eq!(granted(&budget, at(0.0), 100), 30);
        assert_eq!(granted(&budget, at(9.9), 100), 0);
        assert_eq!(granted(&budget, at(10.0), 100), 30);
    }
}
