//! Which blocks one engine holds, as told by its events.
//!
//! A pure state machine: events in, index operations out. It maps the engine's block hashes to our chain
//! hashes and counts physical copies, because an engine announces a duplicate block twice and later removes
//! it twice.
//!
//! Three kinds of knowledge have different lives. *Ownership* (copies > 0) ends with a removal, a reset or a
//! gap in the events. The *name* of a block, its engine hash with our hash, stays true for the life of the
//! engine process and is kept longer, within a bound: after a gap the chain goes on from it. A block whose
//! parent has no name yet is an *orphan* and waits, within a bound.

mod keys;
mod orphans;

use super::chain::{self, Lora};
use super::codec::{Attention, EngineHash, Event, Medium, Removed, Stored};
use crate::prefix::BlockHash;
use keys::BlockKeys;
use orphans::{Orphan, Orphans};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Where ownership goes: the prefix index, for one endpoint.
pub trait BlockSink {
    /// The endpoint now holds the block. Called again without a removal in between only when the engine keeps
    /// apart what we cannot: up to 0.16 its events do not say that a block is salted.
    fn insert(&mut self, block: BlockHash);
    /// The endpoint's last copy of the block is gone.
    fn remove(&mut self, block: BlockHash);
    /// Everything inserted before is void.
    fn clear(&mut self);
    /// A message is applied: what was held back to be written together must be written now.
    fn flush(&mut self) {}
}

/// Bounds on what an engine's events can make the gateway remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Blocks owned at a time. Names of at most as many blocks more are kept, at about 50 bytes each.
    pub blocks: usize,
    /// Tokens in orphans, four bytes each.
    pub orphan_tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            blocks: 1 << 20,
            orphan_tokens: 1 << 20,
        }
    }
}

/// What became of the events, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub stored_blocks: u64,
    pub removed_blocks: u64,
    pub clears: u64,
    /// Blocks that had to wait for their parent, and those of them that were linked or given up.
    pub orphaned_blocks: u64,
    pub linked_blocks: u64,
    pub dropped_orphan_blocks: u64,
    /// Removals of blocks that were not known to be held.
    pub unknown_removals: u64,
    /// Blocks of sliding-window and similar groups, or on media that are not credited.
    pub uncounted_blocks: u64,
    /// Blocks over [`Limits::blocks`].
    pub over_limit_blocks: u64,
    /// Events whose fields contradict each other.
    pub malformed_events: u64,
}

/// The state for one engine process (one data-parallel rank).
#[derive(Debug)]
pub struct Ownership {
    limits: Limits,
    names: Names,
    /// Blocks with a copy.
    owned: usize,
    /// Names without a copy, oldest first; entries may be outdated.
    unowned: VecDeque<EngineHash>,
    orphans: Orphans,
    /// Bit per `group_idx` whose blocks do not count.
    partial_groups: u64,
    block_size: Option<u32>,
    counts: Counts,
}

type Names = HashMap<EngineHash, Block, BuildHasherDefault<Spread>>;

#[derive(Clone, Copy, Debug)]
struct Block {
    own: BlockHash,
    /// The block itself when it starts a prompt.
    parent: EngineHash,
    copies: [u16; 2],
}

impl Block {
    fn owned(&self) -> bool {
        self.copies != [0, 0]
    }
}

/// Engine hashes are uniform already; this spreads those of an engine that made them up.
#[derive(Clone, Copy, Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * u128::from(0xd6e8_feb8_6659_fd93_u64);
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}

