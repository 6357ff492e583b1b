//! Our own chained block hash over token ids: [`crate::prefix`]'s, over the ids as 4 bytes each.
//!
//! The gateway computes it for a prompt, [`ownership`](super::ownership) for the blocks of an event; the engine's
//! own hashes, which may be keyed by a random seed, are only names. Blocks of one LoRA adapter or cache salt never
//! equal others'.

use crate::prefix::{self, BlockHash};
use smallvec::SmallVec;

/// Bytes of a token id in the hashed content, little-endian.
pub const TOKEN_BYTES: usize = 4;

/// What a prompt's first block is chained to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root<'a> {
    pub lora: Lora<'a>,
    /// The request's `cache_salt`.
    pub cache_salt: Option<&'a str>,
}

/// The adapter that computed a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lora<'a> {
    /// The base model.
    #[default]
    None,
    Name(&'a str),
    /// Engines up to 0.13 only number their adapters. Kept apart, but equal to no request's key.
    Id(u64),
}

impl Root<'_> {
    /// The seed for [`prefix::ChainHasher`], to cut a prompt's token bytes with `block_size * TOKEN_BYTES`.
    pub fn seed(&self) -> u64 {
        let salt = self.cache_salt.map(str::as_bytes);
        match self.lora {
            Lora::None => prefix::seed("", salt, "tokens"),
            Lora::Name(name) => prefix::seed(name, salt, "tokens of an adapter"),
            Lora::Id(id) => prefix::seed(&id.to_string(), salt, "tokens of an unnamed adapter"),
        }
    }

    /// The hash that the first block of `block_size` tokens is chained to.
    pub fn hash(&self, block_size: u32) -> BlockHash {
        prefix::chain_root(self.seed(), block_size as usize * TOKEN_BYTES)
    }
}

/// The hash of the block `tokens` after the block `parent`.
pub fn next(parent: BlockHash, tokens: &[u32]) -> BlockHash {
    let mut bytes: SmallVec<[u8; 1024]> = SmallVec::new();
    bytes.resize(tokens.len() * TOKEN_BYTES, 0);
    for (to, token) in bytes.chunks_exact_mut(TOKEN_BYTES).zip(tokens) {
        to.copy_from_slice(&token.to_le_bytes());
    }
    prefix::block_hash(parent, &bytes)
}

/// [`next`] for a block whose content is more than its tokens: images, prompt embeddings.
pub(super) fn next_with_keys<'k>(
    parent: BlockHash,
    tokens: &[u32],
    keys: impl Iterator<Item = &'k [u8]>,
) -> BlockHash {
    keys.fold(next(parent, tokens), |hash, key| prefix::block_hash(!hash, key))
}

/// The hashes of a prompt's whole blocks, in order; the incomplete one at the end has none.
pub fn of_prompt(root: Root<'_>, tokens: &[u32], block_size: u32) -> impl Iterator<Item = BlockHash> {
    tokens
        .chunks_exact((block_size as usize).max(1))
        .scan(root.hash(block_size), |hash, block| {
            *hash = next(*hash, block);
            Some(*hash)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::{ChainHasher, Chunking};

    #[test]
    fn a_block_depends_on_everything_before_it_and_on_nothing_after() {
        let tokens: Vec<u32> = (0..64).collect();
        let all: Vec<_> = of_prompt(Root::default(), &tokens, 16).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(
            of_prompt(Root::default(), &tokens[..47], 16).collect::<Vec<_>>(),
            all[..2]
        );
        for changed in 0..64 {
            let mut other = tokens.clone();
            other[changed] += 1000;
            let hashes: Vec<_> = of_prompt(Root::default(), &other, 16).collect();
            for (block, (a, b)) in all.iter().zip(&hashes).enumerate() {
                assert_eq!(a == b, block < changed / 16, "token {changed}, block {block}");
            }
        }
    }

    #[test]
    fn roots_keep_adapters_and_salts_apart() {
        let roots = [
            Root::default(),
            Root {
                lora: Lora::Name("a"),
                cache_salt: None,
            },
            Root {
                lora: Lora::None,
                cache_salt: Some("a"),
            },
            Root {
                lora: Lora::Name("a"),
                cache_salt: Some("a"),
            },
            Root {
                lora: Lora::Name("b"),
                cache_salt: None,
            },
            Root {
                lora: Lora::Id(1),
                cache_salt: None,
            },
        ];
        let distinct: std::collections::HashSet<_> = roots.iter().map(|root| root.hash(16)).collect();
        assert_eq!(distinct.len(), roots.len());
    }

    #[test]
    fn is_the_chain_that_a_prompts_bytes_give() {
        let tokens: Vec<u32> = (0..1000).map(|at| at * 77).collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let root = Root {
            lora: Lora::Name("a"),
            cache_salt: Some("s"),
        };
        for block_size in [1, 16, 300] {
            let chunking = Chunking {
                chunk_bytes: block_size as usize * TOKEN_BYTES,
                max_blocks: 1000,
            };
            let mut hasher = ChainHasher::new(root.seed(), chunking);
            hasher.write(&bytes);
            let keys = hasher.finish();
            let blocks: Vec<_> = of_prompt(root, &tokens, block_size).collect();
            assert_eq!(keys.full_blocks(&keys.chains()[0]), blocks);
        }
    }
}
