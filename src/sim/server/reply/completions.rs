//! `/v1/completions`.

use super::*;

const KIND: Kind = Kind {
    id: "cmpl",
    object: "text_completion",
    event: "text_completion",
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
    put!(
        out,
        r#","kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#
    );
    out
}

fn put_choice(out: &mut Vec<u8>, job: &Job, index: usize, part: &Part) {
    let (tokens, ended) = part.visible();
    put!(
        out,
        r#"{}{{"index":{index},"text":"#,
        if index > 0 { "," } else { "" }
    );
    let text = part.output.slice(0, tokens);
    if job.request.echo {
        put_json_str(out, &format!("{}{text}", logprobs::echoed(job, part)));
    } else {
        put_json_str(out, text);
    }
    put!(
        out,
        r#","logprobs":{},"finish_reason":"{}","stop_reason":"#,
        logprobs::of_completion(job, part, 0, tokens),
        ended.map_or("abort", Ended::word)
    );
    put_stop_reason(out, part);
    put!(out, r#","token_ids":"#);
    put_id_list(out, output_ids(job, part, 0, tokens));
    put!(
        out,
        r#","prompt_logprobs":{},"prompt_token_ids":"#,
        logprobs::of_prompt(job, part)
    );
    put_id_list(out, prompt_ids(job, part));
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
    fn open(&mut self, _: &Job, _: &Generation, _: &mut Events) {}

    fn delta(&mut self, job: &Job, generation: &Generation, delta: &Delta, out: &mut Events) {
        let part = &generation.parts[delta.index];
        let mut event = Vec::with_capacity(self.head.len() + 192);
        put!(event, r#"{}{{"index":{},"text":"#, self.head, delta.index);
        let text = part.output.slice(delta.from, delta.to);
        if job.request.echo && delta.from == 0 {
            put_json_str(&mut event, &format!("{}{text}", logprobs::echoed(job, part)));
        } else {
            put_json_str(&mut event, text);
        }
        let logprobs = logprobs::of_completion(job, part, delta.from, delta.to);
        put!(event, r#","logprobs":{logprobs},"finish_reason":"#);
        match delta.ended {
            Some(ended) => {
                put!(event, r#""{}","stop_reason":"#, ended.word());
                put_stop_reason(&mut event, part);
            }
            None => put!(event, r#"null,"stop_reason":null"#),
        }
        put!(event, r#","prompt_token_ids":"#);
        put_id_list(&mut event, prompt_ids(job, part).filter(|_| delta.from == 0));
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
