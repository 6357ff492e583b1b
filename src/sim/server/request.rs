//! From a request body to what the engine shall do.

use super::SimOptions;
use super::body::{BOOLEAN, Body, DICT, Expected, INTEGER, LIST, NUMBER, STRING, wrong_type};
use super::chat::{Template, push_responses_input, push_tools};
use super::error::ApiError;
use crate::sim::tokenizer::{VOCABULARY, tokenize};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The four ways to ask for text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Completions,
    Chat,
    Messages,
    Responses,
}

/// One prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    /// Empty for token prompts.
    pub(super) text: String,
}

/// What a client asked for, checked.
#[derive(Clone, Debug)]
pub(super) struct GenerationRequest {
    pub(super) api: Api,
    /// The name the client used, or the server's own.
    pub(super) model: String,
    /// Set when the model is a LoRA adapter.
    pub(super) lora: Option<String>,
    pub(super) prompts: Vec<Prompt>,
    /// Choices per prompt.
    pub(super) n: u32,
    /// The client's own bound on the output; without one the output ends by itself.
    pub(super) max_tokens: Option<u32>,
    pub(super) temperature: f64,
    pub(super) top_p: f64,
    pub(super) seed: u64,
    pub(super) stop: Vec<String>,
    pub(super) cache_salt: Option<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) return_token_ids: bool,
    pub(super) echo: bool,
    /// Candidates to tell of each token's place besides its own probability; `None` when it is not asked for.
    pub(super) logprobs: Option<u32>,
    /// Output tokens before which neither a stop string nor the model's own end counts.
    pub(super) min_tokens: u32,
    /// Go on to the bound, whatever the model says.
    pub(super) ignore_eos: bool,
}

/// Most choices per prompt (`VLLM_MAX_N_SEQUENCES`).
const MAX_CHOICES: u32 = 16_384;
/// Temperatures below this sample nothing: every choice would be the same.
const GREEDY_BELOW: f64 = 1e-5;
/// Most candidates that may be asked for (`--max-logprobs`).
const MAX_LOGPROBS: i64 = 20;

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

impl GenerationRequest {
    /// Reads a body of the given kind.
    ///
    /// # Errors
    /// What vLLM answers instead.
    pub(super) fn parse(api: Api, body: &Body, options: &SimOptions) -> Result<Self, ApiError> {
        check_required(api, body)?;
        let stream = body.get("stream", BOOLEAN)?.unwrap_or(false);
        let stream_options = stream_options(body, stream)?;
        let model = body.get::<Cow<str>>("model", STRING)?;
        let lora = resolve_model(model.as_deref(), options)?;
        let max_tokens = max_tokens(api, body, options)?;
        let prompts = prompts(api, body, options)?;
        for prompt in &prompts {
            check_length(prompt, max_tokens, options.max_model_len)?;
        }
        let request = Self {
            api,
            model: model.map_or_else(|| options.model().to_owned(), Cow::into_owned),
            lora,
            prompts,
            n: choices(body)?,
            max_tokens,
            temperature: body.get("temperature", NUMBER)?.unwrap_or(1.0),
            top_p: body.get("top_p", NUMBER)?.unwrap_or(1.0),
            seed: body.integer("seed")?.unwrap_or(0) as u64,
            stop: stop_strings(body)?,
            cache_salt: body.get("cache_salt", STRING)?,
            stream,
            include_usage: stream_options.include_usage.unwrap_or(false),
            continuous_usage: stream_options.continuous_usage_stats.unwrap_or(false),
            return_token_ids: body.get("return_token_ids", BOOLEAN)?.unwrap_or(false),
            echo: body.get("echo", BOOLEAN)?.unwrap_or(false),
            logprobs: logprobs(api, body)?,
            min_tokens: min_tokens(body, max_tokens)?,
            ignore_eos: body.get("ignore_eos", BOOLEAN)?.unwrap_or(false),
        };
        request.check_sampling()
    }

    fn check_sampling(self) -> Result<Self, ApiError> {
        let refuse = |message: String| Err(ApiError::bad_request(message));
        if self.temperature < 0.0 {
            let value = format!("{:?}", self.temperature);
            let message = format!("temperature must be non-negative, got {value}.");
            return Err(ApiError::parameter(&message, "temperature", Some(&value)));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            let value = format!("{:?}", self.top_p);
            let message = format!("top_p must be in (0, 1], got {value}.");
            return Err(ApiError::parameter(&message, "top_p", Some(&value)));
        }
        if self.stop.iter().any(String::is_empty) {
            return refuse("stop cannot contain an empty string.".to_owned());
        }
        if self.temperature < GREEDY_BELOW && self.n > 1 {
            return refuse(format!("n must be 1 when using greedy sampling, got {}.", self.n));
        }
        Ok(self)
    }
}

