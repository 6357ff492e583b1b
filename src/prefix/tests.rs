mod model;
mod random;

use super::BlockHash;
use super::budget::Budget;
use super::index::PrefixIndex;

/// A table of so few lines that probes are long; rings as they like.
fn crowded(lines: usize) -> PrefixIndex {
    PrefixIndex::with_budget(Budget {
        lines,
        ring_bytes: 1 << 30,
    })
}

/// A chain of its own per `name`.
fn chain(name: u64, len: usize) -> Vec<BlockHash> {
    let next = |&parent: &u64| Some(super::block_hash(parent, &name.to_le_bytes()));
    std::iter::successors(Some(super::block_hash(name, b"")), next)
        .take(len)
        .collect()
}

fn matched(index: &PrefixIndex, chain: &[BlockHash], endpoints: usize) -> Vec<u32> {
    // What was there before must not matter.
    let mut out = vec![7; endpoints];
    index.matches(chain, &mut out);
    out
}
