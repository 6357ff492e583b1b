//! Which endpoint holds which blocks.

use super::bits::Bits;
use super::budget::Budget;
use super::line::Key;
use super::owner::{LastUse, Owner, Write};
use super::table::{BATCH, Batch, Table};
use super::{BlockHash, EndpointId, MAX_ENDPOINTS};
use parking_lot::Mutex;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Smallest memory bound: less is raised to it.
const MIN_MEMORY_BYTES: usize = 1 << 20;
/// Bytes besides table and rings.
const FIXED_BYTES: usize = MAX_ENDPOINTS * (size_of::<Endpoint>() + size_of::<Option<usize>>());
/// Evictions per hold of an endpoint's lock while many blocks go.
const SHRINK_STEPS: usize = 4096;

/// Chained blocks and the endpoints that own them, within one memory bound.
///
/// Lookups take no lock and never wait. Writes take the endpoint's lock for the length of the call, so writes to
/// different endpoints run in parallel. Each endpoint has an exact LRU of its blocks; a chain's tail is evicted before
/// its head, as engines free theirs. Ids that are not registered own nothing, and writing to them does nothing.
///
/// Blocks are told apart by the bits of their hash that place them in the table and 29 more: with a table
/// of 2^20 lines, a lookup takes a foreign block for its own about once in 10^8 blocks.
#[derive(Debug)]
pub struct PrefixIndex {
    table: Table,
    endpoints: Box<[Endpoint]>,
    budget: Budget,
    registry: Mutex<Registry>,
}

/// Aligned so that neither neighbours' locks nor the line fetched along with one's own are shared.
#[derive(Debug)]
#[repr(align(128))]
struct Endpoint {
    owner: Mutex<Owner>,
    blocks: AtomicUsize,
    ring_bytes: AtomicUsize,
}

#[derive(Debug)]
struct Registry {
    /// Capacity asked for, in blocks, per id in use.
    capacities: Vec<Option<usize>>,
    incarnations: u64,
}

/// What a [`PrefixIndex::store`] made provisional; to be settled by [`PrefixIndex::confirm`] or
/// [`PrefixIndex::undo`] with the same chain. Dropping it leaves the blocks as they are.
#[derive(Debug)]
#[must_use = "a store is provisional until it is confirmed or undone"]
pub struct Provisional {
    id: EndpointId,
    incarnation: u64,
    undos: u64,
    open: Bits,
    write: Write,
    last_use: Option<LastUse>,
}

impl Provisional {
    /// Where the store stands in the order in which the endpoint's blocks were used; positions grow.
    pub const fn position(&self) -> u64 {
        self.write.first
    }

    /// Where the blocks of the chain that were owned before stood; `None` when there were none.
    pub const fn last_use(&self) -> Option<LastUse> {
        self.last_use
    }
}

impl PrefixIndex {
    /// An index whose heap never exceeds `memory_bytes` (at least 1 MiB). The table takes its share at once, the
    /// rings theirs as they fill.
    pub fn new(memory_bytes: usize) -> Self {
        Self::with_budget(Budget::new(memory_bytes.max(MIN_MEMORY_BYTES) - FIXED_BYTES))
    }

    pub(super) fn with_budget(budget: Budget) -> Self {
        Self {
            table: Table::new(budget.lines),
            endpoints: (0..MAX_ENDPOINTS as u16).map(Endpoint::new).collect(),
            budget,
            registry: Mutex::new(Registry {
                capacities: vec![None; MAX_ENDPOINTS],
                incarnations: 0,
            }),
        }
    }

    /// Takes an id for an endpoint that caches up to `capacity_blocks`. When the capacities of all endpoints exceed
    /// what the memory bound allows, each gets its share in proportion.
    ///
    /// `None` when [`MAX_ENDPOINTS`] ids are in use or the bound leaves no room for another endpoint.
    pub fn register(&self, capacity_blocks: usize) -> Option<EndpointId> {
        let mut registry = self.registry.lock();
        if !self
            .budget
            .has_room_for(registry.capacities.iter().flatten().count() + 1)
        {
            return None;
        }
        let index = registry.capacities.iter().position(Option::is_none)?;
        registry.capacities[index] = Some(capacity_blocks);
        let incarnation = registry.next_incarnation();
        self.endpoints[index].write(|owner| owner.begin_incarnation(incarnation));
        self.share_out(&registry);
        Some(EndpointId(index as u16))
    }

    /// Drops all blocks of the endpoint and frees its id.
    pub fn release(&self, id: EndpointId) {
        let mut registry = self.registry.lock();
        let Some(capacity) = registry.capacities.get_mut(usize::from(id.0)) else {
            return;
        };
        if capacity.take().is_none() {
            return;
        }
        self.endpoints[usize::from(id.0)].write(|owner| {
            owner.clear(&self.table);
            owner.begin_incarnation(0);
        });
        self.share_out(&registry);
    }