impl Ownership {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            names: Names::default(),
            owned: 0,
            unowned: VecDeque::new(),
            orphans: Orphans::new(limits.orphan_tokens),
            partial_groups: 0,
            block_size: None,
            counts: Counts::default(),
        }
    }

    /// How many blocks the engine is known to hold.
    pub fn owned_blocks(&self) -> usize {
        self.owned
    }

    /// Tokens per block of the newest counted event.
    pub fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Applies one event.
    pub fn apply(&mut self, event: &Event<'_>, sink: &mut impl BlockSink) {
        match event {
            Event::Stored(stored) => self.stored(stored, sink),
            Event::Removed(removed) => self.removed(removed, sink),
            Event::Cleared => self.forget(sink),
        }
    }

    /// The engine's cache is empty, or another process took its place: nothing known holds any longer.
    pub fn forget(&mut self, sink: &mut impl BlockSink) {
        self.counts.clears += 1;
        self.names.clear();
        self.unowned.clear();
        self.orphans.clear();
        self.owned = 0;
        sink.clear();
    }

    /// Events were lost: blocks may be gone without our knowing. Their names stay, so that blocks stored
    /// from now on are understood; a stored block also proves that its ancestors are still there.
    pub fn disown(&mut self, sink: &mut impl BlockSink) {
        self.orphans.clear();
        for (name, block) in self.names.iter_mut().filter(|(_, block)| block.owned()) {
            block.copies = [0, 0];
            self.unowned.push_back(*name);
        }
        self.owned = 0;
        self.forget_old_names();
        sink.clear();
    }

    fn stored(&mut self, event: &Stored<'_>, sink: &mut impl BlockSink) {
        if event.attention == Attention::Partial {
            self.partial_groups |= group_bit(event.group);
        }
        let Some(tier) = tier(event.medium).filter(|_| self.partial_groups & group_bit(event.group) == 0)
        else {
            self.counts.uncounted_blocks += event.hashes.len() as u64;
            return;
        };
        if event.token_ids.is_empty() && event.block_size > 0 {
            return self.copied(event, tier, sink);
        }
        if !is_consistent(event) {
            self.counts.malformed_events += 1;
            return;
        }
        self.block_size = Some(event.block_size);
        let parent = match event.parent {
            None => keys::root_of(event).hash(event.block_size),
            Some(parent) => match self.parent(parent, sink) {
                Some(own) => own,
                None => return self.orphan(event, parent, tier),
            },
        };
        self.counts.stored_blocks += event.hashes.len() as u64;
        let copies = |_: usize| 1;
        self.chain(parent, event.parent, tier, &Blocks::of(event), copies, sink);
        if !self.orphans.is_empty() {
            self.link_orphans(event.hashes.to_vec(), sink);
        }
    }

    /// Offloading announces copies by hash alone; they are of blocks that were stored before.
    fn copied(&mut self, event: &Stored<'_>, tier: usize, sink: &mut impl BlockSink) {
        for hash in &event.hashes {
            match self.names.get(hash) {
                Some(block) => self.own(*hash, block.own, block.parent, tier, 1, sink),
                None => self.counts.uncounted_blocks += 1,
            }
        }
        self.counts.stored_blocks += event.hashes.len() as u64;
    }

    /// Our hash of a block that another was stored after. Its engine computed on top of it, so it and what
    /// is before it are held, whatever was lost before.
    fn parent(&mut self, parent: EngineHash, sink: &mut impl BlockSink) -> Option<BlockHash> {
        let own = self.names.get(&parent)?.own;
        let mut name = parent;
        while self.owned < self.limits.blocks
            && let Some(block) = self.names.get(&name).copied().filter(|block| !block.owned())
        {
            self.own(name, block.own, block.parent, GPU, 1, sink);
            if block.parent == name {
                break;
            }
            name = block.parent;
        }
        Some(own)
    }

    /// Names and owns consecutive blocks that follow `own`.
    fn chain(
        &mut self,
        mut own: BlockHash,
        parent: Option<EngineHash>,
        tier: usize,
        blocks: &Blocks<'_>,
        copies: impl Fn(usize) -> u16,
        sink: &mut impl BlockSink,
    ) {
        let mut parent = parent;
        let size = blocks.block_size as usize;
        for (index, (hash, tokens)) in blocks
            .hashes
            .iter()
            .zip(blocks.token_ids.chunks_exact(size))
            .enumerate()
        {
            own = match blocks.keys(index) {
                None => chain::next(own, tokens),
                Some(keys) => chain::next_with_keys(own, tokens, keys.content(blocks.lora, parent.is_none())),
            };
            self.own(*hash, own, parent.unwrap_or(*hash), tier, copies(index), sink);
            parent = Some(*hash);
        }
    }

    /// Adds copies of a block; none at all only gives it a name.
    fn own(
        &mut self,
        hash: EngineHash,
        own: BlockHash,
        parent: EngineHash,
        tier: usize,
        copies: u16,
        sink: &mut impl BlockSink,
    ) {
        if copies > 0 && self.owned >= self.limits.blocks && !self.names.get(&hash).is_some_and(Block::owned)
        {
            self.counts.over_limit_blocks += 1;
            return;
        }
        let mut is_new = false;
        let block = self.names.entry(hash).or_insert_with(|| {
            is_new = true;
            Block {
                own,
                parent,
                copies: [0, 0],
            }
        });
        let was_owned = block.owned();
        block.copies[tier] = block.copies[tier].saturating_add(copies);
        if block.owned() && !was_owned {
            self.owned += 1;
            sink.insert(block.own);
        } else if is_new && copies == 0 {
            self.unowned.push_back(hash);
            self.forget_old_names();
        }
    }

    fn removed(&mut self, event: &Removed, sink: &mut impl BlockSink) {
        let Some(tier) = tier(event.medium).filter(|_| self.partial_groups & group_bit(event.group) == 0)
        else {
            self.counts.uncounted_blocks += event.hashes.len() as u64;
            return;
        };
        self.counts.removed_blocks += event.hashes.len() as u64;
        for hash in &event.hashes {
            match self.names.get_mut(hash).filter(|block| block.copies[tier] > 0) {
                Some(block) => {
                    block.copies[tier] -= 1;
                    if !block.owned() {
                        sink.remove(block.own);
                        self.owned -= 1;
                        self.unowned.push_back(*hash);
                    }
                }
                None if self.orphans.remove_copy(*hash) => {}
                None => self.counts.unknown_removals += 1,
            }
        }
        self.forget_old_names();
    }

    fn forget_old_names(&mut self) {
        while self.unowned.len() > self.limits.blocks {
            let Some(oldest) = self.unowned.pop_front() else {
                return;
            };
            if self.names.get(&oldest).is_some_and(|block| !block.owned()) {
                self.names.remove(&oldest);
            }
        }
    }

    fn orphan(&mut self, event: &Stored<'_>, parent: EngineHash, tier: usize) {
        self.counts.orphaned_blocks += event.hashes.len() as u64;
        self.counts.dropped_orphan_blocks += self.orphans.insert(Orphan::new(event, parent, tier));
    }

    /// Takes in the orphans whose parents have just got a name, and those that wait for these in turn.
    fn link_orphans(&mut self, mut named: Vec<EngineHash>, sink: &mut impl BlockSink) {
        while let Some(parent) = named.pop() {
            let Some(own) = self.names.get(&parent).map(|block| block.own) else {
                continue;
            };
            for orphan in self.orphans.take_children(parent) {
                self.counts.linked_blocks += orphan.hashes.len() as u64;
                let (keys, blocks) = (orphan.keys(), orphan.blocks());
                let blocks = Blocks {
                    extra_keys: &keys,
                    ..blocks
                };
                self.chain(
                    own,
                    Some(parent),
                    orphan.tier,
                    &blocks,
                    |index| orphan.copies(index),
                    sink,
                );
                named.extend_from_slice(&orphan.hashes);
            }
        }
    }
}

