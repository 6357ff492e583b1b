//! What the index knows a prompt by.

use crate::kv_events::chain::{self, Root};
use crate::prefix::{BlockHash, PromptKeys};
use smallvec::SmallVec;
use std::ops::Range;

/// The keys of one request.
#[derive(Debug)]
pub enum Keys {
    /// Chunks of the prompt's bytes: what was sent where, whatever the tokens are.
    Chunks(PromptKeys),
    /// The engines' own blocks, of a prompt whose token ids are known.
    Blocks(BlockKeys),
}

/// The whole blocks of a request's prompts, for each block size of the pool's engines.
#[derive(Debug)]
pub struct BlockKeys {
    /// Length of each prompt in tokens.
    lengths: SmallVec<[u32; 1]>,
    cuts: SmallVec<[Cut; 1]>,
}

/// The prompts in blocks of one size.
#[derive(Debug)]
struct Cut {
    block_tokens: u32,
    hashes: Vec<BlockHash>,
    /// Each prompt's part of `hashes`.
    chains: SmallVec<[Range<usize>; 1]>,
}

impl BlockKeys {
    /// Cuts `prompts` into blocks of each size in `block_sizes`.
    pub fn new(prompts: &[Vec<u32>], root: Root<'_>, block_sizes: &[u32]) -> Self {
        let cut = |&block_tokens: &u32| {
            let blocks = |prompt: &Vec<u32>| prompt.len() / (block_tokens as usize).max(1);
            let mut hashes = Vec::with_capacity(prompts.iter().map(blocks).sum());
            let chains = prompts.iter().map(|prompt| {
                let start = hashes.len();
                hashes.extend(chain::of_prompt(root, prompt, block_tokens));
                start..hashes.len()
            });
            let chains = chains.collect();
            Cut {
                block_tokens,
                hashes,
                chains,
            }
        };
        Self {
            lengths: prompts.iter().map(|prompt| length(prompt)).collect(),
            cuts: block_sizes.iter().map(cut).collect(),
        }
    }

    /// Length of all prompts in tokens.
    pub fn tokens(&self) -> u32 {
        self.lengths.iter().copied().fold(0, u32::saturating_add)
    }

    /// Number of whole blocks, in the first of the block sizes.
    pub fn blocks(&self) -> usize {
        self.cuts.first().map_or(0, |cut| cut.hashes.len())
    }

    /// The block sizes that there are keys for.
    pub fn block_sizes(&self) -> impl Iterator<Item = u32> {
        self.cuts.iter().map(|cut| cut.block_tokens)
    }

    /// A chain per prompt, in blocks of `block_tokens`; none for a size that is not among
    /// [`Self::block_sizes`].
    pub fn chains(&self, block_tokens: u32) -> impl Iterator<Item = &[BlockHash]> {
        let cut = self.cuts.iter().find(|cut| cut.block_tokens == block_tokens);
        cut.into_iter().flat_map(|cut| {
            let chain = |range: &Range<usize>| cut.hashes.get(range.clone()).unwrap_or_default();
            cut.chains.iter().map(chain)
        })
    }

    /// The first prompt's blocks, in the first of the block sizes.
    pub fn first_chain(&self) -> Option<&[BlockHash]> {
        let cut = self.cuts.first()?;
        cut.hashes.get(cut.chains.first()?.clone())
    }

    /// Cached tokens that an engine reuses of prompt number `at` when it holds `blocks` of its blocks: whole
    /// blocks, and at least one token is always computed.
    pub fn reusable_tokens(&self, at: usize, blocks: u32, block_tokens: u32) -> u32 {
        let length = self.lengths.get(at).copied().unwrap_or_default();
        let most = length.saturating_sub(1) / block_tokens.max(1);
        blocks.min(most) * block_tokens
    }
}

fn length(prompt: &[u32]) -> u32 {
    u32::try_from(prompt.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> BlockKeys {
        let prompts = [(0..40).collect(), (0..16).collect(), (0..5).collect()];
        BlockKeys::new(&prompts, Root::default(), &[16, 8])
    }

    #[test]
    fn each_prompt_has_a_chain_in_every_block_size() {
        let keys = keys();
        let lengths = |size| keys.chains(size).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(lengths(16), [2, 1, 0]);
        assert_eq!(lengths(8), [5, 2, 0]);
        assert_eq!(lengths(32), Vec::<usize>::new());
        assert_eq!((keys.tokens(), keys.blocks()), (61, 3));
        let chains: Vec<_> = keys.chains(16).collect();
        assert_eq!(chains[0][0], chains[1][0], "the same first block");
    }

    #[test]
    fn the_last_token_is_always_computed() {
        let keys = keys();
        assert_eq!(keys.reusable_tokens(0, 2, 16), 32);
        assert_eq!(keys.reusable_tokens(0, 1, 16), 16);
        assert_eq!(
            keys.reusable_tokens(0, 5, 8),
            32,
            "39 tokens are four blocks of 8"
        );
        assert_eq!(keys.reusable_tokens(1, 1, 16), 0, "15 tokens are no block of 16");
        assert_eq!(keys.reusable_tokens(2, 0, 16), 0);
    }
}
