//! Publishes the simulated engine's block events over ZeroMQ, as vLLM's `--kv-events-config` does.
//!
//! Blocks are named by a hash that depends on a seed of the process, as in vLLM: who took them for prompt
//! hashes would be found out.

mod wire;

pub use wire::EventFormat;

use super::engine::EngineEvent;
use super::server::BlockEventSink;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use wire::Encoder;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

/// Steps whose events may wait to be sent; more are dropped, and show as a gap in the sequence.
const QUEUE_STEPS: usize = 100_000;

/// Where and how to publish.
#[derive(Clone, Debug)]
pub struct KvPublisherOptions {
    /// `tcp://HOST:PORT` to bind the PUB socket to; port 0 takes a free one.
    pub events: String,
    /// `tcp://HOST:PORT` to bind the replay socket to.
    pub replay: Option<String>,
    pub topic: String,
    pub format: EventFormat,
    /// Tokens per block.
    pub block_size: u32,
    /// Messages kept for replay.
    pub buffer_steps: usize,
    /// Of the names of blocks.
    pub seed: u64,
}

impl KvPublisherOptions {
    /// vLLM's defaults: no replay, no topic, 10,000 messages kept.
    pub fn new(events: &str, block_size: u32, seed: u64) -> Self {
        Self {
            events: events.to_owned(),
            replay: None,
            topic: String::new(),
            format: EventFormat::Map,
            block_size,
            buffer_steps: 10_000,
            seed,
        }
    }
}

/// A publisher at work; dropping it closes its sockets.
#[derive(Debug)]
pub struct KvPublisher {
    queue: mpsc::Sender<Message>,
    sequence: AtomicU64,
    encoder: Encoder,
    events: String,
    replay: Option<String>,
    topic: String,
    buffer_steps: usize,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Message {
    sequence: u64,
    payload: Bytes,
}

impl KvPublisher {
    /// Binds the sockets and starts publishing, on the current tokio runtime.
    ///
    /// # Errors
    /// When an address is malformed or taken.
    pub async fn bind(options: KvPublisherOptions) -> Result<Self, ZmqError> {
        let mut publisher = PubSocket::new();
        let events = publisher.bind(&any_host(&options.events)).await?.to_string();
        let (router, replay) = match &options.replay {
            None => (None, None),
            Some(address) => {
                let mut router = RouterSocket::new();
                let bound = router.bind(&any_host(address)).await?.to_string();
                (Some(router), Some(bound))
            }
        };
        let (queue, incoming) = mpsc::channel(QUEUE_STEPS);
        let encoder = Encoder::new(options.format, options.block_size, options.seed);
        let task = Task {
            publisher,
            router,
            topic: options.topic.clone().into(),
            kept: VecDeque::new(),
            keep: options.buffer_steps,
        };
        let task = tokio::spawn(task.run(incoming));
        Ok(Self {
            queue,
            sequence: AtomicU64::new(0),
            encoder,
            events,
            replay,
            topic: options.topic,
            buffer_steps: options.buffer_steps,
            task,
        })
    }

    /// What vLLM's `/kv_event_sources` says of it.
    pub fn source(&self) -> serde_json::Value {
        serde_json::json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": self.events,
            "replay_endpoint": self.replay,
            "buffer_steps": self.buffer_steps,
            "hwm": QUEUE_STEPS,
            "max_queue_size": QUEUE_STEPS,
            "topic": self.topic,
        })
    }

    /// Messages so far; the next one has this number.
    pub fn published(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// Where the PUB socket is bound.
    pub fn events_address(&self) -> &str {
        &self.events
    }

    /// Where the replay socket is bound.
    pub fn replay_address(&self) -> Option<&str> {
        self.replay.as_deref()
    }
}

impl BlockEventSink for KvPublisher {
    fn publish(&self, events: &[EngineEvent]) {
        if let Some(payload) = self.encoder.encode(events) {
            // Numbered before it is queued: a message that finds no room leaves a gap for subscribers to see.
            let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
            let _ = self.queue.try_send(Message { sequence, payload });
        }
    }
}

impl Drop for KvPublisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// vLLM's wildcard, as the socket library spells it.
fn any_host(address: &str) -> String {
    address.replace("tcp://*:", "tcp://0.0.0.0:")
}

struct Task {
    publisher: PubSocket,
    router: Option<RouterSocket>,
    topic: Bytes,
    kept: VecDeque<Message>,
    keep: usize,
}

impl Task {
    async fn run(mut self, mut incoming: mpsc::Receiver<Message>) {
        loop {
            tokio::select! {
                message = incoming.recv() => match message {
                    Some(message) => self.publish(message).await,
                    None => return,
                },
                request = receive(&mut self.router) => self.answer(request).await,
            }
        }
    }

    async fn publish(&mut self, message: Message) {
        let frames = vec![
            self.topic.clone(),
            number(message.sequence),
            message.payload.clone(),
        ];
        send(&mut self.publisher, frames).await;
        self.kept.push_back(message);
        if self.kept.len() > self.keep {
            self.kept.pop_front();
        }
    }

    /// Sends everything that is kept from the requested number on, and then the end marker.
    async fn answer(&mut self, request: Vec<Bytes>) {
        let Some(router) = &mut self.router else { return };
        let [peer, empty, from] = &request[..] else { return };
        let Ok(from) = from[..].try_into().map(u64::from_be_bytes) else {
            return;
        };
        for message in self.kept.iter().filter(|message| message.sequence >= from) {
            let content = [
                self.topic.clone(),
                number(message.sequence),
                message.payload.clone(),
            ];
            send(
                router,
                [peer.clone(), empty.clone()].into_iter().chain(content).collect(),
            )
            .await;
        }
        let end = [Bytes::new(), number(u64::MAX), Bytes::new()];
        send(
            router,
            [peer.clone(), empty.clone()].into_iter().chain(end).collect(),
        )
        .await;
    }
}

/// The next replay request; waits for ever when there is no replay socket.
async fn receive(router: &mut Option<RouterSocket>) -> Vec<Bytes> {
    match router {
        None => std::future::pending().await,
        Some(router) => match router.recv().await {
            Ok(request) => request.into_vec(),
            Err(error) => {
                tracing::debug!(%error, "KV event replay request");
                Vec::new()
            }
        },
    }
}

/// A peer that has gone is no fault of the publisher's.
async fn send(socket: &mut impl SocketSend, frames: Vec<Bytes>) {
    if let Ok(message) = ZmqMessage::try_from(frames)
        && let Err(error) = socket.send(message).await
    {
        tracing::debug!(%error, "KV event not sent");
    }
}

fn number(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}
