//! One face for three indexes. Hashes are made before the clock runs: each index is given what its own router gives it.

use crate::chains::{Chain, OWNERS};
use crate::prefix::{BlockHash, EndpointId, PrefixIndex, block_hash};
use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{KvIndexerInterface as _, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, RouterEvent, compute_seq_hash_for_block,
};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, StoredBlock, request_prefix_hashes};

pub trait Index: Sized + Sync {
    const NAME: &'static str;
    /// A chain as it is stored.
    type Prepared;
    /// A chain as it is looked up.
    type Wanted: Sync;
    type Writer<'a>: Writer
    where
        Self: 'a;

    /// An index that will hold up to `blocks` block-owners.
    fn new(blocks: usize) -> Self;
    fn prepare(chain: &Chain) -> Self::Prepared;
    fn wanted(chain: &Chain) -> Self::Wanted;
    fn store(&mut self, chain: Self::Prepared);
    /// Returns when all that was stored can be found.
    fn drain(&self) {}
    /// The longest match, in blocks.
    fn find(&self, wanted: &Self::Wanted) -> usize;
    /// What a second thread writes with.
    fn writer(&self) -> Self::Writer<'_>;
}

pub trait Writer {
    fn store(&mut self, chain: &Chain);
}

pub struct Homing {
    index: PrefixIndex,
    ids: Vec<EndpointId>,
}

fn chained(chain: &Chain) -> Vec<BlockHash> {
    let mut parent = 1;
    let link = |&block: &u64| {
        parent = block_hash(parent, &block.to_le_bytes());
        parent
    };
    chain.blocks.iter().map(link).collect()
}

impl Index for Homing {
    const NAME: &'static str = "Homing";
    type Prepared = (usize, Vec<BlockHash>);
    type Wanted = Vec<BlockHash>;
    type Writer<'a> = &'a Self;

    fn new(blocks: usize) -> Self {
        // No more than it takes: the table as full as it gets, and room for every endpoint's ring.
        let share = blocks / OWNERS as usize + blocks / 100;
        let index = PrefixIndex::new(share * OWNERS as usize * 20 + (1 << 20));
        let ids = (0..OWNERS).filter_map(|_| index.register(share)).collect();
        Self { index, ids }
    }

    fn prepare(chain: &Chain) -> Self::Prepared {
        (chain.owner as usize, chained(chain))
    }

    fn wanted(chain: &Chain) -> Self::Wanted {
        chained(chain)
    }

    fn store(&mut self, (owner, chain): Self::Prepared) {
        drop(self.index.store(self.ids[owner], &chain));
    }

    fn find(&self, wanted: &Self::Wanted) -> usize {
        let mut matches = [0; OWNERS as usize];
        self.index.matches(wanted, &mut matches) as usize
    }

    fn writer(&self) -> Self::Writer<'_> {
        self
    }
}

impl Writer for &Homing {
    fn store(&mut self, chain: &Chain) {
        drop(self.index.store(self.ids[chain.owner as usize], &chained(chain)));
    }
}

pub struct KvIndex {
    index: ChainIndex,
    maps: Vec<(u32, ChainBlockMap)>,
}

fn contents(chain: &Chain) -> Vec<ContentHash> {
    chain.blocks.iter().map(|&block| ContentHash(block)).collect()
}

fn stored_blocks(chain: &Chain) -> Vec<StoredBlock> {
    let contents = contents(chain);
    let sequence = request_prefix_hashes(&contents);
    let both = contents.iter().zip(sequence);
    both.map(|(&content_hash, seq_hash)| StoredBlock {
        seq_hash,
        content_hash,
    })
    .collect()
}

fn workers(index: &ChainIndex, prefix: &str) -> Vec<(u32, ChainBlockMap)> {
    let worker = |number| {
        index
            .intern_worker(&format!("{prefix}-{number}"))
            .expect("few workers")
    };
    (0..OWNERS)
        .map(|number| (worker(number), ChainBlockMap::default()))
        .collect()
}

