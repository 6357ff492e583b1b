//! The exchange with one endpoint: where to connect, what its response says, and what to do when it fails.

use super::buffered::{MAX_HELD_BYTES, SILENT};
use super::context::{Context, ResponseProgress};
use super::error::Reason;
use super::extension::Extension;
use super::headers::LOAD_REPORT;
use super::verdict::{self, Verdict};
use super::{Gateway, inspect};
use crate::datalayer::load_header;
use crate::openai::UsageScanner;
use crate::pool::endpoint::FRESH;
use crate::pool::{Attempt, Plan};
use http::header;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorSource, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A connection of a group of its own is never taken from the pool: a retry on the same endpoint must not meet
/// another kept connection that is dead as well.
static FRESH_GROUP: AtomicU64 = AtomicU64::new(FRESH);

/// A load report is not asked for, and left unread, when the endpoint was sampled this recently.
const FRESH_ENOUGH: Duration = Duration::from_millis(10);

/// Longest body that a request's head waits for: of more, one segment less is no gain.
const MAX_CORKED_BYTES: usize = 64 * 1024;

/// Where to connect for the present attempt.
///
/// # Errors
/// When no endpoint is left.
pub fn peer(gateway: &Gateway, ctx: &mut Context) -> Result<Box<HttpPeer>> {
    let Some(plan) = &ctx.plan else {
        return Err(inspect::exhausted(ctx));
    };
    let Some(attempt) = &plan.attempt else {
        return Err(inspect::exhausted(ctx));
    };
    let endpoint = &attempt.endpoint;
    if let Some(trace) = &mut ctx.trace {
        trace.attempt(&endpoint.name, endpoint.address());
    }
    let Some(address) = endpoint.address() else {
        let retry = failed(gateway, ctx, Reason::ConnectFailed);
        let mut error = Error::explain(ErrorType::ConnectError, "the endpoint's name is not resolved");
        error.set_retry(retry);
        return Err(error.into_up());
    };
    let mut peer = endpoint.peer(address);
    let settings = &plan.pool.settings;
    peer.options.connection_timeout = Some(settings.connect_timeout);
    peer.options.total_connection_timeout = Some(settings.connect_timeout);
    match &ctx.slot {
        // The request's session keeps the exact times; a second timer would be set for every piece of a stream.
        Some(exchange) => exchange.await_response(settings.first_byte_timeout, settings.idle_timeout),
        None => peer.options.read_timeout = Some(settings.first_byte_timeout.max(settings.idle_timeout)),
    }
    if ctx.fresh_connection {
        peer.group_key = FRESH_GROUP.fetch_add(1, Ordering::Relaxed);
    }
    Ok(Box::new(peer))
}

/// Lets the request's head wait for its body, when the two may fit into one segment; for the last step before the head.
pub fn send_as_one(ctx: &mut Context) {
    let (Some(socket), Some(corks)) = (ctx.endpoint_socket.take(), &ctx.corks) else {
        return;
    };
    if (1..=MAX_CORKED_BYTES).contains(&ctx.request_bytes) {
        corks.cork_endpoint(socket);
    }
}

/// The head of a response: keeps or undoes what was assumed, or asks for another endpoint.
///
/// # Errors
/// A retryable one when the status says that another endpoint may do better.
pub fn response_head(gateway: &Gateway, response: &ResponseHeader, ctx: &mut Context) -> Result<()> {
    take_load_report(gateway, response, ctx);
    ctx.response.status = response.status.as_u16();
    let content_type = response
        .headers
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], |value| value.as_bytes());
    let is_json = content_type.starts_with(b"application/json");
    ctx.response.is_sse = content_type.starts_with(b"text/event-stream");
    if let Some(attempt) = ctx.plan.as_ref().and_then(|plan| plan.attempt.as_ref()) {
        attempt.endpoint.outcomes.head();
    }
    ctx.response.scanner = (response.status.is_success() && (ctx.response.is_sse || is_json))
        .then(|| UsageScanner::new(ctx.response.is_sse));
    ctx.response.extension = ctx.plan.as_ref().and_then(|plan| {
        let wanted = ctx.response.scanner.is_some();
        wanted.then(|| Extension::of(&plan.prompt, ctx.path_kind, ctx.response.is_sse))?
    });
    ctx.response.verdict = verdict::pending(response, is_json, ctx);
    if ctx.response.verdict.is_some() {
        if let Some(exchange) = &ctx.slot {
            exchange.hold_response();
        }
        return Ok(());
    }
    if ctx.may_go_elsewhere() && ctx.retries_on(ctx.response.status) {
        return elsewhere(gateway, ctx, Reason::UpstreamReset);
    }
    settle(ctx);
    Ok(())
}

