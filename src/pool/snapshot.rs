//! What was observed of a pool's endpoints, as one immutable value per moment.

use super::endpoint::Endpoint;
use crate::datalayer::vllm::EngineMetrics;
use crate::prefix::EndpointId;
use crate::scheduling::Scraped;
use crate::time::Mono;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Whether an endpoint takes new requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Takes requests.
    Ready,
    /// Not checked yet, or its health check fails.
    Unready,
    /// Set aside because requests to it failed.
    Ejected,
    /// Taken out by an operator.
    Draining,
}

impl State {
    /// All states, for gauges with one series per state.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Unready, Self::Ejected, Self::Draining];

    /// The word in admin pages and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Unready => "unready",
            Self::Ejected => "ejected",
            Self::Draining => "draining",
        }
    }
}

/// One endpoint in a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct Entry {
    pub endpoint: Arc<Endpoint>,
    pub state: State,
    /// Why the state is what it is, in words.
    pub reason: Arc<str>,
    /// When it last became ready.
    pub ready_since: Option<Mono>,
    /// The newest scrape and when it was taken.
    pub engine: EngineMetrics,
    pub sampled_at: Option<Mono>,
}

impl Entry {
    /// The scraped gauges, unless they are older than `stale_after`.
    pub fn gauges(&self, now: Mono, stale_after: Duration) -> Scraped {
        match self.sampled_at {
            Some(at) if now.since(at) <= stale_after => Scraped {
                waiting: self.engine.waiting,
                running: self.engine.running,
                kv_usage: self.engine.kv_usage,
            },
            _ => Scraped::default(),
        }
    }
}

/// All endpoints of a pool at one moment; a decision reads exactly one.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub entries: Box<[Entry]>,
}

impl Snapshot {
    /// The entry of the endpoint named `name`.
    pub fn by_name(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| &*entry.endpoint.name == name)
    }

    /// The entry of the endpoint with this id in the prefix index.
    pub fn by_id(&self, id: EndpointId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.endpoint.id == id)
    }

    /// Endpoints that take requests.
    pub fn ready(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.state == State::Ready)
    }
}
