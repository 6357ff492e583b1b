//! The physical KV blocks of one engine: reference counts, the LRU free list, and the map from block
//! hash to block, with vLLM's rules (`vllm/v1/core/block_pool.py`).

use crate::prefix::BlockHash;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Index of a physical block.
pub(super) type BlockId = u32;

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Block {
    refs: u32,
    /// Set while the block is in the hash map, whether or not anybody references it.
    hash: Option<BlockHash>,
    /// Neighbours in the free list; meaningful only while `refs == 0`.
    prev: u32,
    next: u32,
    /// The physical copy of the same content that was stored after this one. vLLM keeps duplicates, and so must
    /// we: each copy is stored and removed by an event of its own.
    next_copy: u32,
}

/// The physical copies of one content, from the one stored first to the one stored last.
#[derive(Clone, Copy, Debug)]
struct Copies {
    first: BlockId,
    last: BlockId,
}

/// All blocks of one engine. A block with no references stays in the hash map, and so can be hit, until
/// [`BlockPool::allocate`] takes it from the head of the free list.
#[derive(Clone, Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    by_hash: HashMap<BlockHash, Copies, BuildHasherDefault<MixHasher>>,
    free_head: u32,
    free_tail: u32,
    free_len: u32,
}

impl BlockPool {
    /// A pool of `count` empty blocks, all free, in index order.
    pub(super) fn new(count: u32) -> Self {
        let blocks = (0..count)
            .map(|i| Block {
                refs: 0,
                hash: None,
                prev: if i == 0 { NONE } else { i - 1 },
                next: if i + 1 == count { NONE } else { i + 1 },
                next_copy: NONE,
            })
            .collect();
        Self {
            blocks,
            by_hash: HashMap::default(),
            free_head: if count == 0 { NONE } else { 0 },
            free_tail: count.checked_sub(1).unwrap_or(NONE),
            free_len: count,
        }
    }

    /// Blocks in the pool.
    pub(super) fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that nobody references; their content may still be cached.
    pub(super) fn free(&self) -> u32 {
        self.free_len
    }

    /// The oldest copy of the content `hash`, if it is cached.
    pub(super) fn lookup(&self, hash: BlockHash) -> Option<BlockId> {
        self.by_hash.get(&hash).map(|copies| copies.first)
    }

