//! Monotonic time as a value: the core never reads a clock, it is told the time.

use std::ops::Add;
use std::time::Duration;

/// A point on a monotonic time line, in nanoseconds since an origin that the caller chooses
/// (process start in the gateway, zero in virtual time). Wall-clock steps never move it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(u64);

impl Mono {
    /// The origin of the time line.
    pub const ZERO: Self = Self(0);

    /// The point `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `seconds` after the origin; negative and NaN values give the origin.
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds.max(0.0) * 1e9) as u64)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the origin.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Mono {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}
