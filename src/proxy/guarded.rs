//! The server application around the proxy: makes TLS handshakes, chooses HTTP/1 or HTTP/2 and puts a deadline on both
//! handshakes and request headers.
//!
//! Pingora's own h2c switch waits without limit for 24 bytes, and its HTTP/1 reader has only a time-out per
//! read, so a client that trickles one byte a second holds a connection for ever.

use super::cork::Corks;
use super::drive::drive;
use super::error::Reason;
use super::{Gateway, answer, buffered, framing};
use crate::openai::PathKind;
use crate::tls::server::TlsPorts;
use async_trait::async_trait;
use buffered::Slot;
use http::Version;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::default_h2_options;
use pingora_core::protocols::{ALPN, Stream};
use pingora_core::server::ShutdownWatch;
use pingora_proxy::{HttpProxy, ProxyHttp, Session};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

/// The HTTP/2 connection preface (RFC 9113, section 3.4).
const H2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Its first bytes; no HTTP/1 method starts so, and no HTTP/1 request is shorter.
const H2_MARK: usize = 4;
/// Unread bytes that a client may send on one stream: enough for a large prompt at a high round-trip time.
const H2_STREAM_WINDOW: u32 = 1024 * 1024;
/// The same over all streams of a connection.
const H2_CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// How long a connection without a request stays open once the gateway shuts down.
const LINGER: Duration = Duration::from_secs(2);

/// Bounds for one client connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// From the first byte of a request to the end of its headers.
    pub header_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of a response that waits for it.
    pub send_timeout: Duration,
}

/// Runs `proxy` on accepted connections within `limits`.
pub struct Guarded<SV> {
    proxy: Arc<HttpProxy<SV>>,
    gateway: Arc<Gateway>,
    limits: ConnectionLimits,
    tls: Option<TlsPorts>,
}

/// What a read of a request's head waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The rest: the head's first bytes are there.
    Started,
    /// The client's next request, which may never come.
    Idle,
}

tokio::task_local! {
    static HEAD: (Slot, Arc<Corks>);
}

/// In the first phase of a request: puts the client's real session in place, whose head was read before the proxy
/// saw it; yields its connection's corks. Requests of HTTP/2 run in tasks of their own, outside the scope, with their
/// real sessions.
pub fn restore_session(session: &mut Session) -> Option<Arc<Corks>> {
    let held = HEAD.try_with(|(slot, corks)| {
        buffered::restore(session, slot);
        corks.clone()
    });
    held.ok()
}

