//! What one request carries through the proxy's phases.

use super::budget::BodyShare;
use super::buffered::Slot;
use super::cork::Corks;
use super::error::Reason;
use super::extension::Extension;
use super::verdict::Pending;
use crate::lifecycle::InFlight;
use crate::openai::PathKind;
use crate::openai::{ResponseFacts, UsageScanner};
use crate::pool::Plan;
use crate::telemetry::traces::Trace;
use bytes::Bytes;
use http::HeaderValue;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Per-request state. Pingora makes one for each request and hands it to every phase.
pub struct Context {
    pub started: Instant,
    pub request_id: String,
    pub path_kind: PathKind,
    /// Keeps the process from exiting while the request runs.
    pub in_flight: InFlight,
    /// Where the wrapped session leaves the real one, once the body has been read.
    pub slot: Option<Slot>,
    /// Those of the client's connection, when the request has it to itself.
    pub corks: Option<Arc<Corks>>,
    /// The socket of the present try's connection, until the request goes out.
    pub endpoint_socket: Option<RawFd>,
    /// The request body, until it has been inspected.
    pub body: Bytes,
    pub request_bytes: usize,
    /// Its share of the budget for buffered bodies, until no retry can follow.
    pub body_share: Option<BodyShare>,
    /// The decision and the endpoint being tried; `None` before the body has been read.
    pub plan: Option<Plan>,
    pub explain: bool,
    /// The origin whose pages may read the response.
    pub cors_origin: Option<HeaderValue>,
    /// The client's address and whether it came by TLS, when endpoints are to be told.
    pub client: Option<(IpAddr, bool)>,
    /// The client itself asked for the engine's load report.
    pub wants_load_report: bool,
    /// What the gateway answered itself, or will.
    pub refused: Option<Refusal>,
    /// Why the newest try failed.
    pub failure: Option<Reason>,
    /// The next try goes to the same endpoint, because only its connection was at fault.
    pub retry_same: bool,
    /// The present try must not use a pooled connection.
    pub fresh_connection: bool,
    pub response: ResponseProgress,
    pub decision_time: Duration,
    /// Its trace, when it is traced.
    pub trace: Option<Box<Trace>>,
}

/// An answer of the gateway's own.
#[derive(Debug)]
pub struct Refusal {
    pub reason: Reason,
    pub detail: Option<String>,
    /// When to come back, where more is known than the table says.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// The table's own words.
    pub const fn plain(reason: Reason) -> Self {
        Self {
            reason,
            detail: None,
            retry_after: None,
        }
    }
}

/// How far the endpoint's response has come.
#[derive(Default)]
pub struct ResponseProgress {
    pub status: u16,
    pub is_sse: bool,
    /// From the choice of the endpoint to the first body byte.
    pub first_byte_after: Option<Duration>,
    pub bytes: usize,
    pub scanner: Option<UsageScanner>,
    /// The keys by which the next turn will go on from here.
    pub extension: Option<Extension>,
    /// What the whole response said, once it has been read.
    pub facts: ResponseFacts,
    /// What the end of the response will tell, while it is kept back.
    pub verdict: Option<Pending>,
    /// The endpoint was well and had no room.
    pub busy: bool,
}

impl Context {
    /// Whether the request can still be sent to another endpoint: its body is at hand and a try is left.
    pub fn may_go_elsewhere(&self) -> bool {
        self.slot.is_some() && self.plan.as_ref().is_some_and(Plan::may_retry)
    }

    /// Whether a stream that breaks is to end with an error event.
    pub fn ends_with_error_event(&self) -> bool {
        let configured = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.pool.settings.error_event);
        configured && self.response.is_sse
    }

    /// Whether this status sends a request to another endpoint.
    pub fn retries_on(&self, status: u16) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.pool.settings.retry_on.contains(&status))
    }

    /// A request that has just been read.
    pub fn new(in_flight: InFlight) -> Self {
        Self {
            started: Instant::now(),
            request_id: String::new(),
            path_kind: PathKind::Other,
            in_flight,
            slot: None,
            corks: None,
            endpoint_socket: None,
            body: Bytes::new(),
            request_bytes: 0,
            body_share: None,
            plan: None,
            explain: false,
            cors_origin: None,
            client: None,
            wants_load_report: false,
            refused: None,
            failure: None,
            retry_same: false,
            fresh_connection: false,
            response: ResponseProgress::default(),
            decision_time: Duration::ZERO,
            trace: None,
        }
    }
}
