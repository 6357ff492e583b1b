//! What a decision needs of one request's body.

use super::keys::Keys;
use super::tokens::TokenRate;
use crate::prefix::{BlockHash, ChainHasher};
use crate::telemetry::traces::Stopwatch;
use smallvec::SmallVec;
use std::sync::Arc;

/// Bytes kept of a model's name: it goes into logs, tables and records, and the client chooses it.
const KEPT_NAME: usize = 256;

/// What is kept of a model's name.
pub fn kept_name(model: &str) -> &str {
    &model[..model.floor_char_boundary(KEPT_NAME)]
}

/// A prompt as scheduling and the index see it.
#[derive(Debug)]
pub struct Prompt {
    /// Model as the client named it, of a very long name the beginning; empty when it named none.
    pub model: Box<str>,
    /// `None` for a request that carries no readable prompt.
    pub keys: Option<Keys>,
    /// Prompt length in tokens: exact for token ids, estimated from bytes otherwise.
    pub tokens: u32,
    /// The estimate's source, to learn from the engine's own count; `None` when `tokens` is exact.
    pub rate: Option<Arc<TokenRate>>,
    pub max_output_tokens: Option<u32>,
    /// Goes on with the keys when the answer is known; `None` where its next turn is not foreseen.
    pub continuation: Option<Box<ChainHasher>>,
    /// Whether serving it leaves its KV blocks in the engine's cache.
    pub fills_cache: bool,
    pub stream: bool,
    /// Hash of the session header's value.
    pub session: Option<u64>,
    /// Times its lookup, when the request is traced.
    pub stopwatch: Option<Arc<Stopwatch>>,
    /// Hash of the name by which the working-set gate is to know the conversation.
    pub conversation: Option<u64>,
}

/// Length of a prompt, for admin pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptShape {
    pub tokens: u32,
    /// Whole KV blocks of the endpoint that it is about.
    pub blocks: u32,
}

impl Prompt {
    /// A request that is routed by load alone.
    pub fn unkeyed(model: &str) -> Self {
        Self {
            model: kept_name(model).into(),
            keys: None,
            tokens: 0,
            rate: None,
            max_output_tokens: None,
            continuation: None,
            fills_cache: false,
            stream: false,
            session: None,
            stopwatch: None,
            conversation: None,
        }
    }

    /// The hash chains, one per prompt of the request: blocks of `block_tokens`, or chunks with the hash of the
    /// partial tail last.
    pub fn chains(&self, block_tokens: u32) -> SmallVec<[&[BlockHash]; 1]> {
        match &self.keys {
            None => SmallVec::new(),
            Some(Keys::Chunks(keys)) => keys.chains().iter().map(|chain| keys.keys(chain)).collect(),
            Some(Keys::Blocks(keys)) => keys.chains(block_tokens).collect(),
        }
    }

    /// The whole chunks or blocks of its first prompt: what a later turn begins with as well.
    pub fn whole_blocks(&self) -> &[BlockHash] {
        let whole = match &self.keys {
            None => None,
            Some(Keys::Chunks(keys)) => keys.chains().first().map(|chain| keys.full_blocks(chain)),
            Some(Keys::Blocks(keys)) => keys.first_chain(),
        };
        whole.unwrap_or_default()
    }

    /// Whether the engines' events tell of the very blocks that this prompt is known by.
    pub const fn is_exact(&self) -> bool {
        matches!(self.keys, Some(Keys::Blocks(_)))
    }

    /// Bytes of prompt content; 0 when its keys are of tokens.
    pub fn bytes(&self) -> u64 {
        match &self.keys {
            Some(Keys::Chunks(keys)) => keys.total_bytes(),
            _ => 0,
        }
    }

    /// Length in tokens and in KV blocks of `block_tokens` each; no blocks when that is 0.
    pub fn shape(&self, block_tokens: u32) -> PromptShape {
        PromptShape {
            tokens: self.tokens,
            blocks: self.tokens.checked_div(block_tokens).unwrap_or(0),
        }
    }

    /// Tokens of cached prefix that an engine with `block_tokens` per block can reuse when `matched_bytes` of
    /// the content are cached: whole blocks only, and at least one token is always computed.
    pub fn reusable_tokens(&self, matched_bytes: u64, block_tokens: u32) -> u32 {
        let bytes = self.bytes();
        if bytes == 0 || block_tokens == 0 {
            return 0;
        }
        let share = matched_bytes as f64 / bytes as f64;
        let tokens = (f64::from(self.tokens) * share) as u32;
        tokens.min(self.tokens.saturating_sub(1)) / block_tokens * block_tokens
    }
}
