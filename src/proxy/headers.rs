//! Headers: what comes in is checked and noted, what goes out is framed anew.

use super::context::{Context, Refusal};
use super::error::Reason;
use super::{Settings, auth, cors, upstream};
use crate::config::schema::{Forwarded, ForwardedFor, ResponseHeaders};
use crate::datalayer::load_header;
use crate::openai::PathKind;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Version, header};
use pingora_core::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use std::net::IpAddr;

const LOAD_FORMAT: HeaderName = HeaderName::from_static(load_header::REQUEST_HEADER);
pub const LOAD_REPORT: HeaderName = HeaderName::from_static(load_header::RESPONSE_HEADER);
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The gateway's entry in `via` (RFC 9110, section 7.6.3).
const VIA: &str = "1.1 homing";
const EXPLAIN: HeaderName = HeaderName::from_static("x-homing-explain");

/// Notes what the headers say of the request, and refuses it when they are too large or lack a key.
pub fn admit(session: &Session, settings: &Settings, ctx: &mut Context) {
    let request = session.req_header();
    // Whatever is asked of a path that takes prompts by another method carries none.
    ctx.path_kind = match (PathKind::of(request.uri.path()), &request.method) {
        (PathKind::Models, _) => PathKind::Models,
        (kind, &Method::POST) => kind,
        _ => PathKind::Other,
    };
    ctx.cors_origin = settings.cors.allowed(request);
    if settings.forwarded != Forwarded::default() {
        ctx.client = client(session);
    }
    let mut bytes = request.method.as_str().len() + request.raw_path().len();
    let (mut id, mut explain) = (None, None);
    // One pass: a lookup hashes its name, which costs more than looking at all of a usual request's few headers.
    for (name, value) in &request.headers {
        bytes += name.as_str().len() + value.len() + 4;
        match name.as_str() {
            "x-request-id" => id = id.or(Some(value)),
            "x-homing-explain" => explain = explain.or(Some(value)),
            load_header::REQUEST_HEADER => ctx.wants_load_report = true,
            _ => {}
        }
    }
    ctx.request_id = request_id(id);
    ctx.explain = match settings.response_headers {
        ResponseHeaders::Off => false,
        ResponseHeaders::Always => true,
        ResponseHeaders::OnRequest => explain.is_some_and(|value| value == "1"),
    };
    if request.method == Method::CONNECT {
        ctx.refused = Some(Refusal {
            detail: Some("The method CONNECT is not served.".into()),
            ..Refusal::plain(Reason::BadRequest)
        });
    } else if bytes as u64 > settings.max_header_bytes {
        ctx.refused = Some(Refusal::plain(Reason::HeadersTooLarge));
    } else if !settings.cors.answers(request) && !settings.api_keys.allow(&request.headers) {
        ctx.refused = Some(Refusal::plain(Reason::Unauthorized));
    }
}

fn client(session: &Session) -> Option<(IpAddr, bool)> {
    let digest = session.downstream_session.digest();
    let tls = digest.is_some_and(|digest| digest.ssl_digest.is_some());
    let ip = session.client_addr()?.as_inet()?.ip();
    Some((ip.to_canonical(), tls))
}

fn request_id(given: Option<&HeaderValue>) -> String {
    match given.and_then(|value| value.to_str().ok()) {
        Some(id) if !id.is_empty() => id.to_owned(),
        _ => uuid::Uuid::new_v4().to_string(),
    }
}

