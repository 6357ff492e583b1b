//! Lines on their way to a file, written by a thread of its own so that a slow disk stalls no request.
//!
//! Requests append to one buffer and do not wake the writer, which looks every [`FLUSH_AFTER`]: to wake a thread for
//! each line would cost more than making the line.

use parking_lot::{Condvar, Mutex};
use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes waiting for the writer at most; further lines are dropped and counted.
pub(super) const QUEUE_BYTES: usize = 4 << 20;
/// Bytes from which the writer is woken before its time.
const WAKE_BYTES: usize = 256 << 10;
/// Lines wait for the writer no longer than this.
const FLUSH_AFTER: Duration = Duration::from_millis(200);

/// Where lines go. Cloning shares the writer; its thread ends with the last handle.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Shared>);

/// The lines between the requests and the writer.
#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    wake_writer: Condvar,
    written: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    /// The writer has taken lines that are not on disk yet.
    is_writing: bool,
}

thread_local! {
    /// A line while it is made: outside of the lock, and without an allocation.
    static LINE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(1024));
}

impl Lines {
    /// Starts the thread `name` that writes to `sink`, whole lines at a time.
    ///
    /// # Errors
    /// When the thread cannot start.
    pub fn start(name: &str, sink: impl Write + Send + 'static) -> std::io::Result<Self> {
        let lines = Self::default();
        let queue = Arc::downgrade(&lines.0);
        std::thread::Builder::new().name(name.into()).spawn(move || {
            let mut writer = Writer::new(sink);
            while let Some(shared) = queue.upgrade() {
                writer.write_waiting(&Self(shared));
            }
        })?;
        Ok(lines)
    }

    /// Queues the line that `make` appends to an empty buffer; never waits for the disk.
    pub fn push(&self, make: impl FnOnce(&mut Vec<u8>)) {
        LINE.with_borrow_mut(|line| {
            line.clear();
            make(line);
            self.append(line);
        });
    }

    fn append(&self, line: &[u8]) {
        let mut waiting = self.0.waiting.lock();
        let before = waiting.text.len();
        if before + line.len() > QUEUE_BYTES {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.text.extend_from_slice(line);
        let is_many = before < WAKE_BYTES && waiting.text.len() >= WAKE_BYTES;
        drop(waiting);
        if is_many {
            self.0.wake_writer.notify_one();
        }
    }

    /// Waits until every line queued so far has been written; for the end of the process.
    pub fn flush(&self) {
        let mut waiting = self.0.waiting.lock();
        while !waiting.text.is_empty() || waiting.is_writing {
            self.0.wake_writer.notify_one();
            self.0.written.wait(&mut waiting);
        }
    }

    /// Lines that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

struct Writer<W> {
    sink: W,
    /// Swapped with the requests' buffer, so that both keep their memory.
    text: Vec<u8>,
}

impl<W: Write> Writer<W> {
    const fn new(sink: W) -> Self {
        Self {
            sink,
            text: Vec::new(),
        }
    }

    /// Writes what waits, or comes within [`FLUSH_AFTER`].
    fn write_waiting(&mut self, lines: &Lines) {
        let shared = &lines.0;
        let mut waiting = shared.waiting.lock();
        if waiting.text.len() < WAKE_BYTES {
            shared.wake_writer.wait_for(&mut waiting, FLUSH_AFTER);
        }
        std::mem::swap(&mut waiting.text, &mut self.text);
        waiting.is_writing = true;
        drop(waiting);
        // A failed write cannot be told to anybody but the next line's reader; the gateway goes on.
        let _ = self.sink.write_all(&self.text).and_then(|()| self.sink.flush());
        self.text.clear();
        shared.waiting.lock().is_writing = false;
        shared.written.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let lines = Lines::default();
        let push = || lines.push(|line| line.extend_from_slice(&[b'a'; 1000]));
        let room = QUEUE_BYTES / 1000;
        (0..room + 3).for_each(|_| push());
        assert_eq!(lines.dropped(), 3);
        let mut sink = Vec::new();
        Writer::new(&mut sink).write_waiting(&lines);
        assert_eq!(sink.len(), room * 1000);
        push();
        assert_eq!(lines.dropped(), 3, "there is room again");
    }

    #[test]
    fn the_writer_ends_with_the_last_handle() {
        struct Sink {
            _alive: std::sync::mpsc::Sender<()>,
        }
        impl Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (_alive, ended) = std::sync::mpsc::channel();
        let lines = Lines::start("test", Sink { _alive }).unwrap();
        drop(lines);
        // The sink lives on the writer's stack: its sender goes when the thread ends.
        assert!(ended.recv().is_err());
    }
}