impl Index for KvIndex {
    const NAME: &'static str = "kv-index 2.0.0, ChainIndex";
    type Prepared = (usize, Vec<StoredBlock>);
    type Wanted = Vec<ContentHash>;
    type Writer<'a> = KvIndexWriter<'a>;

    fn new(_blocks: usize) -> Self {
        let index = ChainIndex::new();
        let maps = workers(&index, "pod");
        Self { index, maps }
    }

    fn prepare(chain: &Chain) -> Self::Prepared {
        (chain.owner as usize, stored_blocks(chain))
    }

    fn wanted(chain: &Chain) -> Self::Wanted {
        contents(chain)
    }

    fn store(&mut self, (owner, blocks): Self::Prepared) {
        let (worker, map) = &mut self.maps[owner];
        self.index
            .apply_stored(*worker, &blocks, None, map)
            .expect("a chain from its root");
    }

    fn find(&self, wanted: &Self::Wanted) -> usize {
        self.index
            .find_matches(wanted, false)
            .scores
            .values()
            .max()
            .map_or(0, |&blocks| blocks as usize)
    }

    fn writer(&self) -> Self::Writer<'_> {
        KvIndexWriter {
            index: &self.index,
            maps: workers(&self.index, "other"),
        }
    }
}

/// Writes for workers of its own: a worker's map has one writer.
pub struct KvIndexWriter<'a> {
    index: &'a ChainIndex,
    maps: Vec<(u32, ChainBlockMap)>,
}

impl Writer for KvIndexWriter<'_> {
    fn store(&mut self, chain: &Chain) {
        let (worker, map) = &mut self.maps[chain.owner as usize];
        let blocks = stored_blocks(chain);
        self.index
            .apply_stored(*worker, &blocks, None, map)
            .expect("a chain from its root");
    }
}

pub struct Dynamo {
    index: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    runtime: tokio::runtime::Runtime,
}

fn locals(chain: &Chain) -> Vec<LocalBlockHash> {
    chain.blocks.iter().map(|&block| LocalBlockHash(block)).collect()
}

fn stored_event(chain: &Chain) -> RouterEvent {
    let locals = locals(chain);
    let sequence = compute_seq_hash_for_block(&locals);
    let block = |(tokens_hash, hash)| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(hash),
        tokens_hash,
        mm_extra_info: None,
    };
    let blocks = locals.into_iter().zip(sequence).map(block).collect();
    let data = KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash: None,
        start_position: None,
        blocks,
    });
    RouterEvent::new(
        chain.owner,
        KvCacheEvent {
            event_id: 0,
            dp_rank: 0,
            data,
        },
    )
}

impl Index for Dynamo {
    const NAME: &'static str = "dynamo-kv-router 1.6.1, compressed tree";
    type Prepared = RouterEvent;
    type Wanted = Vec<LocalBlockHash>;
    type Writer<'a> = &'a Self;

    fn new(_blocks: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        // One thread applies events, as one does for the others.
        Self {
            index: ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, 32),
            runtime,
        }
    }

    fn prepare(chain: &Chain) -> Self::Prepared {
        stored_event(chain)
    }

    fn wanted(chain: &Chain) -> Self::Wanted {
        locals(chain)
    }

    fn store(&mut self, event: Self::Prepared) {
        self.index.enqueue_event(event).expect("a running indexer");
    }

    fn drain(&self) {
        self.runtime
            .block_on(self.index.flush_and_wait())
            .expect("a running indexer");
    }

    fn find(&self, wanted: &Self::Wanted) -> usize {
        let scores = self.index.backend().find_matches_impl(wanted, false).scores;
        scores.values().max().map_or(0, |&blocks| blocks as usize)
    }

    fn writer(&self) -> Self::Writer<'_> {
        self
    }
}

impl Writer for &Dynamo {
    fn store(&mut self, chain: &Chain) {
        self.index
            .enqueue_event(stored_event(chain))
            .expect("a running indexer");
    }
}

impl Drop for Dynamo {
    fn drop(&mut self) {
        self.index.shutdown();
    }
}
