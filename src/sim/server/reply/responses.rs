//! `/v1/responses`.

use super::*;

/// The one output message, done.
fn message(job: &Job, part: &Part) -> String {
    let text = json_str(part.output.slice(0, part.visible().0));
    format!(
        r#"{{"id":"msg_{}","content":[{{"annotations":[],"text":{text},"type":"output_text","logprobs":null}}],"role":"assistant","status":"completed","type":"message","phase":null}}"#,
        job.id
    )
}

/// A response object. `part` is the finished output; without one the response is in progress.
fn response(job: &Job, part: Option<&Part>, usage: Usage) -> String {
    let ended = part.and_then(|part| part.visible().1);
    let (status, details) = match (part, ended) {
        (None, _) => ("in_progress", "null"),
        (_, Some(Ended::Length)) => ("incomplete", r#"{"reason":"max_output_tokens"}"#),
        (_, Some(Ended::Stop)) => ("completed", "null"),
        (_, Some(Ended::Abort) | None) => ("incomplete", "null"),
    };
    let output = part.map(|part| message(job, part)).unwrap_or_default();
    let usage = part.map_or_else(|| "null".to_owned(), |_| response_usage(usage));
    let request = &job.request;
    let max = request
        .max_tokens
        .map_or_else(|| "null".to_owned(), |max| max.to_string());
    format!(
        r#"{{"id":"resp_{id}","created_at":{created},"incomplete_details":{details},"instructions":null,"metadata":null,"model":{model},"object":"response","output":[{output}],"parallel_tool_calls":true,"temperature":{temperature:?},"tool_choice":"none","tools":[],"top_p":{top_p:?},"background":false,"max_output_tokens":{max},"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"{status}","text":null,"top_logprobs":null,"truncation":"disabled","usage":{usage},"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}}"#,
        id = job.id,
        created = job.created,
        model = json_str(&request.model),
        temperature = request.temperature,
        top_p = request.top_p,
    )
}

fn response_usage(usage: Usage) -> String {
    let Usage {
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        created_tokens: _,
    } = usage;
    format!(
        r#"{{"input_tokens":{prompt_tokens},"input_tokens_details":{{"cached_tokens":{cached_tokens},"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]}},"output_tokens":{completion_tokens},"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]}},"total_tokens":{}}}"#,
        prompt_tokens + completion_tokens
    )
}

pub(super) fn whole(job: &Job, generation: &Generation) -> Vec<u8> {
    response(job, generation.parts.first(), generation.usage()).into_bytes()
}

#[derive(Default)]
pub(super) struct Stream {
    sequence: u32,
}

impl Stream {
    /// Fields stand in alphabetical order, as vLLM writes them: `before` and `after` the sequence number.
    fn event(&mut self, name: &str, (before, after): (&str, &str), out: &mut Events) {
        let sequence = self.sequence;
        self.sequence += 1;
        let event = format!(
            "event: {name}\ndata: {{{before},\"sequence_number\":{sequence},{after}\"type\":\"{name}\"}}\n\n"
        );
        out.push_back(event.into());
    }
}

impl StreamFormat for Stream {
    fn open(&mut self, job: &Job, _: &Generation, out: &mut Events) {
        let response = response(job, None, Usage::default());
        self.event(
            "response.created",
            (&format!(r#""response":{response}"#), ""),
            out,
        );
        self.event(
            "response.in_progress",
            (&format!(r#""response":{response}"#), ""),
            out,
        );
        let id = &job.id;
        let item = format!(
            r#""item":{{"id":"msg_{id}","content":[],"role":"assistant","status":"in_progress","type":"message","phase":null}},"output_index":0"#
        );
        self.event("response.output_item.added", (&item, ""), out);
        let part = format!(
            r#""content_index":0,"item_id":"msg_{id}","output_index":0,"part":{{"annotations":[],"text":"","type":"output_text","logprobs":[]}}"#
        );
        self.event("response.content_part.added", (&part, ""), out);
    }

    fn delta(&mut self, job: &Job, generation: &Generation, delta: &Delta, out: &mut Events) {
        let text = generation.parts[delta.index].output.slice(delta.from, delta.to);
        if !text.is_empty() {
            let delta = format!(
                r#""content_index":0,"delta":{},"item_id":"msg_{}","logprobs":[],"output_index":0"#,
                json_str(text),
                job.id
            );
            self.event("response.output_text.delta", (&delta, ""), out);
        }
    }

    fn close(&mut self, job: &Job, generation: &Generation, out: &mut Events) {
        let Some(part) = generation.parts.first() else {
            return;
        };
        let text = part.output.slice(0, part.visible().0);
        let item = format!(
            r#""content_index":0,"item_id":"msg_{}","logprobs":[],"output_index":0"#,
            job.id
        );
        let whole = format!(r#""text":{},"#, json_str(text));
        self.event("response.output_text.done", (&item, &whole), out);
        let done = format!(
            r#""content_index":0,"item_id":"msg_{}","output_index":0,"part":{{"annotations":[],"text":{},"type":"output_text","logprobs":null}}"#,
            job.id,
            json_str(text)
        );
        self.event("response.content_part.done", (&done, ""), out);
        let item = format!(r#""item":{},"output_index":0"#, message(job, part));
        self.event("response.output_item.done", (&item, ""), out);
        let response = response(job, Some(part), generation.usage());
        self.event(
            "response.completed",
            (&format!(r#""response":{response}"#), ""),
            out,
        );
    }
}