/// Consecutive blocks, of an event or of an orphan.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    hashes: &'a [EngineHash],
    token_ids: &'a [u32],
    block_size: u32,
    lora: Lora<'a>,
    extra_keys: &'a [Option<&'a [u8]>],
}

impl<'a> Blocks<'a> {
    fn of(event: &'a Stored<'a>) -> Self {
        Self {
            hashes: &event.hashes,
            token_ids: &event.token_ids,
            block_size: event.block_size,
            lora: keys::lora_of(event),
            extra_keys: &event.extra_keys,
        }
    }

    fn keys(&self, index: usize) -> Option<BlockKeys<'a>> {
        self.extra_keys.get(index).copied().flatten().map(BlockKeys::new)
    }
}

const GPU: usize = 0;

/// Media whose blocks the engine reuses instead of computing them, each with its own count of copies.
fn tier(medium: Medium) -> Option<usize> {
    match medium {
        Medium::Gpu => Some(GPU),
        Medium::Cpu => Some(1),
        Medium::Other => None,
    }
}

fn group_bit(group: Option<u32>) -> u64 {
    group.and_then(|group| 1u64.checked_shl(group)).unwrap_or(0)
}

fn is_consistent(event: &Stored<'_>) -> bool {
    let tokens = (event.block_size as usize).checked_mul(event.hashes.len());
    event.block_size > 0
        && tokens == Some(event.token_ids.len())
        && (event.extra_keys.is_empty() || event.extra_keys.len() == event.hashes.len())
}

#[cfg(test)]
mod tests;
