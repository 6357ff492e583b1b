//! Turning conversations into token ids, with a template like ChatML's: `<|im_start|>role\ncontent<|im_end|>\n`.

use super::body::{Body, DICT, LIST, STRING, wrong_type};
use super::error::ApiError;
use crate::sim::tokenizer::{MESSAGE_END, MESSAGE_START, VOCABULARY, tokenize};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64;

/// Tokens that stand for one image, audio or video.
const MEDIA_TOKENS: u64 = 64;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_call_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

/// Builds the prompt of one conversation.
pub(super) struct Template<'m> {
    ids: Vec<u32>,
    /// Name in the refusal of media, or `None` when the model takes media.
    text_only_model: Option<&'m str>,
}

impl<'m> Template<'m> {
    pub(super) fn new(text_only_model: Option<&'m str>) -> Self {
        Self {
            ids: Vec::new(),
            text_only_model,
        }
    }

    /// The prompt, with the assistant's turn opened.
    pub(super) fn finish(mut self, add_generation_prompt: bool) -> Vec<u32> {
        if add_generation_prompt {
            self.open("assistant");
        }
        self.ids
    }

    fn open(&mut self, role: &str) {
        self.ids.push(MESSAGE_START);
        self.text(role);
        self.text("\n");
    }

    fn close(&mut self) {
        self.ids.push(MESSAGE_END);
        self.text("\n");
    }

    fn text(&mut self, text: &str) {
        tokenize(text, &mut self.ids);
    }

    /// One message of plain JSON text: tools, or what has no role.
    pub(super) fn raw_message(&mut self, role: &str, text: &str) {
        self.open(role);
        self.text(text);
        self.close();
    }

    /// A message whose content is a string, a list of parts, or null.
    pub(super) fn message(&mut self, role: &str, content: &str) -> Result<(), ApiError> {
        self.open(role);
        self.content(content)?;
        self.close();
        Ok(())
    }

    /// The messages of a chat body.
    pub(super) fn messages(&mut self, raw: &str) -> Result<(), ApiError> {
        if !raw.starts_with('[') {
            return Err(wrong_type("messages", raw, LIST));
        }
        let messages: Vec<&RawValue> =
            serde_json::from_str(raw).map_err(|_| wrong_type("messages", raw, LIST))?;
        if messages.is_empty() {
            return Err(ApiError::bad_request(
                "Cannot apply chat template to an empty conversation. Provide at least one message.",
            ));
        }
        messages
            .into_iter()
            .enumerate()
            .try_for_each(|(index, raw)| self.one_message(index, raw.get()))
    }

    fn one_message(&mut self, index: usize, raw: &str) -> Result<(), ApiError> {
        let loc = format!("messages.{index}");
        let message: Message = serde_json::from_str(raw).map_err(|_| wrong_type(&loc, raw, DICT))?;
        let Some(role) = &message.role else {
            return Err(wrong_type(&format!("{loc}.role"), "null", STRING));
        };
        self.open(role);
        if let Some(id) = &message.tool_call_id {
            self.text(id);
            self.text("\n");
        }
        if let Some(content) = message.content {
            self.content(content.get())?;
        }
        if let Some(calls) = message.tool_calls.filter(|calls| calls.get() != "null") {
            self.text(calls.get());
        }
        self.close();
        Ok(())
    }

    fn content(&mut self, raw: &str) -> Result<(), ApiError> {
        match raw.as_bytes().first() {
            Some(b'"') => {
                let text: Cow<str> =
                    serde_json::from_str(raw).map_err(|_| wrong_type("content", raw, STRING))?;
                self.text(&text);
                Ok(())
            }
            Some(b'[') => {
                let parts: Vec<&RawValue> =
                    serde_json::from_str(raw).map_err(|_| wrong_type("content", raw, LIST))?;
                parts
                    .into_iter()
                    .enumerate()
                    .try_for_each(|(index, part)| self.part(index, part.get()))
            }
            _ if raw == "null" => Ok(()),
            _ => Err(wrong_type("content", raw, STRING)),
        }
    }

