//! A model of one vLLM engine: continuous batching, chunked prefill, a block-accurate prefix cache.
//!
//! The engine has no clock. A caller submits requests, asks [`Engine::next_event_at`] when something
//! will happen next, and calls [`Engine::advance`] at that time. The simulated server does so in real
//! time, a replay in virtual time.
//!
//! The rules are those of vLLM's V1 scheduler. A step first gives every running request its next tokens, in
//! order of admission and within the token budget; a request that finds no free block takes those of
//! the request admitted last, which is computed again later. When nobody was preempted, waiting requests are
//! seated in order of arrival while seats, budget and blocks last. Blocks become findable when they are
//! scheduled, so that requests of one step share them; everything else becomes visible at the step's end.

mod blocks;
mod counters;
#[cfg(test)]
mod naive;
mod request;
mod schedule;
#[cfg(test)]
mod tests;
mod timing;

pub use counters::{EngineCounters, Histogram};
pub use request::{BlockContent, EngineEvent, FinishReason, Finished, RequestId, SimRequest, SubmitError};
pub use timing::{FleetPreset, StepWork, TimingModel};

use crate::time::Mono;
use blocks::BlockPool;
use request::Sequence;
use std::collections::VecDeque;

/// Dimensions of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSpec {
    /// Tokens per KV block, at least 1.
    pub block_size: u32,
    /// KV blocks.
    pub num_blocks: u32,
    /// Seats: requests in one batch (`max_num_seqs`), at least 1.
    pub max_num_seqs: u32,
    /// Tokens per step (`max_num_batched_tokens`), at least 1.
    pub max_num_batched_tokens: u32,
    pub timing: TimingModel,
    /// Report every token, not only first ones.
    pub token_events: bool,
    /// Report blocks stored, removed and cleared.
    pub block_events: bool,
}

impl EngineSpec {
    /// An instant engine with vLLM's defaults of 256 seats and 8,192 tokens per step.
    pub const fn new(block_size: u32, num_blocks: u32) -> Self {
        Self {
            block_size,
            num_blocks,
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            timing: TimingModel::INSTANT,
            token_events: false,
            block_events: false,
        }
    }

    /// KV blocks that a request can come to hold; its last token is never computed.
    pub fn blocks_needed(&self, prompt_tokens: u32, output_tokens: u32) -> u32 {
        prompt_tokens
            .saturating_add(output_tokens.saturating_sub(1))
            .div_ceil(self.block_size)
    }
}

/// One simulated engine. See the [module documentation](self).
#[derive(Clone, Debug)]
pub struct Engine {
    spec: EngineSpec,
    pool: BlockPool,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    step: Option<Step>,
    /// No step starts before the end of the last one.
    idle_since: Mono,
    paused: bool,
    /// Events of the step in flight, and of what happened since the last one.
    pending: Vec<EngineEvent>,
    counters: EngineCounters,
    /// Freed block tables, to be used again.
    tables: Vec<Vec<blocks::BlockId>>,
}

/// The step in flight.
#[derive(Clone, Copy, Debug)]
struct Step {
    start: Mono,
    end: Mono,
    /// First admissions of this step, tokens: counted when the step ends.
    prefix_queries: u64,
    prefix_hits: u64,
    preemptions: u64,
}

