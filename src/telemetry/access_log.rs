//! One JSON line per request.

mod line;

use super::lines::Lines;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Version of the line's schema, in each line as `v`.
pub const SCHEMA_VERSION: u32 = 1;
/// What is logged of a request; names and units of the line's members are those of `access_log/line.rs`. No
/// prompt text, ever.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The end of the request.
    pub at: SystemTime,
    pub request_id: &'a str,
    pub client: Option<SocketAddr>,
    pub method: &'a str,
    pub path: &'a str,
    pub pool: Option<&'a str>,
    pub model: Option<&'a str>,
    pub endpoint: Option<&'a str>,
    pub status: u16,
    /// Why the gateway itself answered, if it did.
    pub error: Option<&'a str>,
    /// `complete`, `client-gone`, `upstream-broken` or `refused`.
    pub outcome: &'a str,
    pub decision: Option<&'a str>,
    pub attempts: u32,
    pub stream: bool,
    pub request_bytes: usize,
    pub response_bytes: usize,
    /// Prompt tokens as estimated or known when the decision was made.
    pub prompt_tokens: u32,
    pub prompt_blocks: u32,
    pub matched_blocks: u32,
    /// What the engine reported, when it did.
    pub reported_prompt_tokens: Option<u64>,
    pub reported_cached_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub decision_time: Duration,
    /// From the choice of the endpoint to the first body byte.
    pub first_byte_after: Option<Duration>,
    pub duration: Duration,
    /// Trace that the request belongs to, when it is traced.
    pub trace_id: Option<&'a str>,
}

/// Which requests are logged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    /// Share of those that are neither errors nor slow, 0..=1.
    pub sample: f64,
    /// Requests that took longer are always logged.
    pub slow_after: Option<Duration>,
}

impl Selection {
    /// Whether a request is logged that ended so; `draw` is even over 0..1.
    pub fn takes(&self, status: u16, took: Duration, draw: impl FnOnce() -> f64) -> bool {
        status >= 400
            || self.sample >= 1.0
            || self.slow_after.is_some_and(|slow| took > slow)
            || (self.sample > 0.0 && draw() < self.sample)
    }
}

/// Where records go. Cloning shares the writer.
#[derive(Clone)]
pub struct AccessLog {
    lines: Option<Lines>,
}

impl AccessLog {
    /// Writes nothing.
    pub fn off() -> Self {
        Self { lines: None }
    }

    /// Appends to the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or the writer thread cannot start.
    pub fn file(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        Self::start(file)
    }

    /// Writes to standard error.
    ///
    /// # Errors
    /// When the writer thread cannot start.
    pub fn stderr() -> std::io::Result<Self> {
        Self::start(std::io::stderr())
    }

    /// Writes to standard output.
    ///
    /// # Errors
    /// When the writer thread cannot start.
    pub fn stdout() -> std::io::Result<Self> {
        Self::start(std::io::stdout())
    }

    fn start(sink: impl Write + Send + 'static) -> std::io::Result<Self> {
        let lines = Some(Lines::start("access-log", sink)?);
        Ok(Self { lines })
    }

    /// Whether a record would be written at all.
    pub const fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// Queues one record; never waits for the disk.
    pub fn write(&self, record: &Record<'_>) {
        if let Some(lines) = &self.lines {
            lines.push(|line| line::write(record, line));
        }
    }

    /// Waits until every record queued so far has been written; for the end of the process.
    pub fn flush(&self) {
        if let Some(lines) = &self.lines {
            lines.flush();
        }
    }

    /// Records that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.lines.as_ref().map_or(0, Lines::dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn record(request_id: &str) -> Record<'_> {
        Record {
            at: SystemTime::UNIX_EPOCH,
            request_id,
            client: None,
            method: "POST",
            path: "/v1/completions",
            pool: None,
            model: None,
            endpoint: None,
            status: 200,
            error: None,
            outcome: "complete",
            decision: None,
            attempts: 1,
            stream: false,
            request_bytes: 0,
            response_bytes: 0,
            prompt_tokens: 0,
            prompt_blocks: 0,
            matched_blocks: 0,
            reported_prompt_tokens: None,
            reported_cached_tokens: None,
            completion_tokens: None,
            decision_time: Duration::ZERO,
            first_byte_after: None,
            duration: Duration::ZERO,
            trace_id: None,
        }
    }

    #[test]
    fn errors_and_slow_requests_are_always_logged() {
        let second = Duration::from_secs(1);
        let some = Selection {
            sample: 0.1,
            slow_after: Some(second),
        };
        assert!(some.takes(200, second, || 0.09));
        assert!(!some.takes(200, second, || 0.1));
        assert!(some.takes(400, Duration::ZERO, || 0.9));
        assert!(some.takes(200, second + Duration::from_nanos(1), || 0.9));
        let only_slow = Selection { sample: 0.0, ..some };
        assert!(!only_slow.takes(200, second, || 0.0));
        assert!(only_slow.takes(200, second * 2, || 0.9));
    }

    #[test]
    fn lines_reach_the_file_in_order_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let log = AccessLog::file(&path).unwrap();
        let ids: Vec<String> = (0..2_000).map(|i| i.to_string()).collect();
        for id in &ids {
            log.write(&record(id));
        }
        log.flush();
        let text = std::fs::read_to_string(&path).unwrap();
        let written: Vec<String> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["request_id"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert_eq!(written, ids);
    }
}
