use super::{FinishReason, ResponseFacts, UsageScanner};

macro_rules! captured {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/fixtures/vllm/responses/", $name))
    };
}

fn scan(sse: bool, chunks: &[&[u8]]) -> ResponseFacts {
    let mut scanner = UsageScanner::new(sse);
    chunks.iter().for_each(|chunk| scanner.push(chunk));
    scanner.finish()
}

/// Scans a body whole, cut in two at every byte, and byte by byte: the facts must be the same.
fn scan_cut_everywhere(sse: bool, body: &[u8]) -> ResponseFacts {
    let whole = scan(sse, &[body]);
    for cut in 0..=body.len() {
        let (head, tail) = body.split_at(cut);
        assert_eq!(scan(sse, &[head, tail]), whole, "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(scan(sse, &bytes), whole, "byte by byte");
    whole
}

fn replaced(body: &[u8], from: &str, to: &str) -> Vec<u8> {
    str::from_utf8(body).unwrap().replace(from, to).into_bytes()
}

const fn counts(prompt: u64, completion: u64, cached: Option<u64>) -> ResponseFacts {
    ResponseFacts {
        prompt_tokens: Some(prompt),
        completion_tokens: Some(completion),
        cached_tokens: cached,
        finish: Some(FinishReason::Length),
        error: false,
    }
}

#[test]
fn captured_json_bodies() {
    let hit = scan_cut_everywhere(false, captured!("flags_prompt_tokens_details_hit.json"));
    assert_eq!(hit, counts(100, 2, Some(96)));
    let responses = scan_cut_everywhere(false, captured!("responses.json"));
    assert_eq!(responses, counts(15, 6, Some(0)));
    let messages = scan_cut_everywhere(false, captured!("messages.json"));
    assert_eq!(messages, counts(28, 6, None));
    // 12 tokens computed + 160 from the cache: Anthropic's API counts them apart.
    let messages_hit = scan_cut_everywhere(false, captured!("flags_messages_cached_usage_hit.json"));
    assert_eq!(messages_hit, counts(172, 2, Some(160)));
}

#[test]
fn captured_streams() {
    let usage = scan_cut_everywhere(true, captured!("completions_stream_usage.sse"));
    assert_eq!(usage, counts(19, 6, None));
    let hit = scan_cut_everywhere(true, captured!("flags_prompt_tokens_details_hit_stream.sse"));
    assert_eq!(hit, counts(100, 2, Some(96)));
    let commented = scan_cut_everywhere(true, captured!("sse_keepalive_queued_chat.sse"));
    assert_eq!(commented, counts(13, 3, Some(0)));
    let responses = scan_cut_everywhere(true, captured!("responses_stream.sse"));
    assert_eq!(responses, counts(15, 4, Some(0)));
    let messages = scan_cut_everywhere(true, captured!("messages_stream.sse"));
    assert_eq!(messages, counts(15, 4, None));
}

#[test]
fn an_aborted_request_is_told_from_a_finished_one() {
    let json = scan_cut_everywhere(false, captured!("sigterm_nonstream.json"));
    assert_eq!(
        (json.finish, json.completion_tokens),
        (Some(FinishReason::Abort), Some(56))
    );
    let stream = scan_cut_everywhere(true, captured!("sigterm_stream.sse"));
    assert_eq!((stream.finish, stream.error), (Some(FinishReason::Abort), false));
    // One aborted choice of several makes the response an aborted one.
    let mixed = br#"{"choices":[{"finish_reason":"abort"},{"finish_reason":"stop"}]}"#;
    assert_eq!(scan(false, &[mixed]).finish, Some(FinishReason::Abort));
}

#[test]
fn errors_within_a_stream_and_error_bodies() {
    let stream = scan_cut_everywhere(true, captured!("sigkill_worker_stream.sse"));
    assert_eq!((stream.error, stream.finish), (true, None));
    assert!(scan_cut_everywhere(false, captured!("sigkill_worker_nonstream.json")).error);
    assert!(scan_cut_everywhere(false, captured!("flags_auth_missing.json")).error);
    let event = b"event: error\ndata: {\"type\": \"error\", \"code\": \"server_error\"}\n\n";
    assert!(scan_cut_everywhere(true, event).error);
    assert!(!scan(true, &[b"data: {\"error\": null, \"choices\": []}\n\n"]).error);
}

#[test]
fn every_line_end_of_the_sse_standard() {
    let stream = captured!("flags_prompt_tokens_details_hit_stream.sse");
    let facts = scan(true, &[stream]);
    for line_end in ["\r", "\r\n"] {
        assert_eq!(
            scan_cut_everywhere(true, &replaced(stream, "\n", line_end)),
            facts,
            "{line_end:?}"
        );
    }
}

#[test]
fn spelling_variants_of_fields() {
    let stream = captured!("flags_prompt_tokens_details_hit_stream.sse");
    let facts = scan(true, &[stream]);
    let spaced = replaced(&replaced(stream, "\":", "\" : "), ",\"", " , \"");
    assert_eq!(scan_cut_everywhere(true, &spaced), facts);
    assert_eq!(
        scan_cut_everywhere(true, &replaced(stream, "data: ", "data:")),
        facts
    );
    // A value over several `data:` lines is one value.
    assert_eq!(
        scan(true, &[&replaced(stream, ",\"usage\"", ",\ndata: \"usage\"")]),
        facts
    );
}

#[test]
fn the_last_event_may_lack_its_line_end() {
    let stream = b"data: {\"choices\":[]}\n\ndata: {\"usage\":{\"prompt_tokens\":5}}";
    assert_eq!(scan_cut_everywhere(true, stream).prompt_tokens, Some(5));
}

#[test]
fn generated_text_is_never_taken_for_facts() {
    let fake =
        r#"{"error": {"x": 1}, "usage": {"prompt_tokens": 7}, "finish_reason": "abort"} \ data: [DONE]"#;
    let text = serde_json::to_string(&format!("{fake}\ndata: {fake}\n\ndata: [DONE]\n\nusage")).unwrap();
    let event = format!(
        "data: {{\"choices\":[{{\"index\":0,\"text\":{text},\"delta\":{{\"content\":{text},\"error\":{fake_value},\
         \"tool_calls\":[{{\"usage\":{{\"prompt_tokens\":7}}}}]}},\"finish_reason\":null}}],\
         \"metadata\":{{\"usage\":{{\"prompt_tokens\":7}},\"error\":1,\"finish_reason\":\"abort\"}},\
         \"tools\":[{{\"error\":1,\"usage\":{{\"prompt_tokens\":7}}}}],\"usage\":null,\"error\":null}}\n\n",
        fake_value = r#"{"error":{"type":"error"}}"#
    );
    assert_eq!(
        scan_cut_everywhere(true, event.as_bytes()),
        ResponseFacts::default()
    );
    let json = event.trim_end().strip_prefix("data: ").unwrap();
    assert_eq!(
        scan_cut_everywhere(false, json.as_bytes()),
        ResponseFacts::default()
    );
    // Comments and other fields hold no facts either.
    let comment = b": {\"error\":{}}\nid: {\"usage\":{\"prompt_tokens\":7}}\nretry: 1\n\n";
    assert_eq!(scan_cut_everywhere(true, comment), ResponseFacts::default());
}

#[test]
fn a_matched_stop_string_is_no_finish_reason() {
    let json = br#"{"choices":[{"finish_reason":"stop","stop_reason":"abort"}]}"#;
    assert_eq!(scan_cut_everywhere(false, json).finish, Some(FinishReason::Stop));
}

#[test]
fn bodies_that_are_not_json_say_nothing() {
    for body in [
        "",
        "<html>\"usage\": 1</html>",
        "[{\"error\":1}]",
        "\"error\"",
        "7",
        "}{\"error\":1}",
        "{\"usage\"",
        "{\"usage\"{\"prompt_tokens\":1}}",
        "{\"usage\":nul{\"prompt_tokens\":1}}",
    ] {
        assert_eq!(
            scan_cut_everywhere(false, body.as_bytes()),
            ResponseFacts::default(),
            "{body}"
        );
        let event = format!("data: {body}\n\n");
        assert_eq!(
            scan_cut_everywhere(true, event.as_bytes()),
            ResponseFacts::default(),
            "{body}"
        );
    }
    let deep = "[".repeat(100_000) + "{\"usage\":{\"prompt_tokens\":1}}";
    assert_eq!(scan(false, &[deep.as_bytes()]), ResponseFacts::default());
    let nested = "{\"usage\":".repeat(1000) + "{\"prompt_tokens\":1}";
    assert_eq!(scan(false, &[nested.as_bytes()]).prompt_tokens, None);
}

#[test]
fn a_broken_event_does_not_spoil_the_next_one() {
    let stream = b"data: {\"choices\":[{\"text\":\"cut\n\ndata: {\"usage\":{\"prompt_tokens\":5}}\n\n";
    assert_eq!(scan_cut_everywhere(true, stream).prompt_tokens, Some(5));
}

#[test]
fn the_status_of_a_response_is_seen_without_usage() {
    let cancelled = b"data: {\"response\":{\"status\":\"cancelled\",\"usage\":null,\"error\":null}}\n\n";
    assert_eq!(
        scan_cut_everywhere(true, cancelled).finish,
        Some(FinishReason::Abort)
    );
}

#[test]
fn a_value_over_several_lines_is_one_value() {
    let facts = scan_cut_everywhere(
        true,
        b"data: {\"usage\"\ndata: :{\"prompt_tokens\":\ndata: 5}}\n\n",
    );
    assert_eq!(facts.prompt_tokens, Some(5));
    let cut_key = scan_cut_everywhere(true, b"data: {\"usa\ndata: ge\":{\"prompt_tokens\":5}}\n\n");
    assert_eq!(cut_key.prompt_tokens, None);
}
