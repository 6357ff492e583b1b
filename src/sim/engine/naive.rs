//! The engine again, as slow and as simple as it can be said: lists, no shortcuts, nothing shared with the
//! engine. Seeded random requests must make both do the same, step by step.

use super::*;
use crate::prefix::BlockHash;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::time::Duration;

/// What a step tells, without times.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Token(u64, u32),
    /// (request, cached tokens, output tokens, preemptions)
    Finished(u64, u32, u32, u32),
    Preempted(u64),
    Stored(Vec<BlockHash>, Option<BlockHash>),
    Removed(BlockHash),
    Cleared,
}

impl From<EngineEvent> for Told {
    fn from(event: EngineEvent) -> Self {
        match event {
            EngineEvent::Token { id, generated, .. } => Self::Token(id.0, generated),
            EngineEvent::Finished(f) => {
                Self::Finished(f.id.0, f.cached_tokens, f.output_tokens, f.preemptions)
            }
            EngineEvent::Preempted { id, .. } => Self::Preempted(id.0),
            EngineEvent::BlocksStored { hashes, parent, .. } => Self::Stored(hashes, parent),
            EngineEvent::BlockRemoved { hash } => Self::Removed(hash),
            EngineEvent::Cleared => Self::Cleared,
        }
    }
}

#[derive(Clone, Debug)]
struct NaiveRequest {
    id: u64,
    /// Of prompt and output.
    hashes: Vec<BlockHash>,
    prompt: u32,
    output: u32,
    cached: Option<u32>,
    computed: u32,
    scheduled: u32,
    generated: u32,
    preemptions: u32,
    aborted: bool,
    /// Blocks held.
    blocks: Vec<usize>,
}

impl NaiveRequest {
    fn known(&self) -> u32 {
        self.prompt + self.generated
    }
}

/// A block: how many hold it, what is in it, and when that was stored.
#[derive(Clone, Copy, Debug, Default)]
struct NaiveBlock {
    holders: u32,
    content: Option<(BlockHash, u64)>,
}

#[derive(Debug, Default)]
struct Naive {
    block_size: u32,
    seats: usize,
    budget: u32,
    blocks: Vec<NaiveBlock>,
    /// Blocks that nobody holds, the one to take next first.
    free: Vec<usize>,
    waiting: Vec<NaiveRequest>,
    running: Vec<NaiveRequest>,
    stored: u64,
    told: Vec<Told>,
    queries: u64,
    hits: u64,
    /// Prompt tokens computed by the step in flight.
    prefill: u32,
}

impl Naive {
    fn new(spec: &EngineSpec) -> Self {
        let blocks = spec.num_blocks as usize;
        Self {
            block_size: spec.block_size,
            seats: spec.max_num_seqs as usize,
            budget: spec.max_num_batched_tokens,
            blocks: vec![NaiveBlock::default(); blocks],
            free: (0..blocks).collect(),
            ..Self::default()
        }
    }

    /// The copy that was stored first.
    fn find(&self, hash: BlockHash) -> Option<usize> {
        let stored = |at: &usize| {
            self.blocks[*at]
                .content
                .filter(|(h, _)| *h == hash)
                .map(|(_, n)| n)
        };
        let copies = (0..self.blocks.len()).filter(|at| stored(at).is_some());
        copies.min_by_key(|at| stored(at))
    }

    fn take(&mut self) -> usize {
        let block = self.free.remove(0);
        if let Some((hash, _)) = self.blocks[block].content.take() {
            self.told.push(Told::Removed(hash));
        }
        self.blocks[block].holders = 1;
        block
    }

    fn give_back(&mut self, blocks: Vec<usize>) {
        for block in blocks.into_iter().rev() {
            self.blocks[block].holders -= 1;
            if self.blocks[block].holders == 0 {
                self.free.push(block);
            }
        }
    }

    /// Puts `tokens` more tokens of a request, for which there are blocks, into the step.
    fn compute(&mut self, mut request: NaiveRequest, tokens: u32) -> NaiveRequest {
        let decodes = request.generated > 0 && request.computed + 1 == request.known();
        self.prefill += if decodes { 0 } else { tokens };
        let (before, after) = (
            request.computed / self.block_size,
            (request.computed + tokens) / self.block_size,
        );
        while (request.blocks.len() as u32) * self.block_size < request.computed + tokens {
            let block = self.take();
            request.blocks.push(block);
        }
        let full = before as usize..after as usize;
        for at in full.clone() {
            self.stored += 1;
            self.blocks[request.blocks[at]].content = Some((request.hashes[at], self.stored));
        }
        if !full.is_empty() {
            let parent = full.start.checked_sub(1).map(|at| request.hashes[at]);
            self.told
                .push(Told::Stored(request.hashes[full].to_vec(), parent));
        }
        request.scheduled = tokens;
        request
    }

