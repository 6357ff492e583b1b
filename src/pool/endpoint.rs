//! One model server replica: who it is and what the gateway counts of it.

use super::ejection::Outcomes;
use super::load::Load;
use super::trust::Trust;
use crate::config::address::EndpointUrl;
use crate::kv_events::feed::Feed;
use crate::kv_events::subscriber::Source;
use crate::prefix::EndpointId;
use crate::telemetry::EndpointMetrics;
use crate::tls::client::{self, ClientTls};
use arc_swap::ArcSwapOption;
use http::HeaderValue;
use pingora_core::upstreams::peer::HttpPeer;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Engines behind uvicorn close idle connections after 5 s; a kept connection must be given up before.
pub const KEEPALIVE: Duration = Duration::from_secs(4);

/// The bit of a connection's group that tells connections which nobody shares.
pub const FRESH: u64 = 1 << 63;

/// What makes an endpoint, from the configuration.
#[derive(Clone, Debug)]
pub struct Identity<'a> {
    pub pool: Arc<str>,
    pub name: &'a str,
    pub url: &'a EndpointUrl,
    pub max_inflight: Option<u32>,
    pub labels: BTreeMap<String, String>,
    /// Where its KV events come from, one source per data-parallel rank.
    pub events: Vec<Source>,
}

/// An endpoint of a pool. Its identity never changes; what is observed of it stands in the pool's snapshot.
#[derive(Debug)]
pub struct Endpoint {
    pub pool: Arc<str>,
    pub name: Arc<str>,
    pub url: EndpointUrl,
    /// `Host` header of requests to it.
    pub host_header: HeaderValue,
    /// Its key in the prefix index.
    pub id: EndpointId,
    pub load: Arc<Load>,
    /// What became of its requests.
    pub outcomes: Outcomes,
    /// How far the guess of its cache is to be trusted.
    pub trust: Trust,
    /// Free key: value pairs, shown by the admin port.
    pub labels: BTreeMap<String, String>,
    /// Requests that it may have in flight at most.
    pub max_inflight: Option<u32>,
    /// Its KV events, in a pool that goes by them.
    pub feed: Option<Feed>,
    /// Handles of its metric series.
    pub metrics: EndpointMetrics,
    address: ArcSwapOption<SocketAddr>,
    /// How often the address has changed.
    moves: AtomicU64,
    tls: ArcSwapOption<ClientTls>,
    retired: AtomicBool,
}

impl Endpoint {
    /// An endpoint whose host name has not been resolved yet, unless it is an IP literal.
    pub fn new(of: Identity<'_>, id: EndpointId, metrics: EndpointMetrics) -> Self {
        let host_header = HeaderValue::from_str(&of.url.authority())
            // The configuration accepts no host with bytes that a header value forbids.
            .unwrap_or_else(|_| HeaderValue::from_static("localhost"));
        Self {
            pool: of.pool,
            name: of.name.into(),
            url: of.url.clone(),
            address: ArcSwapOption::from_pointee(literal_address(of.url)),
            moves: AtomicU64::new(0),
            tls: ArcSwapOption::empty(),
            host_header,
            id,
            load: Arc::default(),
            outcomes: Outcomes::default(),
            trust: Trust::default(),
            labels: of.labels,
            max_inflight: of.max_inflight,
            feed: (!of.events.is_empty()).then(|| Feed::new(of.events)),
            metrics,
            retired: AtomicBool::new(false),
        }
    }

    /// The endpoint was removed: its id in the index is about to be another's. Requests that it was chosen for may
    /// still run.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Whether nothing may be written to the index under its id any more.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Where to connect to; `None` until its name has been resolved.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.load().as_deref().copied()
    }

    /// How to connect to it at `address`.
    pub fn peer(&self, address: SocketAddr) -> HttpPeer {
        let mut peer = client::peer(&self.url, address, self.tls.load().as_deref());
        peer.options.idle_timeout = Some(KEEPALIVE);
        // Connections from before a move are not used again, not even when the name moves back.
        peer.group_key = peer.group_key.wrapping_add(self.moves.load(Ordering::Relaxed)) & !FRESH;
        peer
    }

    /// Takes the terms of TLS from the next connection on.
    pub fn set_tls(&self, tls: Option<Arc<ClientTls>>) {
        self.tls.store(tls);
    }

    /// Takes a newly resolved address; true when it differs from the one before.
    pub fn set_address(&self, address: SocketAddr) -> bool {
        let old = self.address.swap(Some(Arc::new(address)));
        let moved = old.is_some_and(|old| *old != address);
        if moved {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        moved
    }

    /// Whether one more request would exceed `max_inflight`.
    pub fn is_full(&self) -> bool {
        self.max_inflight
            .is_some_and(|max| self.load.sample().inflight >= max)
    }
}

/// The address, when the host is an IP literal.
fn literal_address(url: &EndpointUrl) -> Option<SocketAddr> {
    Some(SocketAddr::new(url.host().parse().ok()?, url.port()))
}
