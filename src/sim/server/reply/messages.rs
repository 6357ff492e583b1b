//! `/v1/messages`, the Anthropic form.

use super::*;

/// The first choice; the form has no others.
fn stop_reason(part: &Part, ended: Option<Ended>) -> &'static str {
    match ended {
        Some(Ended::Length) => "\"max_tokens\"",
        Some(Ended::Stop) if part.output.stop.is_some() => "\"stop_sequence\"",
        Some(Ended::Stop) => "\"end_turn\"",
        Some(Ended::Abort) | None => "null",
    }
}

/// `{"input_tokens":..}`; tokens read from the cache and written to it are told apart only when details are on.
fn put_message_usage(out: &mut Vec<u8>, job: &Job, usage: Usage) {
    let (cached, created) = match job.details {
        true => (usage.cached_tokens, usage.created_tokens),
        false => (0, 0),
    };
    let (input, output) = (usage.prompt_tokens - cached - created, usage.completion_tokens);
    put!(out, r#"{{"input_tokens":{input},"output_tokens":{output}"#);
    if job.details {
        put!(
            out,
            r#","cache_creation_input_tokens":{created},"cache_read_input_tokens":{cached}"#
        );
    }
    out.push(b'}');
}

pub(super) fn whole(job: &Job, generation: &Generation) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    put!(
        out,
        r#"{{"id":"chatcmpl-{}","type":"message","role":"assistant","content":["#,
        job.id
    );
    if let Some(part) = generation.parts.first() {
        let (tokens, ended) = part.visible();
        put!(out, r#"{{"type":"text","text":"#);
        put_json_str(&mut out, part.output.slice(0, tokens));
        put!(
            out,
            r#"}}],"model":{},"stop_reason":{}"#,
            json_str(&job.request.model),
            stop_reason(part, ended)
        );
    }
    put!(out, r#","usage":"#);
    put_message_usage(&mut out, job, generation.usage());
    out.push(b'}');
    out
}

pub(super) struct Stream;

impl Stream {
    fn event(name: &str, data: &[u8], out: &mut Events) {
        let mut event = Vec::with_capacity(data.len() + name.len() + 24);
        put!(event, "event: {name}\ndata: ");
        event.extend_from_slice(data);
        event.extend_from_slice(b"\n\n");
        out.push_back(event.into());
    }
}

impl StreamFormat for Stream {
    fn open(&mut self, job: &Job, generation: &Generation, out: &mut Events) {
        let model = json_str(&job.request.model);
        let input = generation.usage().prompt_tokens;
        let start = format!(
            r#"{{"type":"message_start","message":{{"id":"chatcmpl-{}","type":"message","role":"assistant","content":[],"model":{model},"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{input},"output_tokens":0}}}}}}"#,
            job.id
        );
        Self::event("message_start", start.as_bytes(), out);
        let block = br#"{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}"#;
        Self::event("content_block_start", block, out);
    }

    fn delta(&mut self, _: &Job, generation: &Generation, delta: &Delta, out: &mut Events) {
        let text = generation.parts[delta.index].output.slice(delta.from, delta.to);
        if !text.is_empty() {
            let mut data = Vec::with_capacity(128);
            put!(
                data,
                r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":"#
            );
            put_json_str(&mut data, text);
            put!(data, r#"}},"index":0}}"#);
            Self::event("content_block_delta", &data, out);
        }
    }

    fn close(&mut self, job: &Job, generation: &Generation, out: &mut Events) {
        Self::event(
            "content_block_stop",
            br#"{"type":"content_block_stop","index":0}"#,
            out,
        );
        let mut data = Vec::with_capacity(192);
        let reason = generation
            .parts
            .first()
            .map_or("null", |part| stop_reason(part, part.visible().1));
        put!(
            data,
            r#"{{"type":"message_delta","delta":{{"stop_reason":{reason},"stop_sequence":null}},"usage":"#
        );
        put_message_usage(&mut data, job, generation.usage());
        data.push(b'}');
        Self::event("message_delta", &data, out);
        Self::event("message_stop", br#"{"type":"message_stop"}"#, out);
    }
}
