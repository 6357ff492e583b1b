//! Asks endpoints for pages, over kept connections and as requests go: by the same address, with the same TLS.

use crate::pool::endpoint::{Endpoint, KEEPALIVE};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, header};
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType};
use pingora_http::RequestHeader;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Largest page that is read; vLLM's metrics are some 50 kB.
const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("{}", cause(.0))]
    Exchange(#[from] Box<Error>),
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

/// What went wrong in a few words: the kind, and for TLS what the other side's certificate lacks.
pub fn cause(error: &Error) -> String {
    let kind = error.etype().as_str();
    match (error.etype(), &error.context) {
        (ErrorType::TLSHandshakeFailure | ErrorType::InvalidCert, Some(context)) => {
            format!("{kind}: {}", context.as_str())
        }
        _ => kind.to_owned(),
    }
}

/// A request without a body, or with one of JSON.
///
/// # Errors
/// When `path` cannot stand in a request.
pub fn request(
    method: Method,
    path: &str,
    host: HeaderValue,
    key: Option<&HeaderValue>,
    body: &[u8],
) -> Result<RequestHeader, FetchError> {
    let mut request = RequestHeader::build(method, path.as_bytes(), Some(4))?;
    request.insert_header(header::HOST, host)?;
    if let Some(key) = key {
        request.insert_header(header::AUTHORIZATION, key.clone())?;
    }
    if !body.is_empty() {
        request.insert_header(header::CONTENT_TYPE, "application/json")?;
        request.insert_header(header::CONTENT_LENGTH, body.len())?;
    }
    Ok(request)
}

/// Sends `request`, which must be harmless to send twice, to `peer` and reads the body of the answer.
///
/// # Errors
/// When the answer is not one of status 200.
pub async fn ask(
    connector: &Connector,
    peer: &HttpPeer,
    request: &RequestHeader,
    body: &Bytes,
) -> Result<BytesMut, FetchError> {
    loop {
        let (answer, reused) = exchange(connector, peer, request, body).await;
        match answer {
            // It may have been closed just then; there are only so many kept ones.
            Err(FetchError::Exchange(_)) if reused => {}
            answer => return answer,
        }
    }
}

/// The answer, and whether it came over a connection that was used before.
async fn exchange(
    connector: &Connector,
    peer: &HttpPeer,
    request: &RequestHeader,
    body: &Bytes,
) -> (Result<BytesMut, FetchError>, bool) {
    let (mut session, reused) = match connector.get_http_session(peer).await {
        Ok(connected) => connected,
        Err(error) => return (Err(error.into()), false),
    };
    let answer = async {
        session.write_request_header(Box::new(request.clone())).await?;
        if !body.is_empty() {
            session.write_request_body(body.clone(), true).await?;
        }
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
        Ok((status, page))
    };
    let answer = match answer.await {
        Ok((200, page)) => Ok(page),
        Ok((status, _)) => Err(FetchError::Status(status)),
        // Whatever is left on the connection is no answer to the next request.
        Err(error) => return (Err(error), reused),
    };
    connector
        .release_http_session(session, peer, Some(KEEPALIVE))
        .await;
    (answer, reused)
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
        let host = endpoint.host_header.clone();
        Ok(Self {
            connector,
            endpoint: endpoint.clone(),
            request: request(Method::GET, path, host, key, b"")?,
            timeout,
        })
    }

    /// Reads the page from `address`.
    ///
    /// # Errors
    /// When the endpoint does not answer with status 200 in time.
    pub async fn read(&self, address: SocketAddr) -> Result<BytesMut, FetchError> {
        let peer = self.endpoint.peer(address);
        let (nothing, request) = (Bytes::new(), &self.request);
        match tokio::time::timeout(self.timeout, ask(&self.connector, &peer, request, &nothing)).await {
            Ok(page) => page,
            Err(_) => Err(FetchError::TimedOut),
        }
    }
}