    fn start(&mut self) {
        self.prefill = 0;
        let (mut left, mut preempted, mut at) = (self.budget, false, 0);
        while at < self.running.len() && left > 0 {
            let (known, computed) = (self.running[at].known(), self.running[at].computed);
            let tokens = (known - computed).min(left);
            let missing =
                |held: usize| ((computed + tokens).div_ceil(self.block_size) as usize).saturating_sub(held);
            if missing(self.running[at].blocks.len()) > self.free.len() {
                preempted = true;
                let mut victim = self.running.pop().unwrap();
                self.give_back(std::mem::take(&mut victim.blocks));
                (victim.computed, victim.preemptions) = (0, victim.preemptions + 1);
                self.told.push(Told::Preempted(victim.id));
                self.waiting.insert(0, victim);
                continue;
            }
            let request = self.running[at].clone();
            self.running[at] = self.compute(request, tokens);
            left -= tokens;
            at += 1;
        }
        while !preempted && left > 0 && self.running.len() < self.seats && !self.waiting.is_empty() {
            let Some(used) = self.admit(left) else { break };
            left -= used;
        }
    }

    /// Seats the first waiting request if its blocks can be had; says how many tokens it computes.
    fn admit(&mut self, left: u32) -> Option<u32> {
        let request = &self.waiting[0];
        let whole = (request.known() - 1) / self.block_size;
        let found = request.hashes[..whole as usize]
            .iter()
            .map_while(|&hash| self.find(hash));
        let found: Vec<usize> = found.collect();
        let idle = found
            .iter()
            .filter(|&&block| self.blocks[block].holders == 0)
            .count();
        let missing = request.known().div_ceil(self.block_size) as usize - found.len();
        if missing + idle > self.free.len() {
            return None;
        }
        let mut request = self.waiting.remove(0);
        for &block in &found {
            self.blocks[block].holders += 1;
            self.free.retain(|&free| free != block);
        }
        request.computed = found.len() as u32 * self.block_size;
        request.blocks = found;
        if request.cached.is_none() {
            request.cached = Some(request.computed);
            self.queries += u64::from(request.prompt);
            self.hits += u64::from(request.computed);
        }
        let tokens = (request.known() - request.computed).min(left);
        let request = self.compute(request, tokens);
        self.running.push(request);
        Some(tokens)
    }

    fn end(&mut self) {
        for mut request in std::mem::take(&mut self.running) {
            request.computed += std::mem::take(&mut request.scheduled);
            if !request.aborted && request.computed == request.known() {
                request.generated += 1;
                self.told.push(Told::Token(request.id, request.generated));
            }
            let finished = !request.aborted && request.generated == request.output;
            if finished {
                let cached = request.cached.unwrap();
                self.told.push(Told::Finished(
                    request.id,
                    cached,
                    request.generated,
                    request.preemptions,
                ));
            }
            if finished || request.aborted {
                self.give_back(request.blocks);
            } else {
                self.running.push(request);
            }
        }
    }

    fn abort(&mut self, id: u64) {
        self.waiting.retain(|request| request.id != id);
        for request in self.running.iter_mut().filter(|request| request.id == id) {
            request.aborted = true;
        }
    }

    fn reset(&mut self) {
        if self.free.len() == self.blocks.len() {
            self.blocks.iter_mut().for_each(|block| block.content = None);
            self.told.push(Told::Cleared);
        }
    }
}

/// Steps of 10 ms and 1 ms per prompt token, so that each has an end of its own.
const TIMING: TimingModel = TimingModel {
    step_overhead: 10e-3,
    prefill_token: 1e-3,
    ..TimingModel::INSTANT
};

/// Both engines, given the same.
struct Pair {
    seed: u64,
    engine: Engine,
    naive: Naive,
    now: Mono,
    /// A step is in flight.
    stepping: bool,
    told: Vec<Told>,
}

impl Pair {
    fn new(seed: u64, rng: &mut Pcg64) -> Self {
        let spec = EngineSpec {
            timing: TIMING,
            max_num_seqs: rng.random_range(1..8),
            max_num_batched_tokens: rng.random_range(1..64),
            block_events: true,
            token_events: true,
            ..EngineSpec::new(rng.random_range(1..9), rng.random_range(4..32))
        };
        Self {
            seed,
            naive: Naive::new(&spec),
            engine: Engine::new(spec),
            now: Mono::ZERO,
            stepping: false,
            told: Vec::new(),
        }
    }

