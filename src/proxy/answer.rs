//! Answers that the gateway gives itself.

use super::context::{Context, Refusal};
use super::error::Reason;
use super::{buffered, cors};
use bytes::Bytes;
use http::header;
use pingora_core::protocols::http::ServerSession;
use pingora_core::{Error, ErrorSource, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::{FailToProxy, Session};
use std::time::Duration;

/// How long a refused client may go on sending its body before the connection is closed: closing at once would
/// reset the connection under the answer.
const LINGER: Duration = Duration::from_secs(1);

/// Marks a phase's failure as the client's leaving.
pub fn client_gone() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "the client left").into_down()
}

/// Marks a phase's failure as an answer of the gateway's own, which stands in `ctx.refused`.
pub fn refused(ctx: &mut Context, refusal: Refusal) -> Box<Error> {
    let status = refusal.reason.status();
    ctx.refused = Some(refusal);
    Error::explain(ErrorType::HTTPStatus(status), "refused by the gateway").into_in()
}

/// Answers with `ctx.refused`; for the phase that may end a request.
pub async fn refuse(session: &mut Session, ctx: &mut Context) -> Result<bool> {
    let in_step = in_step(session, ctx);
    write(session, ctx, !in_step).await?;
    if !in_step {
        let discard =
            async { while let Ok(Some(_)) = session.downstream_session.read_request_body().await {} };
        let _ = tokio::time::timeout(LINGER, discard).await;
    }
    Ok(true)
}

/// Whether the next bytes from the client can only be its next request.
fn in_step(session: &mut Session, ctx: &Context) -> bool {
    // A body with broken framing counts as done for Pingora, but where it ends is unknown.
    let broken = ctx
        .refused
        .as_ref()
        .is_some_and(|refusal| refusal.reason == Reason::BadRequest);
    !broken && session.as_mut().is_body_done()
}

/// Answers a request that could not even be read, and closes the connection.
pub async fn close_with(mut session: ServerSession, reason: Reason) {
    session.set_keepalive(None);
    let Ok((head, body)) = build(&Refusal::plain(reason), "") else {
        return;
    };
    let answer = async {
        session.write_response_header(Box::new(head)).await?;
        session.write_response_body(body, true).await?;
        session.finish().await.map(drop)
    };
    let _ = tokio::time::timeout(LINGER, answer).await;
}

/// The last phase of a request that failed.
pub async fn failure(session: &mut Session, error: &Error, ctx: &mut Context) -> FailToProxy {
    if let Some(slot) = &ctx.slot {
        buffered::restore(session, slot);
    }
    let refusal = reason_of(error, ctx);
    let started = session
        .response_written()
        .is_some_and(|head| !head.status.is_informational());
    if started && ctx.ends_with_error_event() && *error.esource() != ErrorSource::Downstream {
        return end_with_event(session, ctx).await;
    }
    let (Some(refusal), false) = (refusal, started) else {
        // Nobody to tell, or the head is out: the connection is cut without a proper end, so that the client can
        // tell a broken response from a complete one.
        return FailToProxy {
            error_code: ctx.response.status,
            can_reuse_downstream: false,
        };
    };
    let error_code = refusal.reason.status();
    ctx.refused = Some(refusal);
    // Pingora closes the connection after a failed exchange, whatever is said here: so the client is told.
    let _ = write(session, ctx, true).await;
    FailToProxy {
        error_code,
        can_reuse_downstream: false,
    }
}

/// Ends a broken stream so that a client of the API sees an error instead of a cut connection.
async fn end_with_event(session: &mut Session, ctx: &Context) -> FailToProxy {
    let body = Reason::UpstreamReset.body(Some("The endpoint broke off."));
    // It may have broken off within a line; after a whole event, empty lines mean nothing.
    let event = [b"\n\ndata: ", &body[..], b"\n\n"].concat();
    let written = session
        .downstream_session
        .write_response_body(event.into(), true)
        .await;
    FailToProxy {
        error_code: ctx.response.status,
        can_reuse_downstream: written.is_ok(),
    }
}

/// What a failure means to the client; `None` when the client itself is gone.
fn reason_of(error: &Error, ctx: &mut Context) -> Option<Refusal> {
    if let Some(refusal) = ctx.refused.take() {
        return Some(refusal);
    }
    let reason = match (error.esource(), error.etype()) {
        (
            ErrorSource::Downstream,
            ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::WriteError | ErrorType::H2Error,
        ) => return None,
        (ErrorSource::Downstream, _) => Reason::BadRequest,
        (_, ErrorType::ReadTimedout) => Reason::UpstreamTimeout,
        _ => ctx.failure.unwrap_or(Reason::UpstreamReset),
    };
    Some(Refusal::plain(reason))
}

async fn write(session: &mut Session, ctx: &Context, close: bool) -> Result<()> {
    let Some(refusal) = &ctx.refused else {
        return Ok(());
    };
    let (head, body) = build(refusal, &ctx.request_id)?;
    if close {
        session.set_keepalive(None);
    }
    let mut head = head;
    if let Some(origin) = ctx.cors_origin.clone() {
        cors::permit(&mut head, origin)?;
    }
    let is_head = session.req_header().method == http::Method::HEAD;
    session
        .downstream_session
        .write_response_header(Box::new(head))
        .await?;
    let body = if is_head { Bytes::new() } else { body };
    session.downstream_session.write_response_body(body, true).await
}

fn build(refusal: &Refusal, request_id: &str) -> Result<(ResponseHeader, Bytes)> {
    let reason = refusal.reason;
    let body = reason.body(refusal.detail.as_deref());
    let mut head = ResponseHeader::build(reason.status(), Some(6))?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    head.insert_header(header::CONTENT_LENGTH, body.len().to_string())?;
    head.insert_header("x-homing-error", reason.label())?;
    if !request_id.is_empty() {
        head.insert_header("x-request-id", request_id)?;
    }
    if let Some(after) = refusal.retry_after.or(reason.retry_after()) {
        // Rounded up: who comes back too early is turned away once more.
        let seconds = after.as_secs_f64().ceil().max(1.0);
        head.insert_header(header::RETRY_AFTER, seconds.to_string())?;
    }
    Ok((head, body.into()))
}
