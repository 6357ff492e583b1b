//! Whole bodies: the canonical form against a plain reference, and the cases that broke other gateways.

mod bodies;
mod reference;

use super::{Fed, NotJson, PathKind, Peek, PromptSink};
use bodies::Bodies;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Keeps every prompt's canonical bytes.
#[derive(Default)]
struct Chains(Vec<Vec<u8>>);

impl PromptSink for Chains {
    fn write(&mut self, bytes: &[u8]) {
        self.0.last_mut().expect("a prompt").extend_from_slice(bytes);
    }

    fn next_prompt(&mut self) {
        self.0.push(vec![]);
    }
}

fn feed(kind: PathKind, body: &[u8]) -> (Vec<Vec<u8>>, Fed) {
    let mut chains = Chains(vec![vec![]]);
    let fed = Peek::parse(body).expect("JSON").feed(kind, &mut chains);
    chains.0.truncate(fed.prompts as usize);
    assert_eq!(chains.0.len(), fed.prompts as usize);
    assert_eq!(chains.0.iter().map(Vec::len).sum::<usize>() as u64, fed.bytes);
    (chains.0, fed)
}

fn chains(kind: PathKind, body: &str) -> Vec<Vec<u8>> {
    feed(kind, body.as_bytes()).0
}

fn chat(messages: &Value) -> Vec<u8> {
    let body = json!({"model": "m", "messages": messages}).to_string();
    chains(PathKind::Chat, &body).swap_remove(0)
}

fn user(content: &Value) -> Vec<u8> {
    chat(&json!([{"role": "user", "content": content}]))
}

#[test]
fn agrees_with_the_reference_however_a_body_is_spelled() {
    for seed in 0..5_000 {
        let mut bodies = Bodies::new(seed);
        let (kind, body) = (bodies.kind(), bodies.body());
        let spelled = bodies.spell(&body);
        let parsed: Map<String, Value> = serde_json::from_str(&spelled).expect("spelled as JSON");
        assert_eq!(parsed, body, "seed {seed}");
        let reference = reference::canonical(kind, &body);
        assert_eq!(
            chains(kind, &spelled),
            reference,
            "seed {seed} {kind:?} {spelled}"
        );
    }
}

#[test]
fn a_conversations_next_turn_keeps_the_bytes_so_far() {
    for seed in 0..500 {
        let mut bodies = Bodies::new(seed);
        let mut body = bodies.body();
        let mut before = vec![];
        for _ in 0..4 {
            if let Some(Value::Array(messages)) = body.get_mut("messages") {
                messages.push(bodies.message());
            } else {
                body.insert("messages".to_owned(), json!([bodies.message()]));
            }
            let spelled = bodies.spell(&body);
            let now = chains(PathKind::Chat, &spelled).swap_remove(0);
            assert!(now.starts_with(&before), "seed {seed} {spelled}");
            assert!(now.len() > before.len());
            before = now;
        }
    }
}

/// Every conversation of up to two messages over a small alphabet that is made for confusion.
#[test]
fn different_conversations_never_share_their_bytes() {
    let texts = ["", "a", "b", "ab", "user"];
    let mut contents = vec![json!(null)];
    contents.extend(texts.map(|text| json!(text)));
    let parts: Vec<Value> = texts
        .map(|text| json!({"type": "text", "text": text}))
        .into_iter()
        .collect();
    let media = json!({"type": "image_url", "image_url": {"url": "data:a"}});
    for first in parts.iter().chain([&media]) {
        for second in parts.iter().chain([&media, &json!({"type": "new", "text": "a"})]) {
            contents.push(json!([first, second]));
        }
    }
    let extras = [
        json!({}),
        json!({"name": "a"}),
        json!({"name": "ab"}),
        json!({"new": "a"}),
        json!({"na": "mea"}),
    ];
    let mut messages = vec![];
    for role in ["user", "a", ""] {
        for content in &contents {
            for extra in &extras {
                let mut message = json!({"role": role, "content": content});
                message
                    .as_object_mut()
                    .unwrap()
                    .extend(extra.as_object().unwrap().clone());
                messages.push(message);
            }
        }
    }
    let mut seen = HashMap::new();
    for first in &messages {
        assert_eq!(seen.insert(chat(&json!([first])), vec![first]), None);
        for second in messages.iter().step_by(31) {
            let pair = vec![first, second];
            let other = seen.insert(chat(&json!([first, second])), pair.clone());
            assert_eq!(other, None, "{pair:?}");
        }
    }
}

