//! Chat templates, rendered as `transformers` renders them.
//!
//! Jinja2 there, minijinja here: [`python`] makes values print and serialize as Python's do, [`environment`]
//! adds what `transformers` adds. Source: `transformers/utils/chat_template_utils.py`.

mod content_format;
mod environment;
mod json;
mod python;

pub use content_format::ContentFormat;

use super::chat::{ChatRequest, Unsupported};
use minijinja::value::{Serde, Value, merge_maps};
use minijinja::{Environment, context};
use std::collections::BTreeMap;

/// A template's source is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct TemplateError(minijinja::Error);

/// A template refused a conversation, or does what is not done here.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("{0:#}")]
    Failed(#[from] minijinja::Error),
    #[error("the final message is not in the rendered text, so it cannot be continued")]
    NothingToContinue,
}

/// A model's chat templates by name; most have only `default`.
#[derive(Debug)]
pub struct ChatTemplates {
    environment: Environment<'static>,
    formats: BTreeMap<String, ContentFormat>,
    /// `bos_token` and so on, which every template sees.
    special_tokens: BTreeMap<String, serde_json::Value>,
}

/// One template, ready to render.
#[derive(Clone, Copy, Debug)]
pub struct ChatTemplate<'t> {
    templates: &'t ChatTemplates,
    name: &'t str,
    format: ContentFormat,
}

impl ChatTemplates {
    /// Compiles the templates.
    ///
    /// # Errors
    /// [`TemplateError`] with the line of the first mistake.
    pub fn new(
        sources: BTreeMap<String, String>,
        special_tokens: BTreeMap<String, serde_json::Value>,
    ) -> Result<Self, TemplateError> {
        let mut environment = environment::new();
        let mut formats = BTreeMap::new();
        for (name, source) in sources {
            let source = environment::without_generation_tags(&source).into_owned();
            formats.insert(name.clone(), ContentFormat::of(&source));
            environment
                .add_template_owned(name, source)
                .map_err(TemplateError)?;
        }
        Ok(Self {
            environment,
            formats,
            special_tokens,
        })
    }

    /// The template for a request: `tool_use`, when there is one and there are tools, or `default`.
    ///
    /// # Errors
    /// [`Unsupported::NoTemplate`].
    pub fn for_request(&self, request: &ChatRequest) -> Result<ChatTemplate<'_>, Unsupported> {
        let with_tools = request
            .tools
            .is_some()
            .then(|| self.formats.get_key_value("tool_use"))
            .flatten();
        let (name, format) = with_tools
            .or_else(|| self.formats.get_key_value("default"))
            .ok_or(Unsupported::NoTemplate)?;
        Ok(ChatTemplate {
            templates: self,
            name,
            format: *format,
        })
    }
}

impl ChatTemplate<'_> {
    /// How the template wants the content of messages.
    pub fn content_format(&self) -> ContentFormat {
        self.format
    }

    /// The prompt text of a conversation. `now` is the local time that `strftime_now` tells.
    ///
    /// # Errors
    /// [`RenderError`] when the template raises an exception, or runs without end.
    pub fn render(
        &self,
        request: &ChatRequest,
        conversation: &[serde_json::Value],
        now: jiff::civil::DateTime,
    ) -> Result<String, RenderError> {
        let template = self.templates.environment.get_template(self.name)?;
        let rendered = template.render(self.variables(request, conversation, now))?;
        match conversation.last() {
            Some(last) if request.continue_final_message => cut_after(rendered, last),
            _ => Ok(rendered),
        }
    }

    /// Later ones win: tokens of the model, what the client passes to the template, fields of the request.
    fn variables(
        &self,
        request: &ChatRequest,
        conversation: &[serde_json::Value],
        now: jiff::civil::DateTime,
    ) -> Value {
        let reasoning_effort = request
            .reasoning_effort
            .as_ref()
            .filter(|effort| !effort.is_null());
        merge_maps([
            Value::from(Serde(&self.templates.special_tokens)),
            Value::from(Serde(request.chat_template_kwargs.clone().unwrap_or_default())),
            reasoning_effort.map_or_else(
                || context! {},
                |effort| context! { reasoning_effort => Value::from(Serde(effort)) },
            ),
            context! {
                messages => Value::from(Serde(conversation)),
                tools => Value::from(Serde(&request.tools)),
                documents => Value::from(Serde(&request.documents)),
                add_generation_prompt => request.add_generation_prompt,
                continue_final_message => request.continue_final_message,
                strftime_now => environment::strftime_now(now),
            },
        ])
    }
}

/// The text up to the end of the final message, so that the model goes on with it.
fn cut_after(mut rendered: String, message: &serde_json::Value) -> Result<String, RenderError> {
    let content = match message.get("content") {
        Some(serde_json::Value::String(text)) => text.as_str(),
        Some(serde_json::Value::Array(parts)) => {
            let texts = parts
                .iter()
                .rev()
                .find_map(|part| part.get("text").and_then(|text| text.as_str()));
            texts.unwrap_or_default()
        }
        _ => "",
    };
    let at = rendered
        .rfind(content.trim())
        .ok_or(RenderError::NothingToContinue)?;
    // Templates may trim messages: keep the space after the message only if the template did.
    let kept = if rendered[at..].starts_with(content.trim_start()) {
        content.trim_start()
    } else {
        content.trim()
    };
    rendered.truncate(at + kept.len());
    Ok(rendered)
}

#[cfg(test)]
mod tests;
