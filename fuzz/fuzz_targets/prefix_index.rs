//! Any bytes as operations on a crowded prefix index, which is compared with the naive model after each.
#![no_main]

use homing::prefix::{self, BlockHash, EndpointId, PrefixIndex, Provisional, block_hash};
use libfuzzer_sys::fuzz_target;
use model::{Model, Stored};

#[path = "../../src/prefix/tests/model.rs"]
mod model;

const MOST_ENDPOINTS: usize = 6;
const LONGEST_CHAIN: usize = 40;

/// What is left of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<usize> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(usize::from(byte))
    }

    /// A path in a tree of few branches: chains share prefixes of all lengths.
    fn path(&mut self) -> Option<Vec<BlockHash>> {
        let (len, fork) = (1 + self.byte()? % LONGEST_CHAIN, self.byte()?);
        let (depth, branch) = (fork / 4 % 16, fork % 4);
        let mut hash = 0;
        let step = |block| {
            let branch = if block < depth { 0 } else { branch };
            hash = block_hash(hash, &[branch as u8]);
            hash
        };
        Some((0..len).map(step).collect())
    }
}

struct Pair {
    index: PrefixIndex,
    model: Model,
    open: Vec<(Provisional, Stored)>,
}

impl Pair {
    fn new(lines: usize) -> Self {
        Self {
            index: PrefixIndex::crowded(lines),
            // 7 words per line, 80 % of them.
            model: Model::new(lines * 7 * 8 / 10),
            open: Vec::new(),
        }
    }

    /// One operation; `None` at the end of the input.
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (operation, pick) = (input.byte()? % 16, input.byte()?);
        let ids = self.model.ids();
        if operation == 0 || ids.is_empty() {
            if ids.len() < MOST_ENDPOINTS {
                let id = self.index.register(pick).expect("room for another");
                assert_eq!(usize::from(id.0), self.model.register(pick));
            }
            return Some(());
        }
        let at = ids[pick % ids.len()];
        let id = EndpointId(at as u16);
        match operation {
            1 => {
                self.index.release(id);
                self.model.release(at);
            }
            2 => {
                self.index.clear(id);
                self.model.clear(at);
            }
            3 => {
                let capacity = input.byte()?;
                self.index.set_capacity(id, capacity);
                self.model.set_capacity(at, capacity);
            }
            4..=8 => {
                let path = input.path()?;
                self.open.push((self.index.store(id, &path), self.model.store(at, &path)));
            }
            9..=10 => self.settle(pick, true),
            11 => self.settle(pick, false),
            12 => {
                let hashes = self.events(input)?;
                self.index.insert(id, &hashes);
                self.model.insert(at, &hashes);
            }
            13 => {
                let hashes = self.events(input)?;
                assert_eq!(self.index.remove(id, &hashes), self.model.remove(at, &hashes));
            }
            14 => {
                let (path, keep) = (input.path()?, input.byte()? % (LONGEST_CHAIN + 2));
                let removed = self.model.remove(at, path.get(keep..).unwrap_or_default());
                assert_eq!(self.index.truncate(id, &path, keep), removed);
            }
            _ => {
                let path = input.path()?;
                self.matches(&path);
            }
        }
        Some(())
    }

    fn settle(&mut self, pick: usize, well: bool) {
        if self.open.is_empty() {
            return;
        }
        let (provisional, stored) = self.open.swap_remove(pick % self.open.len());
        if well {
            self.index.confirm(&stored.chain, provisional);
            self.model.confirm(&stored);
        } else {
            self.index.undo(&stored.chain, provisional);
            self.model.undo(&stored);
        }
    }

    /// Blocks without those before them, one named twice.
    fn events(&self, input: &mut Input<'_>) -> Option<Vec<BlockHash>> {
        let mut hashes = input.path()?;
        hashes.drain(..input.byte()? % hashes.len());
        hashes.push(hashes[0]);
        Some(hashes)
    }

    fn matches(&self, path: &[BlockHash]) {
        let expected = self.model.matches(path);
        let mut matched = vec![7; expected.len()];
        self.index.matches(path, &mut matched);
        assert_eq!(matched, expected);
    }

    fn compare(&self) {
        let ids = self.model.ids();
        for &id in &ids {
            let endpoint = EndpointId(id as u16);
            assert_eq!(self.index.capacity(endpoint), self.model.capacity(id));
            assert_eq!(self.index.blocks(endpoint), self.model.blocks(id));
        }
        let owned: usize = ids.iter().map(|&id| self.model.blocks(id)).sum();
        assert_eq!(self.index.total_blocks(), owned);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&lines, rest)) = data.split_first() else { return };
    let mut pair = Pair::new([16, 64][usize::from(lines) % 2]);
    let mut input = Input(rest);
    while pair.step(&mut input).is_some() {
        pair.compare();
    }
    pair.index.audit();
    // All of what either holds, not only what the input asked for.
    for fork in 0..64 {
        if let Some(path) = Input(&[LONGEST_CHAIN as u8 - 1, fork]).path() {
            pair.matches(&path);
        }
    }
});
