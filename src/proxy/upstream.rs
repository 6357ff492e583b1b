//! The exchange with one endpoint: where to connect, what its response says, and what to do when it fails.

use super::context::Context;
use super::error::Reason;
use super::{Gateway, inspect};
use crate::datalayer::load_header;
use crate::openai::UsageScanner;
use http::{StatusCode, header};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorSource, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use std::time::Duration;

/// Engines behind uvicorn close idle connections after 5 s; a pooled connection must be given up before.
const KEEPALIVE: Duration = Duration::from_secs(4);
/// Connections of this group are never taken from the pool of the others: a retry on the same endpoint must not
/// meet another connection that is dead as well.
const FRESH_GROUP: u64 = 1;

/// A load report is left unread when the endpoint was sampled this recently.
const FRESH_ENOUGH: Duration = Duration::from_millis(10);

/// Where to connect for the present attempt.
///
/// # Errors
/// When no endpoint is left.
pub fn peer(ctx: &mut Context) -> Result<Box<HttpPeer>> {
    let Some(plan) = &ctx.plan else {
        return Err(inspect::exhausted(ctx));
    };
    let Some(attempt) = &plan.attempt else {
        return Err(inspect::exhausted(ctx));
    };
    let endpoint = &attempt.endpoint;
    let Some(address) = endpoint.address() else {
        let retry = failed(ctx, Reason::ConnectFailed);
        let mut error = Error::explain(ErrorType::ConnectError, "the endpoint's name is not resolved");
        error.set_retry(retry);
        return Err(error.into_up());
    };
    let sni = if endpoint.url.is_tls() {
        endpoint.url.host().to_owned()
    } else {
        String::new()
    };
    let mut peer = HttpPeer::new(address, endpoint.url.is_tls(), sni);
    let settings = &plan.pool.settings;
    peer.options.connection_timeout = Some(settings.connect_timeout);
    peer.options.total_connection_timeout = Some(settings.connect_timeout);
    peer.options.read_timeout = Some(settings.first_byte_timeout);
    peer.options.idle_timeout = Some(KEEPALIVE);
    peer.group_key = if ctx.fresh_connection { FRESH_GROUP } else { 0 };
    Ok(Box::new(peer))
}

/// The head of a response: keeps or undoes what was assumed, or asks for another endpoint.
///
/// # Errors
/// A retryable one when the status says that another endpoint may do better.
pub fn response_head(gateway: &Gateway, response: &ResponseHeader, ctx: &mut Context) -> Result<()> {
    take_load_report(gateway, response, ctx);
    let status = response.status;
    if is_elsewhere(status) && ctx.plan.as_ref().is_some_and(|plan| plan.may_retry()) {
        failed(ctx, Reason::UpstreamReset);
        let mut error = Error::explain(
            ErrorType::HTTPStatus(status.as_u16()),
            "another endpoint is tried",
        );
        error.set_retry(true);
        return Err(error.into_up());
    }
    if let Some(plan) = &mut ctx.plan {
        if status.is_success() {
            plan.confirm()
        } else {
            plan.discredit()
        }
    }
    // No retry follows a head that goes out to the client.
    ctx.body_share = None;
    let content_type = response
        .headers
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], |value| value.as_bytes());
    ctx.response.status = status.as_u16();
    ctx.response.is_sse = content_type.starts_with(b"text/event-stream");
    if status.is_success() && (ctx.response.is_sse || content_type.starts_with(b"application/json")) {
        ctx.response.scanner = Some(UsageScanner::new(ctx.response.is_sse));
    }
    Ok(())
}

/// Statuses by which an endpoint says that it cannot serve this request now, and another may.
fn is_elsewhere(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE)
}

fn take_load_report(gateway: &Gateway, response: &ResponseHeader, ctx: &Context) {
    let Some(report) = response.headers.get(load_header::RESPONSE_HEADER) else {
        return;
    };
    let Some(plan) = &ctx.plan else { return };
    let Some(attempt) = &plan.attempt else { return };
    let (id, now) = (attempt.endpoint.id, gateway.now());
    let sampled_at = plan.pool.snapshot().by_id(id).and_then(|entry| entry.sampled_at);
    if sampled_at.is_some_and(|at| now.since(at) < FRESH_ENOUGH) {
        return;
    }
    let gauges = load_header::parse(report.to_str().unwrap_or_default());
    plan.pool.update_where(
        |endpoint| endpoint.id == id,
        |status| {
            status.load_reported(now, gauges);
            true
        },
    );
}

/// A piece of the response body.
pub fn response_body(gateway: &Gateway, data: &[u8], ctx: &mut Context) {
    if data.is_empty() {
        return;
    }
    if ctx.response.first_byte_after.is_none() {
        first_byte(gateway, ctx);
    }
    ctx.response.bytes += data.len();
    if let Some(scanner) = &mut ctx.response.scanner {
        scanner.push(data);
    }
}

fn first_byte(gateway: &Gateway, ctx: &mut Context) {
    let Some(plan) = &mut ctx.plan else { return };
    let undisturbed = plan.attempts() == 1 && (200..300).contains(&ctx.response.status);
    let Some(attempt) = &mut plan.attempt else { return };
    attempt.reservation.prefill_done();
    let now = gateway.now();
    ctx.response.first_byte_after = Some(now.since(attempt.dispatch.at));
    // Only a stream's first byte is the end of the prefill; a JSON body comes when all is generated.
    if undisturbed && ctx.response.is_sse {
        plan.pool
            .learn(|scheduler| scheduler.observe_first_byte(now, &attempt.dispatch));
    }
}

/// Notes a failed try; true when another endpoint may be tried.
pub fn failed(ctx: &mut Context, reason: Reason) -> bool {
    ctx.failure = Some(reason);
    ctx.fresh_connection = false;
    let Some(plan) = &mut ctx.plan else { return false };
    let retry = plan.may_retry();
    let endpoint = if reason == Reason::ConnectFailed {
        plan.never_sent()
    } else {
        plan.abandon()
    };
    if let Some(endpoint) = endpoint
        && retry
    {
        endpoint.metrics.count_retry(reason.label());
    }
    retry
}

/// What to do after an exchange broke: true when the request is to be tried again.
pub fn broke(session: &Session, ctx: &mut Context, error: &Error, reused: bool) -> bool {
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
    if reused && reason == Reason::UpstreamReset && !ctx.fresh_connection {
        // The engine closed an idle connection just as the request was sent: once more, on a new one.
        ctx.retry_same = true;
        return true;
    }
    failed(ctx, reason)
}

fn response_started(session: &Session) -> bool {
    session
        .response_written()
        .is_some_and(|head| !head.status.is_informational())
}
