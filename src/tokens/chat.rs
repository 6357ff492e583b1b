//! Chat requests, and their messages in the form in which vLLM hands them to a template.
//!
//! Follows vLLM's `entrypoints/chat_utils.py`: the order of keys matters, because templates print whole objects.

mod messages;
mod tools;

use super::template::ContentFormat;
use serde::Deserialize;
use serde_json::{Map, Value};

pub use messages::conversation;

/// A request that vLLM renders with more than its text, template and tokenizer: its tokens are not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error("not a chat request")]
    NotChat,
    #[error("images, audio or video in the messages")]
    Multimodal,
    #[error("a content part of unknown type")]
    UnknownPart,
    #[error("the model has no chat template")]
    NoTemplate,
    #[error("a template of the client's own")]
    OwnTemplate,
    #[error("truncation of the prompt")]
    Truncation,
}

/// What decides the prompt of a `/v1/chat/completions` or chat `/tokenize` request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ChatRequest {
    pub messages: Vec<Map<String, Value>>,
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    #[serde(default)]
    pub documents: Option<Value>,
    #[serde(default = "yes")]
    pub add_generation_prompt: bool,
    #[serde(default)]
    pub continue_final_message: bool,
    #[serde(default)]
    pub add_special_tokens: bool,
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(default)]
    pub reasoning_effort: Option<Value>,
    #[serde(default)]
    chat_template: Option<Value>,
    #[serde(default)]
    truncate_prompt_tokens: Option<Value>,
}

fn yes() -> bool {
    true
}

impl ChatRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// [`Unsupported`] when the body is no chat request (the engine will say so), or asks for what changes the
    /// prompt in ways not done here.
    pub fn from_body(body: &[u8]) -> Result<Self, Unsupported> {
        let mut request: Self = serde_json::from_slice(body).map_err(|_| Unsupported::NotChat)?;
        if request.chat_template.is_some() {
            return Err(Unsupported::OwnTemplate);
        }
        if request.truncate_prompt_tokens.is_some() {
            return Err(Unsupported::Truncation);
        }
        request.tools = request
            .tools
            .map(|tools| tools.into_iter().map(tools::normalized).collect());
        Ok(request)
    }
}
