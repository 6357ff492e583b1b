//! Questions to one engine over HTTP, as the gateway asks them.

use crate::config::address::EndpointUrl;
use crate::config::schema::{Config, EndpointTls};
use crate::datalayer::dns::Dns;
use crate::datalayer::fetch;
use crate::tls::client::{self, ClientTls};
use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method};
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A busy engine may take this long for one token.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What questions to all engines share.
pub struct Asking {
    connector: Connector,
    dns: Dns,
}

impl Asking {
    pub fn new(config: &Config) -> Self {
        Self {
            connector: Connector::new(None),
            dns: Dns::new(&config.dns.servers),
        }
    }

    async fn address(&self, url: &EndpointUrl) -> anyhow::Result<SocketAddr> {
        if let Ok(ip) = url.host().parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, url.port()));
        }
        let found = self.dns.addresses(url.host()).await;
        let found = found.with_context(|| format!("the name {}", url.host()))?;
        let first = found.records.first().context("the name has no address")?;
        Ok(SocketAddr::new(*first, url.port()))
    }
}

/// An engine to ask.
pub struct Engine<'a> {
    asking: &'a Asking,
    peer: HttpPeer,
    host: HeaderValue,
    key: Option<HeaderValue>,
}

impl<'a> Engine<'a> {
    /// The engine at `url`, with `key` as its API key.
    ///
    /// # Errors
    /// When its name is not found, the key cannot stand in a header, or a file of `tls` cannot be used.
    pub async fn new(
        asking: &'a Asking,
        url: &EndpointUrl,
        key: Option<&str>,
        tls: Option<&EndpointTls>,
    ) -> anyhow::Result<Self> {
        let bearer = |key| HeaderValue::try_from(format!("Bearer {key}"));
        let tls = tls.map(ClientTls::read).transpose()?;
        let mut peer = client::peer(url, asking.address(url).await?, tls.as_ref());
        peer.options.connection_timeout = Some(CONNECT_TIMEOUT);
        peer.options.total_connection_timeout = Some(CONNECT_TIMEOUT);
        Ok(Self {
            asking,
            peer,
            host: HeaderValue::try_from(url.authority())?,
            key: key.map(bearer).transpose()?,
        })
    }

    /// The page at `path`.
    ///
    /// # Errors
    /// When the engine does not answer with success.
    pub async fn get(&self, path: &str) -> anyhow::Result<BytesMut> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    /// The answer to a JSON request.
    ///
    /// # Errors
    /// When the engine does not answer with success and JSON.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let answer = self.ask(Method::POST, path, body.to_string().into()).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<BytesMut> {
        let request = fetch::request(method, path, self.host.clone(), self.key.as_ref(), &body)?;
        let answer = fetch::ask(&self.asking.connector, &self.peer, &request, &body);
        let answer = tokio::time::timeout(TIMEOUT, answer).await;
        Ok(answer.context("no answer in time")??)
    }

    /// Whether the engine says that it publishes KV events.
    pub async fn publishes(&self) -> bool {
        let Ok(body) = self.get("/kv_event_sources").await else {
            return false;
        };
        String::from_utf8_lossy(&body).contains("\"enable_kv_cache_events\":true")
    }
}
