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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// Who reads the wall clock, and only to show it, to tell a file's age or a certificate's dates: a step of it moves no
    /// deadline, interval or measured time.
    const WALL_CLOCK: [&str; 7] = [
        "admin/stats.rs",
        "cli/sim.rs",
        "config/validate/tls.rs",
        "proxy/finish.rs",
        "sim/kv_publisher/wire.rs",
        "sim/server.rs",
        // Spans carry wall-clock times by definition.
        "telemetry/traces/trace.rs",
    ];

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("tests.rs")
            {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_wall_clock_is_read_only_to_be_shown() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        sources(&root, &mut files);
        let reads = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap();
            let text: String = text.split_whitespace().collect();
            let readers = [concat!("SystemTime", "::now"), concat!("UNIX_EPOCH", ".elapsed")];
            let jiff = [concat!("Timestamp", "::now"), concat!("Zoned", "::now")];
            readers.iter().chain(&jiff).any(|reader| text.contains(reader))
        };
        let mut readers: Vec<String> = files
            .iter()
            .filter(|path| reads(path))
            .map(|path| path.strip_prefix(&root).unwrap().display().to_string())
            .collect();
        readers.sort();
        assert_eq!(readers, WALL_CLOCK);
    }
}