/// What pydantic refuses before anything else is looked at.
fn check_required(api: Api, body: &Body) -> Result<(), ApiError> {
    let required: &[&str] = match api {
        Api::Completions => {
            return match body.raw("prompt") {
                None | Some("\"\"") => Err(prompt_missing()),
                Some(_) => Ok(()),
            };
        }
        Api::Chat => &["messages"],
        Api::Messages => &["model", "messages", "max_tokens"],
        Api::Responses => &["input"],
    };
    match required.iter().find(|name| body.raw(name).is_none()) {
        Some(name) => Err(ApiError::missing_field(name, body.len())),
        None => Ok(()),
    }
}

fn prompt_missing() -> ApiError {
    ApiError::parameter(
        "Either prompt or prompt_embeds must be provided and non-empty.",
        "prompt",
        None,
    )
}

fn stream_options(body: &Body, stream: bool) -> Result<StreamOptions, ApiError> {
    match body.get::<StreamOptions>("stream_options", DICT)? {
        Some(_) if !stream => {
            let message = "Stream options can only be defined when `stream=True`.";
            Err(ApiError::parameter(message, "stream_options", None))
        }
        given => Ok(given.unwrap_or_default()),
    }
}

/// The adapter that a model name stands for.
pub(super) fn resolve_model(model: Option<&str>, options: &SimOptions) -> Result<Option<String>, ApiError> {
    let Some(model) = model.filter(|m| !m.is_empty()) else {
        return Ok(None);
    };
    if options.models.iter().any(|m| m == model) {
        return Ok(None);
    }
    match options.lora_modules.iter().find(|lora| *lora == model) {
        Some(lora) => Ok(Some(lora.clone())),
        None => Err(ApiError::unknown_model(model, &options.models)),
    }
}

fn max_tokens(api: Api, body: &Body, options: &SimOptions) -> Result<Option<u32>, ApiError> {
    let names: &[&str] = match api {
        Api::Chat => &["max_completion_tokens", "max_tokens"],
        Api::Responses => &["max_output_tokens"],
        Api::Completions | Api::Messages => &["max_tokens"],
    };
    let mut given = None;
    for name in names {
        given = given.or(body.integer(name)?);
    }
    let limit = options.max_model_len;
    match given {
        None => Ok((api == Api::Completions).then_some(16)),
        Some(value) if value < 1 => {
            let message = format!("max_tokens must be at least 1, got {value}.");
            Err(ApiError::parameter(
                &message,
                "max_tokens",
                Some(&value.to_string()),
            ))
        }
        Some(value) => match u32::try_from(value).ok().filter(|&v| v <= limit) {
            Some(value) => Ok(Some(value)),
            None => {
                let message = format!(
                    "max_tokens={value} cannot be greater than max_model_len={limit}. Please request fewer output \
                     tokens."
                );
                Err(ApiError::parameter(
                    &message,
                    "max_tokens",
                    Some(&value.to_string()),
                ))
            }
        },
    }
}

/// `n`, choices per prompt.
fn choices(body: &Body) -> Result<u32, ApiError> {
    match body.integer("n")?.unwrap_or(1) {
        n if n < 1 => Err(ApiError::bad_request(format!("n must be at least 1, got {n}."))),
        n if n > i64::from(MAX_CHOICES) => Err(ApiError::bad_request(format!(
            "n must be at most {MAX_CHOICES}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment \
             variable."
        ))),
        n => Ok(n as u32),
    }
}

fn min_tokens(body: &Body, max_tokens: Option<u32>) -> Result<u32, ApiError> {
    let given = body.integer("min_tokens")?.unwrap_or(0);
    if given < 0 {
        return Err(ApiError::bad_request(format!(
            "min_tokens must be greater than or equal to 0, got {given}."
        )));
    }
    if let Some(max) = max_tokens.filter(|&max| given > i64::from(max)) {
        return Err(ApiError::bad_request(format!(
            "min_tokens must be less than or equal to max_tokens={max}, got {given}."
        )));
    }
    Ok(u32::try_from(given).unwrap_or(u32::MAX))
}

/// `logprobs` is a number in completions, and a switch beside `top_logprobs` in chats.
fn logprobs(api: Api, body: &Body) -> Result<Option<u32>, ApiError> {
    let (name, asked) = match api {
        Api::Completions => ("logprobs", body.integer("logprobs")?),
        Api::Chat => {
            let on = body.get("logprobs", BOOLEAN)?.unwrap_or(false);
            let top = body.integer("top_logprobs")?;
            if !on && top.is_some_and(|top| top > 0) {
                let message = "when using `top_logprobs`, `logprobs` must be set to true.";
                return Err(ApiError::parameter(message, "top_logprobs", None));
            }
            ("top_logprobs", on.then(|| top.unwrap_or(0)))
        }
        Api::Messages | Api::Responses => return Ok(None),
    };
    match asked {
        Some(count) if count < 0 => {
            let message = format!("`{name}` must be a positive value.");
            Err(ApiError::parameter(&message, name, Some(&count.to_string())))
        }
        Some(count) if count > MAX_LOGPROBS => {
            let message = format!(
                "Requested sample logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}"
            );
            Err(ApiError::parameter(
                &message,
                "logprobs",
                Some(&count.to_string()),
            ))
        }
        asked => Ok(asked.and_then(|count| u32::try_from(count).ok())),
    }
}