    /// Parts are joined by a line break, as vLLM joins texts.
    fn part(&mut self, index: usize, raw: &str) -> Result<(), ApiError> {
        if index > 0 {
            self.text("\n");
        }
        let Ok(part) = serde_json::from_str::<ContentPart>(raw) else {
            return self.content(raw);
        };
        match (part.kind.as_ref(), &part.text) {
            ("image_url" | "input_image" | "image" | "input_audio" | "audio_url" | "video_url", _) => {
                self.media(raw)
            }
            (_, Some(text)) => {
                self.text(text);
                Ok(())
            }
            _ => {
                self.text(raw);
                Ok(())
            }
        }
    }

    fn media(&mut self, raw: &str) -> Result<(), ApiError> {
        if let Some(model) = self.text_only_model {
            return Err(ApiError::bad_request(format!(
                "{model} is not a multimodal model"
            )));
        }
        let hash = xxh3_64(raw.as_bytes());
        let ids =
            (0..MEDIA_TOKENS).map(|i| (xxh3_64(&(hash ^ i).to_le_bytes()) % u64::from(VOCABULARY)) as u32);
        self.ids.extend(ids);
        Ok(())
    }
}

/// The `tools` of a body come first, as most templates put them.
pub(super) fn push_tools(template: &mut Template, body: &Body) {
    if let Some(tools) = body.raw("tools").filter(|tools| *tools != "[]") {
        template.raw_message("system", tools);
    }
}

/// `instructions` and `input` of a `/v1/responses` body.
pub(super) fn push_responses_input(template: &mut Template, body: &Body) -> Result<(), ApiError> {
    if let Some(instructions) = body.raw("instructions") {
        template.message("system", instructions)?;
    }
    let input = body
        .raw("input")
        .ok_or_else(|| ApiError::missing_field("input", body.len()))?;
    if !input.starts_with('[') {
        return template.message("user", input);
    }
    let items: Vec<&RawValue> = serde_json::from_str(input).map_err(|_| wrong_type("input", input, LIST))?;
    for item in items {
        match serde_json::from_str::<Message>(item.get()) {
            Ok(Message {
                role: Some(role),
                content: Some(content),
                ..
            }) => template.message(&role, content.get())?,
            _ => template.raw_message("tool", item.get()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(messages: &str, add_generation_prompt: bool) -> Result<Vec<u32>, ApiError> {
        let mut template = Template::new(Some("tiny"));
        template.messages(messages)?;
        Ok(template.finish(add_generation_prompt))
    }

    #[test]
    fn a_conversation_extends_its_prefix() {
        let first = ids(r#"[{"role":"user","content":"Hello there"}]"#, true).unwrap();
        let next = ids(
            r#"[{"role":"user","content":"Hello there"},{"role":"assistant","content":"Good day"},
                {"role":"user","content":"Bye"}]"#,
            true,
        )
        .unwrap();
        assert_eq!(next[..first.len()], first);
        let mut answer = Vec::new();
        tokenize("Good day", &mut answer);
        assert_eq!(next[first.len()..first.len() + answer.len()], answer);
    }

    #[test]
    fn content_forms_that_say_the_same_give_the_same_tokens() {
        let text = ids(r#"[{"role":"user","content":"a\nb"}]"#, false).unwrap();
        let parts = r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]"#;
        assert_eq!(ids(parts, false).unwrap(), text);
        let null = ids(r#"[{"role":"user","content":null}]"#, false).unwrap();
        assert_eq!(null, ids(r#"[{"role":"user"}]"#, false).unwrap());
    }

    #[test]
    fn tool_calls_and_results_make_a_difference() {
        let call = |args| {
            format!(
                r#"[{{"role":"assistant","content":null,"tool_calls":[{{"id":"c1","function":{{"name":"f","arguments":"{args}"}}}}]}}]"#
            )
        };
        assert_ne!(ids(&call("1"), true), ids(&call("2"), true));
    }

    #[test]
    fn media_need_a_model_that_takes_them() {
        let image = r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]"#;
        assert!(
            ids(image, true)
                .unwrap_err()
                .body()
                .contains("tiny is not a multimodal model")
        );
        let mut template = Template::new(None);
        template.messages(image).unwrap();
        assert!(template.finish(true).len() > 64);
    }
}