/// Makes the request the endpoint's own: its host, one clean framing, and the gateway's request id.
pub fn to_upstream(request: &mut RequestHeader, settings: &Settings, ctx: &Context) -> Result<()> {
    let Some(plan) = &ctx.plan else { return Ok(()) };
    let Some(attempt) = &plan.attempt else {
        return Ok(());
    };
    if request.uri.authority().is_some() || is_absolute(request.raw_path()) {
        // An endpoint is no proxy: it is asked for a path (RFC 9112, section 3.2.1). And the authority, which an HTTP/2
        // client always gives, would overwrite the host below.
        let path = request.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = path.to_owned();
        request.set_raw_path(path.as_bytes())?;
    }
    request.insert_header(header::HOST, attempt.endpoint.host_header.clone())?;
    request.remove_header(&header::EXPECT);
    request.remove_header(&EXPLAIN);
    if ctx.slot.is_some() {
        request.remove_header(&header::TRANSFER_ENCODING);
        // Most clients say it themselves, and to say it again costs more than to see that.
        let length = HeaderValue::from(ctx.request_bytes);
        if request.headers.get(header::CONTENT_LENGTH) != Some(&length) {
            request.insert_header(header::CONTENT_LENGTH, length)?;
        }
    }
    request.insert_header(REQUEST_ID, ctx.request_id.as_str())?;
    let api_key = plan.pool.settings.api_key.as_ref();
    if settings.api_keys.are_required() || api_key.is_some() {
        auth::strip(request);
    }
    if let Some(key) = api_key {
        request.insert_header(header::AUTHORIZATION, key.clone())?;
    }
    forward(request, &settings.forwarded, ctx)?;
    if !ctx.wants_load_report && ctx.path_kind.carries_prompt() && upstream::wants_report(plan, attempt) {
        request.insert_header(LOAD_FORMAT, HeaderValue::from_static("json"))?;
    }
    Ok(())
}

/// Whether a target has a host of its own, as clients write it that take the gateway for a proxy.
fn is_absolute(target: &[u8]) -> bool {
    let starts_with = |scheme: &[u8]| {
        let start = target.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    starts_with(b"http://") || starts_with(b"https://")
}

/// Tells the endpoint of the client, as far as configured.
fn forward(request: &mut RequestHeader, forwarded: &Forwarded, ctx: &Context) -> Result<()> {
    if let Some((ip, tls)) = ctx.client {
        if forwarded.r#for == ForwardedFor::Replace {
            request.remove_header(&FORWARDED_FOR);
        }
        if forwarded.r#for != ForwardedFor::Pass {
            let before = request.headers.get_all(&FORWARDED_FOR).iter();
            let mut hops: Vec<String> = before
                .filter_map(|value| value.to_str().ok().map(str::to_owned))
                .collect();
            hops.push(ip.to_string());
            request.insert_header(FORWARDED_FOR, hops.join(", "))?;
        }
        if forwarded.proto {
            request.insert_header("x-forwarded-proto", if tls { "https" } else { "http" })?;
        }
    }
    if forwarded.via {
        request.append_header(header::VIA, VIA)?;
    }
    Ok(())
}

/// Adds the gateway's headers to an endpoint's response to `request` and hides what only the gateway asked for.
pub fn to_client(
    request: &RequestHeader,
    response: &mut ResponseHeader,
    settings: &Settings,
    ctx: &Context,
) -> Result<()> {
    if response.status.is_informational() {
        return Ok(());
    }
    if request.version == Version::HTTP_10 {
        // It knows no chunks (RFC 9112, section 6.1).
        response.remove_header(&header::TRANSFER_ENCODING);
    }
    if has_any(
        response,
        &[&LOAD_REPORT, &header::CONNECTION, &KEEP_ALIVE, &PROXY_CONNECTION],
    ) {
        end_hop(response);
        if !ctx.wants_load_report {
            response.remove_header(&LOAD_REPORT);
        }
    }
    response.insert_header(REQUEST_ID, ctx.request_id.as_str())?;
    if settings.forwarded.via {
        response.append_header(header::VIA, VIA)?;
    }
    if let Some(origin) = ctx.cors_origin.clone() {
        cors::permit(response, origin)?;
    }
    if response.version == Version::HTTP_2 {
        response.set_version(Version::HTTP_11);
    }
    if ctx.explain {
        explain(response, ctx)
    } else {
        Ok(())
    }
}

/// Removes what the endpoint said of its own connection (RFC 9110, section 7.6.1). Pingora does so for requests only.
fn end_hop(response: &mut ResponseHeader) {
    if let Some(connection) = response.remove_header(&header::CONNECTION) {
        let names = connection.to_str().unwrap_or_default().split(',');
        // `close` and `keep-alive` are names of no header, or of one that goes anyway.
        for name in names.map(|name| name.trim().to_ascii_lowercase()) {
            if !matches!(name.as_str(), "content-length" | "transfer-encoding") {
                response.remove_header(name.as_str());
            }
        }
    }
    response.remove_header(&KEEP_ALIVE);
    response.remove_header(&PROXY_CONNECTION);
}

/// One pass: to look up four names costs more than to look at all of a usual response's.
fn has_any(response: &ResponseHeader, names: &[&HeaderName]) -> bool {
    response.headers.keys().any(|name| names.contains(&name))
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
