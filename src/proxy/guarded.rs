//! The server application around the proxy: chooses HTTP/1 or HTTP/2 on a cleartext connection and puts a
//! deadline on request headers.
//!
//! Pingora's own h2c switch waits without limit for 24 bytes, and its HTTP/1 reader has only a time-out per
//! read, so a client that trickles one byte a second holds a connection for ever.

use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::{ALPN, Stream};
use pingora_core::server::ShutdownWatch;
use pingora_proxy::{HttpProxy, ProxyHttp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The HTTP/2 connection preface (RFC 9113, section 3.4).
const H2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Its first bytes; no HTTP/1 method starts so, and no HTTP/1 request is shorter.
const H2_MARK: usize = 4;

/// Bounds for one client connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// From the first byte of a request to the end of its headers.
    pub header_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
}

/// Runs `proxy` on accepted connections within `limits`.
pub struct Guarded<SV> {
    proxy: Arc<HttpProxy<SV>>,
    limits: ConnectionLimits,
}

tokio::task_local! {
    static HEADERS_READ: HeadersRead;
}

/// Set by the proxy's first phase; tells the deadline that it has been met.
#[derive(Clone, Default)]
struct HeadersRead(Arc<AtomicBool>);

/// To be called in the first phase of a request: its headers are complete.
pub fn note_headers_read() {
    // HTTP/2 requests run in tasks of their own, outside the scope; their frames have their own bounds.
    let _ = HEADERS_READ.try_with(|read| read.0.store(true, Ordering::Relaxed));
}

impl<SV> Guarded<SV>
where
    SV: ProxyHttp + Send + Sync + 'static,
    SV::CTX: Send + Sync,
{
    /// Wraps `proxy`.
    pub fn new(mut proxy: HttpProxy<SV>, limits: ConnectionLimits) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        options.h2_idle_timeout = Some(limits.idle_timeout);
        proxy.server_options = Some(options);
        Self {
            proxy: Arc::new(proxy),
            limits,
        }
    }

    async fn serve_h1(&self, stream: Stream, shutdown: &ShutdownWatch) {
        let mut session = ServerSession::new_http1(stream);
        let idle_s = self.limits.idle_timeout.as_secs().max(1);
        session.set_keepalive(if *shutdown.borrow() { None } else { Some(idle_s) });
        let mut deadline = self.limits.header_timeout;
        let mut next = self.exchange(session, shutdown, deadline).await;
        while let Some(reused) = next {
            // The wait for the next request counts too: it may be as long as the idle time-out allows.
            deadline = self.limits.idle_timeout + self.limits.header_timeout;
            let (stream, settings) = reused.consume();
            let mut session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
            next = self.exchange(session, shutdown, deadline).await;
        }
    }

    /// One request and its response; `None` when the connection is done or its headers were late.
    async fn exchange(
        &self,
        session: ServerSession,
        shutdown: &ShutdownWatch,
        deadline: Duration,
    ) -> Option<ReusedHttpStream> {
        let read = HeadersRead::default();
        let exchange = HEADERS_READ.scope(read.clone(), self.proxy.process_new_http(session, shutdown));
        tokio::pin!(exchange);
        match tokio::time::timeout(deadline, &mut exchange).await {
            Ok(next) => next,
            Err(_) if read.0.load(Ordering::Relaxed) => exchange.await,
            Err(_) => None,
        }
    }

    /// Which protocol the client speaks; `None` when it does not say in time.
    async fn speaks_h2(&self, stream: &mut Stream) -> Option<bool> {
        if stream.get_ssl_digest().is_some() {
            return Some(matches!(stream.selected_alpn_proto(), Some(ALPN::H2)));
        }
        let mut first = [0; H2_PREFACE.len()];
        let peek = async {
            let mark = &mut first[..H2_MARK];
            if !stream.try_peek(mark).await? || *mark != H2_PREFACE[..H2_MARK] {
                return Ok(false);
            }
            stream.try_peek(&mut first).await?;
            std::io::Result::Ok(first == *H2_PREFACE)
        };
        tokio::time::timeout(self.limits.header_timeout, peek)
            .await
            .ok()?
            .ok()
    }
}

#[async_trait]
impl<SV> ServerApp for Guarded<SV>
where
    SV: ProxyHttp + Send + Sync + 'static,
    SV::CTX: Send + Sync,
{
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        if self.speaks_h2(&mut stream).await? {
            // The whole preface is there, so Pingora's own unbounded look at it does not wait.
            return self.proxy.process_new(stream, shutdown).await;
        }
        self.serve_h1(stream, shutdown).await;
        None
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}
