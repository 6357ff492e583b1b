//! Ids that a real vLLM 0.32.0 gave for the same model.

use super::*;
use serde_json::json;

const NOW: jiff::civil::DateTime = jiff::civil::date(2026, 7, 4).at(0, 0, 0, 0);

fn tiny_model() -> Tokenizer {
    Tokenizer::load(Path::new("tests/fixtures/tiny-model"), None, 1 << 20).unwrap()
}

fn chat_ids(tokenizer: &Tokenizer, body: serde_json::Value) -> Result<Vec<u32>, TokenizeError> {
    tokenizer.encode_chat(&ChatRequest::from_body(body.to_string().as_bytes())?, NOW)
}

#[test]
fn prompts() {
    let tokenizer = tiny_model();
    let cases: [(&str, &[u32]); 3] = [
        (
            "Hello world, this is a test.",
            &[2614, 372, 3543, 1756, 14, 461, 312, 269, 885, 16],
        ),
        ("Hello world", &[2614, 372, 3543, 1756]),
        (
            "The quick brown fox jumps over the lazy dog",
            &[
                1578, 1286, 1432, 294, 1460, 80, 283, 81, 90, 775, 2748, 85, 1346, 280, 3824, 92, 91, 648, 73,
            ],
        ),
    ];
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{text}");
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "{text}");
    }
}

#[test]
fn chats() {
    let tokenizer = tiny_model();
    let hello = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": true});
    assert_eq!(
        chat_ids(&tokenizer, hello).unwrap(),
        [1, 3708, 201, 2614, 372, 2, 201, 1, 3704, 476, 579, 201]
    );
    let with_system = json!({"model": "tiny", "messages": [{"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "Say hello"}], "max_tokens": 2, "temperature": 0, "return_token_ids": true});
    assert_eq!(
        chat_ids(&tokenizer, with_system).unwrap(),
        [
            1, 1211, 1652, 201, 2340, 542, 1233, 1971, 16, 2, 201, 1, 3708, 201, 53, 421, 703, 78, 372, 2,
            201, 1, 3704, 476, 579, 201
        ]
    );
    // For these the engine told only how many there were.
    let parts = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello"}]}]});
    assert_eq!(chat_ids(&tokenizer, parts).unwrap().len(), 16);
    let plain = json!({"messages": [{"role": "user", "content": "Say hello"}]});
    assert_eq!(chat_ids(&tokenizer, plain).unwrap().len(), 15);
}

#[test]
fn what_cannot_be_rendered_here_is_named() {
    let tokenizer = tiny_model();
    let refusal = |body: serde_json::Value| match chat_ids(&tokenizer, body) {
        Err(TokenizeError::Unsupported(unsupported)) => unsupported,
        other => panic!("{other:?}"),
    };
    let user = |content: serde_json::Value| json!({"messages": [{"role": "user", "content": content}]});
    assert_eq!(refusal(json!({"prompt": "x"})), Unsupported::NotChat);
    assert_eq!(
        refusal(json!({"messages": [{"content": "x"}]})),
        Unsupported::NotChat
    );
    assert_eq!(
        refusal(user(json!([{"type": "image_url", "image_url": {"url": "x"}}]))),
        Unsupported::Multimodal
    );
    assert_eq!(
        refusal(user(json!([{"image_url": "x"}]))),
        Unsupported::Multimodal
    );
    assert_eq!(
        refusal(user(json!([{"type": "hologram"}]))),
        Unsupported::UnknownPart
    );
    assert_eq!(
        refusal(json!({"messages": [], "chat_template": "x"})),
        Unsupported::OwnTemplate
    );
    assert_eq!(
        refusal(json!({"messages": [], "truncate_prompt_tokens": 5})),
        Unsupported::Truncation
    );
}

#[test]
fn templates_come_from_the_file_the_config_or_the_operator() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::copy(
        "tests/fixtures/tiny-model/tokenizer.json",
        folder.path().join("tokenizer.json"),
    )
    .unwrap();
    let render = |template: Option<&Path>| {
        let tokenizer = Tokenizer::load(folder.path(), template, 0)?;
        let request = ChatRequest::from_body(br#"{"messages": [{"role": "user", "content": "x"}]}"#).unwrap();
        Ok::<_, LoadError>(
            tokenizer
                .render_chat(&request, NOW)
                .map_err(|error| error.to_string()),
        )
    };
    assert_eq!(
        render(None).unwrap().unwrap_err(),
        "the request cannot be rendered here: the model has no chat template"
    );
    write(
        "tokenizer_config.json",
        r#"{"chat_template": "one {{ bos_token }}", "bos_token": {"content": "<s>"}}"#,
    );
    assert_eq!(render(None).unwrap().unwrap(), "one <s>");
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "default", "template": "named"}]}"#,
    );
    assert_eq!(render(None).unwrap().unwrap(), "named");
    write("chat_template.jinja", "file\n");
    assert_eq!(render(None).unwrap().unwrap(), "file");
    write("own.jinja", "own");
    assert_eq!(
        render(Some(&folder.path().join("own.jinja"))).unwrap().unwrap(),
        "own"
    );
    write("chat_template.jinja", "{% if %}");
    let error = render(None).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja"), "{error}");
    write("tokenizer_config.json", "{");
    assert!(matches!(render(None), Err(LoadError::Invalid { .. })));
}

