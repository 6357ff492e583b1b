//! Our own chained block hash over token ids.
//!
//! `h(0) = root(LoRA, salt)`, `h(i) = xxh3(tokens of block i, seed h(i-1))`. The gateway computes it for a
//! prompt, [`ownership`](super::ownership) for the blocks of an event; the engine's own hashes, which may be
//! keyed by a random seed, are only names. Blocks of one LoRA adapter or cache salt never equal others'.

use crate::prefix::BlockHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

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
    /// The hash that the first block is chained to.
    pub fn hash(&self) -> BlockHash {
        const SEED: u64 = u64::from_be_bytes(*b"kv-root\0");
        let lora = match self.lora {
            Lora::None => SEED,
            Lora::Name(name) => xxh3_64_with_seed(name.as_bytes(), SEED ^ 1),
            Lora::Id(id) => xxh3_64_with_seed(&id.to_le_bytes(), SEED ^ 2),
        };
        self.cache_salt
            .map_or(lora, |salt| xxh3_64_with_seed(salt.as_bytes(), lora ^ 3))
    }
}

/// The hash of the block `tokens` after the block `parent`.
pub fn next(parent: BlockHash, tokens: &[u32]) -> BlockHash {
    const AT_ONCE: usize = 256;
    let mut bytes = [0; 4 * AT_ONCE];
    tokens.chunks(AT_ONCE).fold(parent, |hash, tokens| {
        let bytes = &mut bytes[..4 * tokens.len()];
        for (to, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            to.copy_from_slice(&token.to_le_bytes());
        }
        xxh3_64_with_seed(bytes, hash)
    })
}

/// [`next`] for a block whose content is more than its tokens: images, prompt embeddings.
pub(super) fn next_with_keys<'k>(
    parent: BlockHash,
    tokens: &[u32],
    keys: impl Iterator<Item = &'k [u8]>,
) -> BlockHash {
    keys.fold(next(parent, tokens), |hash, key| xxh3_64_with_seed(key, !hash))
}

/// The hashes of a prompt's whole blocks, in order; the incomplete one at the end has none.
pub fn of_prompt(root: Root<'_>, tokens: &[u32], block_size: u32) -> impl Iterator<Item = BlockHash> {
    tokens
        .chunks_exact((block_size as usize).max(1))
        .scan(root.hash(), |hash, block| {
            *hash = next(*hash, block);
            Some(*hash)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let distinct: std::collections::HashSet<_> = roots.iter().map(Root::hash).collect();
        assert_eq!(distinct.len(), roots.len());
    }

    #[test]
    fn blocks_longer_than_the_buffer() {
        let tokens: Vec<u32> = (0..1024).collect();
        let mut last = tokens.clone();
        last[1023] = 0;
        assert_ne!(next(1, &tokens), next(1, &last));
        assert_ne!(next(1, &tokens), next(2, &tokens));
    }
}