    /// A request of one of four conversations that begin alike and then part.
    fn submit(&mut self, id: u64, rng: &mut Pcg64) {
        let (block_size, group) = (self.engine.spec().block_size, rng.random_range(0..4));
        // Often whole blocks, where one token is left over on purpose.
        let prompt = match rng.random_range(0..3) {
            0 => block_size * rng.random_range(1..6),
            _ => rng.random_range(1..60),
        };
        let output = rng.random_range(1..12);
        let blocks = u64::from((prompt + output) / block_size);
        let hashes: Vec<BlockHash> = (0..blocks)
            .map(|at| at + if at < 2 { 0 } else { group * 1000 })
            .collect();
        let request = SimRequest {
            id: RequestId(id),
            block_hashes: hashes.clone().into(),
            prompt_tokens: prompt,
            output_tokens: output,
            output_seed: 0,
            finish: FinishReason::Length,
            content: None,
        };
        let fits = (prompt + output - 1).div_ceil(block_size) <= self.engine.spec().num_blocks;
        assert_eq!(self.engine.submit(self.now, request).is_ok(), fits);
        if fits {
            self.naive.waiting.push(NaiveRequest {
                id,
                hashes,
                prompt,
                output,
                cached: None,
                computed: 0,
                scheduled: 0,
                generated: 0,
                preemptions: 0,
                aborted: false,
                blocks: Vec::new(),
            });
        }
    }

    fn abort(&mut self, id: u64) {
        self.engine.abort(RequestId(id));
        self.naive.abort(id);
    }

    fn reset(&mut self) {
        self.engine.reset_prefix_cache();
        self.naive.reset();
    }

    /// Ends the step in flight, if there is one, and starts the next, if there is work.
    fn step(&mut self) {
        let Some(at) = self.engine.next_event_at() else {
            assert!(self.naive.running.is_empty() && self.naive.waiting.is_empty());
            return;
        };
        let ended = self.stepping;
        if ended {
            let took = TIMING.step_overhead + TIMING.prefill_token * f64::from(self.naive.prefill);
            assert_eq!(at, self.now + Duration::from_secs_f64(took), "seed {}", self.seed);
            self.now = at;
            self.naive.end();
            self.told.append(&mut self.naive.told);
        }
        self.stepping = !self.naive.running.is_empty() || !self.naive.waiting.is_empty();
        let mut events = Vec::new();
        self.engine.advance(self.now, &mut events);
        let events: Vec<Told> = events.into_iter().map(Told::from).collect();
        assert_eq!(events, self.told, "seed {}", self.seed);
        self.told.clear();
        if ended {
            self.compare_counters();
        }
        if self.stepping {
            self.naive.start();
        }
        self.engine.invariants().unwrap();
    }

    fn compare_counters(&self) {
        let (counters, naive) = (self.engine.counters(), &self.naive);
        let held = naive.blocks.iter().filter(|block| block.holders > 0).count();
        let usage = held as f64 / naive.blocks.len() as f64;
        assert_eq!(
            (
                counters.requests_running as usize,
                counters.requests_waiting as usize
            ),
            (naive.running.len(), naive.waiting.len()),
            "seed {}",
            self.seed
        );
        assert_eq!(counters.kv_cache_usage, usage, "seed {}", self.seed);
        assert_eq!(
            (counters.prefix_cache_queries, counters.prefix_cache_hits),
            (naive.queries, naive.hits),
            "seed {}",
            self.seed
        );
    }
}

#[test]
fn random_requests_go_as_in_the_naive_engine() {
    let (mut preemptions, mut hits, mut removed) = (0, 0, 0);
    for seed in 0..200 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut pair = Pair::new(seed, &mut rng);
        for id in 0..300 {
            match rng.random_range(0..20) {
                0..8 => pair.submit(id, &mut rng),
                8 => pair.abort(rng.random_range(0..=id)),
                9 => pair.reset(),
                _ => pair.step(),
            }
        }
        while pair.engine.next_event_at().is_some() {
            pair.step();
        }
        preemptions += pair.engine.counters().preemptions;
        hits += pair.naive.hits;
        removed += pair.naive.stored;
    }
    // The seeds reach what they are there for.
    assert!(
        preemptions > 100 && hits > 10_000 && removed > 10_000,
        "{preemptions} {hits} {removed}"
    );
}
