//! Block hashes and the lock-free prefix index.

/// Names one endpoint incarnation in the prefix index and in scheduling; `0..MAX_ENDPOINTS`, reused after release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u16);

/// How many endpoints the index can tell apart at a time.
pub const MAX_ENDPOINTS: usize = 1024;

/// Chained hash of one block of prompt content together with everything before it.
pub type BlockHash = u64;
