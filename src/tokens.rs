//! Real token ids in the gateway: the model's tokenizer and chat template, as vLLM applies them.
//!
//! [`Tokenizer::load`] reads a model's folder. Text becomes ids with [`Tokenizer::encode`], a chat request with
//! [`Tokenizer::encode_chat`]: [`chat`] brings messages into the form that [`template`] renders, [`segments`]
//! remembers what was tokenized before, so that a conversation is not tokenized anew with each turn.
//! Everything is pure and synchronous; long texts take milliseconds, so callers keep it off their async workers.

pub mod chat;
mod files;
mod segments;
pub mod template;

pub use chat::{ChatRequest, Unsupported};
pub use files::LoadError;

use segments::Segments;
use std::path::Path;
use template::ChatTemplates;

/// A model's tokenizer, with its chat templates.
#[derive(Debug)]
pub struct Tokenizer {
    segments: Segments,
    templates: ChatTemplates,
}

/// Why there are no token ids for a request.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    #[error("the request cannot be rendered here: {0}")]
    Unsupported(#[from] Unsupported),
    #[error("chat template: {0}")]
    Template(#[from] template::RenderError),
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl Tokenizer {
    /// Loads a model's folder, or a tokenizer.json with the files beside it. `chat_template` overrides the
    /// model's own; `cache_bytes` bounds the memory for texts seen before.
    ///
    /// # Errors
    /// [`LoadError`] names the file that is missing or wrong. A model without a chat template loads; only
    /// [`Tokenizer::encode_chat`] fails then.
    pub fn load(path: &Path, chat_template: Option<&Path>, cache_bytes: usize) -> Result<Self, LoadError> {
        let files = files::ModelFiles::read(path, chat_template)?;
        Ok(Self {
            segments: Segments::new(files.tokenizer, cache_bytes),
            templates: files.templates,
        })
    }

    /// The ids of `text`. `special_tokens` adds those that the tokenizer puts around a prompt, as vLLM does for
    /// completions by default and for chats only on demand.
    ///
    /// # Errors
    /// [`TokenizeError::Tokenizer`] when the model's vocabulary does not cover the text.
    pub fn encode(&self, text: &str, special_tokens: bool) -> Result<Vec<u32>, TokenizeError> {
        self.segments.encode(text, special_tokens)
    }

    /// The prompt text of a chat request. `now` is what `strftime_now` in a template tells.
    ///
    /// # Errors
    /// [`TokenizeError::Unsupported`] for requests that vLLM renders with more than text and template,
    /// [`TokenizeError::Template`] when the template refuses the conversation.
    pub fn render_chat(
        &self,
        request: &ChatRequest,
        now: jiff::civil::DateTime,
    ) -> Result<String, TokenizeError> {
        let template = self.templates.for_request(request)?;
        let conversation = chat::conversation(&request.messages, template.content_format())?;
        Ok(template.render(request, &conversation, now)?)
    }

    /// The ids of a chat request's prompt.
    ///
    /// # Errors
    /// As [`Tokenizer::render_chat`] and [`Tokenizer::encode`].
    pub fn encode_chat(
        &self,
        request: &ChatRequest,
        now: jiff::civil::DateTime,
    ) -> Result<Vec<u32>, TokenizeError> {
        self.encode(&self.render_chat(request, now)?, request.add_special_tokens)
    }
}

#[cfg(test)]
mod tests;
