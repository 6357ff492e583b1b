//! What a decision needs of one request's body.

use super::tokens::TokenRate;
use crate::prefix::{BlockHash, PromptKeys};
use std::sync::Arc;

/// A prompt as scheduling and the index see it.
#[derive(Debug)]
pub struct Prompt {
    /// Model as the client named it; empty when it named none.
    pub model: Box<str>,
    /// Chunk hashes; `None` for a request that carries no readable prompt.
    pub keys: Option<PromptKeys>,
    /// Prompt length in tokens: exact for token ids, estimated from bytes otherwise.
    pub tokens: u32,
    /// The estimate's source, to learn from the engine's own count; `None` when `tokens` is exact.
    pub rate: Option<Arc<TokenRate>>,
    pub max_output_tokens: Option<u32>,
    /// Whether serving it leaves its KV blocks in the engine's cache.
    pub fills_cache: bool,
    pub stream: bool,
    /// Hash of the session header's value.
    pub session: Option<u64>,
}

/// Length of a prompt, for logs and admin pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptShape {
    pub tokens: u32,
    /// Chunks of content that the index keys on.
    pub chunks: u32,
}

impl Prompt {
    /// A request that is routed by load alone.
    pub fn unkeyed(model: &str) -> Self {
        Self {
            model: model.into(),
            keys: None,
            tokens: 0,
            rate: None,
            max_output_tokens: None,
            fills_cache: false,
            stream: false,
            session: None,
        }
    }

    /// The hash chains, one per prompt of the request, each with the hash of its partial tail last.
    pub fn chains(&self) -> impl Iterator<Item = &[BlockHash]> {
        self.keys
            .iter()
            .flat_map(|keys| keys.chains().iter().map(|chain| keys.keys(chain)))
    }

    /// Bytes of prompt content.
    pub fn bytes(&self) -> u64 {
        self.keys.as_ref().map_or(0, PromptKeys::total_bytes)
    }

    /// Length in tokens and in chunks.
    pub fn shape(&self) -> PromptShape {
        PromptShape {
            tokens: self.tokens,
            chunks: self.chains().map(<[_]>::len).sum::<usize>() as u32,
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
