//! A downstream session whose request body has been read already.
//!
//! Pingora replays a request body from its retry buffer only up to 64 KiB; beyond that the request hangs.
//! [`BufferedSession`] stands in for the real session while the request is proxied: it offers the whole
//! body as the retry buffer (a reference count, not a copy) and passes everything else through. The real
//! session is handed back through a [`Slot`] before the exchange ends, because only the real one can keep
//! the client's connection alive.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use parking_lot::Mutex;
use pingora_core::protocols::Digest;
use pingora_core::protocols::http::custom::CustomMessageWrite;
use pingora_core::protocols::http::custom::server::Session as CustomSession;
use pingora_core::protocols::http::{HttpTask, ServerSession};
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use std::sync::Arc;
use std::time::Duration;

/// Where a dropped [`BufferedSession`] leaves the real session.
pub type Slot = Arc<Mutex<Option<Box<ServerSession>>>>;

/// Replaces the session's downstream by one that replays `body`; [`restore`] undoes it.
pub fn wrap(session: &mut Session, body: Bytes) -> Slot {
    let slot = Slot::default();
    // The placeholder is never used, it only becomes the box of what replaces it.
    let placeholder = Box::new(ServerSession::new_custom(Box::new(())));
    let inner = std::mem::replace(&mut session.downstream_session, placeholder);
    let had_body = !body.is_empty();
    let buffered = BufferedSession {
        inner: Some(inner),
        body: Some(body),
        had_body,
        slot: slot.clone(),
    };
    *session.downstream_session = ServerSession::new_custom(Box::new(buffered));
    slot
}

/// Passes `inner`, whose request head has been read, off as one that has yet to be read; [`restore`] undoes it.
pub fn hold(inner: Box<ServerSession>) -> (ServerSession, Slot) {
    let slot = Slot::default();
    let buffered = BufferedSession {
        inner: Some(inner),
        body: None,
        had_body: false,
        slot: slot.clone(),
    };
    (ServerSession::new_custom(Box::new(buffered)), slot)
}

/// Puts the real session back; a second call does nothing.
pub fn restore(session: &mut Session, slot: &Slot) {
    if !session.downstream_session.is_custom() {
        return;
    }
    let placeholder = Box::new(ServerSession::new_custom(Box::new(())));
    drop(std::mem::replace(&mut session.downstream_session, placeholder));
    if let Some(real) = slot.lock().take() {
        session.downstream_session = real;
    }
}

struct BufferedSession {
    /// `Some` until drop.
    inner: Option<Box<ServerSession>>,
    /// Dropped with the response header: no retry can follow it, and streams live for minutes.
    body: Option<Bytes>,
    had_body: bool,
    slot: Slot,
}

impl BufferedSession {
    fn real(&self) -> &ServerSession {
        self.inner
            .as_ref()
            .expect("the real session is taken only by drop")
    }

    fn real_mut(&mut self) -> &mut ServerSession {
        self.inner
            .as_mut()
            .expect("the real session is taken only by drop")
    }

    fn release_body_after(&mut self, header: &ResponseHeader) {
        if !header.status.is_informational() {
            self.body = None;
        }
    }
}

impl Drop for BufferedSession {
    fn drop(&mut self) {
        *self.slot.lock() = self.inner.take();
    }
}

#[async_trait]
impl CustomSession for BufferedSession {
    fn req_header(&self) -> &RequestHeader {
        self.real().req_header()
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        self.real_mut().req_header_mut()
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        Ok(())
    }

    async fn write_response_header(&mut self, resp: Box<ResponseHeader>, _end: bool) -> Result<()> {
        self.release_body_after(&resp);
        self.real_mut().write_response_header(resp).await
    }

    async fn write_response_header_ref(&mut self, resp: &ResponseHeader, _end: bool) -> Result<()> {
        self.release_body_after(resp);
        self.real_mut().write_response_header_ref(resp).await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.real_mut().write_response_body(data, end).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.real_mut().write_response_trailers(trailers).await
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        if let Some(HttpTask::Header(header, _)) = tasks.first() {
            self.release_body_after(header);
        }
        self.real_mut().response_duplex_vec(tasks).await
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_read_timeout(timeout);
    }

    fn get_read_timeout(&self) -> Option<Duration> {
        self.real().get_read_timeout()
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_write_timeout(timeout);
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.real().get_write_timeout()
    }

    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_total_drain_timeout(timeout);
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.real().get_total_drain_timeout()
    }

    fn request_summary(&self) -> String {
        self.real().request_summary()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.real().response_written()
    }

    async fn shutdown(&mut self, _code: u32, _ctx: &str) {
        self.real_mut().shutdown().await;
    }

    fn is_body_done(&mut self) -> bool {
        true
    }

    async fn finish(&mut self) -> Result<()> {
        self.real_mut().finish_body().await
    }

    fn is_body_empty(&mut self) -> bool {
        !self.had_body
    }

    /// The body is here already: what is left to read is the client's going away.
    async fn read_body_or_idle(&mut self, _no_body_expected: bool) -> Result<Option<Bytes>> {
        self.real_mut().read_body_or_idle(true).await
    }

    fn body_bytes_sent(&self) -> usize {
        self.real().body_bytes_sent()
    }

    fn body_bytes_read(&self) -> usize {
        self.real().body_bytes_read()
    }

    fn digest(&self) -> Option<&Digest> {
        self.real().digest()
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.real_mut().digest_mut()
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.real().client_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.real().server_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.real().to_h1_raw()
    }

    fn enable_retry_buffering(&mut self) {}

    fn retry_buffer_truncated(&self) -> bool {
        false
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        self.body.clone().filter(|body| !body.is_empty())
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(
        &mut self,
    ) -> Option<Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>> {
        None
    }

    fn restore_custom_message_reader(
        &mut self,
        _reader: Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>,
    ) -> Result<()> {
        Err(Error::explain(
            ErrorType::InternalError,
            "a buffered session has no custom messages",
        ))
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(&mut self, _writer: Box<dyn CustomMessageWrite>) -> Result<()> {
        Err(Error::explain(
            ErrorType::InternalError,
            "a buffered session has no custom messages",
        ))
    }
}
