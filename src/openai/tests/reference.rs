//! The canonical form written down a second time, slowly and plainly, on a parsed tree.

use crate::openai::PathKind;
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_128;

const RENDERING_FIELDS: [&str; 17] = [
    "previous_response_id",
    "previous_input_messages",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "output_config",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "truncate_prompt_tokens",
    "truncation_side",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "documents",
    "suffix",
];

const MEDIA_WORDS: [&str; 15] = [
    "image_url",
    "input_image",
    "image",
    "image_pil",
    "image_embeds",
    "input_audio",
    "audio_url",
    "audio",
    "audio_embeds",
    "video_url",
    "input_video",
    "video",
    "file",
    "input_file",
    "document",
];

type Object = Map<String, Value>;

/// The canonical bytes of each of a request's prompts.
pub(super) fn canonical(kind: PathKind, body: &Object) -> Vec<Vec<u8>> {
    let head = head(kind, body);
    let with_head = |tail: Vec<u8>| [head.clone(), tail].concat();
    let list_field = match kind {
        PathKind::Completions => Some("prompt"),
        PathKind::Embeddings if get(body, "messages").is_none() => Some("input"),
        PathKind::Tokenize if get(body, "messages").is_none() => Some("prompt"),
        _ => None,
    };
    match list_field {
        Some(field) => match get(body, field) {
            None if get(body, "prompt_embeds").is_some() => vec![head],
            None => vec![],
            Some(prompt) => prompts(prompt).into_iter().map(with_head).collect(),
        },
        None => conversation(kind, body).map(with_head).into_iter().collect(),
    }
}

fn get<'v>(object: &'v Object, key: &str) -> Option<&'v Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn head(kind: PathKind, body: &Object) -> Vec<u8> {
    let chat = get(body, "messages").is_some();
    let mut out = vec![];
    for name in RENDERING_FIELDS {
        let default = match name {
            "add_generation_prompt" => Value::Bool(true),
            "continue_final_message" => Value::Bool(false),
            "add_special_tokens" => Value::Bool(!chat),
            _ => Value::Null,
        };
        if let Some(value) = get(body, name).filter(|value| **value != default) {
            out.extend([&b"\x18"[..], name.as_bytes(), &json(value)].concat());
        }
    }
    for name in ["mm_payload", "prompt_embeds"] {
        if let Some(value) = get(body, name) {
            out.extend([&b"\x18"[..], name.as_bytes(), &media(value)].concat());
        }
    }
    if kind == PathKind::Responses
        && let Some(template) = get(body, "prompt")
    {
        out.extend([&b"\x18prompt"[..], &json(template)].concat());
    }
    if let Some(tools) = get(body, "tools").filter(|tools| **tools != Value::Array(vec![])) {
        out.extend(b"\x18tools");
        match tools {
            Value::Array(tools) => tools
                .iter()
                .for_each(|tool| out.extend(json(&without(tool, &["cache_control"])))),
            other => out.extend(json(other)),
        }
    }
    out
}

fn prompts(prompt: &Value) -> Vec<Vec<u8>> {
    match prompt {
        Value::Array(list) => match list.first() {
            None => vec![],
            Some(Value::Number(_) | Value::Bool(_) | Value::Null) => vec![one_prompt(prompt)],
            Some(_) => list.iter().map(one_prompt).collect(),
        },
        one => vec![one_prompt(one)],
    }
}

fn one_prompt(prompt: &Value) -> Vec<u8> {
    match prompt {
        Value::String(text) => [b"\x1A", spelled(text).as_bytes()].concat(),
        Value::Array(ids) => {
            let mut out = vec![0x1D];
            for id in ids {
                match id.as_u64().filter(|&id| id < 1 << 31) {
                    Some(id) => out.extend((id as u32 + 0x8000_0000).to_be_bytes()),
                    None => out.extend([&json(id)[..], b"\x1F"].concat()),
                }
            }
            out
        }
        other => json(other),
    }
}