mod messages {
    use super::super::chat::conversation;
    use super::super::template::ContentFormat::{OpenAi, String as Text};
    use super::*;

    fn messages(list: serde_json::Value) -> Vec<serde_json::Map<String, serde_json::Value>> {
        serde_json::from_value(list).unwrap()
    }

    #[test]
    fn content_is_one_text_or_a_list_of_parts() {
        let given = messages(json!([
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": ""}, {"type": "text", "text": null},
                {"type": "input_text", "text": "c"}, {"type": "refusal", "refusal": "d"}, {"type": "thinking", "thinking": "e"}]},
            {"role": "assistant", "content": null},
            {"role": "tool", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}], "tool_call_id": "1"},
        ]));
        let text = conversation(&given, Text).unwrap();
        let contents: Vec<_> = text.iter().map(|message| &message["content"]).collect();
        assert_eq!(contents, ["a", "a\nb\nc\nd\ne", "", "x\ny"]);
        let part = |text: &str| json!({"type": "text", "text": text});
        let wrapped = conversation(&given, OpenAi).unwrap();
        assert_eq!(wrapped[0]["content"], json!([part("a")]));
        assert_eq!(
            wrapped[1]["content"],
            serde_json::Value::from(["a", "b", "", "c", "d", "e"].map(part).to_vec())
        );
        assert_eq!(wrapped[2]["content"], json!([]));
        assert_eq!(
            wrapped[3],
            json!({"role": "tool", "content": "x\ny", "tool_call_id": "1"})
        );
    }

    #[test]
    fn tool_calls_have_the_key_order_of_the_request_class() {
        let given = messages(
            json!([{"role": "assistant", "reasoning": "r", "extra": 1, "tool_calls": [
            {"type": "function", "index": 0, "id": "1", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
            {"type": "function", "id": "2", "function": {"name": "g", "arguments": "not JSON"}},
        ]}, {"role": "assistant", "content": "x", "tool_calls": []}]),
        );
        let out = conversation(&given, Text).unwrap();
        assert_eq!(
            out[0].to_string(),
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"arguments":{"b":1,"a":2},"name":"f"},"type":"function"},{"id":"2","function":{"arguments":{},"name":"g"},"type":"function"}],"reasoning":"r","reasoning_content":"r"}"#
        );
        assert_eq!(out[1].to_string(), r#"{"role":"assistant","content":"x"}"#);
    }
}
