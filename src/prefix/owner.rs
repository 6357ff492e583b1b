//! What one endpoint owns, under its lock: the only writer of its words in the table.

use super::BlockHash;
use super::bits::Bits;
use super::line::{Claim, Entry, Key};
use super::record::Record;
use super::ring::{Ring, span_limit};
use super::table::{BATCH, Batch, Claimed, Table};

/// Work of a sweep at a time while a store waits for it to be over.
const SWEEP_WORK: usize = 1024;

/// A store may exceed the capacity by one part in so many until it returns: most then need one pass over their chain,
/// and blocks are evicted many at a time.
const OVERSHOOT: usize = 8;

#[derive(Debug)]
pub(super) struct Owner {
    id: u16,
    ring: Ring,
    blocks: usize,
    capacity: usize,
    /// Names the life of the engine behind the endpoint; 0 while the id is free.
    incarnation: u64,
    /// Undone stores.
    undos: u64,
}

impl Owner {
    pub(super) fn new(id: u16) -> Self {
        Self {
            id,
            ring: Ring::new(),
            blocks: 0,
            capacity: 0,
            incarnation: 0,
            undos: 0,
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn undos(&self) -> u64 {
        self.undos
    }

    pub(super) fn ring_bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Makes every earlier [`super::Provisional`] of this endpoint void.
    pub(super) fn begin_incarnation(&mut self, incarnation: u64) {
        self.incarnation = incarnation;
    }

    /// Makes every block of `chain` (as many from its head as the capacity allows) owned and most recent, the head
    /// more recent than the tail. Returns which of them are provisional: new, or not confirmed by anyone yet.
    ///
    /// Positions in the ring are reserved for the whole chain. Blocks are evicted only when those of the chain that
    /// are already owned have been touched, so none of them goes to make room for another.
    pub(super) fn store(&mut self, table: &Table, chain: &[BlockHash], provisional: bool) -> Stored {
        let chain = &chain[..chain.len().min(self.capacity)];
        self.make_room_in_ring(table, chain.len());
        let write = Write {
            first: self.ring.reserve(chain.len()),
            len: chain.len(),
            provisional,
        };
        let mut stored = Stored {
            open: Bits::new(chain.len()),
            write,
            last_use: None,
        };
        if self.blocks + chain.len() <= self.most_blocks() {
            for_each_block(table, chain, |block, key| {
                self.own(table, key, block, write, &mut stored);
            });
        } else {
            self.store_in_parts(table, chain, write, &mut stored);
        }
        self.evict_down_to(table, self.capacity);
        stored
    }

    /// Capacity of the endpoint while a store is at work.
    fn most_blocks(&self) -> usize {
        self.capacity + self.capacity / OVERSHOOT
    }

    /// Evicts at most about `steps` blocks that were last used before `position`; false while there are more.
    pub(super) fn evict_before(&mut self, table: &Table, position: u64, steps: usize) -> bool {
        (0..steps.div_ceil(BATCH)).any(|_| self.evict_oldest(table, BATCH, position) < BATCH)
    }

    /// Confirms the blocks of `chain` that are set in `open`, which `write` made so.
    ///
    /// Nearly all of them still stand where the store put them, which the ring knows: nothing is searched for those.
    pub(super) fn confirm(&mut self, table: &Table, chain: &[BlockHash], write: Write, open: &Bits) {
        let mut records = [Record::VACANT; BATCH];
        let mut next = 0;
        for hashes in chain[..chain.len().min(write.len)].chunks(BATCH) {
            let records = &mut records[..hashes.len()];
            for (record, block) in records.iter_mut().zip(next..) {
                *record = self.ring.get(write.position(block));
            }
            table.warm_records(records.iter().copied());
            for ((&hash, &record), block) in hashes.iter().zip(&*records).zip(next..) {
                if open.get(block) {
                    self.confirm_block(table, table.key(hash), record);
                }
            }
            next += hashes.len();
        }
    }

    #[inline]
    fn confirm_block(&self, table: &Table, key: Key, record: Record) {
        let there = table.entry_at(record, key, self.id);
        if let Some(entry) = there.or_else(|| table.find(key, self.id)) {
            table.restamp(entry, entry.stamp(), false);
        }
    }

    /// Removes the blocks of `chain` that are set in `open` and still provisional.
    pub(super) fn undo(&mut self, table: &Table, chain: &[BlockHash], open: &Bits) {
        self.undos += 1;
        for_each_block(table, chain, |block, key| {
            let entry = open.get(block).then(|| table.find(key, self.id)).flatten();
            if let Some(entry) = entry.filter(Entry::is_provisional) {
                self.drop_entry(table, entry);
            }
        });
    }

    /// Removes every block of `hashes` that is owned; returns how many were.
    pub(super) fn remove(&mut self, table: &Table, hashes: &[BlockHash]) -> usize {
        let before = self.blocks;
        for_each_block(table, hashes, |_, key| {
            if let Some(entry) = table.find(key, self.id) {
                self.drop_entry(table, entry);
            }
        });
        before - self.blocks
    }

    /// Sets the capacity, or comes closer to it by at most `steps` evictions; false while there is more to do.
    pub(super) fn approach_capacity(&mut self, table: &Table, capacity: usize, steps: usize) -> bool {
        self.capacity = capacity.max(self.blocks.saturating_sub(steps));
        self.evict_down_to(table, self.capacity);
        self.make_room_in_ring(table, 0);
        self.ring.shrink(self.capacity);
        self.capacity == capacity
    }

    /// Drops everything.
    pub(super) fn clear(&mut self, table: &Table) {
        self.evict_down_to(table, 0);
    }

    /// Every word of the endpoint, the oldest first.
    #[cfg(any(test, fuzzing))]
    #[expect(clippy::expect_used, reason = "only tests and fuzzing ask")]
    pub(super) fn entries(&self, table: &Table) -> Vec<Entry> {
        let recall = |(position, record)| {
            table
                .recall(record, self.id, position)
                .expect("the ring is exact")
        };
        self.ring.records().map(recall).collect()
    }

    /// Stores `chain`, for all of whose blocks there may be no room: touches those that are owned, then adds the others.
    #[inline(never)]
    fn store_in_parts(&mut self, table: &Table, chain: &[BlockHash], write: Write, stored: &mut Stored) {
        let mut missing = Bits::new(chain.len());
        for_each_block(table, chain, |block, key| match table.find(key, self.id) {
            Some(entry) => self.renew(table, entry, block, write, stored),
            None => missing.set(block),
        });
        for block in missing.descending() {
            self.own(table, table.key(chain[block]), block, write, stored);
            if self.blocks > self.most_blocks() {
                self.evict_down_to(table, self.capacity);
            }
        }
    }

    /// Renews a block that is owned, and takes a word for another.
    #[inline(always)]
    fn own(&mut self, table: &Table, key: Key, block: usize, write: Write, stored: &mut Stored) {
        let stamp = write.position(block);
        let claim = Claim {
            owner: self.id,
            stamp,
            provisional: write.provisional,
        };
        match table.claim(key, claim) {
            Claimed::New(record) => {
                self.ring.set(stamp, record);
                self.blocks += 1;
                if write.provisional {
                    stored.open.set(block);
                }
            }
            Claimed::Owned(entry) => self.renew(table, entry, block, write, stored),
            Claimed::NoRoom => {}
        }
    }

    #[inline]
    fn renew(&mut self, table: &Table, entry: Entry, block: usize, write: Write, stored: &mut Stored) {
        let used = self.ring.position(entry.stamp());
        // A chain may name a block twice.
        if used < write.first {
            let tail = stored.last_use.map_or(used, |last_use| last_use.tail);
            stored.last_use = Some(LastUse { head: used, tail });
        }
        let provisional = entry.is_provisional() && write.provisional;
        if provisional {
            stored.open.set(block);
        }
        self.ring.set(used, Record::VACANT);
        self.ring.set(write.position(block), entry.record);
        table.restamp(entry, write.position(block), provisional);
    }

    fn drop_entry(&mut self, table: &Table, entry: Entry) {
        self.ring.vacate(entry.stamp());
        table.vacate(entry);
        self.blocks -= 1;
    }

    fn evict_down_to(&mut self, table: &Table, blocks: usize) {
        while self.blocks > blocks {
            if self.evict_oldest(table, (self.blocks - blocks).min(BATCH), u64::MAX) == 0 {
                return;
            }
        }
    }

    /// Evicts up to `count` blocks, at most [`BATCH`], that were last used before `position`; returns how many.
    fn evict_oldest(&mut self, table: &Table, count: usize, position: u64) -> usize {
        let oldest = self.ring.pop(count, position);
        table.warm_records(oldest.iter().map(|&(_, record)| record));
        for &(position, record) in &oldest {
            if let Some(entry) = table.recall(record, self.id, position) {
                table.vacate(entry);
                self.blocks -= 1;
            }
        }
        oldest.len()
    }

    /// Sweeps for `count` writes if the ring has many vacancies, and for as long as it takes if they would not fit: a
    /// sweep to the end leaves no vacancy, and twice the capacity has room for all blocks and a chain.
    ///
    /// Each write does the same part of what is left of the sweep as it takes of the room that is left, so that all pay
    /// alike and the sweep ends as the room does. Behind it are `blocks` records and those written meanwhile, which
    /// is where the next one begins when that is half way from `blocks` to the limit: as slow as it can be. An
    /// endpoint full of blocks thus moves about two for one that it writes at most, and one a tenth full a sixth of one.
    fn make_room_in_ring(&mut self, table: &Table, count: usize) {
        let limit = span_limit(self.capacity);
        if self.ring.span() > (limit + self.blocks) / 2 {
            self.ring.begin_sweep(self.blocks);
        }
        let work_left = self.ring.work_left();
        if work_left > 0 {
            let room = limit.saturating_sub(self.ring.span()).max(1);
            self.sweep(table, (work_left * count).div_ceil(room));
        }
        while self.ring.span() + count > limit {
            self.ring.begin_sweep(self.blocks);
            self.sweep(table, SWEEP_WORK);
        }
    }

    /// Does so much work of the sweep that is under way, if there is as much.
    #[inline(never)]
    fn sweep(&mut self, table: &Table, mut work: usize) {
        while work > 0 {
            let moved = self.ring.sweep(&mut work);
            if moved.is_empty() {
                return;
            }
            table.warm_records(moved.iter().map(|moved| moved.record));
            for moved in moved {
                if let Some(entry) = table.recall(moved.record, self.id, moved.from) {
                    table.restamp(entry, moved.to, entry.is_provisional());
                }
            }
        }
    }
}

/// What a store did.
#[derive(Debug)]
pub(super) struct Stored {
    /// Which blocks are provisional.
    pub(super) open: Bits,
    /// Where it wrote: everything used before is below.
    pub(super) write: Write,
    pub(super) last_use: Option<LastUse>,
}

/// Where blocks of a chain stood in the order of use before they were stored again. A sweep may move them up since,
/// past others that were used before them too, never below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastUse {
    /// Of the first block that was owned.
    pub head: u64,
    /// Of the last one.
    pub tail: u64,
}

/// Calls `visit` with the number and the key of each block of `chain`, the tail first, as engines free theirs.
#[inline]
fn for_each_block(table: &Table, chain: &[BlockHash], mut visit: impl FnMut(usize, Key)) {
    let mut batch = Batch::new();
    let mut block = chain.len();
    for hashes in chain.rchunks(BATCH) {
        for (key, _) in table.load(hashes, &mut batch).rev() {
            block -= 1;
            visit(block, key);
        }
    }
}

/// Where a store writes its records: the tail of the chain first, so that it is evicted first, as engines do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Write {
    pub(super) first: u64,
    len: usize,
    provisional: bool,
}

impl Write {
    fn position(self, block: usize) -> u64 {
        self.first + (self.len - 1 - block) as u64
    }
}
