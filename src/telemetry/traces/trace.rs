//! What a traced request notes as it passes the phases.

use super::parent::{self, Parent, TRACEPARENT, TRACESTATE};
use opentelemetry::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use pingora_http::RequestHeader;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// One request's trace.
#[derive(Debug)]
pub struct Trace {
    pub(super) trace_id: TraceId,
    /// The gateway's own span.
    pub(super) span_id: SpanId,
    pub(super) parent: Option<Parent>,
    pub(super) started: Instant,
    started_at: SystemTime,
    pub(super) steps: Vec<Step>,
    pub(super) attempts: Vec<Attempt>,
    lookup: Arc<Stopwatch>,
    pub(super) ids: RandomIdGenerator,
}

/// Something that was done between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    pub name: &'static str,
    pub from: Instant,
    pub to: Instant,
}

/// One try on an endpoint.
#[derive(Debug)]
pub(super) struct Attempt {
    pub span_id: SpanId,
    pub endpoint: Arc<str>,
    pub address: Option<SocketAddr>,
    pub from: Instant,
    pub first_byte: Option<Instant>,
    /// When and why it failed.
    pub failed: Option<(Instant, &'static str)>,
}

impl Trace {
    pub(super) fn new(trace_id: TraceId, parent: Option<Parent>, ids: RandomIdGenerator) -> Self {
        let started = Instant::now();
        Self {
            trace_id,
            span_id: ids.new_span_id(),
            parent,
            started,
            started_at: SystemTime::now(),
            steps: Vec::with_capacity(4),
            attempts: Vec::with_capacity(1),
            lookup: Arc::new(Stopwatch::new(started)),
            ids,
        }
    }

    /// What times the lookup, to be carried by the prompt.
    pub fn stopwatch(&self) -> Arc<Stopwatch> {
        self.lookup.clone()
    }

    /// The request has been parsed since `from`.
    pub fn parsed(&mut self, from: Instant) {
        self.step("parse", from, Instant::now());
    }

    /// The request has its place, for which it asked at `asked`; `waited` when it had to queue.
    pub fn placed(&mut self, asked: Instant, waited: bool) {
        let Some((from, to)) = self.lookup.times() else {
            return;
        };
        if waited {
            self.step("queue", asked, from);
        }
        self.step("lookup", from, to);
        self.step("schedule", to, Instant::now());
    }

    fn step(&mut self, name: &'static str, from: Instant, to: Instant) {
        self.steps.push(Step { name, from, to });
    }

    /// A try on an endpoint begins.
    pub fn attempt(&mut self, endpoint: &Arc<str>, address: Option<SocketAddr>) {
        // The same endpoint again, because only the connection was at fault.
        self.failed("connection-reset");
        self.attempts.push(Attempt {
            span_id: self.ids.new_span_id(),
            endpoint: endpoint.clone(),
            address,
            from: Instant::now(),
            first_byte: None,
            failed: None,
        });
    }

    /// Makes the endpoint's own spans children of the present try.
    ///
    /// # Errors
    /// None: the value is of characters that a header takes.
    pub fn send(&self, request: &mut RequestHeader) -> pingora_core::Result<()> {
        let Some(attempt) = self.attempts.last() else {
            return Ok(());
        };
        if self.parent.is_none() {
            // It belongs to a `traceparent` that could not be understood.
            request.remove_header(TRACESTATE);
        }
        request.insert_header(TRACEPARENT, parent::header(self.trace_id, attempt.span_id))
    }

    /// The first byte of the response body came.
    pub fn first_byte(&mut self) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.first_byte = Some(Instant::now());
        }
    }

    /// The present try failed.
    pub fn failed(&mut self, why: &'static str) {
        if let Some(attempt) = self.attempts.last_mut().filter(|last| last.failed.is_none()) {
            attempt.failed = Some((Instant::now(), why));
        }
    }

    /// Trace id in hexadecimal, as logs have it.
    pub fn id(&self) -> String {
        self.trace_id.to_string()
    }

    pub(super) fn at(&self, moment: Instant) -> SystemTime {
        self.started_at + moment.saturating_duration_since(self.started)
    }
}

/// Times the lookup of a traced request in the prefix index, under the pool's lock.
#[derive(Debug)]
pub struct Stopwatch {
    origin: Instant,
    /// Nanoseconds after `origin`, plus one; 0: never.
    from: AtomicU64,
    to: AtomicU64,
}

impl Stopwatch {
    const fn new(origin: Instant) -> Self {
        Self {
            origin,
            from: AtomicU64::new(0),
            to: AtomicU64::new(0),
        }
    }

    /// Does `lookup` and notes when. Of several, the last counts.
    pub fn time<T>(&self, lookup: impl FnOnce() -> T) -> T {
        self.from.store(self.now(), Ordering::Relaxed);
        let found = lookup();
        self.to.store(self.now(), Ordering::Relaxed);
        found
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).map_or(u64::MAX, |ns| ns.saturating_add(1))
    }

    fn times(&self) -> Option<(Instant, Instant)> {
        let at = |ns: &AtomicU64| {
            let ns = ns.load(Ordering::Relaxed).checked_sub(1)?;
            Some(self.origin + Duration::from_nanos(ns))
        };
        Some((at(&self.from)?, at(&self.to)?))
    }
}
