//! Responses that look like an answer and are none: what a real engine sends when it stops.
//!
//! vLLM on SIGTERM ends running requests with status 200 and `finish_reason: "abort"`, answers new ones with 500 while
//! its health check still passes, and sheds load with a 503 that asks for another instance. Short JSON responses are
//! therefore kept back until they are complete; the engine sends them in one piece, so nobody waits for that.

use super::buffered::MAX_HELD_BYTES;
use super::context::Context;
use crate::openai::FinishReason;
use http::{StatusCode, header};
use memchr::memmem;
use pingora_http::ResponseHeader;

/// Bytes of an error's body that are looked at.
const ERROR_BYTES: usize = 1024;
/// What vLLM answers while it shuts down: its front end still runs, its executors do not.
const SHUTTING_DOWN: &[u8] = b"cannot schedule new futures after shutdown";
/// What vLLM answers when its engine process has died.
const ENGINE_DIED: &[u8] = b"EngineCore encountered an issue";
/// What vLLM answers when its queue is full.
const BUSY: &[u8] = b"on a different instance";

/// A response that is kept back until its end tells what it is.
#[derive(Debug)]
pub struct Pending {
    error: Option<Vec<u8>>,
}

/// What a response turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The endpoint's answer to the client.
    Good,
    /// The endpoint failed; another may not.
    Failed,
    /// The endpoint is well and has no room.
    Busy,
    /// The endpoint will answer nothing any more.
    ShuttingDown,
}

/// Keeps the response with this head back, if its end may show that it is none. That is done for the last try too: its
/// end tells of the endpoint, whose answer then goes to the client as it is.
pub fn pending(head: &ResponseHeader, is_json: bool, ctx: &Context) -> Option<Pending> {
    let encoded = head.headers.contains_key(header::CONTENT_ENCODING);
    let short = content_length(head).is_none_or(|length| (1..=MAX_HELD_BYTES as u64).contains(&length));
    if !is_json || encoded || !short || ctx.slot.is_none() || !ctx.path_kind.carries_prompt() {
        return None;
    }
    let ambiguous_error = [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE];
    if head.status == StatusCode::OK {
        Some(Pending { error: None })
    } else if ambiguous_error.contains(&head.status) {
        Some(Pending {
            error: Some(Vec::new()),
        })
    } else {
        None
    }
}

impl Pending {
    /// The next bytes of the body.
    pub fn push(&mut self, data: &[u8]) {
        if let Some(error) = &mut self.error {
            let room = ERROR_BYTES.saturating_sub(error.len()).min(data.len());
            error.extend_from_slice(&data[..room]);
        }
    }

    /// What the response is; `complete` unless it is too long to be kept back.
    pub fn judge(&self, ctx: &Context, complete: bool) -> Verdict {
        let Some(error) = &self.error else {
            let aborted = ctx.response.facts.finish == Some(FinishReason::Abort);
            return if complete && aborted {
                Verdict::Failed
            } else {
                Verdict::Good
            };
        };
        let says = |words: &[u8]| memmem::find(error, words).is_some();
        if says(SHUTTING_DOWN) || says(ENGINE_DIED) {
            Verdict::ShuttingDown
        } else if says(BUSY) {
            Verdict::Busy
        } else if ctx.retries_on(ctx.response.status) {
            Verdict::Failed
        } else {
            Verdict::Good
        }
    }
}

fn content_length(head: &ResponseHeader) -> Option<u64> {
    head.headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}
