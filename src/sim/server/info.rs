//! Paths that generate nothing: models, tokens, load, and the developer's switches.

use super::Inner;
use super::body::{BOOLEAN, Body, LIST, STRING};
use super::error::ApiError;
use super::http::{Reply, empty, json};
use super::request::{Api, GenerationRequest, chat_tokens, completion_prompts, resolve_model};
use crate::sim::output::detokenize;
use crate::sim::tokenizer::pieces;
use hyper::StatusCode;
use serde_json::{Value, json as value};
use std::borrow::Cow;

pub(super) fn models(server: &Inner) -> Reply {
    let options = &server.options;
    let created = server.created();
    // An alias has its model's root; an adapter brings its own.
    let entry = |id: &str, root: &str, parent: Value, max_len: Value| {
        value!({
            "id": id, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent,
            "max_model_len": max_len,
            "permission": [{
                "id": format!("modelperm-{}", server.next_id()), "object": "model_permission", "created": created,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false,
                "organization": "*", "group": null, "is_blocking": false,
            }],
        })
    };
    let base = options
        .models
        .iter()
        .map(|id| entry(id, options.model(), Value::Null, options.max_model_len.into()));
    let loras = options
        .lora_modules
        .iter()
        .map(|id| entry(id, id, options.model().into(), Value::Null));
    json(value!({"object": "list", "data": base.chain(loras).collect::<Vec<_>>()}).to_string())
}

pub(super) fn tokenize(server: &Inner, body: &Body) -> Result<Reply, ApiError> {
    resolve_model(body.get::<Cow<str>>("model", STRING)?.as_deref(), &server.options)?;
    let generation_prompt = body.get("add_generation_prompt", BOOLEAN)?.unwrap_or(true);
    let prompt = body.get::<Cow<str>>("prompt", STRING)?;
    let tokens = match &prompt {
        Some(text) if text.is_empty() => Vec::new(),
        Some(_) => {
            completion_prompts(body.raw("prompt").unwrap_or("[]"))?
                .swap_remove(0)
                .tokens
        }
        None if body.raw("messages").is_some() => {
            chat_tokens(Api::Chat, body, &server.options, generation_prompt)?
        }
        None => return Err(ApiError::missing_field("prompt", body.len())),
    };
    let wanted = body.get("return_token_strs", BOOLEAN)?.unwrap_or(false);
    // As in a byte-level vocabulary, a leading space shows as a letter.
    let strs = prompt.filter(|_| wanted).map(|text| {
        pieces(&text)
            .map(|s| s.replace(' ', "\u{120}"))
            .collect::<Vec<_>>()
    });
    let max = server.options.max_model_len;
    Ok(json(
        value!({"count": tokens.len(), "max_model_len": max, "tokens": tokens, "token_strs": strs})
            .to_string(),
    ))
}

pub(super) fn detokenized(server: &Inner, body: &Body) -> Result<Reply, ApiError> {
    resolve_model(body.get::<Cow<str>>("model", STRING)?.as_deref(), &server.options)?;
    let ids = body
        .get::<Vec<u32>>("tokens", LIST)?
        .ok_or_else(|| ApiError::missing_field("tokens", body.len()))?;
    Ok(json(value!({"prompt": detokenize(&ids)}).to_string()))
}

pub(super) fn count_tokens(server: &Inner, body: &Body) -> Result<Reply, ApiError> {
    resolve_model(body.get::<Cow<str>>("model", STRING)?.as_deref(), &server.options)?;
    if body.raw("messages").is_none() {
        return Err(ApiError::missing_field("messages", body.len()));
    }
    let count = chat_tokens(Api::Messages, body, &server.options, true)?.len();
    Ok(json(
        value!({"input_tokens": count, "context_management": {"original_input_tokens": count}}).to_string(),
    ))
}

/// Token ids of a request without running it; only with `--enable-scale-out`, as in vLLM.
pub(super) fn render(server: &Inner, api: Api, body: &Body) -> Result<Reply, ApiError> {
    if !server.options.enable_scale_out {
        return Err(ApiError::forbidden(
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
        ));
    }
    let request = GenerationRequest::parse(api, body, &server.options)?;
    let prefix = if api == Api::Chat { "chatcmpl" } else { "cmpl" };
    let mut sampling = value!({
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        "temperature": request.temperature, "top_p": request.top_p, "min_p": 0.0, "stop": request.stop,
        "stop_token_ids": [], "max_tokens": request.max_tokens, "output_kind": 2, "skip_clone": true,
        "bad_words": [], "skip_reading_prefix_cache": false,
    });
    if let Some(fields) = sampling.as_object_mut().filter(|_| request.temperature == 0.0) {
        // Greedy sampling has no use for them, and vLLM leaves them out.
        fields.shift_remove("top_p");
        fields.shift_remove("min_p");
    }
    let rendered = request.prompts.iter().map(|prompt| {
        value!({
            "request_id": format!("{prefix}-{}", server.next_id()), "token_ids": prompt.tokens,
            "token_offsets": null, "features": null, "content_parts": null,
            "sampling_params": sampling,
            "model": request.model, "reasoning_ended": null, "reasoning_parser_kwargs": null,
            "return_token_ids": null, "output_mode": "tokens", "stream": request.stream, "stream_options": null,
            "cache_salt": request.cache_salt, "priority": 0, "kv_transfer_params": null, "ec_transfer_params": null,
        })
    });
    let rendered: Vec<Value> = rendered.collect();
    let answer = match (api, rendered.into_iter()) {
        (Api::Chat, mut one) => one.next().unwrap_or_default(),
        (_, all) => all.collect(),
    };
    Ok(json(answer.to_string()))
}

/// 200 whether or not the cache could be cleared, as in vLLM.
pub(super) fn reset_prefix_cache(server: &Inner) -> Reply {
    if !server.driver.reset_prefix_cache() {
        tracing::warn!(name = %server.options.name, "the prefix cache is in use and was not reset");
    }
    empty(StatusCode::OK)
}

pub(super) fn sleep(server: &Inner, query: &str) -> Reply {
    server.driver.set_sleeping(true);
    let level = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("level="))
        .and_then(|v| v.parse().ok());
    json(value!({"status": "sleeping", "level": level.unwrap_or(1_u8)}).to_string())
}

pub(super) fn wake_up(server: &Inner) -> Reply {
    server.driver.set_sleeping(false);
    json(r#"{"status":"awake","tags":null}"#)
}

/// Modes `keep` and `wait` stop the engine where it is; `abort` (the default) ends what runs first.
pub(super) fn pause(server: &Inner, query: &str) -> Reply {
    let mode = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("mode="))
        .unwrap_or("abort");
    if mode == "abort" {
        server.driver.abort_in_flight();
    }
    server.driver.set_paused(true);
    json(r#"{"status":"paused"}"#)
}

pub(super) fn resume(server: &Inner) -> Reply {
    server.driver.set_paused(false);
    json(r#"{"status":"resumed"}"#)
}
