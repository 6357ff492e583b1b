//! What a pool has whose engines publish KV events.

use super::snapshot::Snapshot;
use super::{BlockKeys, Pool};
use crate::kv_events::chain::{Lora, Root};
use parking_lot::RwLock;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Blocks that the index has room for beside each endpoint's own: those of prompts whose tokens are not known.
const SPARE_BLOCKS: usize = 4_096;
/// Block sizes that are told apart in one pool.
const MAX_BLOCK_SIZES: usize = 4;

/// Knowledge of a pool's models that block keys depend on.
#[derive(Debug, Default)]
pub struct Exact {
    /// LoRA adapters by the endpoint that serves them, in the pool's order.
    adapters: RwLock<Vec<Option<BTreeSet<Box<str>>>>>,
}

impl Exact {
    /// Takes the names of all adapters that the endpoint at `at` serves now.
    pub fn set_adapters(&self, at: usize, names: BTreeSet<Box<str>>) {
        let mut adapters = self.adapters.write();
        if adapters.len() <= at {
            adapters.resize(at + 1, None);
        }
        adapters[at] = Some(names);
    }

    /// The adapters that the endpoint at `at` serves; `None` until it has told.
    pub fn adapters(&self, at: usize) -> Option<Vec<Box<str>>> {
        let adapters = self.adapters.read();
        let names = adapters.get(at)?.as_ref()?;
        Some(names.iter().cloned().collect())
    }

    /// What the blocks of a request for `model` are chained to.
    fn root<'a>(&self, model: &'a str, cache_salt: Option<&'a str>) -> Root<'a> {
        let is_adapter = self
            .adapters
            .read()
            .iter()
            .flatten()
            .any(|names| names.contains(model));
        Root {
            lora: if is_adapter { Lora::Name(model) } else { Lora::None },
            cache_salt,
        }
    }
}

impl Pool {
    /// The block keys of prompts with these token ids, for a pool whose engines tell of their blocks.
    pub fn block_keys(
        &self,
        prompts: &[Vec<u32>],
        model: &str,
        cache_salt: Option<&str>,
    ) -> Option<BlockKeys> {
        let exact = self.exact.as_ref()?;
        let sizes = self.block_sizes(&self.snapshot.load());
        Some(BlockKeys::new(prompts, exact.root(model, cache_salt), &sizes))
    }

    /// Blocks that the index must have room for when an engine holds `capacity_tokens` and is known to hold
    /// `owned_blocks` (more, when other media are counted).
    pub fn exact_capacity(capacity_tokens: u64, block_tokens: u32, owned_blocks: usize) -> usize {
        let of_engine =
            usize::try_from(capacity_tokens / u64::from(block_tokens.max(1))).unwrap_or(usize::MAX);
        // Half as much again: blocks of requests on their way, and of prompts without tokens.
        let most = of_engine.max(owned_blocks);
        most.saturating_add(most / 2).saturating_add(SPARE_BLOCKS)
    }

    fn block_sizes(&self, snapshot: &Snapshot) -> SmallVec<[u32; MAX_BLOCK_SIZES]> {
        let mut sizes = SmallVec::new();
        for entry in &snapshot.entries {
            let size = self.block_tokens(entry);
            if !sizes.contains(&size) && sizes.len() < MAX_BLOCK_SIZES {
                sizes.push(size);
            }
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_adapters_have_roots_of_their_own() {
        let exact = Exact::default();
        exact.set_adapters(1, BTreeSet::from(["sql".into()]));
        assert_eq!(exact.root("sql", None).lora, Lora::Name("sql"));
        assert_eq!(exact.root("base", None), Root::default());
        exact.set_adapters(1, BTreeSet::new());
        assert_eq!(exact.root("sql", None).lora, Lora::None);
    }

    #[test]
    fn there_is_room_for_every_block_of_the_engine() {
        assert_eq!(Pool::exact_capacity(16_000, 16, 0), 1_500 + SPARE_BLOCKS);
        assert_eq!(Pool::exact_capacity(16_000, 16, 4_000), 6_000 + SPARE_BLOCKS);
        assert!(Pool::exact_capacity(u64::MAX, 0, 0) > 1 << 40);
    }
}
