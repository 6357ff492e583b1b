//! The task that listens to one engine's events (one data-parallel rank of it).

use super::address::Address;
use super::ownership::{BlockSink, Counts, Limits};
use super::tracker::{Next, StreamCounts, Tracker};
use super::zmtp::{Connection, Kind, Message, ZmtpError};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A whole replay: vLLM keeps 10,000 messages by default.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Where one rank's events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub events: Address,
    /// The replay socket, if the engine has one.
    pub replay: Option<Address>,
    /// Start of the topics to listen to; empty for all.
    pub topic: String,
}

/// What is known of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub connected: bool,
    /// Connections made so far.
    pub connections: u64,
    /// Why there is no connection.
    pub error: Option<String>,
    /// Replays asked for, and those that failed or ended early.
    pub replays: u64,
    pub failed_replays: u64,
    /// Messages that are no event message at all.
    pub foreign_messages: u64,
    pub last_sequence: Option<u64>,
    /// Tokens per block, as the events say.
    pub block_size: Option<u32>,
    pub owned_blocks: usize,
    pub stream: StreamCounts,
    pub events: Counts,
}

/// A running subscription; dropping it ends the task. The sink is left as it is.
#[derive(Debug)]
pub struct Subscription {
    status: Arc<Mutex<Status>>,
    reset: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Subscription {
    /// Starts listening, on the current tokio runtime.
    pub fn spawn(source: Source, limits: Limits, sink: impl BlockSink + Send + 'static) -> Self {
        let (status, reset) = (Arc::new(Mutex::new(Status::default())), Arc::new(Notify::new()));
        let tracker = Tracker::new(limits, source.replay.is_some());
        let mut task = Task {
            source,
            tracker,
            sink,
            status: Arc::clone(&status),
            reset: Arc::clone(&reset),
        };
        Self {
            status,
            reset,
            task: tokio::spawn(async move { task.run().await }),
        }
    }

    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Something else showed that the engine's cache is gone (a restart between two scrapes): everything
    /// known of it is dropped, soon.
    pub fn reset(&self) {
        self.reset.notify_one();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task<S> {
    source: Source,
    tracker: Tracker,
    sink: S,
    status: Arc<Mutex<Status>>,
    reset: Arc<Notify>,
}

impl<S: BlockSink> Task<S> {
    async fn run(&mut self) {
        let mut retry = FIRST_RETRY;
        loop {
            let started = Instant::now();
            let Err(error) = self.session().await;
            // Nobody listens there: the process is gone, and its cache with it. A connection that only broke off
            // says nothing of the sort.
            let is_gone = matches!(&error, ZmtpError::Io(why) if why.kind() == ErrorKind::ConnectionRefused);
            if is_gone && self.tracker.last_sequence().is_some() {
                self.forget();
            }
            tracing::debug!(events = %self.source.events, %error, "KV event connection ended");
            {
                let status = &mut *self.status.lock();
                status.connected = false;
                status.error = Some(error.to_string());
            }
            if started.elapsed() > LAST_RETRY {
                retry = FIRST_RETRY;
            }
            self.rest(retry).await;
            retry = (retry * 2).min(LAST_RETRY);
        }
    }

    async fn rest(&mut self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.reset.notified() => self.forget(),
        }
    }

    /// One connection, to its end.
    async fn session(&mut self) -> Result<Infallible, ZmtpError> {
        let mut connection = in_time(CONNECT_TIMEOUT, async {
            let mut connection = Connection::connect(&self.source.events, Kind::Sub).await?;
            connection.subscribe(&self.source.topic).await?;
            Ok(connection)
        })
        .await?;
        self.note(|status| {
            status.connected = true;
            status.connections += 1;
            status.error = None;
        });
        // Only now: what is published from here on comes live, what was published before comes replayed.
        if let Some(from) = self.tracker.connected() {
            self.replay(from).await;
        }
        loop {
            tokio::select! {
                message = connection.receive() => self.message(&message?).await,
                () = self.reset.notified() => self.forget(),
            }
        }
    }

    async fn message(&mut self, message: &Message) {
        // A publisher that never pauses must not keep the worker to itself.
        tokio::task::consume_budget().await;
        let [_topic, sequence, payload] = &message[..] else {
            return self.foreign();
        };
        let Some(sequence) = sequence_number(sequence) else {
            return self.foreign();
        };
        if let Next::Replay { from } = self.tracker.live(sequence, payload, &mut self.sink) {
            self.replay(from).await;
            self.tracker.resume(sequence, payload, &mut self.sink);
        }
        self.note(|_| ());
    }

    fn forget(&mut self) {
        self.tracker.reset(&mut self.sink);
        self.note(|_| ());
    }

    fn foreign(&self) {
        self.status.lock().foreign_messages += 1;
    }

    /// Fetches what was missed. When that fails the next live message shows the gap.
    async fn replay(&mut self, mut from: u64) {
        // A second round follows when the first shows that the engine has restarted.
        for _ in 0..2 {
            let outcome = in_time(REPLAY_TIMEOUT, self.replay_once(from)).await;
            self.note(|status| {
                status.replays += 1;
                status.failed_replays += u64::from(outcome.is_err());
            });
            match outcome {
                Ok(Next::Replay { from: anew }) => from = anew,
                Ok(Next::Done) => return,
                Err(error) => {
                    tracing::debug!(events = %self.source.events, from, %error, "KV event replay failed");
                    return;
                }
            }
        }
    }

    async fn replay_once(&mut self, from: u64) -> Result<Next, ZmtpError> {
        let Some(address) = &self.source.replay else {
            return Ok(Next::Done);
        };
        let mut connection = Connection::connect(address, Kind::Dealer).await?;
        connection.send(&[b"", &from.to_be_bytes()]).await?;
        loop {
            tokio::task::consume_budget().await;
            let message = connection.receive().await?;
            // Up to 0.25 without the topic. The end is an empty payload under a number that no message has.
            let [sequence, payload] = match &message[..] {
                [_, _topic, sequence, payload] => [sequence, payload],
                [_, sequence, payload] => [sequence, payload],
                _ => {
                    self.foreign();
                    continue;
                }
            };
            if payload.is_empty() {
                return Ok(Next::Done);
            }
            let Some(sequence) = sequence_number(sequence) else {
                self.foreign();
                continue;
            };
            let next = self.tracker.replayed(sequence, payload, &mut self.sink);
            if next != Next::Done {
                return Ok(next);
            }
        }
    }

    fn note(&self, change: impl FnOnce(&mut Status)) {
        let ownership = self.tracker.ownership();
        let status = &mut *self.status.lock();
        status.last_sequence = self.tracker.last_sequence();
        status.block_size = ownership.block_size();
        status.owned_blocks = ownership.owned_blocks();
        status.stream = self.tracker.counts();
        status.events = ownership.counts();
        change(status);
    }
}

fn sequence_number(frame: &[u8]) -> Option<u64> {
    frame.try_into().ok().map(u64::from_be_bytes)
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, ZmtpError>>,
) -> Result<T, ZmtpError> {
    timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(ZmtpError::Io(ErrorKind::TimedOut.into())))
}
