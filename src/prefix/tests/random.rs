//! Seeded random operations on the index and on the naive model, compared after every one.

use super::model::{Model, Stored};
use super::{chain, matched};
use crate::prefix::index::{PrefixIndex, Provisional};
use crate::prefix::{BlockHash, EndpointId, block_hash};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

const MOST_ENDPOINTS: usize = 6;

struct Pair {
    index: PrefixIndex,
    model: Model,
    open: Vec<(Provisional, Stored)>,
    rng: Pcg64,
}

impl Pair {
    fn new(seed: u64, lines: usize) -> Self {
        Self {
            index: PrefixIndex::crowded(lines),
            // 7 words per line, 80 % of them.
            model: Model::new(lines * 7 * 8 / 10),
            open: Vec::new(),
            rng: Pcg64::seed_from_u64(seed),
        }
    }

    /// A path in a tree of few branches: chains share prefixes of all lengths.
    fn path(&mut self) -> Vec<BlockHash> {
        let len = self.rng.random_range(1..40);
        let mut hash = 0;
        let step = |_| {
            let branch: u8 = if self.rng.random_bool(0.8) {
                0
            } else {
                self.rng.random_range(1..4)
            };
            hash = block_hash(hash, &[branch]);
            hash
        };
        (0..len).map(step).collect()
    }

    fn step(&mut self) {
        let ids = self.model.ids();
        let id = if ids.is_empty() {
            None
        } else {
            Some(ids[self.rng.random_range(0..ids.len())])
        };
        match (self.rng.random_range(0..100), id) {
            (0..4, _) | (_, None) if ids.len() < MOST_ENDPOINTS => self.register(),
            (4..5, Some(id)) => self.release(id),
            (5..7, Some(id)) => self.clear(id),
            (7..11, Some(id)) => self.set_capacity(id),
            (11..55, Some(id)) => self.store(id),
            (55..80, _) => self.settle(),
            (80..88, Some(id)) => self.insert(id),
            (88..96, Some(id)) => self.remove(id),
            (96.., Some(id)) => self.truncate(id),
            _ => {}
        }
        self.compare();
    }

    fn register(&mut self) {
        let capacity = self.rng.random_range(0..150);
        let id = self.index.register(capacity).expect("room for another");
        assert_eq!(usize::from(id.0), self.model.register(capacity));
    }

    fn release(&mut self, id: usize) {
        self.index.release(EndpointId(id as u16));
        self.model.release(id);
    }

    fn clear(&mut self, id: usize) {
        self.index.clear(EndpointId(id as u16));
        self.model.clear(id);
    }

    fn set_capacity(&mut self, id: usize) {
        let capacity = self.rng.random_range(0..150);
        self.index.set_capacity(EndpointId(id as u16), capacity);
        self.model.set_capacity(id, capacity);
    }

    fn store(&mut self, id: usize) {
        let path = self.path();
        let provisional = self.index.store(EndpointId(id as u16), &path);
        self.open.push((provisional, self.model.store(id, &path)));
    }

    fn settle(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let (provisional, stored) = self.open.swap_remove(self.rng.random_range(0..self.open.len()));
        if self.rng.random_bool(0.7) {
            self.index.confirm(&stored.chain, provisional);
            self.model.confirm(&stored);
        } else {
            self.index.undo(&stored.chain, provisional);
            self.model.undo(&stored);
        }
    }

    fn insert(&mut self, id: usize) {
        let mut hashes = self.path();
        hashes.drain(..self.rng.random_range(0..hashes.len()));
        // Events may name a block twice.
        hashes.push(hashes[0]);
        self.index.insert(EndpointId(id as u16), &hashes);
        self.model.insert(id, &hashes);
    }

    fn remove(&mut self, id: usize) {
        let path = self.path();
        let hashes = &path[path.len() / 2..];
        let removed = self.index.remove(EndpointId(id as u16), hashes);
        assert_eq!(removed, self.model.remove(id, hashes));
    }

    fn truncate(&mut self, id: usize) {
        let path = self.path();
        let keep = self.rng.random_range(0..path.len() + 2);
        let removed = self.index.truncate(EndpointId(id as u16), &path, keep);
        assert_eq!(removed, self.model.remove(id, &path[keep.min(path.len())..]));
    }

    fn compare(&mut self) {
        for _ in 0..3 {
            let path = self.path();
            let expected = self.model.matches(&path);
            assert_eq!(matched(&self.index, &path, expected.len()), expected);
        }
        let ids = self.model.ids();
        for &id in &ids {
            assert_eq!(
                self.index.capacity(EndpointId(id as u16)),
                self.model.capacity(id)
            );
            assert_eq!(self.index.blocks(EndpointId(id as u16)), self.model.blocks(id));
        }
        let owned: usize = ids.iter().map(|&id| self.model.blocks(id)).sum();
        assert_eq!(self.index.total_blocks(), owned);
        if self.rng.random_bool(0.05) {
            self.index.audit();
        }
    }
}

#[test]
fn agrees_with_the_naive_model() {
    for seed in 0..24 {
        // From a table that is always full to one with room.
        let mut pair = Pair::new(seed, [16, 64, 256][seed as usize % 3]);
        for _ in 0..300 {
            pair.step();
        }
    }
}

#[test]
fn recency_survives_many_touches() {
    // All 700 blocks fit, so nothing but the sweep keeps the ring in bounds; order shows when the capacity shrinks.
    let index = PrefixIndex::crowded(1024);
    let id = index.register(900).expect("room");
    let mut model = Model::new(1024 * 7 * 8 / 10);
    model.register(900);
    let mut rng = Pcg64::seed_from_u64(1);
    for round in 1..6001 {
        let path = chain(rng.random_range(0..100), rng.random_range(1..8));
        index.insert(id, &path);
        model.insert(0, &path);
        if round % 500 == 0 {
            index.audit();
            for capacity in [rng.random_range(300..700), 900] {
                index.set_capacity(id, capacity);
                model.set_capacity(0, capacity);
            }
            for name in 0..100 {
                let path = chain(name, 7);
                assert_eq!(matched(&index, &path, 1), model.matches(&path));
            }
        }
    }
}
