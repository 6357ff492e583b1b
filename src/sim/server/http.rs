//! Answers and their bodies.

use super::reply::SseBody;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, SERVER, VARY};
use hyper::{Response, StatusCode};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
pub(super) const METRICS_TEXT: HeaderValue =
    HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");

/// An answer.
pub(super) type Reply = Response<ReplyBody>;

/// A body that is there already, or one that follows the engine.
pub(super) enum ReplyBody {
    Whole(Option<Bytes>),
    Events(Box<SseBody>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events(events) => Pin::new(events.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

fn with_body(status: StatusCode, content_type: Option<HeaderValue>, body: ReplyBody) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    if let Some(content_type) = content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    reply
}

/// A whole answer.
pub(super) fn reply(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Reply {
    with_body(status, Some(content_type), ReplyBody::Whole(Some(body.into())))
}

/// 200 with JSON.
pub(super) fn json(body: impl Into<Bytes>) -> Reply {
    reply(StatusCode::OK, JSON, body)
}

/// A status without a body.
pub(super) fn empty(status: StatusCode) -> Reply {
    with_body(status, None, ReplyBody::Whole(None))
}

/// 200 with events.
pub(super) fn events(body: SseBody) -> Reply {
    with_body(
        StatusCode::OK,
        Some(EVENT_STREAM),
        ReplyBody::Events(Box::new(body)),
    )
}

/// FastAPI's answer to an unknown path.
pub(super) fn not_found() -> Reply {
    reply(StatusCode::NOT_FOUND, JSON, r#"{"detail":"Not Found"}"#)
}

/// FastAPI's answer to a method that the path does not know.
pub(super) fn method_not_allowed(allow: &'static str) -> Reply {
    let mut reply = reply(
        StatusCode::METHOD_NOT_ALLOWED,
        JSON,
        r#"{"detail":"Method Not Allowed"}"#,
    );
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    reply
}
