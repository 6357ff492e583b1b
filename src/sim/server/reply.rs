//! Answers of the four generating paths, whole or streamed, with the fields of vLLM 0.32 in its order.

mod chat;
mod completions;
mod logprobs;
mod messages;
mod responses;
mod stream;

pub(super) use stream::SseBody;

use super::generation::{Ended, Generation, Part, Usage};
use super::request::{Api, GenerationRequest};
use hyper::body::Bytes;
use std::collections::VecDeque;
use std::io::Write;

/// What an answer needs besides the generated tokens.
pub(super) struct Job {
    pub(super) request: GenerationRequest,
    /// The request's id without prefix.
    pub(super) id: String,
    /// Unix time, seconds.
    pub(super) created: u64,
    /// JSON string of `system_fingerprint`.
    pub(super) fingerprint: String,
    /// Report `prompt_tokens_details`.
    pub(super) details: bool,
}

/// Events of a stream that are ready to be sent.
pub(super) type Events = VecDeque<Bytes>;

/// Writes the events of one stream.
pub(super) trait StreamFormat: Send {
    /// What comes before the first token.
    fn open(&mut self, job: &Job, generation: &Generation, out: &mut Events);
    /// The tokens `from..to` of choice `index`, and how it ended if it did.
    fn delta(&mut self, job: &Job, generation: &Generation, delta: &Delta, out: &mut Events);
    /// What comes after all choices have ended.
    fn close(&mut self, job: &Job, generation: &Generation, out: &mut Events);
}

/// A piece of one choice.
pub(super) struct Delta {
    pub(super) index: usize,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) ended: Option<Ended>,
}

/// The whole answer, when all choices have ended.
pub(super) fn whole(job: &Job, generation: &Generation) -> Vec<u8> {
    match job.request.api {
        Api::Completions => completions::whole(job, generation),
        Api::Chat => chat::whole(job, generation),
        Api::Messages => messages::whole(job, generation),
        Api::Responses => responses::whole(job, generation),
    }
}

fn stream_format(job: &Job) -> Box<dyn StreamFormat> {
    match job.request.api {
        Api::Completions => Box::new(completions::Stream::new(job)),
        Api::Chat => Box::new(chat::Stream::new(job)),
        Api::Messages => Box::new(messages::Stream),
        Api::Responses => Box::new(responses::Stream::default()),
    }
}

/// Appends formatted text; writing to memory cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{
        let _ = write!($out, $($arg)*);
    }};
}
use put;

/// Appends a JSON string.
fn put_json_str(out: &mut Vec<u8>, text: &str) {
    // A str always serializes, and writing to memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

fn json_str(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn put_id_list(out: &mut Vec<u8>, ids: Option<&[u32]>) {
    let Some(ids) = ids else { return put!(out, "null") };
    out.push(b'[');
    for (index, id) in ids.iter().enumerate() {
        put!(out, "{}{id}", if index > 0 { "," } else { "" });
    }
    out.push(b']');
}

/// Prompt ids, if the client asked for ids.
fn prompt_ids<'a>(job: &'a Job, part: &Part) -> Option<&'a [u32]> {
    job.request
        .return_token_ids
        .then(|| job.request.prompts[part.prompt].tokens.as_slice())
}

/// Output ids `from..to`, if the client asked for ids.
fn output_ids<'a>(job: &Job, part: &'a Part, from: u32, to: u32) -> Option<&'a [u32]> {
    let ids = part
        .output
        .ids
        .get(from as usize..to as usize)
        .unwrap_or_default();
    job.request.return_token_ids.then_some(ids)
}

fn put_stop_reason(out: &mut Vec<u8>, part: &Part) {
    match &part.output.stop {
        Some(stop) => put_json_str(out, stop),
        None => put!(out, "null"),
    }
}

/// How the answers of one API are told from the other's.
struct Kind {
    /// What ids begin with.
    id: &'static str,
    /// `object` of a whole answer.
    object: &'static str,
    /// `object` of a stream's events.
    event: &'static str,
}