fn conversation(kind: PathKind, body: &Object) -> Option<Vec<u8>> {
    let (lead, messages) = if kind == PathKind::Responses {
        ("instructions", "input")
    } else {
        ("system", "messages")
    };
    let messages = get(body, messages).filter(|messages| **messages != Value::Array(vec![]))?;
    let mut out = vec![];
    if let Some(system) = get(body, lead) {
        out.extend([&b"\x19system"[..], &content(system)].concat());
    }
    match messages {
        Value::Array(messages) => messages.iter().for_each(|item| out.extend(message(item))),
        Value::String(_) if kind == PathKind::Responses => {
            out.extend([&b"\x19user"[..], &content(messages)].concat());
        }
        other => out.extend(json(other)),
    }
    Some(out)
}

fn message(message: &Value) -> Vec<u8> {
    let Value::Object(message) = message else {
        return [&b"\x19\x1E"[..], &json(message)].concat();
    };
    let mut out = vec![0x19];
    match get(message, "role") {
        None => {}
        Some(Value::String(role)) => out.extend(spelled(role).as_bytes()),
        Some(other) => out.extend(json(other)),
    }
    for (key, value) in message {
        let skipped = match key.as_str() {
            "role" | "content" | "cache_control" => true,
            "tool_calls" | "annotations" => *value == Value::Array(vec![]),
            "type" => value == "message",
            _ => false,
        };
        if skipped || value.is_null() {
            continue;
        }
        out.push(0x18);
        out.extend(spelled(key).as_bytes());
        out.extend(if key == "output" {
            parts(value, true)
        } else {
            json(value)
        });
    }
    if let Some(value) = get(message, "content") {
        out.extend(content(value));
    }
    out
}

fn content(value: &Value) -> Vec<u8> {
    if *value == Value::Array(vec![]) {
        vec![]
    } else {
        [&b"\x1F"[..], &parts(value, true)].concat()
    }
}

fn parts(value: &Value, outermost: bool) -> Vec<u8> {
    match value {
        Value::Array(parts) => parts.iter().flat_map(|one| part(one, outermost)).collect(),
        one => part(one, outermost),
    }
}

fn part(value: &Value, outermost: bool) -> Vec<u8> {
    let Value::Object(object) = value else {
        return match value {
            Value::String(text) => [b"\x1A", spelled(text).as_bytes()].concat(),
            other => json(other),
        };
    };
    let kind = object.get("type").and_then(Value::as_str);
    let none = |value: &Value| value.is_null() || *value == Value::Array(vec![]);
    let only_text = object.iter().all(|(key, value)| match key.as_str() {
        "type" | "text" | "cache_control" => true,
        "annotations" | "logprobs" => none(value),
        _ => false,
    });
    if let (Some("text" | "input_text" | "output_text"), Some(Value::String(text)), true) =
        (kind, object.get("text"), only_text)
    {
        return [b"\x1A", spelled(text).as_bytes()].concat();
    }
    if kind == Some("tool_result") && outermost {
        let rest = json(&without(value, &["cache_control", "content"]));
        let inner = object
            .get("content")
            .map_or(vec![], |content| parts(content, false));
        return [&b"\x1E"[..], &rest, &inner, b"\x1F"].concat();
    }
    let is_media = match kind {
        Some(kind) => MEDIA_WORDS.contains(&kind),
        None => object.keys().any(|key| MEDIA_WORDS.contains(&key.as_str())),
    };
    let value = without(value, &["cache_control"]);
    if is_media { media(&value) } else { json(&value) }
}

fn without(value: &Value, left_out: &[&str]) -> Value {
    let mut value = value.clone();
    if let Value::Object(object) = &mut value {
        object.retain(|key, _| !left_out.contains(&key.as_str()));
    }
    value
}

fn media(value: &Value) -> Vec<u8> {
    [
        &b"\x1C"[..],
        &xxh3_128(value.to_string().as_bytes()).to_be_bytes(),
    ]
    .concat()
}

fn json(value: &Value) -> Vec<u8> {
    [b"\x1B", value.to_string().as_bytes()].concat()
}

/// A string as serde_json writes it, without its quotes.
fn spelled(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
