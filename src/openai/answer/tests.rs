use super::*;
use crate::openai::Peek;
use serde_json::{Value, json};

#[derive(Default)]
struct Bytes(Vec<u8>);

impl PromptSink for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn next_prompt(&mut self) {}
}

fn canonical(kind: PathKind, request: &Value) -> Vec<u8> {
    let body = request.to_string();
    let mut bytes = Bytes::default();
    Peek::parse(body.as_bytes()).unwrap().feed(kind, &mut bytes);
    bytes.0
}

/// What a response, cut into chunks of `cut` bytes, gives to go on with; `None` when it gives up.
fn goes_on(kind: PathKind, sse: bool, response: &str, cut: usize) -> Option<Vec<u8>> {
    let mut reader = AnswerReader::new(kind, sse);
    let mut bytes = Bytes::default();
    response
        .as_bytes()
        .chunks(cut)
        .for_each(|chunk| reader.push(chunk, &mut bytes));
    reader.finish(&mut bytes).then_some(bytes.0)
}

fn events(events: &[Value]) -> String {
    let lines = events.iter().map(|event| format!("data: {event}\n\n"));
    lines.chain(["data: [DONE]\n\n".to_owned()]).collect()
}

/// The canonical bytes of `next` begin with those of `first` and what `response` gives, however it is cut.
fn assert_foreseen(kind: PathKind, first: &Value, sse: bool, response: &str, next: &Value) {
    let expected = canonical(kind, next);
    for cut in [1, 2, 3, 7, 50, 100_000] {
        let mut bytes = canonical(kind, first);
        let length = bytes.len();
        bytes.extend(goes_on(kind, sse, response, cut).unwrap());
        assert!(bytes.len() > length, "nothing came");
        let (bytes, expected) = (bytes.escape_ascii(), expected.escape_ascii());
        assert!(
            expected.to_string().starts_with(&bytes.to_string()),
            "{bytes}\n{expected}"
        );
    }
}

const TEXTS: [&str; 6] = ["Paris", " is", "\n\"big\"", " \\ schön 🦀", "", "."];

fn chat(messages: &[Value]) -> Value {
    json!({"model": "m", "tools": [{"type": "function"}], "messages": messages})
}

#[test]
fn a_chats_next_turn_goes_on_with_the_answer() {
    let question = json!({"role": "user", "content": "Where?"});
    let echoes = [
        json!({"role": "assistant", "content": TEXTS.concat()}),
        json!({"content": [{"type": "text", "text": TEXTS.concat()}], "role": "assistant", "tool_calls": []}),
        json!({"role": "assistant", "content": TEXTS.concat(), "reasoning_content": null, "annotations": null}),
    ];
    let delta =
        |delta: Value| json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    let mut stream = vec![delta(json!({"role": "assistant", "content": ""}))];
    stream.extend(TEXTS.map(|text| delta(json!({"content": text, "reasoning_content": null}))));
    stream.push(json!({"choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": "length"}]}));
    stream.push(json!({"choices": [], "usage": {"prompt_tokens": 3}}));
    let whole = json!({"choices": [{"message": {
        "role": "assistant", "content": TEXTS.concat(), "refusal": null, "tool_calls": [], "reasoning": null,
    }, "finish_reason": "stop"}]});
    for echo in echoes {
        let first = chat(std::slice::from_ref(&question));
        let mut longer = echo.clone();
        let content = json!(TEXTS.concat() + "!");
        if longer["content"].is_array() {
            longer["content"][0]["text"] = content;
        } else {
            longer["content"] = content;
        }
        assert_foreseen(
            PathKind::Chat,
            &first,
            false,
            &whole.to_string(),
            &chat(&[question.clone(), echo]),
        );
        let more = json!({"role": "user", "content": "Why?"});
        let next = chat(&[question.clone(), longer, more]);
        assert_foreseen(PathKind::Chat, &first, true, &events(&stream), &next);
    }
}

#[test]
fn a_completions_text_goes_on_with_its_prompt() {
    let request = |prompt: &str| json!({"model": "m", "prompt": prompt});
    let (first, next) = (request("Once"), request(&format!("Once{} more", TEXTS.concat())));
    let choice =
        |text: &str| json!({"id": "c", "choices": [{"index": 0, "text": text, "finish_reason": null}]});
    assert_foreseen(
        PathKind::Completions,
        &first,
        true,
        &events(&TEXTS.map(choice)),
        &next,
    );
    let crlf = events(&TEXTS.map(choice)).replace('\n', "\r\n");
    assert_foreseen(PathKind::Completions, &first, true, &crlf, &next);
    assert_foreseen(
        PathKind::Completions,
        &first,
        false,
        &choice(&TEXTS.concat()).to_string(),
        &next,
    );
}

