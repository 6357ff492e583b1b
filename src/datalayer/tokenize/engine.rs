//! Asks an engine's `/tokenize`, and remembers its answers.

use super::NoTokens;
use crate::datalayer::fetch::{self, FetchError};
use crate::openai::{PathKind, Peek, PlainPrompt};
use crate::pool::{Endpoint, Pool, Snapshot};
use crate::tokens::ChatRequest;
use crate::tokens::chat::conversation;
use crate::tokens::template::ContentFormat;
use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use pingora_core::connectors::http::Connector;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// Tokens remembered, in two generations of half as many, at four bytes each.
const REMEMBERED_TOKENS: usize = 8 << 20;
/// What remembering an answer costs beside its tokens, counted in tokens.
const ENTRY_TOKENS: usize = 32;
/// Texts per request that are asked for.
const MAX_PROMPTS: usize = 4;
/// For a connection to an engine to stand.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Fields of a chat request that `/tokenize` reads too.
const CHAT_FIELDS: [&str; 7] = [
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template_kwargs",
];

/// The engines' own tokenizer.
pub struct EngineTokenizer {
    connector: Connector,
    answers: Mutex<Answers>,
}

impl std::fmt::Debug for EngineTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineTokenizer").finish_non_exhaustive()
    }
}

/// Answers by the hash of the question. When the newer generation is full, the older one goes.
#[derive(Debug, Default)]
struct Answers {
    newer: HashMap<u128, Arc<[u32]>>,
    older: HashMap<u128, Arc<[u32]>>,
    newer_tokens: usize,
}

#[derive(Deserialize)]
struct Answer {
    tokens: Vec<u32>,
}

impl Default for EngineTokenizer {
    /// A client that has asked nothing yet.
    fn default() -> Self {
        Self {
            connector: Connector::new(None),
            answers: Mutex::default(),
        }
    }
}

impl EngineTokenizer {
    pub(super) async fn ids(
        &self,
        kind: PathKind,
        body: &[u8],
        pool: &Pool,
    ) -> Result<Vec<Vec<u32>>, NoTokens> {
        let mut ids = Vec::new();
        for question in questions(kind, body)? {
            ids.push(match question {
                Question::Known(ids) => ids,
                Question::Ask(text) => self.ask(text, pool).await?.to_vec(),
            });
        }
        Ok(ids)
    }

    async fn ask(&self, question: String, pool: &Pool) -> Result<Arc<[u32]>, NoTokens> {
        let key = xxh3_128(question.as_bytes());
        if let Some(answer) = self.answers.lock().get(key) {
            return Ok(answer);
        }
        let endpoints = pool.snapshot();
        let endpoint =
            least_busy(&endpoints).ok_or_else(|| NoTokens::Engine("no endpoint is ready".into()))?;
        let address = endpoint
            .address()
            .ok_or_else(|| NoTokens::Engine("its name is not resolved".into()))?;
        let mut peer = endpoint.peer(address);
        peer.options.connection_timeout = Some(CONNECT_TIMEOUT);
        let (host, key_header) = (endpoint.host_header.clone(), pool.settings.api_key.as_ref());
        let failed = |error: FetchError| NoTokens::Engine(error.to_string());
        let request = fetch::request(Method::POST, "/tokenize", host, key_header, question.as_bytes());
        let (request, question) = (request.map_err(failed)?, Bytes::from(question));
        let answer = fetch::ask(&self.connector, &peer, &request, &question);
        let answer: Answer = serde_json::from_slice(&answer.await.map_err(failed)?)
            .map_err(|error| NoTokens::Engine(error.to_string()))?;
        let tokens: Arc<[u32]> = answer.tokens.into();
        self.answers.lock().put(key, tokens.clone());
        Ok(tokens)
    }
}

impl Answers {
    fn get(&mut self, key: u128) -> Option<Arc<[u32]>> {
        if let Some(answer) = self.newer.get(&key) {
            return Some(answer.clone());
        }
        let answer = self.older.remove(&key)?;
        self.put(key, answer.clone());
        Some(answer)
    }

    fn put(&mut self, key: u128, answer: Arc<[u32]>) {
        let tokens = answer.len() + ENTRY_TOKENS;
        if self.newer_tokens + tokens > REMEMBERED_TOKENS / 2 {
            self.older = std::mem::take(&mut self.newer);
            self.newer_tokens = 0;
        }
        if tokens <= REMEMBERED_TOKENS / 2 && self.newer.insert(key, answer).is_none() {
            self.newer_tokens += tokens;
        }
    }
}