    /// Drops all blocks of the endpoint, whose engine has restarted. Stores before it can no longer be
    /// confirmed or undone.
    pub fn clear(&self, id: EndpointId) {
        let mut registry = self.registry.lock();
        let incarnation = registry.next_incarnation();
        self.write(id, |owner| {
            owner.clear(&self.table);
            owner.begin_incarnation(incarnation);
        });
    }

    /// Changes what [`Self::register`] was told; a smaller capacity evicts.
    pub fn set_capacity(&self, id: EndpointId, capacity_blocks: usize) {
        let mut registry = self.registry.lock();
        let Some(Some(capacity)) = registry.capacities.get_mut(usize::from(id.0)) else {
            return;
        };
        *capacity = capacity_blocks;
        self.share_out(&registry);
    }

    /// Writes to `out[id]` how many blocks of `chain`, from its head on and without a gap, endpoint `id` owns.
    ///
    /// `out` is overwritten; ids beyond its end are left out. Returns the longest match. Does not touch: recency changes
    /// with stores only.
    pub fn matches(&self, chain: &[BlockHash], out: &mut [u32]) -> u32 {
        out.fill(0);
        match out.len() {
            0 => 0,
            1..=64 => self.match_few(chain, out, u64::MAX >> (64 - out.len())),
            _ => self.match_many(chain, out),
        }
    }

    /// With at most 64 ids, who still leads is a set of bits: half the time of [`Self::match_many`].
    fn match_few(&self, chain: &[BlockHash], out: &mut [u32], ids: u64) -> u32 {
        let mut leading = ids;
        let mut drop_out = |ids: u64, depth: u32| bits_of(ids).for_each(|id| out[id] = depth);
        let longest = self.walk(chain, |key, header, depth| {
            let owners = self.table.owners_below_64(key, header, leading);
            drop_out(leading & !owners, depth);
            leading &= owners;
            leading != 0
        });
        drop_out(leading, longest);
        longest
    }

    fn match_many(&self, chain: &[BlockHash], out: &mut [u32]) -> u32 {
        self.walk(chain, |key, _, depth| {
            let mut has_leader = false;
            self.table.for_each_owner(key, |owner| {
                if let Some(matched) = out.get_mut(usize::from(owner))
                    && *matched == depth
                {
                    *matched += 1;
                    has_leader = true;
                }
            });
            has_leader
        })
    }

    /// Calls `step` with each block's key, its first line's header and its number until it says false; returns the
    /// number of blocks before.
    #[inline]
    fn walk(&self, chain: &[BlockHash], mut step: impl FnMut(Key, u64, u32) -> bool) -> u32 {
        let mut batch = Batch::new();
        let mut depth = 0;
        for hashes in chain.chunks(BATCH) {
            for (key, header) in self.table.load(hashes, &mut batch) {
                if !step(key, header, depth) {
                    return depth;
                }
                depth += 1;
            }
        }
        depth
    }

    /// Makes the endpoint own `chain`, most recently used, visible to lookups at once. A chain longer than the
    /// endpoint's capacity keeps its head.
    ///
    /// Blocks that nobody has confirmed yet stay provisional: confirm once the engine has taken the prompt, or undo.
    pub fn store(&self, id: EndpointId, chain: &[BlockHash]) -> Provisional {
        let stored = self.write(id, |owner| {
            let undos = owner.undos();
            let stored = owner.store(&self.table, chain, true);
            Provisional {
                id,
                incarnation: owner.incarnation(),
                undos,
                open: stored.open,
                write: stored.write,
                last_use: stored.last_use,
            }
        });
        stored.unwrap_or(Provisional {
            id,
            incarnation: 0,
            undos: 0,
            open: Bits::default(),
            write: Write::default(),
            last_use: None,
        })
    }

    /// Evicts every block that the endpoint used last before `position` (see [`Provisional::last_use`]): its engine
    /// turned out to have evicted what stood there, and evicts in the same order.
    pub fn evict_before(&self, id: EndpointId, position: u64) {
        while self.write(id, |owner| {
            owner.evict_before(&self.table, position, SHRINK_STEPS)
        }) == Some(false)
        {}
    }

    /// Takes back what the store made provisional, unless another request has confirmed it meanwhile.
    ///
    /// Requests that relied on the blocks taken back store them again when they are confirmed.
    pub fn undo(&self, chain: &[BlockHash], stored: Provisional) {
        self.settle(&stored, |owner| owner.undo(&self.table, chain, &stored.open));
    }

    /// The engine has taken the prompt: its blocks stay until they are evicted or removed.
    ///
    /// If another request undid a store on this endpoint meanwhile, the chain is stored again. Does nothing when the
    /// endpoint was cleared or released since.
    pub fn confirm(&self, chain: &[BlockHash], stored: Provisional) {
        // Confirmed blocks cannot be undone, so there is nothing to restore either.
        if stored.open.is_empty() {
            return;
        }
        self.settle(&stored, |owner| {
            if owner.undos() == stored.undos {
                owner.confirm(&self.table, chain, stored.write, &stored.open);
            } else {
                owner.store(&self.table, chain, false);
            }
        });
    }

