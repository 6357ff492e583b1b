mod bound;
mod hashing;
mod model;
mod parallel;
mod provisional;
mod random;

use super::index::PrefixIndex;
use super::{BlockHash, MAX_ENDPOINTS};

/// A chain of its own per `name`.
fn chain(name: u64, len: usize) -> Vec<BlockHash> {
    let next = |&parent: &u64| Some(super::block_hash(parent, &name.to_le_bytes()));
    std::iter::successors(Some(super::block_hash(name, b"")), next)
        .take(len)
        .collect()
}

/// What the first `endpoints` ids match, by both ways of looking up.
fn matched(index: &PrefixIndex, chain: &[BlockHash], endpoints: usize) -> Vec<u32> {
    // What was there before must not matter.
    let mut few = vec![7; endpoints];
    let mut many = vec![7; MAX_ENDPOINTS];
    let longest = index.matches(chain, &mut many);
    assert_eq!(many.iter().max(), Some(&longest));
    index.matches(chain, &mut few);
    assert_eq!(few, many[..endpoints]);
    few
}
