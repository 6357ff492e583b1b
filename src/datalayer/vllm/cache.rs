//! `vllm:cache_config_info`: the engine's cache as the labels of a series with value 1.

use crate::datalayer::exposition::Sample;
use smallvec::SmallVec;
use std::borrow::Cow;

/// What one engine core says of its cache. Labels hold Python's `str()` of the value, `None` included.
#[derive(Clone, Debug, Default)]
struct Engine<'a> {
    rank: Cow<'a, str>,
    block_size: Option<u32>,
    num_gpu_blocks: Option<u64>,
    size_tokens: Option<u64>,
    prefix_caching: Option<bool>,
}

impl Engine<'_> {
    fn fill_from(&mut self, other: Self) {
        self.block_size = self.block_size.or(other.block_size);
        self.num_gpu_blocks = self.num_gpu_blocks.max(other.num_gpu_blocks);
        self.size_tokens = self.size_tokens.max(other.size_tokens);
        self.prefix_caching = self.prefix_caching.or(other.prefix_caching);
    }
}

/// The engine cores behind one server, by the `engine` label.
#[derive(Clone, Debug, Default)]
pub(super) struct Engines<'a> {
    by_rank: SmallVec<[Engine<'a>; 1]>,
}

impl<'a> Engines<'a> {
    pub(super) fn add(&mut self, sample: &Sample<'a>) {
        let mut engine = Engine::default();
        for label in sample.labels() {
            match label.name {
                "engine" => engine.rank = label.value(),
                "block_size" => engine.block_size = positive(&label.value()),
                "num_gpu_blocks" => engine.num_gpu_blocks = positive(&label.value()),
                "kv_cache_size_tokens" => engine.size_tokens = positive(&label.value()),
                "enable_prefix_caching" => engine.prefix_caching = python_bool(&label.value()),
                _ => {}
            }
        }
        // Front-end processes repeat their engine's line under a `pid` label: one core is counted once.
        match self.by_rank.iter_mut().find(|known| known.rank == engine.rank) {
            Some(known) => known.fill_from(engine),
            None => self.by_rank.push(engine),
        }
    }

    pub(super) fn block_size(&self) -> Option<u32> {
        self.by_rank.iter().find_map(|engine| engine.block_size)
    }

    /// The front end adds the blocks of its engine cores up and repeats that total on every core's line.
    pub(super) fn num_gpu_blocks(&self) -> Option<u64> {
        self.by_rank
            .iter()
            .filter_map(|engine| engine.num_gpu_blocks)
            .max()
    }

    /// Blocks times block size; a build that hides the number of blocks may still say each core's tokens.
    pub(super) fn capacity_tokens(&self) -> Option<u64> {
        let by_blocks = self.num_gpu_blocks().zip(self.block_size());
        by_blocks
            .map(|(blocks, size)| blocks.saturating_mul(u64::from(size)))
            .or_else(|| {
                self.by_rank
                    .iter()
                    .filter_map(|engine| engine.size_tokens)
                    .reduce(u64::saturating_add)
            })
    }

    pub(super) fn prefix_caching(&self) -> Option<bool> {
        self.by_rank.iter().find_map(|engine| engine.prefix_caching)
    }
}

fn positive<N: std::str::FromStr + PartialOrd + Default>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number| *number > N::default())
}

fn python_bool(text: &str) -> Option<bool> {
    match text {
        "True" | "true" => Some(true),
        "False" | "false" => Some(false),
        _ => None,
    }
}