/// A whole answer up to its first choice.
fn open_whole(kind: &Kind, job: &Job, generation: &Generation) -> Vec<u8> {
    const FRAME_BYTES: usize = 640;
    let texts = generation.parts.iter().map(|part| part.output.text.len());
    let mut out = Vec::with_capacity(FRAME_BYTES + texts.sum::<usize>());
    put!(
        out,
        r#"{{"id":"{}-{}","object":"{}","created":{},"model":"#,
        kind.id,
        job.id,
        kind.object,
        job.created
    );
    put_json_str(&mut out, &job.request.model);
    put!(out, r#","choices":["#);
    out
}

/// Every event of a stream up to its first choice.
fn stream_head(kind: &Kind, job: &Job) -> String {
    let (id, created, model) = (&job.id, job.created, json_str(&job.request.model));
    let Kind {
        id: prefix, event, ..
    } = kind;
    format!(
        r#"data: {{"id":"{prefix}-{id}","object":"{event}","created":{created},"model":{model},"choices":["#
    )
}

/// `"usage":{..}` of a whole answer.
fn put_usage(out: &mut Vec<u8>, job: &Job, usage: Usage) {
    put_token_counts(out, usage);
    put!(out, r#","prompt_tokens_details":"#);
    if job.details {
        put!(
            out,
            r#"{{"cached_tokens":{},"created_cache_tokens":"#,
            usage.cached_tokens
        );
        match job.request.api {
            Api::Completions => put!(out, "null"),
            _ => put!(out, "{}", usage.created_tokens),
        }
        put!(out, r#","multimodal_tokens":null}}"#);
    } else {
        put!(out, "null");
    }
    put!(out, r#","completion_tokens_details":null}}"#);
}

/// `"usage":{..}` of a stream event; `last` when it is the one after all choices.
fn put_stream_usage(out: &mut Vec<u8>, job: &Job, usage: Usage, last: bool) {
    // Fields that are null are left out, but for one that chats set before the last event.
    put_token_counts(out, usage);
    let chat = job.request.api == Api::Chat;
    if last && job.details {
        put!(
            out,
            r#","prompt_tokens_details":{{"cached_tokens":{}"#,
            usage.cached_tokens
        );
        if chat {
            put!(out, r#","created_cache_tokens":{}"#, usage.created_tokens);
        }
        out.push(b'}');
    } else if !last && chat {
        put!(out, r#","completion_tokens_details":null"#);
    }
    out.push(b'}');
}

fn put_token_counts(out: &mut Vec<u8>, usage: Usage) {
    let (prompt, completion) = (usage.prompt_tokens, usage.completion_tokens);
    let total = prompt + completion;
    put!(
        out,
        r#""usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion}"#
    );
}

/// Ends the event of one choice: what comes after its closing brace.
fn put_event_end(out: &mut Vec<u8>, job: &Job, part: &Part, delta: &Delta) {
    out.push(b']');
    if job.request.continuous_usage {
        let usage = Usage {
            prompt_tokens: part.prompt_tokens,
            completion_tokens: delta.to,
            ..Usage::default()
        };
        out.push(b',');
        put_stream_usage(out, job, usage, false);
    }
    if delta.ended.is_some() && !job.request.include_usage {
        put!(out, r#","system_fingerprint":{}"#, job.fingerprint);
    }
    put!(out, "}}\n\n");
}

/// The events after the last choice: usage, if asked for, and the end mark.
fn close_openai_stream(head: &str, job: &Job, generation: &Generation, out: &mut Events) {
    if job.request.include_usage {
        let mut event = Vec::with_capacity(256);
        put!(event, "{head}],");
        put_stream_usage(&mut event, job, generation.usage(), true);
        put!(event, ",\"system_fingerprint\":{}}}\n\n", job.fingerprint);
        out.push_back(event.into());
    }
    out.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
}
