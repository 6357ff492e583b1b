//! The prompts: chains of blocks, of which the first half is one of 64 that many share.

use crate::prefix::block_hash;
use std::collections::HashSet;

/// Endpoints that the chains are spread over.
pub const OWNERS: u64 = 8;
/// Different first halves.
const GROUPS: u64 = 64;

#[derive(Clone, Copy)]
pub struct Shape {
    pub chains: usize,
    pub blocks: usize,
}

/// One prompt on one endpoint.
pub struct Chain {
    pub owner: u64,
    /// What each block holds, hashed on its own: each index makes its own keys of them.
    pub blocks: Vec<u64>,
}

impl Shape {
    /// Chains named from `first` on; those of other names share no more than their first halves.
    pub fn make(self, first: u64) -> Vec<Chain> {
        let content = |name: u64, at: usize| block_hash(name, &at.to_le_bytes());
        let chain = |name: u64| {
            let shared = (0..self.blocks / 2).map(|at| content(name % GROUPS, at));
            let own = (self.blocks / 2..self.blocks).map(|at| content(GROUPS + name, at));
            Chain {
                owner: name / GROUPS % OWNERS,
                blocks: shared.chain(own).collect(),
            }
        };
        (first..first + self.chains as u64).map(chain).collect()
    }
}

/// How many blocks the owners hold once all chains are stored; one held by several counts for each.
pub fn block_owners(chains: &[Chain]) -> usize {
    let mut held = HashSet::new();
    for chain in chains {
        let mut parent = chain.owner;
        for block in &chain.blocks {
            parent = block_hash(parent, &block.to_le_bytes());
            held.insert(parent);
        }
    }
    held.len()
}
