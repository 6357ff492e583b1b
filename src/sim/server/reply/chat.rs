//! `/v1/chat/completions`.

use super::*;

const KIND: Kind = Kind {
    id: "chatcmpl",
    object: "chat.completion",
    event: "chat.completion.chunk",
};

pub(super) fn whole(job: &Job, generation: &Generation) -> Vec<u8> {
    let mut out = open_whole(&KIND, job, generation);
    for (index, part) in generation.parts.iter().enumerate() {
        put_choice(&mut out, job, index, part);
    }
    put!(
        out,
        r#"],"service_tier":null,"system_fingerprint":{},"#,
        job.fingerprint
    );
    put_usage(&mut out, job, generation.usage());
    put!(out, r#","prompt_logprobs":null,"prompt_token_ids":"#);
    put_id_list(
        &mut out,
        generation.parts.first().and_then(|part| prompt_ids(job, part)),
    );
    put!(
        out,
        r#","prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#
    );
    out
}

fn put_choice(out: &mut Vec<u8>, job: &Job, index: usize, part: &Part) {
    let (tokens, ended) = part.visible();
    let comma = if index > 0 { "," } else { "" };
    put!(
        out,
        r#"{comma}{{"index":{index},"message":{{"role":"assistant","content":"#
    );
    put_json_str(out, part.output.slice(0, tokens));
    put!(
        out,
        r#","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":{},"finish_reason":"{}","stop_reason":"#,
        logprobs::of_chat(job, part, 0, tokens),
        ended.map_or("abort", Ended::word)
    );
    put_stop_reason(out, part);
    put!(out, r#","token_ids":"#);
    put_id_list(out, output_ids(job, part, 0, tokens));
    put!(out, r#","routed_experts":null}}"#);
}

pub(super) struct Stream {
    /// Every event up to its first choice.
    head: String,
}

impl Stream {
    pub(super) fn new(job: &Job) -> Self {
        let head = stream_head(&KIND, job);
        Self { head }
    }
}

impl StreamFormat for Stream {
    fn open(&mut self, job: &Job, generation: &Generation, out: &mut Events) {
        for (index, part) in generation.parts.iter().enumerate() {
            let mut event = Vec::with_capacity(self.head.len() + 192);
            put!(
                event,
                r#"{}{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":"#,
                self.head
            );
            put_id_list(&mut event, prompt_ids(job, part));
            put!(event, r#","prompt_text":null"#);
            if job.request.continuous_usage {
                event.push(b',');
                let usage = Usage {
                    prompt_tokens: part.prompt_tokens,
                    ..Usage::default()
                };
                put_stream_usage(&mut event, job, usage, false);
            }
            put!(event, "}}\n\n");
            out.push_back(event.into());
        }
    }

    fn delta(&mut self, job: &Job, generation: &Generation, delta: &Delta, out: &mut Events) {
        let part = &generation.parts[delta.index];
        let mut event = Vec::with_capacity(self.head.len() + 160);
        put!(
            event,
            r#"{}{{"index":{},"delta":{{"content":"#,
            self.head,
            delta.index
        );
        put_json_str(&mut event, part.output.slice(delta.from, delta.to));
        let logprobs = logprobs::of_chat(job, part, delta.from, delta.to);
        put!(event, r#"}},"logprobs":{logprobs},"finish_reason":"#);
        match delta.ended {
            Some(ended) => {
                put!(event, r#""{}","stop_reason":"#, ended.word());
                put_stop_reason(&mut event, part);
            }
            None => put!(event, "null"),
        }
        put!(event, r#","token_ids":"#);
        put_id_list(&mut event, output_ids(job, part, delta.from, delta.to));
        event.push(b'}');
        put_event_end(&mut event, job, part, delta);
        out.push_back(event.into());
    }

    fn close(&mut self, job: &Job, generation: &Generation, out: &mut Events) {
        close_openai_stream(&self.head, job, generation, out);
    }
}