fn least_busy(endpoints: &Snapshot) -> Option<&Endpoint> {
    let ready = endpoints.ready().map(|entry| &*entry.endpoint);
    ready.min_by_key(|endpoint| endpoint.load.sample().inflight)
}

#[derive(Debug)]
enum Question {
    Known(Vec<u32>),
    /// A body for `/tokenize`.
    Ask(String),
}

fn questions(kind: PathKind, body: &[u8]) -> Result<Vec<Question>, NoTokens> {
    let peek = Peek::parse(body).map_err(|_| NoTokens::Unsupported)?;
    if let Some(prompts) = peek.plain_prompts(kind) {
        let texts = prompts.iter().filter(|p| matches!(p, PlainPrompt::Text(_)));
        if texts.count() > MAX_PROMPTS {
            return Err(NoTokens::Unsupported);
        }
        let special_tokens = peek.add_special_tokens().unwrap_or(true);
        let model = peek.model();
        let question = |prompt| match prompt {
            PlainPrompt::Ids(ids) => Question::Known(ids),
            PlainPrompt::Text(text) => Question::Ask(completion(&model, &text, special_tokens)),
        };
        return Ok(prompts.into_iter().map(question).collect());
    }
    if kind != PathKind::Chat {
        return Err(NoTokens::Unsupported);
    }
    Ok(vec![Question::Ask(chat(body)?)])
}

fn completion(model: &str, prompt: &str, add_special_tokens: bool) -> String {
    let mut question = json!({ "prompt": prompt, "add_special_tokens": add_special_tokens });
    if !model.is_empty() {
        question["model"] = json!(model);
    }
    question.to_string()
}

fn chat(body: &[u8]) -> Result<String, NoTokens> {
    let request = ChatRequest::from_body(body)?;
    // An image has placeholder tokens, and its blocks are keyed by more than those.
    conversation(&request.messages, ContentFormat::OpenAi)?;
    let mut whole: Map<String, Value> = serde_json::from_slice(body).map_err(|_| NoTokens::Unsupported)?;
    let mut question = Map::new();
    for field in CHAT_FIELDS {
        if let Some(value) = whole.remove(field).filter(|value| !value.is_null()) {
            question.insert(field.to_owned(), value);
        }
    }
    // The chat API gives these to the template by itself, `/tokenize` only when told to.
    for field in ["reasoning_effort", "documents"] {
        if let Some(value) = whole.remove(field).filter(|value| !value.is_null())
            && let Value::Object(arguments) = question
                .entry("chat_template_kwargs")
                .or_insert_with(|| json!({}))
        {
            arguments.entry(field).or_insert(value);
        }
    }
    Ok(Value::Object(question).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_hold_what_decides_the_tokens() {
        let asked = |kind, body: &str| match &questions(kind, body.as_bytes()).unwrap()[..] {
            [Question::Ask(text)] => serde_json::from_str::<Value>(text).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            asked(
                PathKind::Completions,
                r#"{"model":"m","prompt":"hi","max_tokens":3}"#
            ),
            json!({"model": "m", "prompt": "hi", "add_special_tokens": true})
        );
        let chat = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,
            "reasoning_effort":"low","tools":null}"#;
        assert_eq!(
            asked(PathKind::Chat, chat),
            json!({
                "model": "m",
                "messages": [{"role": "user", "content": "hi"}],
                "chat_template_kwargs": {"reasoning_effort": "low"},
            })
        );
        let image =
            r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        let refused = questions(PathKind::Chat, image.as_bytes()).unwrap_err();
        assert_eq!(refused.outcome(), "unsupported");
    }

    #[test]
    fn memory_is_bounded_and_keeps_what_is_used() {
        let mut answers = Answers::default();
        let long: Arc<[u32]> = vec![7; REMEMBERED_TOKENS / 8].into();
        answers.put(0, long.clone());
        for key in 1..20 {
            answers.put(key, long.clone());
            assert!(answers.get(0).is_some(), "asked for each time");
            let tokens = |kept: &HashMap<u128, Arc<[u32]>>| kept.values().map(|ids| ids.len()).sum::<usize>();
            assert!(tokens(&answers.newer) + tokens(&answers.older) <= REMEMBERED_TOKENS);
        }
        assert!(answers.get(2).is_none());
    }
}