/// The response is the one that the client gets: what was written to the index for it stays, or goes.
fn settle(ctx: &mut Context) {
    if let Some(plan) = &mut ctx.plan {
        if (200..300).contains(&ctx.response.status) {
            plan.confirm();
        } else {
            plan.discredit();
        }
    }
    // No retry follows a head that goes out to the client.
    ctx.body_share = None;
}

/// Ends this try and asks for another endpoint; goes on with this one when the retry budget is used up.
fn elsewhere(gateway: &Gateway, ctx: &mut Context, reason: Reason) -> Result<()> {
    let now = gateway.now();
    if !ctx.plan.as_ref().is_some_and(|plan| plan.claim_retry(now)) {
        settle(ctx);
        return Ok(());
    }
    let status = ctx.response.status;
    give_up(gateway, ctx, reason, true);
    let mut error = Error::explain(ErrorType::HTTPStatus(status), "another endpoint is tried");
    error.set_retry(true);
    Err(error.into_up())
}

/// Whether a report of the endpoint's load would tell more than its last sample did when it was chosen.
pub fn wants_report(plan: &Plan, attempt: &Attempt) -> bool {
    let entry = plan.snapshot.by_id(attempt.endpoint.id);
    let sampled_at = entry.and_then(|entry| entry.sampled_at);
    sampled_at.is_none_or(|at| attempt.dispatch.at.since(at) >= FRESH_ENOUGH)
}

fn take_load_report(gateway: &Gateway, response: &ResponseHeader, ctx: &Context) {
    let Some(report) = response.headers.get(&LOAD_REPORT) else {
        return;
    };
    let Some(plan) = &ctx.plan else { return };
    let Some(attempt) = &plan.attempt else { return };
    let (id, now) = (attempt.endpoint.id, gateway.now());
    let sampled_at = plan
        .pool
        .newest()
        .snapshot()
        .by_id(id)
        .and_then(|entry| entry.sampled_at);
    if sampled_at.is_some_and(|at| now.since(at) < FRESH_ENOUGH) {
        return;
    }
    let gauges = load_header::parse(report.to_str().unwrap_or_default());
    plan.pool.newest().update_where(
        |endpoint| endpoint.id == id,
        |status| {
            status.load_reported(now, gauges);
            true
        },
    );
}

/// A piece of the response body, or its end.
///
/// # Errors
/// A retryable one when the whole response, which the client has not seen, is none.
pub fn response_body(gateway: &Gateway, data: &[u8], end: bool, ctx: &mut Context) -> Result<()> {
    if !data.is_empty() {
        if ctx.response.first_byte_after.is_none() {
            first_byte(gateway, ctx);
        }
        ctx.response.bytes += data.len();
        if let Some(scanner) = &mut ctx.response.scanner {
            scanner.push(data);
        }
        if let Some(extension) = &mut ctx.response.extension {
            extension.push(data);
        }
        if let Some(verdict) = &mut ctx.response.verdict {
            verdict.push(data);
        }
    }
    let decided = end || ctx.response.bytes > MAX_HELD_BYTES;
    if decided && let Some(verdict) = ctx.response.verdict.take() {
        return judge(gateway, ctx, &verdict, end);
    }
    Ok(())
}

