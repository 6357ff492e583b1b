//! A downstream session whose request body has been read already.
//!
//! Pingora replays a request body from its retry buffer only up to 64 KiB; beyond that the request hangs.
//! [`BufferedSession`] stands in for the real session while the request is proxied: it offers the whole
//! body as the retry buffer (a reference count, not a copy) and passes everything else through. The real
//! session is handed back through a [`Slot`] before the exchange ends, because only the real one can keep
//! the client's connection alive.

use super::cork::Corks;
use super::join::joined;
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
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep, sleep_until};

/// What the request's phases and its [`BufferedSession`] share.
pub type Slot = Arc<Exchange>;

/// One request's exchange with its endpoints, as the downstream session sees it.
#[derive(Default)]
pub struct Exchange {
    /// Where a dropped [`BufferedSession`] leaves the real session.
    real: Mutex<Option<Box<ServerSession>>>,
    /// How long the endpoint may be silent from here on.
    patience: Mutex<Option<Patience>>,
    /// The response is kept back until it has ended.
    holds: AtomicBool,
}

/// A deadline that moves with each sign of life.
#[derive(Clone, Copy)]
struct Patience {
    deadline: Instant,
    between_reads: Duration,
}

impl Exchange {
    /// A request goes out: its response must begin within `first_byte`, and then go on within `between_reads`.
    pub fn await_response(&self, first_byte: Duration, between_reads: Duration) {
        let deadline = Instant::now() + first_byte;
        *self.patience.lock() = Some(Patience {
            deadline,
            between_reads,
        });
        self.holds.store(false, Ordering::Relaxed);
    }

    /// Keeps the response from the client until it has ended or is longer than [`MAX_HELD_BYTES`]: until then the
    /// request can still be repeated elsewhere.
    pub fn hold_response(&self) {
        self.holds.store(true, Ordering::Relaxed);
    }

    fn heard(&self) {
        if let Some(patience) = &mut *self.patience.lock() {
            patience.deadline = Instant::now() + patience.between_reads;
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.patience.lock().map(|patience| patience.deadline)
    }
}

/// Marks the error of an endpoint that was silent for too long.
pub const SILENT: ErrorType = ErrorType::Custom("EndpointSilent");

/// Longest response that is kept back.
pub const MAX_HELD_BYTES: usize = 64 * 1024;

/// What Pingora has ready at a time, at most: more may be waiting.
const FULL_BATCH: usize = 4;

/// Replaces the session's downstream, whose connection has `corks`, by one that replays `body`; [`restore`] undoes it.
pub fn wrap(session: &mut Session, body: Bytes, corks: Option<Arc<Corks>>) -> Slot {
    let slot = Slot::default();
    // The placeholder is never used, it only becomes the box of what replaces it.
    let placeholder = Box::new(ServerSession::new_custom(Box::new(())));
    let inner = std::mem::replace(&mut session.downstream_session, placeholder);
    let had_body = !body.is_empty();
    let buffered = BufferedSession {
        inner: Some(inner),
        body: Some(body),
        had_body,
        held: Vec::new(),
        alarm: Alarm::default(),
        corks,
        exchange: slot.clone(),
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
        held: Vec::new(),
        alarm: Alarm::default(),
        corks: None,
        exchange: slot.clone(),
    };
    (ServerSession::new_custom(Box::new(buffered)), slot)
}

/// Puts the real session back; a second call does nothing.
pub fn restore(session: &mut Session, slot: &Slot) {
    if !session.downstream_session.is_custom() {
        return;
    }
    *session.downstream_session = ServerSession::new_custom(Box::new(()));
    if let Some(real) = slot.real.lock().take() {
        session.downstream_session = real;
    }
}

struct BufferedSession {
    /// `Some` until drop.
    inner: Option<Box<ServerSession>>,
    /// Dropped with the response header: no retry can follow it, and streams live for minutes.
    body: Option<Bytes>,
    had_body: bool,
    /// The response so far, while it is kept back.
    held: Vec<HttpTask>,
    alarm: Alarm,
    /// `None` over HTTP/2, whose streams share a connection.
    corks: Option<Arc<Corks>>,
    exchange: Slot,
}

impl BufferedSession {
    #[expect(
        clippy::expect_used,
        reason = "an invariant of this type, whatever a client sends"
    )]
    fn real(&self) -> &ServerSession {
        self.inner
            .as_ref()
            .expect("the real session is taken only by drop")
    }

    #[expect(
        clippy::expect_used,
        reason = "an invariant of this type, whatever a client sends"
    )]
    fn real_mut(&mut self) -> &mut ServerSession {
        self.inner
            .as_mut()
            .expect("the real session is taken only by drop")
    }

    /// Keeps `tasks` back until the response is complete or too long to be kept.
    async fn hold(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let mut ended = false;
        for task in tasks {
            if let HttpTask::Failed(error) = task {
                // What came before goes nowhere: the client has seen nothing of it.
                self.held.clear();
                return Err(error);
            }
            if matches!(task, HttpTask::Header(..)) {
                // Of a try before this one, which ended by the clock.
                self.held.clear();
            }
            ended |= task.is_end();
            self.held.push(task);
        }
        let bytes = self.held.iter().map(body_bytes).sum::<usize>();
        if !ended && bytes <= MAX_HELD_BYTES {
            return Ok(false);
        }
        self.exchange.holds.store(false, Ordering::Relaxed);
        self.body = None;
        let held = std::mem::take(&mut self.held);
        self.real_mut().response_duplex_vec(held).await
    }

    fn release_body_after(&mut self, header: &ResponseHeader) {
        if !header.status.is_informational() {
            self.body = None;
        }
    }
}