    /// Whether `id` has no references and would have to leave the free list to be used.
    pub(super) fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id as usize].refs == 0
    }

    /// Takes one more reference to a cached block.
    pub(super) fn acquire(&mut self, id: BlockId) {
        if self.blocks[id as usize].refs == 0 {
            self.unlink(id);
        }
        self.blocks[id as usize].refs += 1;
    }

    /// Takes the least recently freed block with one reference, and says which content it lost.
    /// `None` when no block is free.
    pub(super) fn allocate(&mut self) -> Option<(BlockId, Option<BlockHash>)> {
        let id = self.free_head;
        if id == NONE {
            return None;
        }
        self.unlink(id);
        let evicted = self.blocks[id as usize].hash.take();
        if let Some(hash) = evicted {
            self.forget_copy(hash, id);
        }
        self.blocks[id as usize].refs = 1;
        Some((id, evicted))
    }

    /// Makes the content of a referenced block findable under `hash`.
    pub(super) fn register(&mut self, id: BlockId, hash: BlockHash) {
        debug_assert!(self.blocks[id as usize].hash.is_none());
        self.blocks[id as usize].hash = Some(hash);
        self.blocks[id as usize].next_copy = NONE;
        let copies = self.by_hash.entry(hash).or_insert(Copies { first: id, last: id });
        let before = std::mem::replace(&mut copies.last, id);
        if before != id {
            self.blocks[before as usize].next_copy = id;
        }
    }

    /// Gives a reference back; the last one puts the block at the tail of the free list.
    pub(super) fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        block.refs -= 1;
        if block.refs > 0 {
            return;
        }
        block.prev = self.free_tail;
        block.next = NONE;
        match self.free_tail {
            NONE => self.free_head = id,
            tail => self.blocks[tail as usize].next = id,
        }
        self.free_tail = id;
        self.free_len += 1;
    }

    /// Forgets all cached content. As in vLLM this happens only when no block is referenced; otherwise
    /// nothing changes and the answer is `false`.
    pub(super) fn reset(&mut self) -> bool {
        if self.free_len != self.total() {
            return false;
        }
        self.by_hash.clear();
        for block in &mut self.blocks {
            block.hash = None;
            block.next_copy = NONE;
        }
        true
    }

    fn unlink(&mut self, id: BlockId) {
        let Block { prev, next, .. } = self.blocks[id as usize];
        match prev {
            NONE => self.free_head = next,
            p => self.blocks[p as usize].next = next,
        }
        match next {
            NONE => self.free_tail = prev,
            n => self.blocks[n as usize].prev = prev,
        }
        self.free_len -= 1;
    }

    /// Takes `id` out of the chain of copies of `hash`.
    fn forget_copy(&mut self, hash: BlockHash, id: BlockId) {
        let after = std::mem::replace(&mut self.blocks[id as usize].next_copy, NONE);
        let Some(copies) = self.by_hash.get_mut(&hash) else {
            return;
        };
        if copies.first == id {
            match after {
                NONE => drop(self.by_hash.remove(&hash)),
                next => copies.first = next,
            }
            return;
        }
        let mut before = copies.first;
        while self.blocks[before as usize].next_copy != id {
            before = self.blocks[before as usize].next_copy;
        }
        self.blocks[before as usize].next_copy = after;
        if copies.last == id {
            copies.last = before;
        }
    }

    /// Checks the pool against the block tables of all running requests.
    pub(super) fn check<'a>(&self, tables: impl Iterator<Item = &'a [BlockId]>) -> Result<(), String> {
        let mut refs = vec![0u32; self.blocks.len()];
        tables.flatten().for_each(|&id| refs[id as usize] += 1);
        for (id, block) in self.blocks.iter().enumerate() {
            if block.refs != refs[id] {
                return Err(format!(
                    "block {id}: {} references counted, {} held",
                    block.refs, refs[id]
                ));
            }
        }
        self.check_free_list()?;
        self.check_hashes()
    }

    fn check_free_list(&self) -> Result<(), String> {
        let (mut at, mut before, mut seen) = (self.free_head, NONE, 0);
        while at != NONE {
            let block = &self.blocks[at as usize];
            if block.refs != 0 || block.prev != before || seen > self.total() {
                return Err(format!("free list is broken at block {at}"));
            }
            (before, at, seen) = (at, block.next, seen + 1);
        }
        let unreferenced = self.blocks.iter().filter(|b| b.refs == 0).count() as u32;
        if before != self.free_tail || seen != self.free_len || seen != unreferenced {
            return Err(format!(
                "free list: {seen} linked, {} counted, {unreferenced} free",
                self.free_len
            ));
        }
        Ok(())
    }

    fn check_hashes(&self) -> Result<(), String> {
        let mut found = 0;
        for (&hash, copies) in &self.by_hash {
            let mut at = copies.first;
            while at != NONE {
                let last = self.blocks[at as usize].next_copy == NONE;
                if last != (at == copies.last) {
                    return Err(format!("block {at} is the last copy in one place only"));
                }
                if self.blocks[at as usize].hash != Some(hash) {
                    return Err(format!("block {at} is listed under a hash that it does not have"));
                }
                found += 1;
                at = self.blocks[at as usize].next_copy;
            }
        }
        let hashed = self.blocks.iter().filter(|b| b.hash.is_some()).count();
        if found == hashed {
            Ok(())
        } else {
            Err(format!("{hashed} blocks have a hash, {found} are listed"))
        }
    }
}

/// Block hashes are already uniform or are small trace ids; one multiplication spreads either.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(self.0 ^ u64::from(b)));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