#[test]
fn of_a_message_s_equal_keys_the_last_one_counts() {
    let message = |members: &str| chains(PathKind::Chat, &format!("{{\"messages\":[{{{members}}}]}}"));
    for (twice, once) in [
        (r#""role":"a","role":"b""#, r#""role":"b""#),
        (r#""content":"a","content":["b"]"#, r#""content":"b""#),
        (r#""name":"a","content":"x","name":null"#, r#""content":"x""#),
        (
            r#""na\u006de":"a","content":"x","name":"b""#,
            r#""content":"x","name":"b""#,
        ),
        (
            r#""type":"reasoning","id":"1","type":"message""#,
            r#""type":"message","id":"1""#,
        ),
        (r#""tool_calls":[{"id":"1"}],"tool_calls":[]"#, ""),
        (r#""output":"a","output":[]"#, r#""output":[]"#),
    ] {
        assert_eq!(message(twice), message(once), "{twice}");
    }
    // Of very many members all are kept.
    let many: String = (0..100).map(|key| format!("\"k{key}\":1,")).collect();
    let with = |last: &str| message(&format!("{many}{last}"));
    let spellings = [
        r#""k99":2"#,
        r#""k99":null"#,
        r#""k99":1"#,
        r#""x":null"#,
        r#""x":[]"#,
    ];
    for (at, last) in spellings.iter().enumerate() {
        for other in &spellings[..at] {
            assert_ne!(with(last), with(other), "{last} {other}");
        }
    }
}

#[test]
fn no_content_holds_a_boundary() {
    let bodies = |text: &[u8]| {
        [
            &b"{\"messages\":[{\"role\":\"user\",\"content\":\"?\"}]}"[..],
            b"{\"messages\":[{\"role\":\"?\",\"content\":[{\"type\":\"text\",\"text\":\"?\"}]}]}",
            b"{\"messages\":[{\"role\":\"user\",\"na?me\":{\"a?\":\"?\"}}]}",
        ]
        .map(|body| body.split(|&byte| byte == b'?').collect::<Vec<_>>().join(text))
    };
    let boundaries = |body: &[u8]| {
        let (chains, _) = feed(PathKind::Chat, body);
        chains.concat().iter().filter(|&&byte| byte < b' ').count()
    };
    let plain = bodies(b"x");
    let expected = plain.each_ref().map(|body| boundaries(body));
    assert!(expected.iter().all(|&count| count > 1));
    for byte in 0..=u8::MAX {
        for (body, expected) in bodies(format!("\\u00{byte:02x}").as_bytes()).iter().zip(expected) {
            assert_eq!(boundaries(body), expected, "{byte:#x} escaped");
        }
        for (body, expected) in bodies(&[byte]).iter().zip(expected) {
            match Peek::parse(body) {
                Err(_) => assert!(byte < b' ' || matches!(byte, b'"' | b'\\'), "{byte:#x}"),
                Ok(_) => assert_eq!(boundaries(body), expected, "{byte:#x}"),
            }
        }
    }
}

#[test]
fn order_and_tools_matter_and_sampling_does_not() {
    let base = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    let with = |key: &str, value: Value| {
        let mut body = base.clone();
        body[key] = value;
        chains(PathKind::Chat, &body.to_string())
    };
    let same = chains(PathKind::Chat, &base.to_string());
    let swapped = json!([{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]);
    assert_ne!(with("messages", swapped), same);
    assert_ne!(
        with("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        same
    );
    assert_ne!(
        with("chat_template_kwargs", json!({"enable_thinking": false})),
        same
    );
    assert_ne!(with("documents", json!([{"text": "d"}])), same);
    for (key, value) in [
        ("tools", json!([])),
        ("tools", json!(null)),
        ("temperature", json!(0.7)),
        ("max_tokens", json!(5)),
        ("stream", json!(true)),
        ("add_generation_prompt", json!(true)),
        ("model", json!("other")),
        ("cache_salt", json!("s")),
        ("user", json!("u")),
    ] {
        assert_eq!(with(key, value), same, "{key}");
    }
}

#[test]
fn one_text_part_is_its_text() {
    let text = user(&json!("hello"));
    assert_eq!(user(&json!([{"type": "text", "text": "hello"}])), text);
    assert_eq!(
        user(&json!([{"text": "hello", "type": "text", "cache_control": {"type": "ephemeral"}}])),
        text
    );
    assert_ne!(
        user(&json!([{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}])),
        text
    );
    assert_ne!(user(&json!([{"type": "text", "text": "hello", "more": 1}])), text);
    assert_ne!(user(&json!([{"type": "refusal", "text": "hello"}])), text);
}

#[test]
fn content_of_nothing_is_like_no_content() {
    let none = chat(&json!([{"role": "assistant"}]));
    assert_eq!(chat(&json!([{"role": "assistant", "content": null}])), none);
    assert_eq!(chat(&json!([{"role": "assistant", "content": []}])), none);
    let call = |id: &str| json!([{"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]);
    let calls = |calls: Value| chat(&json!([{"role": "assistant", "content": null, "tool_calls": calls}]));
    assert_eq!(calls(json!([])), none);
    assert_eq!(calls(json!(null)), none);
    assert_ne!(calls(call("1")), none);
    assert_ne!(calls(call("1")), calls(call("2")));
    for odd in [
        json!([{"type": "text", "text": null}]),
        json!([{"text": "x"}]),
        json!([{}]),
        json!([null]),
        json!(7),
    ] {
        assert_ne!(user(&odd), user(&json!(null)), "{odd}");
    }
}

/// A one-element list of prompts is keyed like the prompt; several prompts are keyed one by one.
#[test]
fn lists_of_prompts() {
    let prompts = |prompt: Value| chains(PathKind::Completions, &json!({"prompt": prompt}).to_string());
    assert_eq!(prompts(json!(["hello world"])), prompts(json!("hello world")));
    assert_eq!(prompts(json!([[1, 2]])), prompts(json!([1, 2])));
    assert_eq!(
        prompts(json!(["a", "b"])),
        [prompts(json!("a")), prompts(json!("b"))].concat()
    );
    assert_eq!(
        prompts(json!([[1], [2, 3]])),
        [prompts(json!([1])), prompts(json!([2, 3]))].concat()
    );
    assert_eq!(prompts(json!([])), Vec::<Vec<u8>>::new());
    assert_eq!(prompts(json!(null)), Vec::<Vec<u8>>::new());
    assert!(prompts(json!("abc"))[0].starts_with(&prompts(json!("ab"))[0]));
    assert_ne!(prompts(json!("1")), prompts(json!([1])));
}

#[test]
fn token_ids_are_counted_and_shared_up_to_the_first_difference() {
    let ids = |last: u32| json!({"prompt": (1..4096).chain([last]).collect::<Vec<u32>>()}).to_string();
    let (a, fed) = feed(PathKind::Completions, ids(4096).as_bytes());
    let (b, _) = feed(PathKind::Completions, ids(9).as_bytes());
    assert_eq!((fed.tokens, fed.bytes), (Some(4096), 1 + 4 * 4096));
    let length = a[0].len();
    assert_eq!(a[0][..length - 4], b[0][..length - 4]);
    assert_ne!(a, b);
    let (_, lists) = feed(PathKind::Completions, br#"{"prompt":[[1,2],[9,8,7]]}"#);
    assert_eq!((lists.prompts, lists.tokens), (2, Some(5)));
    let (_, mixed) = feed(PathKind::Completions, br#"{"prompt":[[1,2],"text"]}"#);
    assert_eq!((mixed.prompts, mixed.tokens), (2, None));
}

#[test]
fn odd_token_ids_are_keyed_by_what_they_are() {
    let mut seen = HashMap::new();
    for ids in [
        "[1,2]",
        "[1,-2]",
        "[1,2.0]",
        "[1,2e0]",
        "[1,2147483647]",
        "[1,2147483648]",
        "[1,4294967298]",
        "[1,null]",
        "[1,\"2\"]",
        "[1,99999999999999999999999]",
        "[1,[2]]",
        "[1,NaN]",
        "[1,true]",
        "[12]",
        "[1,2,0]",
    ] {
        let body = format!("{{\"prompt\":{ids}}}");
        let (chains, fed) = feed(PathKind::Completions, body.as_bytes());
        assert_eq!(fed.prompts, 1, "{ids}");
        assert_eq!(seen.insert(chains, ids), None, "{ids}");
    }
}

#[test]
fn media_count_little_and_are_told_apart() {
    let image = |pixels: &str| {
        let url = format!("data:image/png;base64,{pixels}");
        json!([{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]}])
    };
    let body = |pixels: &str| json!({"messages": image(pixels)}).to_string();
    let (large, fed) = feed(PathKind::Chat, body(&"A".repeat(5 << 20)).as_bytes());
    assert_eq!(fed.media_parts, 1);
    assert!(fed.bytes < 64, "{}", fed.bytes);
    let (other, _) = feed(
        PathKind::Chat,
        body(&("A".repeat((5 << 20) - 1) + "B")).as_bytes(),
    );
    assert_ne!(large, other);
    let result = json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
        "content": [{"type": "image", "source": {"type": "base64", "data": "A".repeat(10_000)}}]}]}]});
    let (_, screenshot) = feed(PathKind::Messages, result.to_string().as_bytes());
    assert_eq!(screenshot.media_parts, 1);
    assert!(screenshot.bytes < 128);
}

#[test]
fn cache_hints_are_no_content() {
    let hint = json!({"type": "ephemeral"});
    let mut body = json!({
        "system": [{"type": "text", "text": "s"}],
        "tools": [{"name": "f", "input_schema": {"cache_control": 1}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "a"},
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]},
            {"type": "image", "source": {"data": "x"}},
        ]}]
    });
    let plain = chains(PathKind::Messages, &body.to_string());
    body["system"][0]["cache_control"] = hint.clone();
    body["tools"][0]["cache_control"] = hint.clone();
    for part in 0..3 {
        body["messages"][0]["content"][part]["cache_control"] = hint.clone();
    }
    body["messages"][0]["content"][1]["content"][0]["cache_control"] = hint;
    assert_eq!(chains(PathKind::Messages, &body.to_string()), plain);
    body["tools"][0]["input_schema"]["cache_control"] = json!(2);
    assert_ne!(chains(PathKind::Messages, &body.to_string()), plain);
}

#[test]
fn system_texts_apart_from_the_messages_read_like_a_first_message() {
    let chat = vec![chat(
        &json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]),
    )];
    let messages = json!({"system": "s", "messages": [{"role": "user", "content": "u"}]}).to_string();
    assert_eq!(chains(PathKind::Messages, &messages), chat);
    let responses = json!({"instructions": "s", "input": "u"}).to_string();
    assert_eq!(chains(PathKind::Responses, &responses), chat);
    let item = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]});
    let items = json!({"instructions": "s", "input": [item]}).to_string();
    assert_eq!(chains(PathKind::Responses, &items), chat);
}