#[test]
fn messages_are_read_up_to_a_tools_use() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let tool = json!({"type": "tool_use", "id": "t", "name": "look", "input": {"at": 1}});
    let request = |messages: &[Value]| json!({"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": messages});
    let question = json!({"role": "user", "content": "Where?"});
    let answer = json!({"role": "assistant", "content": [text("Over"), text("there"), tool]});
    let next = request(&[question.clone(), answer.clone()]);
    let first = request(&[question]);
    let whole = json!({"type": "message", "role": "assistant", "content": answer["content"]});
    assert_foreseen(PathKind::Messages, &first, false, &whole.to_string(), &next);
    let start = |index: u32, block: &Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stream = [
        json!({"type": "message_start", "message": {"role": "assistant", "content": []}}),
        start(0, &text("")),
        delta(0, json!({"type": "text_delta", "text": "Ov"})),
        delta(0, json!({"type": "text_delta", "text": "er"})),
        start(1, &text("")),
        delta(1, json!({"type": "text_delta", "text": "there"})),
        start(2, &tool),
        delta(
            2,
            json!({"type": "input_json_delta", "partial_json": "{\"at\":1}"}),
        ),
        json!({"type": "message_stop"}),
    ];
    assert_foreseen(PathKind::Messages, &first, true, &events(&stream), &next);
}

#[test]
fn what_is_not_foreseen_is_given_up() {
    let chat = |message: Value| json!({"choices": [{"message": message}]}).to_string();
    let deltas = |deltas: &[Value]| {
        let event = |delta: &Value| json!({"choices": [{"delta": delta}]});
        events(&deltas.iter().map(event).collect::<Vec<_>>())
    };
    for (sse, response) in [
        (false, chat(json!({"content": "x", "reasoning_content": "hm"}))),
        (false, chat(json!({"content": "x", "tool_calls": [{"id": "t"}]}))),
        (false, chat(json!({"content": "<think>hm</think>x"}))),
        (false, chat(json!({"content": null}))),
        (
            false,
            json!({"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}).to_string(),
        ),
        (false, chat(json!({"content": "cut"}))[..30].to_owned()),
        (false, chat(json!({"content": "x".repeat(MAX_BYTES)}))),
        (
            true,
            deltas(&[
                json!({"content": "x"}),
                json!({"tool_calls": [{"id": "t"}]}),
                json!({"content": "y"}),
            ]),
        ),
        (
            true,
            deltas(&[json!({"reasoning": "hm"}), json!({"content": "x"})]),
        ),
        (
            true,
            deltas(&[
                json!({"content": "hm"}),
                json!({"content": "</think>"}),
                json!({"content": "x"}),
            ]),
        ),
        (true, deltas(&[])),
        (true, format!("data: {}", "x".repeat(2 * MAX_BYTES))),
    ] {
        for cut in [7, 1_000_000] {
            assert_eq!(
                goes_on(PathKind::Chat, sse, &response, cut),
                None,
                "{response:.200}"
            );
        }
    }
    let whole = chat(json!({"content": "x"}));
    assert!(goes_on(PathKind::Chat, false, &whole, 7).is_some());
    assert_eq!(goes_on(PathKind::Embeddings, false, &whole, 7), None);
}

proptest::proptest! {
    /// A whole answer is read without a check, so whatever an engine sends instead of one must do no harm.
    #[test]
    fn no_bytes_do_harm(
        kind in proptest::sample::select(vec![PathKind::Chat, PathKind::Completions, PathKind::Messages]),
        at in 0_usize..200,
        with in proptest::collection::vec(proptest::sample::select(&b"{}[]\",:\\ \nx0"[..]), 0..4),
        kept in 0_usize..200,
    ) {
        let mut body = json!({
            "id": "c-1", "object": "x",
            "choices": [{"index": 0, "text": "a\"b", "message": {"role": "assistant", "content": "c\\"}}],
            "content": [{"type": "text", "text": "d"}],
        })
        .to_string()
        .into_bytes();
        let at = at.min(body.len());
        body.splice(at..at, with);
        body.truncate(body.len().saturating_sub(kept));
        let mut reader = AnswerReader::new(kind, false);
        reader.push(&body, &mut Bytes::default());
        reader.finish(&mut Bytes::default());
    }
}
