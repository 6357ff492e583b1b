//! Token ids of a request's prompts: from the body itself, from a local tokenizer, or from an engine.

mod engine;

pub use engine::EngineTokenizer;

use crate::openai::{PathKind, Peek, PlainPrompt};
use crate::pool::Pool;
use crate::tokens::{ChatRequest, TokenizeError, Tokenizer, Unsupported};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Longest wait for a prompt's tokens. A prompt that takes longer is long enough for its prefill to take
/// seconds, and is then keyed by its bytes.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Bodies below this are tokenized where they are, in well under a millisecond.
const INLINE_BYTES: usize = 2 * 1024;
/// Prompts tokenized at a time off the workers; those that came too late go on in the background.
const AT_A_TIME: usize = 8;

/// Where the token ids of texts come from.
#[derive(Debug)]
pub enum TokenSource {
    /// The model's files.
    Local {
        tokenizer: Arc<Tokenizer>,
        places: Arc<Semaphore>,
    },
    /// The engines' own `/tokenize`.
    Engine(Box<EngineTokenizer>),
}

/// Why there are no token ids.
#[derive(Debug, thiserror::Error)]
pub enum NoTokens {
    #[error("the prompt is not rendered here")]
    Unsupported,
    #[error(transparent)]
    Failed(TokenizeError),
    #[error("not in time")]
    TimedOut,
    #[error("the engine's answer: {0}")]
    Engine(String),
}

impl NoTokens {
    /// The word for the label of a metric.
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::Failed(_) | Self::Engine(_) => "failed",
            Self::TimedOut => "timeout",
        }
    }
}

impl From<TokenizeError> for NoTokens {
    fn from(error: TokenizeError) -> Self {
        match error {
            TokenizeError::Unsupported(_) => Self::Unsupported,
            other => Self::Failed(other),
        }
    }
}

impl From<Unsupported> for NoTokens {
    fn from(_: Unsupported) -> Self {
        Self::Unsupported
    }
}

/// The outcomes of a tokenization, for metrics.
pub const OUTCOMES: [&str; 4] = ["success", "unsupported", "failed", "timeout"];

impl TokenSource {
    /// From a tokenizer at hand.
    pub fn local(tokenizer: Tokenizer) -> Self {
        Self::Local {
            tokenizer: Arc::new(tokenizer),
            places: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }

    /// The token ids of each prompt in `body`, a request of `kind`.
    ///
    /// # Errors
    /// [`NoTokens`]: the request is then keyed by its bytes.
    pub async fn ids(&self, kind: PathKind, body: &Bytes, pool: &Pool) -> Result<Vec<Vec<u32>>, NoTokens> {
        match self {
            Self::Local { tokenizer, .. } if body.len() < INLINE_BYTES => locally(tokenizer, kind, body),
            Self::Local { tokenizer, places } => {
                let (tokenizer, places, body) = (tokenizer.clone(), places.clone(), body.clone());
                in_time(async move {
                    let place = places.acquire_owned().await.map_err(|_| NoTokens::TimedOut)?;
                    let work = move || {
                        let ids = locally(&tokenizer, kind, &body);
                        drop(place);
                        ids
                    };
                    let done = tokio::task::spawn_blocking(work).await;
                    done.unwrap_or(Err(NoTokens::TimedOut))
                })
                .await
            }
            Self::Engine(engine) => in_time(engine.ids(kind, body, pool)).await,
        }
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, NoTokens>>) -> Result<T, NoTokens> {
    let done = tokio::time::timeout(TIMEOUT, work).await;
    done.unwrap_or(Err(NoTokens::TimedOut))
}

/// The ids of prompts that are nothing but ids.
pub fn given(peek: &Peek<'_>, kind: PathKind) -> Option<Vec<Vec<u32>>> {
    let prompts = peek.plain_prompts(kind)?.into_iter();
    let ids = prompts.map(|prompt| match prompt {
        PlainPrompt::Ids(ids) => Some(ids),
        PlainPrompt::Text(_) => None,
    });
    ids.collect()
}

fn locally(tokenizer: &Tokenizer, kind: PathKind, body: &[u8]) -> Result<Vec<Vec<u32>>, NoTokens> {
    let peek = Peek::parse(body).map_err(|_| NoTokens::Unsupported)?;
    if let Some(prompts) = peek.plain_prompts(kind) {
        let special_tokens = peek.add_special_tokens().unwrap_or(true);
        let ids = prompts.into_iter().map(|prompt| match prompt {
            PlainPrompt::Ids(ids) => Ok(ids),
            PlainPrompt::Text(text) => Ok(tokenizer.encode(&text, special_tokens)?),
        });
        return ids.collect();
    }
    if kind != PathKind::Chat {
        return Err(NoTokens::Unsupported);
    }
    let request = ChatRequest::from_body(body)?;
    let now = jiff::ZonedDateTime::now().datetime();
    Ok(vec![tokenizer.encode_chat(&request, now)?])
}