    /// Makes the endpoint own `hashes` for certain (its engine said so), the first most recently used.
    pub fn insert(&self, id: EndpointId, hashes: &[BlockHash]) {
        self.write(id, |owner| owner.store(&self.table, hashes, false));
    }

    /// Removes those of `hashes` that the endpoint owns, and returns how many that were.
    pub fn remove(&self, id: EndpointId, hashes: &[BlockHash]) -> usize {
        self.write(id, |owner| owner.remove(&self.table, hashes))
            .unwrap_or(0)
    }

    /// Removes the blocks of `chain` from number `keep_blocks` on: the engine turned out to hold no more.
    /// Returns how many were owned.
    pub fn truncate(&self, id: EndpointId, chain: &[BlockHash], keep_blocks: usize) -> usize {
        self.remove(id, chain.get(keep_blocks..).unwrap_or_default())
    }

    /// Blocks that the endpoint owns.
    pub fn blocks(&self, id: EndpointId) -> usize {
        self.endpoints
            .get(usize::from(id.0))
            .map_or(0, |endpoint| endpoint.blocks.load(Relaxed))
    }

    /// Blocks that the endpoint may own: the capacity it asked for, or its share of the memory bound.
    pub fn capacity(&self, id: EndpointId) -> usize {
        self.endpoints
            .get(usize::from(id.0))
            .map_or(0, |endpoint| endpoint.owner.lock().capacity())
    }

    /// Blocks over all endpoints; one owned by several counts for each.
    pub fn total_blocks(&self) -> usize {
        self.endpoints
            .iter()
            .map(|endpoint| endpoint.blocks.load(Relaxed))
            .sum()
    }

    /// Heap bytes in use; never above the bound given to [`Self::new`].
    pub fn bytes(&self) -> usize {
        let rings: usize = self
            .endpoints
            .iter()
            .map(|endpoint| endpoint.ring_bytes.load(Relaxed))
            .sum();
        FIXED_BYTES + self.table.bytes() + rings
    }

    /// A table of so few lines that probes are long; rings as they like.
    #[cfg(any(test, fuzzing))]
    pub fn crowded(lines: usize) -> Self {
        Self::with_budget(Budget {
            lines,
            ring_bytes: 1 << 30,
        })
    }

    /// Panics unless table, rings and counts agree. While no writer is at work.
    #[cfg(any(test, fuzzing))]
    pub fn audit(&self) {
        let mut entries = Vec::new();
        for endpoint in &self.endpoints {
            let owned = endpoint.owner.lock().entries(&self.table);
            assert_eq!(
                owned.len(),
                endpoint.blocks.load(Relaxed),
                "blocks counted and blocks in the ring"
            );
            entries.extend(owned);
        }
        self.table.audit(&entries);
    }

    /// Runs `change` if `id` is registered.
    fn write<T>(&self, id: EndpointId, change: impl FnOnce(&mut Owner) -> T) -> Option<T> {
        let endpoint = self.endpoints.get(usize::from(id.0))?;
        endpoint.write(|owner| (owner.incarnation() != 0).then(|| change(owner)))
    }

    fn settle(&self, stored: &Provisional, change: impl FnOnce(&mut Owner)) {
        self.write(stored.id, |owner| {
            if owner.incarnation() == stored.incarnation {
                change(owner);
            }
        });
    }

    /// Gives every endpoint its share. Shrinks come first, so that the sum is within the bound at all times.
    fn share_out(&self, registry: &Registry) {
        let shares = self.budget.scale(&registry.capacities);
        let owners = || self.endpoints.iter().zip(&shares);
        for (endpoint, &share) in owners().filter(|(endpoint, share)| endpoint.capacity() > **share) {
            endpoint.resize(&self.table, share);
        }
        for (endpoint, &share) in owners().filter(|(endpoint, share)| endpoint.capacity() < **share) {
            endpoint.resize(&self.table, share);
        }
    }
}

fn bits_of(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = NonZeroU64::new(set)?.trailing_zeros();
        set &= set - 1;
        Some(bit as usize)
    })
}

impl Registry {
    fn next_incarnation(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }
}

impl Endpoint {
    fn new(id: u16) -> Self {
        Self {
            owner: Mutex::new(Owner::new(id)),
            blocks: AtomicUsize::new(0),
            ring_bytes: AtomicUsize::new(0),
        }
    }

    fn capacity(&self) -> usize {
        self.owner.lock().capacity()
    }

    /// Changes the owner under its lock and publishes its counts, which are for display and order nothing.
    fn write<T>(&self, change: impl FnOnce(&mut Owner) -> T) -> T {
        let mut owner = self.owner.lock();
        let result = change(&mut owner);
        self.blocks.store(owner.blocks(), Relaxed);
        self.ring_bytes.store(owner.ring_bytes(), Relaxed);
        result
    }

    fn resize(&self, table: &Table, capacity: usize) {
        while !self.write(|owner| owner.approach_capacity(table, capacity, SHRINK_STEPS)) {}
    }
}
