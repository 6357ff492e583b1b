//! One JSON line per request, written by a thread of its own so that a slow disk stalls no request.

use serde::Serialize;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Version of the line's schema, in each line as `v`.
pub const SCHEMA_VERSION: u32 = 1;
/// Lines waiting for the writer at most; further ones are dropped and counted.
const QUEUE_LINES: usize = 8_192;
/// Lines stay in the writer's buffer no longer than this.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// What is logged of a request. No prompt text, ever.
#[derive(Debug, Serialize)]
pub struct Record<'a> {
    pub v: u32,
    /// Wall-clock time of the end of the request, RFC 3339 with milliseconds.
    pub time: String,
    pub request_id: &'a str,
    pub client: Option<String>,
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
    pub decision_us: u64,
    pub ttfb_ms: Option<f64>,
    pub duration_ms: f64,
}

/// Where records go. Cloning shares the writer.
#[derive(Clone)]
pub struct AccessLog {
    lines: Option<SyncSender<Vec<u8>>>,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    /// Writes nothing.
    pub fn off() -> Self {
        Self {
            lines: None,
            dropped: Arc::default(),
        }
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
        let (lines, queue) = sync_channel(QUEUE_LINES);
        let dropped = Arc::<AtomicU64>::default();
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_lines(&queue, sink))?;
        Ok(Self {
            lines: Some(lines),
            dropped,
        })
    }

    /// Whether a record would be written at all.
    pub const fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// Queues one record; never waits.
    pub fn write(&self, record: &Record<'_>) {
        let Some(lines) = &self.lines else { return };
        let Ok(mut line) = serde_json::to_vec(record) else {
            return;
        };
        line.push(b'\n');
        if let Err(TrySendError::Full(_)) = lines.try_send(line) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn write_lines(queue: &Receiver<Vec<u8>>, sink: impl Write) {
    let mut out = BufWriter::with_capacity(64 * 1024, sink);
    loop {
        // A failed write cannot be told to anybody but the next line's reader; the gateway goes on.
        let written = match queue.recv_timeout(FLUSH_AFTER) {
            Ok(line) => out.write_all(&line),
            Err(RecvTimeoutError::Timeout) => out.flush(),
            Err(RecvTimeoutError::Disconnected) => {
                let _ = out.flush();
                return;
            }
        };
        drop(written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_reach_the_file_in_order_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let (lines, queue) = sync_channel(16);
        for i in 0..5 {
            lines.send(format!("{{\"n\":{i}}}\n").into_bytes()).unwrap();
        }
        drop(lines);
        write_lines(&queue, std::fs::File::create(&path).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        let numbers: Vec<i64> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["n"]
                    .as_i64()
                    .unwrap()
            })
            .collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (lines, _queue) = sync_channel(1);
        let log = AccessLog {
            lines: Some(lines),
            dropped: Arc::default(),
        };
        let record = Record {
            v: SCHEMA_VERSION,
            time: String::new(),
            request_id: "r",
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
            decision_us: 0,
            ttfb_ms: None,
            duration_ms: 0.0,
        };
        for _ in 0..3 {
            log.write(&record);
        }
        assert_eq!(log.dropped(), 2);
    }
}