fn body_bytes(task: &HttpTask) -> usize {
    match task {
        HttpTask::Body(Some(data), _) => data.len(),
        _ => 0,
    }
}

/// Wakes the request when its endpoint has been silent for too long.
#[derive(Default)]
struct Alarm {
    /// Set once and moved when it fires, not with every piece of a stream.
    timer: Option<Pin<Box<Sleep>>>,
    /// Whom the timer will wake.
    waker: Option<Waker>,
}

impl Alarm {
    /// Ready when the endpoint has been silent for too long; never before a request went out.
    fn poll_overdue(&mut self, exchange: &Exchange, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = exchange.deadline() else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        let told = self
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()));
        if deadline < timer.deadline() {
            timer.as_mut().reset(deadline);
        } else if told && !timer.is_elapsed() {
            // Asked again for every piece of a stream. It fires too early rather than too late, and is moved then.
            return Poll::Pending;
        }
        loop {
            // A task that has used up its turn is told to come back, and the timer is told nothing.
            let registers = has_budget_remaining();
            if timer.as_mut().poll(cx).is_pending() {
                self.waker = registers.then(|| cx.waker().clone());
                return Poll::Pending;
            }
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}

impl Drop for BufferedSession {
    fn drop(&mut self) {
        if let Some(corks) = &self.corks {
            corks.uncork_client();
        }
        *self.exchange.real.lock() = self.inner.take();
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
        if self.exchange.holds.load(Ordering::Relaxed) {
            self.exchange.heard();
            return self.hold(tasks).await;
        }
        if let Some(HttpTask::Header(header, _)) = tasks.first() {
            self.release_body_after(header);
        }
        if let Some(corks) = self.corks.as_ref().filter(|_| tasks.len() >= FULL_BATCH) {
            corks.cork_client();
        }
        let tasks = if self.real().is_http2() {
            joined(tasks)
        } else {
            tasks
        };
        let done = self.real_mut().response_duplex_vec(tasks).await;
        // Not before: nobody asks meanwhile, and the wait for a slow client is not the endpoint's.
        self.exchange.heard();
        done
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
        let Some(inner) = &mut self.inner else {
            return std::future::pending().await;
        };
        tokio::select! {
            biased;
            read = inner.read_body_or_idle(true) => read,
            () = poll_fn(|cx| self.alarm.poll_overdue(&self.exchange, cx)) => Err(Error::new(SILENT)),
        }
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