fn check_length(prompt: &Prompt, max_tokens: Option<u32>, limit: u32) -> Result<(), ApiError> {
    let tokens = prompt.tokens.len() as u64;
    let output = u64::from(max_tokens.unwrap_or(1));
    if tokens > u64::from(limit) {
        // vLLM stops counting one token after the limit.
        let counted = limit + 1;
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your prompt contains at least {counted} \
             input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
             input prompt."
        );
        return Err(ApiError::parameter(
            &message,
            "input_tokens",
            Some(&counted.to_string()),
        ));
    }
    if tokens + output > u64::from(limit) {
        let total = tokens + output;
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, you requested {output} output tokens and \
             your prompt contains {tokens} input tokens, for a total of {total} tokens. Please reduce the length of \
             the input prompt or the number of requested output tokens."
        );
        return Err(ApiError::parameter(
            &message,
            "input_tokens",
            Some(&tokens.to_string()),
        ));
    }
    Ok(())
}

fn stop_strings(body: &Body) -> Result<Vec<String>, ApiError> {
    let name = if body.raw("stop").is_some() {
        "stop"
    } else {
        "stop_sequences"
    };
    match body.raw(name) {
        Some(raw) if raw.starts_with('"') => Ok(body.get(name, STRING)?.into_iter().collect()),
        Some(_) => Ok(body.get(name, LIST)?.unwrap_or_default()),
        None => Ok(Vec::new()),
    }
}

fn prompts(api: Api, body: &Body, options: &SimOptions) -> Result<Vec<Prompt>, ApiError> {
    if api == Api::Completions {
        return completion_prompts(body.raw("prompt").unwrap_or("[]"));
    }
    let tokens = chat_tokens(api, body, options, true)?;
    Ok(vec![Prompt {
        tokens,
        text: String::new(),
    }])
}

/// Token ids of a body with `messages` or `input`.
pub(super) fn chat_tokens(
    api: Api,
    body: &Body,
    options: &SimOptions,
    add_generation_prompt: bool,
) -> Result<Vec<u32>, ApiError> {
    check_tool_choice(body, options)?;
    let mut template = Template::new((!options.multimodal).then(|| options.model()));
    push_tools(&mut template, body);
    if api == Api::Responses {
        push_responses_input(&mut template, body)?;
    } else {
        if let Some(system) = body.raw("system") {
            template.message("system", system)?;
        }
        template.messages(body.raw("messages").unwrap_or("[]"))?;
    }
    Ok(template.finish(add_generation_prompt))
}

fn check_tool_choice(body: &Body, options: &SimOptions) -> Result<(), ApiError> {
    if !options.enable_auto_tool_choice && body.raw("tool_choice") == Some("\"auto\"") {
        return Err(ApiError::bad_request(
            "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
        ));
    }
    Ok(())
}

/// A prompt as string, list of strings, list of token ids, or list of such lists.
pub(super) fn completion_prompts(raw: &str) -> Result<Vec<Prompt>, ApiError> {
    const EXPECTED: Expected = ("string_type", "Input should be a valid string");
    let faulty = |_| wrong_type("prompt", raw, EXPECTED);
    let inner = raw.strip_prefix('[').map(str::trim_start);
    match inner.and_then(|text| text.bytes().next()) {
        None => Ok(vec![text_prompt(serde_json::from_str(raw).map_err(faulty)?)]),
        Some(b']') => Err(ApiError::bad_request("You must pass at least one prompt")),
        Some(b'"') => {
            let texts: Vec<Cow<str>> = serde_json::from_str(raw).map_err(faulty)?;
            texts
                .into_iter()
                .map(|text| {
                    if text.is_empty() {
                        Err(prompt_missing())
                    } else {
                        Ok(text_prompt(text))
                    }
                })
                .collect()
        }
        Some(b'[') => {
            let lists: Vec<&RawValue> = serde_json::from_str(raw).map_err(faulty)?;
            lists.into_iter().map(|list| token_prompt(list.get())).collect()
        }
        Some(_) => Ok(vec![token_prompt(raw)?]),
    }
}

fn text_prompt(text: Cow<str>) -> Prompt {
    let mut tokens = Vec::with_capacity(text.len() / 4 + 1);
    tokenize(&text, &mut tokens);
    Prompt {
        tokens,
        text: text.into_owned(),
    }
}

fn token_prompt(raw: &str) -> Result<Prompt, ApiError> {
    let tokens: Vec<u64> = serde_json::from_str(raw).map_err(|_| wrong_type("prompt", raw, INTEGER))?;
    if tokens.is_empty() {
        return Err(prompt_missing());
    }
    let in_vocabulary = |id: u64| {
        let id = u32::try_from(id).ok().filter(|&id| id < VOCABULARY);
        id.ok_or(())
    };
    let checked: Result<Vec<u32>, ApiError> = tokens
        .iter()
        .map(|&id| {
            in_vocabulary(id)
                .map_err(|()| ApiError::bad_request(format!("Token id {id} is out of vocabulary")))
        })
        .collect();
    Ok(Prompt {
        tokens: checked?,
        text: String::new(),
    })
}