impl<SV> Guarded<SV>
where
    SV: ProxyHttp + Send + Sync + 'static,
    SV::CTX: Send + Sync,
{
    /// Wraps `proxy`; connections to the ports of `tls` begin with a handshake.
    pub fn new(
        mut proxy: HttpProxy<SV>,
        gateway: Arc<Gateway>,
        limits: ConnectionLimits,
        tls: Option<TlsPorts>,
    ) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        // Pingora's own refusal is no error of the API; `headers::admit` refuses it.
        options.allow_connect_method_proxying = true;
        options.h2_idle_timeout = Some(limits.idle_timeout);
        proxy.server_options = Some(options);
        let mut h2 = default_h2_options();
        h2.initial_window_size(H2_STREAM_WINDOW)
            .initial_connection_window_size(H2_CONNECTION_WINDOW);
        proxy.h2_options = Some(h2);
        Self {
            proxy: Arc::new(proxy),
            gateway,
            limits,
            tls,
        }
    }

    async fn serve_h1(&self, stream: Stream, shutdown: &ShutdownWatch, corks: &Arc<Corks>) {
        let mut session = ServerSession::new_http1(stream);
        session.set_keepalive(Some(self.limits.idle_timeout.as_secs().max(1)));
        // Off, a request that comes before the response to the one before it would abort that one.
        session.set_pipelining_enabled(true);
        let mut next = self.exchange(session, shutdown, Wait::Started, corks).await;
        while let Some(reused) = next {
            let (stream, settings) = reused.consume();
            let mut session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
            next = self.exchange(session, shutdown, Wait::Idle, corks).await;
        }
    }

    /// One request and its response; `None` when the connection is done.
    async fn exchange(
        &self,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
        wait: Wait,
        corks: &Arc<Corks>,
    ) -> Option<ReusedHttpStream> {
        match self.read_head(&mut session, shutdown, wait).await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(reason) => {
                self.gateway.metrics.count_error(reason);
                self.gateway
                    .metrics
                    .count_unrouted("", reason.status(), PathKind::Other.as_str());
                Box::pin(answer::close_with(session, reason)).await;
                return None;
            }
        }
        // Where a body of unknown length ends, an HTTP/1.0 client sees by the end of the connection only.
        if *shutdown.borrow() || session.req_header().version == Version::HTTP_10 {
            session.set_keepalive(None);
        }
        session.set_write_timeout(Some(self.limits.send_timeout));
        let (session, slot) = buffered::hold(Box::new(session));
        let head = (slot, corks.clone());
        HEAD.scope(head, self.proxy.process_new_http(session, shutdown))
            .await
    }

    /// Reads a request's head; false when the client has no further request.
    async fn read_head(
        &self,
        session: &mut ServerSession,
        shutdown: &ShutdownWatch,
        wait: Wait,
    ) -> Result<bool, Reason> {
        let deadline = match wait {
            Wait::Started => self.limits.header_timeout,
            // The wait for the next request counts too: it may be as long as the idle time-out allows.
            Wait::Idle => self.limits.idle_timeout + self.limits.header_timeout,
        };
        let read = {
            let mut read = pin!(tokio::time::timeout(deadline, session.read_request()));
            match wait {
                Wait::Started => read.await,
                Wait::Idle => match self.unless_closing(read.as_mut(), shutdown).await {
                    Some(read) => read,
                    None => return Ok(false),
                },
            }
        };
        match read {
            Ok(Ok(true)) => framing::check(session).map(|()| true),
            Ok(Ok(false)) => Ok(false),
            Ok(Err(error)) => framing::refusal(&error).map_or(Ok(false), Err),
            Err(_) if wait == Wait::Started => Err(Reason::RequestTimeout),
            // Nothing may have come at all: an answer would be taken for that of the client's next request.
            Err(_) => Ok(false),
        }
    }

    /// What `read` yields, unless the gateway shuts down and nothing comes for a while longer: a request that is on
    /// its way when the shutdown begins is still answered.
    async fn unless_closing<T>(
        &self,
        mut read: Pin<&mut impl Future<Output = T>>,
        shutdown: &ShutdownWatch,
    ) -> Option<T> {
        let mut shutdown = shutdown.clone();
        tokio::select! {
            biased;
            read = read.as_mut() => return Some(read),
            _ = shutdown.wait_for(|&down| down) => {}
        }
        tokio::time::timeout(LINGER, read).await.ok()
    }

    /// Makes the handshake, if the port wants one, and finds out whether the client speaks HTTP/2.
    async fn open(&self, mut stream: Stream) -> Option<(Stream, bool)> {
        if let Some(tls) = &self.tls {
            stream = Box::pin(tls.shake_hands(stream)).await?;
        }
        let is_h2 = self.speaks_h2(&mut stream).await?;
        Some((stream, is_h2))
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
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        // Counted from its first moment: the process must not exit under a client that is about to ask.
        let connected = self.gateway.drain.enter();
        let opened = pin!(self.open(stream));
        let (stream, is_h2) = self.unless_closing(opened, shutdown).await??;
        if is_h2 {
            // Its requests count themselves, and Pingora tells the client which of them are taken.
            drop(connected);
            // The whole preface is there, so Pingora's own unbounded look at it does not wait.
            return self.proxy.process_new(stream, shutdown).await;
        }
        let corks = Arc::new(Corks::new(stream.id()));
        drive(self.serve_h1(stream, shutdown, &corks), &corks).await;
        None
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}
