//! Messages: content parts joined or kept apart, as the template wants them.

use super::{ContentFormat, Unsupported, tools};
use serde_json::{Map, Value, json};

/// Keys whose presence in a part without a type means media.
const MEDIA_KEYS: [&str; 7] = [
    "image_url",
    "image_pil",
    "image_embeds",
    "audio_embeds",
    "prompt_embeds",
    "audio_url",
    "video_url",
];

/// The messages as a template gets them.
///
/// # Errors
/// [`Unsupported`] when a message holds more than text.
pub fn conversation(
    messages: &[Map<String, Value>],
    format: ContentFormat,
) -> Result<Vec<Value>, Unsupported> {
    messages
        .iter()
        .map(|message| conversation_message(message, format))
        .collect()
}

fn conversation_message(message: &Map<String, Value>, format: ContentFormat) -> Result<Value, Unsupported> {
    let role = message
        .get("role")
        .and_then(Value::as_str)
        .ok_or(Unsupported::NotChat)?;
    let parts = match message.get("content") {
        None | Some(Value::Null) => vec![],
        Some(Value::String(text)) => vec![Part::Text(text)],
        Some(Value::Array(parts)) => parts
            .iter()
            .map(part)
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(Unsupported::NotChat),
    };
    let mut out = Map::new();
    out.insert("role".to_owned(), json!(role));
    let is_plain_tool_result = role == "tool" && parts.iter().all(|part| matches!(part, Part::Text(_)));
    out.insert(
        "content".to_owned(),
        match format {
            ContentFormat::OpenAi if is_plain_tool_result => joined(&parts, true),
            ContentFormat::OpenAi => parts.iter().map(Part::wrapped).collect(),
            ContentFormat::String => joined(&parts, false),
        },
    );
    add_role_fields(role, message, &mut out);
    Ok(Value::Object(out))
}

fn add_role_fields(role: &str, message: &Map<String, Value>, out: &mut Map<String, Value>) {
    match role {
        "assistant" => {
            if let Some(Value::Array(calls)) = message.get("tool_calls")
                && !calls.is_empty()
            {
                out.insert("tool_calls".to_owned(), calls.iter().map(tools::call).collect());
            }
            // Clients and templates know it by either name.
            let reasoning = ["reasoning", "reasoning_content"]
                .iter()
                .find_map(|name| message.get(*name));
            if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_null()) {
                out.insert("reasoning".to_owned(), reasoning.clone());
                out.insert("reasoning_content".to_owned(), reasoning.clone());
            }
        }
        "tool" => {
            if let Some(id) = message.get("tool_call_id") {
                out.insert("tool_call_id".to_owned(), id.clone());
            }
        }
        _ => {}
    }
    for field in ["name", "task"] {
        if let Some(Value::String(text)) = message.get(field) {
            out.insert(field.to_owned(), json!(text));
        }
    }
    if role == "developer" {
        out.insert(
            "tools".to_owned(),
            message.get("tools").cloned().unwrap_or(Value::Null),
        );
    }
}

/// One part of a message's content.
enum Part<'a> {
    Text(&'a str),
    ToolReference(&'a str),
}

impl Part<'_> {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::ToolReference(text) => text,
        }
    }

    fn wrapped(&self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::ToolReference(name) => json!({"type": "tool_reference", "name": name}),
        }
    }
}

/// Texts in lines of their own. Empty ones vanish unless they were wrapped first.
fn joined(parts: &[Part<'_>], keep_empty: bool) -> Value {
    let texts = parts
        .iter()
        .map(Part::text)
        .filter(|text| keep_empty || !text.is_empty());
    Value::String(texts.collect::<Vec<_>>().join("\n"))
}

/// `None` for a part that vLLM leaves out.
fn part(part: &Value) -> Result<Option<Part<'_>>, Unsupported> {
    let part = match part {
        Value::String(text) => return Ok(Some(Part::Text(text))),
        Value::Object(part) => part,
        _ => return Err(Unsupported::UnknownPart),
    };
    let text_of = |field: &str| part.get(field).and_then(Value::as_str);
    match text_of("type") {
        Some("text") => Ok(text_of("text").map(Part::Text)),
        Some("refusal") => Ok(text_of("refusal").map(Part::Text)),
        Some("input_text" | "output_text") => text_of("text")
            .map(Part::Text)
            .map(Some)
            .ok_or(Unsupported::UnknownPart),
        Some("thinking") => text_of("thinking")
            .map(Part::Text)
            .map(Some)
            .ok_or(Unsupported::UnknownPart),
        Some("tool_reference") => text_of("name")
            .map(Part::ToolReference)
            .map(Some)
            .ok_or(Unsupported::UnknownPart),
        Some(media) if media.contains("image") || media.contains("audio") || media.contains("video") => {
            Err(Unsupported::Multimodal)
        }
        None if MEDIA_KEYS.iter().any(|key| part.contains_key(*key)) => Err(Unsupported::Multimodal),
        _ => Err(Unsupported::UnknownPart),
    }
}