/// The response that was kept back is complete, or too long to be kept back further.
fn judge(gateway: &Gateway, ctx: &mut Context, verdict: &verdict::Pending, end: bool) -> Result<()> {
    if let Some(scanner) = ctx.response.scanner.take_if(|_| end) {
        ctx.response.facts = scanner.finish();
    }
    match verdict.judge(ctx, end) {
        Verdict::Good => {
            settle(ctx);
            Ok(())
        }
        Verdict::Busy => {
            ctx.response.busy = true;
            elsewhere(gateway, ctx, Reason::UpstreamReset)
        }
        Verdict::Failed => elsewhere(gateway, ctx, Reason::UpstreamReset),
        Verdict::ShuttingDown => {
            if let Some(plan) = &ctx.plan
                && let Some(attempt) = &plan.attempt
            {
                let why = "the engine is shutting down";
                plan.pool.eject(&attempt.endpoint, gateway.now(), why);
            }
            elsewhere(gateway, ctx, Reason::UpstreamReset)
        }
    }
}

fn first_byte(gateway: &Gateway, ctx: &mut Context) {
    if let Some(trace) = &mut ctx.trace {
        trace.first_byte();
    }
    let Some(plan) = &mut ctx.plan else { return };
    let undisturbed = plan.attempts() == 1 && (200..300).contains(&ctx.response.status);
    let Some(attempt) = &mut plan.attempt else { return };
    attempt.reservation.prefill_done();
    let now = gateway.now();
    ctx.response.first_byte_after = Some(now.since(attempt.dispatch.at));
    // Only a stream's first byte is the end of the prefill; a JSON body comes when all is generated. One that comes
    // before its prefill was thought to be over tells that the endpoint is faster than was thought.
    let observed_s = now.since(attempt.dispatch.at).as_secs_f64();
    let predicted_s = attempt.dispatch.predicted_first_byte_s;
    let early = predicted_s.is_some_and(|predicted_s| observed_s < predicted_s);
    if let Some(predicted_s) = predicted_s.filter(|_| undisturbed && ctx.response.is_sse) {
        attempt.endpoint.metrics.cost.compare(observed_s, predicted_s);
    }
    if undisturbed && (ctx.response.is_sse || early) {
        plan.pool
            .learn(|scheduler| scheduler.observe_first_byte(now, &attempt.dispatch));
    }
    plan.pool.freed(now);
}

/// Notes a failed try; true when another endpoint is to be tried.
pub fn failed(gateway: &Gateway, ctx: &mut Context, reason: Reason) -> bool {
    let now = gateway.now();
    let retry = ctx.plan.as_ref().is_some_and(|plan| plan.claim_retry(now));
    give_up(gateway, ctx, reason, retry);
    retry
}

fn give_up(gateway: &Gateway, ctx: &mut Context, reason: Reason, retry: bool) {
    ctx.failure = Some(reason);
    if let Some(trace) = &mut ctx.trace {
        trace.failed(reason.label());
    }
    ctx.fresh_connection = false;
    let busy = ctx.response.busy;
    ctx.response = ResponseProgress::default();
    let Some(plan) = &mut ctx.plan else { return };
    let endpoint = if reason == Reason::ConnectFailed {
        plan.never_sent()
    } else {
        plan.abandon()
    };
    let Some(endpoint) = endpoint else { return };
    if !busy {
        plan.pool.failed(&endpoint, gateway.now());
    }
    if retry {
        endpoint.metrics.count_retry(reason.label());
    }
}

/// What to do after an exchange broke: true when the request is to be tried again.
pub fn broke(
    gateway: &Gateway,
    session: &Session,
    ctx: &mut Context,
    error: &mut Error,
    reused: bool,
) -> bool {
    if error.etype == SILENT {
        // It came by way of the client's side, where the waiting is done.
        error.etype = ErrorType::ReadTimedout;
        error.as_up();
    }
    if let ErrorType::HTTPStatus(_) = error.etype() {
        return error.retry();
    }
    if *error.esource() != ErrorSource::Upstream || response_started(session) {
        return false;
    }
    let reason = match error.etype() {
        ErrorType::ReadTimedout => Reason::UpstreamTimeout,
        _ => Reason::UpstreamReset,
    };
    let nothing_came = ctx.response.status == 0;
    if reused && nothing_came && reason == Reason::UpstreamReset && !ctx.fresh_connection {
        // The engine closed an idle connection just as the request was sent: once more, on a new one.
        ctx.retry_same = true;
        return true;
    }
    failed(gateway, ctx, reason)
}

fn response_started(session: &Session) -> bool {
    session
        .response_written()
        .is_some_and(|head| !head.status.is_informational())
}
