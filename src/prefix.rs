//! Block hashes and the lock-free prefix index.
//!
//! [`ChainHasher`] turns a prompt into a chain of [`BlockHash`]es, [`PrefixIndex`] knows which endpoint holds which
//! of them. `table` is the shared hash table of `line`s, `record` a place in it, `ring` the recency of one endpoint's
//! blocks, `owner` what is done under one endpoint's lock, `budget` the arithmetic of the memory bound.

mod bits;
mod budget;
mod hash;
mod index;
mod line;
mod owner;
mod record;
mod ring;
mod table;
mod tags;
#[cfg(test)]
mod tests;

/// The atomics of `table` and `line`; their loom model puts loom's here.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

pub use hash::{Chain, ChainHasher, Chunking, PromptKeys, block_hash, chain_root, seed};
pub use index::{PrefixIndex, Provisional};
pub use owner::LastUse;

/// Names one endpoint incarnation in the prefix index and in scheduling; `0..MAX_ENDPOINTS`, reused after release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u16);

/// How many endpoints the index can tell apart at a time.
pub const MAX_ENDPOINTS: usize = 1024;

/// Chained hash of one block of prompt content together with everything before it.
pub type BlockHash = u64;
