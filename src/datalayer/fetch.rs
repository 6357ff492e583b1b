//! Reads one page of an endpoint over a kept connection.

use crate::pool::endpoint::{Endpoint, KEEPALIVE};
use bytes::BytesMut;
use http::{HeaderValue, header};
use pingora_core::connectors::http::Connector;
use pingora_http::RequestHeader;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Largest page that is read; vLLM's metrics are some 50 kB.
const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("{0}")]
    Exchange(#[from] Box<pingora_core::Error>),
    #[error("status {0}")]
    Status(u16),
    #[error("the page is larger than {MAX_PAGE_BYTES} bytes")]
    TooLarge,
    #[error("no answer in time")]
    TimedOut,
}

impl FetchError {
    /// A word for the label of a metric.
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Exchange(_) => "unreachable",
            Self::Status(_) => "bad-status",
            Self::TooLarge => "too-large",
            Self::TimedOut => "timeout",
        }
    }
}

/// A page to be read again and again.
pub struct Page {
    connector: Arc<Connector>,
    endpoint: Arc<Endpoint>,
    request: RequestHeader,
    timeout: Duration,
}

impl Page {
    /// A page of `endpoint` over connections of `connector`, with `key` as its `Authorization`.
    ///
    /// # Errors
    /// When `path` cannot stand in a request.
    pub fn of(
        connector: Arc<Connector>,
        endpoint: &Arc<Endpoint>,
        path: &str,
        key: Option<&HeaderValue>,
        timeout: Duration,
    ) -> Result<Self, FetchError> {
        let mut request = RequestHeader::build("GET", path.as_bytes(), Some(2))?;
        request.insert_header(header::HOST, endpoint.host_header.clone())?;
        if let Some(key) = key {
            request.insert_header(header::AUTHORIZATION, key.clone())?;
        }
        let endpoint = endpoint.clone();
        Ok(Self {
            connector,
            endpoint,
            request,
            timeout,
        })
    }

    /// Reads the page from `address`.
    ///
    /// # Errors
    /// When the endpoint does not answer with status 200 in time.
    pub async fn read(&self, address: SocketAddr) -> Result<BytesMut, FetchError> {
        match tokio::time::timeout(self.timeout, self.exchange(address)).await {
            Ok(page) => page,
            Err(_) => Err(FetchError::TimedOut),
        }
    }

    async fn exchange(&self, address: SocketAddr) -> Result<BytesMut, FetchError> {
        let peer = self.endpoint.peer(address);
        let (mut session, _reused) = self.connector.get_http_session(&peer).await?;
        session
            .write_request_header(Box::new(self.request.clone()))
            .await?;
        session.finish_request_body().await?;
        session.read_response_header().await?;
        let status = session.response_header().map_or(0, |head| head.status.as_u16());
        let mut page = BytesMut::with_capacity(64 * 1024);
        while let Some(chunk) = session.read_response_body().await? {
            if page.len() + chunk.len() > MAX_PAGE_BYTES {
                return Err(FetchError::TooLarge);
            }
            page.extend_from_slice(&chunk);
        }
        self.connector
            .release_http_session(session, &peer, Some(KEEPALIVE))
            .await;
        if status == 200 {
            Ok(page)
        } else {
            Err(FetchError::Status(status))
        }
    }
}