#[test]
fn lone_surrogates_and_wrong_escapes_do_not_fail() {
    let text = |escaped: &str| {
        let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{escaped}\"}}]}}");
        chains(PathKind::Chat, &body)
    };
    assert!(text(r"x\ud800")[0].ends_with(b"\x1Ax\xED\xA0\x80"));
    assert_ne!(text(r"\ud800"), text(r"\ud801"));
    assert_eq!(text(r"\ud83d\ude00"), text("😀"));
    text(r"\q\u00");
    let (latin1, _) = feed(PathKind::Completions, b"{\"prompt\":\"caf\xE9\"}");
    assert_eq!(latin1, [b"\x1Acaf\xE9"]);
}

#[test]
fn bodies_that_cannot_be_read_say_why() {
    let reason = |body: &[u8]| Peek::parse(body).err();
    assert_eq!(reason(b""), Some(NotJson::Empty));
    assert_eq!(reason(b" \n"), Some(NotJson::Empty));
    assert_eq!(reason(b"\xEF\xBB\xBF{}"), Some(NotJson::ByteOrderMark));
    // gzip and zstd, as clients send them with a content-encoding.
    assert_eq!(reason(b"\x1F\x8B\x08\x00"), Some(NotJson::NotObject));
    assert_eq!(reason(b"\x28\xB5\x2F\xFD"), Some(NotJson::NotObject));
    assert_eq!(reason(b"[1]"), Some(NotJson::NotObject));
    assert_eq!(reason(br#"{"model":"m"}x"#), Some(NotJson::TrailingBytes(13)));
    assert_eq!(
        reason(b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"conten\nt\":\"x\"}]}"),
        Some(NotJson::ControlCharacter(40))
    );
    let body = br#"{"model":"m","messages":[{"role":"user","content":"x\\\" \u0041"}],"n":1.5,"x":{}} "#;
    for cut in 0..body.len() - 2 {
        assert!(reason(&body[..cut]).is_some(), "cut at {cut}");
    }
    assert_eq!(reason(body), None);
}

#[test]
fn depth_and_number_of_keys_do_not_matter() {
    let depth = 200_000;
    let deep = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    for body in [
        format!("{{\"x\":{deep},\"prompt\":\"p\"}}"),
        format!("{{\"prompt\":{deep}}}"),
        format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{deep},\"x\":{deep}}}],\"prompt\":\"p\"}}"),
    ] {
        feed(PathKind::Completions, body.as_bytes());
        feed(PathKind::Chat, body.as_bytes());
    }
    let nested = "[{\"type\":\"tool_result\",\"content\":".repeat(depth) + "1" + &"}]".repeat(depth);
    feed(
        PathKind::Chat,
        format!("{{\"messages\":[{{\"content\":{nested}}}]}}").as_bytes(),
    );
    let keys: String = (0..100_000).map(|key| format!("\"k{key}\":{key},")).collect();
    let body = format!("{{{keys}\"messages\":[{{{keys}\"content\":\"x\"}}]}}");
    assert_eq!(feed(PathKind::Chat, body.as_bytes()).1.prompts, 1);
}

#[test]
fn paths_without_a_prompt_feed_nothing() {
    for kind in [
        PathKind::Render,
        PathKind::Score,
        PathKind::Models,
        PathKind::Other,
    ] {
        assert_eq!(
            feed(kind, br#"{"prompt":"a","messages":[{"role":"user"}]}"#).1,
            Fed::default()
        );
    }
    assert_eq!(feed(PathKind::Chat, br#"{"messages":[]}"#).1, Fed::default());
    assert_eq!(feed(PathKind::Chat, br#"{"prompt":"a"}"#).1, Fed::default());
}

#[test]
fn reads_the_fields_that_scheduling_needs() {
    let body = br#"{"mod\u0065l":"org\/m","stream":true,"max_tokens":5,"max_completion_tokens":null,"n":2,"best_of":1,
        "cache_salt":"s\n","session_id":"c1","max_tokens":16}"#;
    let peek = Peek::parse(body).unwrap();
    assert_eq!(peek.model(), "org/m");
    assert_eq!(peek.cache_salt().as_deref(), Some(&b"s\n"[..]));
    assert!(peek.stream());
    assert_eq!(peek.max_output_tokens(), Some(16));
    assert_eq!(peek.best_of(), 2, "at least `n`");
    assert_eq!(peek.session().as_deref(), Some("c1"));

    let peek =
        Peek::parse(br#"{"model":null,"max_tokens":-1,"n":0,"max_output_tokens":1e12,"stream":"yes"}"#)
            .unwrap();
    assert_eq!(peek.model(), "");
    assert_eq!(peek.cache_salt(), None);
    assert!(!peek.stream());
    assert_eq!((peek.max_output_tokens(), peek.best_of()), (Some(u32::MAX), 1));
}
