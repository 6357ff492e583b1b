//! Headers: what comes in is checked and noted, what goes out is framed anew.

use super::Settings;
use super::context::{Context, Refusal};
use super::error::Reason;
use crate::config::schema::ResponseHeaders;
use crate::datalayer::load_header;
use crate::openai::PathKind;
use http::{HeaderName, HeaderValue, Version, header};
use pingora_core::Result;
use pingora_http::{RequestHeader, ResponseHeader};

const LOAD_FORMAT: HeaderName = HeaderName::from_static(load_header::REQUEST_HEADER);
const LOAD_REPORT: HeaderName = HeaderName::from_static(load_header::RESPONSE_HEADER);
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const EXPLAIN: HeaderName = HeaderName::from_static("x-homing-explain");

/// Notes what the headers say of the request, and refuses it when they are too large.
pub fn admit(request: &RequestHeader, settings: &Settings, ctx: &mut Context) {
    ctx.path_kind = PathKind::of(request.uri.path());
    ctx.request_id = request_id(request);
    ctx.wants_load_report = request.headers.contains_key(&LOAD_FORMAT);
    ctx.explain = match settings.response_headers {
        ResponseHeaders::Off => false,
        ResponseHeaders::Always => true,
        ResponseHeaders::OnRequest => request.headers.get(&EXPLAIN).is_some_and(|value| value == "1"),
    };
    if header_bytes(request) > settings.max_header_bytes {
        ctx.refused = Some(Refusal::plain(Reason::HeadersTooLarge));
    }
}

fn request_id(request: &RequestHeader) -> String {
    let given = request
        .headers
        .get(&REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    match given {
        Some(id) if !id.is_empty() => id.to_owned(),
        _ => uuid::Uuid::new_v4().to_string(),
    }
}

fn header_bytes(request: &RequestHeader) -> u64 {
    let fields: usize = request
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    (request.method.as_str().len() + request.raw_path().len() + fields) as u64
}

/// Makes the request the endpoint's own: its host, one clean framing, and the gateway's request id.
pub fn to_upstream(request: &mut RequestHeader, ctx: &Context) -> Result<()> {
    let Some(attempt) = ctx.plan.as_ref().and_then(|plan| plan.attempt.as_ref()) else {
        return Ok(());
    };
    if request.uri.authority().is_some() {
        // Without it an HTTP/2 client's authority would overwrite the host below.
        let path = request.raw_path().to_vec();
        request.set_raw_path(&path)?;
    }
    request.insert_header(header::HOST, attempt.endpoint.host_header.clone())?;
    request.remove_header(&header::EXPECT);
    request.remove_header(&EXPLAIN);
    if ctx.slot.is_some() {
        request.remove_header(&header::TRANSFER_ENCODING);
        request.insert_header(header::CONTENT_LENGTH, HeaderValue::from(ctx.request_bytes))?;
    }
    request.insert_header(REQUEST_ID, ctx.request_id.as_str())?;
    if !ctx.wants_load_report && ctx.path_kind.carries_prompt() {
        request.insert_header(LOAD_FORMAT, "json")?;
    }
    Ok(())
}

/// Adds the gateway's headers to an endpoint's response and hides what only the gateway asked for.
pub fn to_client(response: &mut ResponseHeader, ctx: &Context) -> Result<()> {
    if response.status.is_informational() {
        return Ok(());
    }
    if !ctx.wants_load_report {
        response.remove_header(&LOAD_REPORT);
    }
    response.insert_header(REQUEST_ID, ctx.request_id.as_str())?;
    if response.version == Version::HTTP_2 {
        response.set_version(Version::HTTP_11);
    }
    if ctx.explain {
        explain(response, ctx)
    } else {
        Ok(())
    }
}

fn explain(response: &mut ResponseHeader, ctx: &Context) -> Result<()> {
    let Some(plan) = &ctx.plan else { return Ok(()) };
    if let Some(attempt) = &plan.attempt {
        response.insert_header("x-homing-endpoint", &*attempt.endpoint.name)?;
        let blocks = plan.blocks();
        response.insert_header(
            "x-homing-prefix-match",
            format!("{}/{}", blocks.matched, blocks.total),
        )?;
    }
    response.insert_header("x-homing-decision", plan.decision.kind.as_str())?;
    response.insert_header("x-homing-attempts", plan.attempts().to_string())?;
    Ok(())
}