impl Engine {
    /// An idle engine with an empty cache. Dimensions of zero are taken as one.
    pub fn new(spec: EngineSpec) -> Self {
        let spec = EngineSpec {
            block_size: spec.block_size.max(1),
            max_num_seqs: spec.max_num_seqs.max(1),
            max_num_batched_tokens: spec.max_num_batched_tokens.max(1),
            ..spec
        };
        Self {
            spec,
            pool: BlockPool::new(spec.num_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            step: None,
            idle_since: Mono::ZERO,
            paused: false,
            pending: Vec::new(),
            counters: EngineCounters::default(),
            tables: Vec::new(),
        }
    }

    /// The dimensions it was made with.
    pub fn spec(&self) -> &EngineSpec {
        &self.spec
    }

    /// Puts a request at the end of the queue. It can join the first step that starts at or after `now`;
    /// call [`Engine::advance`] at [`Engine::next_event_at`] to let that happen.
    pub fn submit(&mut self, now: Mono, request: SimRequest) -> Result<(), SubmitError> {
        if request.prompt_tokens == 0 || request.output_tokens == 0 {
            return Err(SubmitError::Empty);
        }
        let needed = self
            .spec
            .blocks_needed(request.prompt_tokens, request.output_tokens);
        if needed > self.spec.num_blocks {
            return Err(SubmitError::TooLong {
                needed,
                available: self.spec.num_blocks,
            });
        }
        self.waiting.push_back(Sequence::new(request, now));
        Ok(())
    }

    /// Gives up a request: at once when it waits, at the end of the step in flight when it runs. Its
    /// blocks stay cached; it gets no further token and does not finish. `false` when the engine does not have it.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.waiting.iter().position(|s| s.request.id == id) {
            self.waiting.remove(at);
        } else if let Some(at) = self.running.iter().position(|s| s.request.id == id && !s.aborted) {
            match self.step {
                Some(_) => self.running[at].aborted = true,
                None => {
                    let sequence = self.running.remove(at);
                    self.free(sequence.table);
                }
            }
        } else {
            return false;
        }
        if self.step.is_none() {
            self.refresh_gauges();
        }
        true
    }

    /// When [`Engine::advance`] has something to do; `None` when idle or paused. A time in the past means now.
    pub fn next_event_at(&self) -> Option<Mono> {
        match &self.step {
            Some(step) => Some(step.end),
            None if self.paused => None,
            None if !self.running.is_empty() => Some(self.idle_since),
            None => self.waiting.front().map(|s| s.arrived_at.max(self.idle_since)),
        }
    }

    /// Ends and starts steps up to `now`, and appends what happened to `events`. A late call changes
    /// nothing: steps follow each other without gaps, and a request joins no step that started before it came.
    pub fn advance(&mut self, now: Mono, events: &mut Vec<EngineEvent>) {
        while let Some(at) = self.next_event_at().filter(|&at| at <= now) {
            match self.step.take() {
                Some(step) => {
                    self.finish_step(&step, events);
                    self.idle_since = step.end;
                }
                None => self.step = Some(self.start_step(at)),
            }
        }
    }

    /// Clears the prefix cache. As in vLLM this happens only when no request holds a block; otherwise
    /// nothing changes and the answer is `false`.
    pub fn reset_prefix_cache(&mut self) -> bool {
        let done = self.pool.reset();
        if done && self.spec.block_events {
            self.pending.push(EngineEvent::Cleared);
        }
        done
    }

    /// While paused no step starts at or after `now`; the step in flight ends normally.
    pub fn set_paused(&mut self, now: Mono, paused: bool) {
        if self.paused && !paused {
            self.idle_since = self.idle_since.max(now);
        }
        self.paused = paused;
    }

    /// What the engine reported at the end of its last step.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    /// Requests that have a seat now, whatever the counters say.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait for a seat now, whatever the counters say.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Leading tokens of a prompt with these blocks that are in the cache now: what it would hit.
    pub fn cached_prefix_tokens(&self, request: &SimRequest) -> u32 {
        let limit = request.prompt_tokens.saturating_sub(1) / self.spec.block_size;
        let blocks = request.block_hashes.iter().take(limit as usize);
        blocks
            .take_while(|&&hash| self.pool.lookup(hash).is_some())
            .count() as u32
            * self.spec.block_size
    }

    /// Checks that blocks, references, seats and tables agree; tests call it after every operation.
    ///
    /// # Errors
    /// Says what disagrees.
    pub fn invariants(&self) -> Result<(), String> {
        self.pool.check(self.running.iter().map(|s| s.table.as_slice()))?;
        if self.running.len() > self.spec.max_num_seqs as usize {
            return Err(format!(
                "{} running, {} seats",
                self.running.len(),
                self.spec.max_num_seqs
            ));
        }
        if let Some(waiting) = self
            .waiting
            .iter()
            .find(|s| !s.table.is_empty() || s.computed > 0)
        {
            return Err(format!("waiting request {:?} holds blocks", waiting.request.id));
        }
        for s in &self.running {
            let (held, needed) = (
                s.table.len() as u32,
                (s.computed + s.scheduled).div_ceil(self.spec.block_size),
            );
            if held != needed || s.registered != (s.computed + s.scheduled) / self.spec.block_size {
                return Err(format!(
                    "{:?} holds {held} blocks, {} registered",
                    s.request.id, s.registered
                ));
            }
        }
        Ok(())
    }

    fn refresh_gauges(&mut self) {
        self.counters.requests_running = self.running.len() as u32;
        self.counters.requests_waiting = self.waiting.len() as u32;
        let total = f64::from(self.pool.total().max(1));
        self.counters.kv_cache_usage = f64::from(self.pool.total() - self.pool.free()) / total;
    }

    /// Gives all blocks of a table back, the last one first, so that the tail of a prefix is evicted
    /// before its head.
    fn free(&mut self, mut table: Vec<blocks::BlockId>) {
        table.drain(..).rev().for_each(|id| self.pool.release(id));
        if self.tables.len() < self.spec.max_num_seqs as usize {
            self.tables.push(table);
        }
    }
}
