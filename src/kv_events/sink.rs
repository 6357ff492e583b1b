//! From one endpoint's events to the prefix index.

use super::ownership::BlockSink;
use crate::prefix::{BlockHash, EndpointId, PrefixIndex};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Writes an endpoint's blocks to the index, those of one message together: each write takes a lock.
#[derive(Debug)]
pub struct IndexSink {
    index: Arc<PrefixIndex>,
    endpoint: EndpointId,
    inserts: Vec<BlockHash>,
    removes: Vec<BlockHash>,
}

impl IndexSink {
    /// The endpoint must have been registered with room for every block that its engine can hold; otherwise
    /// the index evicts by itself.
    pub fn new(index: Arc<PrefixIndex>, endpoint: EndpointId) -> Self {
        Self {
            index,
            endpoint,
            inserts: Vec::new(),
            removes: Vec::new(),
        }
    }
}

impl BlockSink for IndexSink {
    fn insert(&mut self, block: BlockHash) {
        if !self.removes.is_empty() {
            self.flush();
        }
        self.inserts.push(block);
    }

    fn remove(&mut self, block: BlockHash) {
        if !self.inserts.is_empty() {
            self.flush();
        }
        self.removes.push(block);
    }

    fn clear(&mut self) {
        self.inserts.clear();
        self.removes.clear();
        self.index.clear(self.endpoint);
    }

    fn flush(&mut self) {
        if !self.inserts.is_empty() {
            self.index.insert(self.endpoint, &self.inserts);
            self.inserts.clear();
        }
        if !self.removes.is_empty() {
            self.index.remove(self.endpoint, &self.removes);
            self.removes.clear();
        }
    }
}

/// Most data-parallel ranks of one endpoint that are told apart.
pub const MAX_RANKS: u32 = 64;

/// The ranks of one endpoint, which have caches of their own behind one address: a block is the endpoint's
/// as long as any rank holds it.
#[derive(Clone, Debug)]
pub struct RankSink<S> {
    rank: u32,
    shared: Arc<Mutex<Ranks<S>>>,
}

#[derive(Debug)]
struct Ranks<S> {
    sink: S,
    /// Bit per rank.
    holders: HashMap<BlockHash, u64>,
}

impl<S: BlockSink> RankSink<S> {
    /// One sink for each of `ranks` ranks (at most [`MAX_RANKS`]), all feeding `sink`.
    pub fn split(sink: S, ranks: u32) -> Vec<Self> {
        let shared = Arc::new(Mutex::new(Ranks {
            sink,
            holders: HashMap::new(),
        }));
        (0..ranks.min(MAX_RANKS))
            .map(|rank| Self {
                rank,
                shared: Arc::clone(&shared),
            })
            .collect()
    }

    fn bit(&self) -> u64 {
        1 << self.rank
    }
}

impl<S: BlockSink> BlockSink for RankSink<S> {
    fn insert(&mut self, block: BlockHash) {
        let shared = &mut *self.shared.lock();
        let holders = shared.holders.entry(block).or_insert(0);
        if *holders == 0 {
            shared.sink.insert(block);
        }
        *holders |= self.bit();
    }

    fn remove(&mut self, block: BlockHash) {
        let shared = &mut *self.shared.lock();
        let Some(holders) = shared.holders.get_mut(&block) else {
            return;
        };
        *holders &= !self.bit();
        if *holders == 0 {
            shared.holders.remove(&block);
            shared.sink.remove(block);
        }
    }

    fn clear(&mut self) {
        let bit = self.bit();
        let Ranks { sink, holders } = &mut *self.shared.lock();
        holders.retain(|block, ranks| {
            *ranks &= !bit;
            if *ranks == 0 {
                sink.remove(*block);
            }
            *ranks != 0
        });
    }

    fn flush(&mut self) {
        self.shared.lock().sink.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn writes_arrive_in_order() {
        let index = Arc::new(PrefixIndex::new(1 << 20));
        let endpoint = index.register(100).unwrap();
        let mut sink = IndexSink::new(Arc::clone(&index), endpoint);
        let held = |chain: &[BlockHash]| {
            let mut matches = [0; 1];
            index.matches(chain, &mut matches);
            matches[usize::from(endpoint.0)]
        };
        sink.insert(11);
        sink.insert(12);
        sink.remove(12);
        sink.insert(13);
        sink.flush();
        assert_eq!((held(&[11, 13]), held(&[12]), index.blocks(endpoint)), (2, 0, 2));
        sink.insert(14);
        sink.clear();
        sink.flush();
        assert_eq!(index.blocks(endpoint), 0);
    }

    #[test]
    fn a_block_is_held_as_long_as_any_rank_holds_it() {
        let mut ranks = RankSink::split(HashSet::new(), 2);
        let holds = |ranks: &[RankSink<HashSet<u64>>], block| ranks[0].shared.lock().sink.contains(&block);
        ranks[0].insert(1);
        ranks[1].insert(1);
        ranks[0].insert(2);
        ranks[1].insert(3);
        ranks[0].remove(1);
        assert!(holds(&ranks, 1));
        ranks[0].clear();
        assert!(holds(&ranks, 1) && !holds(&ranks, 2) && holds(&ranks, 3));
        ranks[1].remove(1);
        assert!(!holds(&ranks, 1));
    }
}
