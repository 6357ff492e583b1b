//! The start and the end of an engine step.

use super::request::Sequence;
use super::{Engine, EngineEvent, FinishReason, Finished, Step, StepWork};
use crate::time::Mono;

impl Engine {
    /// Decides what the step that starts at `start` computes, and takes the blocks for it.
    pub(super) fn start_step(&mut self, start: Mono) -> Step {
        let mut plan = Plan {
            start,
            budget: self.spec.max_num_batched_tokens,
            work: StepWork::default(),
            step: Step {
                start,
                end: start,
                prefix_queries: 0,
                prefix_hits: 0,
                preemptions: 0,
            },
        };
        self.schedule_running(&mut plan);
        if plan.step.preemptions == 0 {
            self.schedule_waiting(&mut plan);
        }
        plan.step.end = start + self.spec.timing.step(&plan.work);
        plan.step
    }

    fn schedule_running(&mut self, plan: &mut Plan) {
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &self.running[index];
            let tokens = (sequence.known_tokens() - sequence.computed).min(plan.budget);
            let blocks = (sequence.computed + tokens).div_ceil(self.spec.block_size);
            while self.running.len() > index && self.pool.free() < self.missing_blocks(index, blocks) {
                self.preempt_last(plan);
            }
            if self.running.len() == index {
                return;
            }
            self.compute(index, tokens, plan);
            index += 1;
        }
    }

    fn missing_blocks(&self, index: usize, blocks: u32) -> u32 {
        blocks.saturating_sub(self.running[index].table.len() as u32)
    }

    /// Takes seat and blocks of the request that was admitted last.
    fn preempt_last(&mut self, plan: &mut Plan) {
        let Some(mut sequence) = self.running.pop() else {
            return;
        };
        let table = std::mem::take(&mut sequence.table);
        self.free(table);
        sequence.computed = 0;
        sequence.registered = 0;
        sequence.last_hash = None;
        sequence.preemptions += 1;
        plan.step.preemptions += 1;
        self.pending.push(EngineEvent::Preempted {
            id: sequence.request.id,
            at: plan.start,
        });
        self.waiting.push_front(sequence);
    }

    fn schedule_waiting(&mut self, plan: &mut Plan) {
        while plan.budget > 0 && self.running.len() < self.spec.max_num_seqs as usize {
            match self.waiting.front() {
                Some(next) if next.arrived_at <= plan.start && self.admit_blocks() => {}
                _ => return,
            }
            let Some(mut sequence) = self.waiting.pop_front() else {
                return;
            };
            self.take_cached_prefix(&mut sequence);
            self.count_admission(&mut sequence, plan);
            let tokens = (sequence.known_tokens() - sequence.computed).min(plan.budget);
            self.running.push(sequence);
            self.compute(self.running.len() - 1, tokens, plan);
        }
    }

    /// Whether the blocks for all known tokens of the first waiting request can be had: free ones for
    /// what must be computed, while the cached ones that nobody references leave the free list too.
    fn admit_blocks(&self) -> bool {
        let Some(sequence) = self.waiting.front() else {
            return false;
        };
        let needed = sequence.known_tokens().div_ceil(self.spec.block_size);
        if self.pool.free() >= needed {
            return true;
        }
        self.pool.free() >= needed - self.shared_blocks(sequence)
    }

    /// Cached leading blocks of the sequence that running requests hold anyway.
    fn shared_blocks(&self, sequence: &Sequence) -> u32 {
        let limit = (sequence.known_tokens() - 1) / self.spec.block_size;
        let (mut parent, mut shared) = (None, 0);
        for index in 0..limit {
            let hash = sequence.block_hash(index, parent);
            let Some(id) = self.pool.lookup(hash) else { break };
            shared += u32::from(!self.pool.is_free(id));
            parent = Some(hash);
        }
        shared
    }

    /// Gives the sequence the cached blocks that start it. At least one token is left to be computed.
    fn take_cached_prefix(&mut self, sequence: &mut Sequence) {
        let limit = (sequence.known_tokens() - 1) / self.spec.block_size;
        sequence.table = self.tables.pop().unwrap_or_default();
        while sequence.registered < limit {
            let hash = sequence.block_hash(sequence.registered, sequence.last_hash);
            let Some(id) = self.pool.lookup(hash) else { break };
            self.pool.acquire(id);
            sequence.table.push(id);
            sequence.last_hash = Some(hash);
            sequence.registered += 1;
        }
        sequence.computed = sequence.registered * self.spec.block_size;
    }

    fn count_admission(&self, sequence: &mut Sequence, plan: &mut Plan) {
        plan.work.admitted_requests += 1;
        plan.work.admitted_tokens += u64::from(sequence.known_tokens());
        if sequence.scheduled_at.is_none() {
            sequence.scheduled_at = Some(plan.start);
            sequence.cached_tokens = sequence.computed;
            plan.step.prefix_queries += u64::from(sequence.request.prompt_tokens);
            plan.step.prefix_hits += u64::from(sequence.computed);
        }
    }

    /// Puts `tokens` tokens of a running request into the step; the blocks are known to be free.
    fn compute(&mut self, index: usize, tokens: u32, plan: &mut Plan) {
        let sequence = &mut self.running[index];
        plan.budget -= tokens;
        plan.work.add(sequence, tokens);
        sequence.scheduled = tokens;
        let reach = sequence.computed + tokens;
        while (sequence.table.len() as u32) * self.spec.block_size < reach {
            let Some((id, evicted)) = self.pool.allocate() else {
                break;
            };
            if let Some(hash) = evicted.filter(|_| self.spec.block_events) {
                self.pending.push(EngineEvent::BlockRemoved { hash });
            }
            sequence.table.push(id);
        }
        if (sequence.registered + 1) * self.spec.block_size <= reach {
            self.register_blocks(index, reach / self.spec.block_size);
        }
    }

    fn register_blocks(&mut self, index: usize, upto: u32) {
        let sequence = &mut self.running[index];
        let (first_block, parent) = (sequence.registered, sequence.last_hash);
        let mut hashes = Vec::new();
        while sequence.registered < upto {
            let hash = sequence.block_hash(sequence.registered, sequence.last_hash);
            self.pool
                .register(sequence.table[sequence.registered as usize], hash);
            sequence.last_hash = Some(hash);
            sequence.registered += 1;
            if self.spec.block_events {
                hashes.push(hash);
            }
        }
        if self.spec.block_events {
            let content = sequence.request.content.clone();
            self.pending.push(EngineEvent::BlocksStored {
                content,
                first_block,
                hashes,
                parent,
            });
        }
    }

    /// Gives every request of the step its token, and makes the step visible.
    pub(super) fn finish_step(&mut self, step: &Step, events: &mut Vec<EngineEvent>) {
        events.append(&mut self.pending);
        let mut tally = Tally {
            end: step.end,
            start: step.start,
            tokens: 0,
            steady: 0,
            prompt: 0,
            cached: 0,
        };
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &mut self.running[index];
            let done = sequence.aborted || self.end_of_step(index, &mut tally, events);
            if done {
                let sequence = self.running.remove(index);
                if !sequence.aborted {
                    self.count_finished(&sequence, step.end, events);
                }
                self.free(sequence.table);
            } else {
                index += 1;
            }
        }
        self.count_step(step, &tally);
    }

    /// Moves one request past the step; `true` when it has all its tokens.
    fn end_of_step(&mut self, index: usize, tally: &mut Tally, events: &mut Vec<EngineEvent>) -> bool {
        let sequence = &mut self.running[index];
        sequence.computed += std::mem::take(&mut sequence.scheduled);
        if sequence.computed < sequence.known_tokens() {
            return false;
        }
        sequence.generated += 1;
        tally.tokens += 1;
        let first = sequence.generated == 1;
        if first {
            sequence.first_token_at = tally.end;
            tally.prompt += u64::from(sequence.request.prompt_tokens);
            tally.cached += u64::from(sequence.cached_tokens);
            self.counters
                .time_to_first_token
                .observe(tally.end.since(sequence.arrived_at).as_secs_f64());
        } else if sequence.last_token_at == tally.start {
            tally.steady += 1;
        } else {
            self.counters
                .inter_token_latency
                .observe(tally.end.since(sequence.last_token_at).as_secs_f64());
        }
        sequence.last_token_at = tally.end;
        let generated = sequence.generated;
        if first || self.spec.token_events {
            events.push(EngineEvent::Token {
                id: sequence.request.id,
                at: tally.end,
                generated,
            });
        }
        generated == sequence.request.output_tokens
    }

    fn count_finished(&mut self, sequence: &Sequence, at: Mono, events: &mut Vec<EngineEvent>) {
        let scheduled_at = sequence.scheduled_at.unwrap_or(sequence.arrived_at);
        let request = &sequence.request;
        let c = &mut self.counters;
        match request.finish {
            FinishReason::Length => c.finished_length += 1,
            FinishReason::Stop => c.finished_stop += 1,
        }
        c.request_prompt_tokens.observe(f64::from(request.prompt_tokens));
        c.request_generation_tokens.observe(f64::from(sequence.generated));
        c.request_params_max_tokens
            .observe(f64::from(request.output_tokens));
        c.request_prefill_kv_computed_tokens
            .observe(f64::from(request.prompt_tokens - sequence.cached_tokens));
        c.request_num_preemptions.observe(f64::from(sequence.preemptions));
        let decode = at.since(sequence.first_token_at).as_secs_f64();
        c.e2e_latency.observe(at.since(sequence.arrived_at).as_secs_f64());
        c.queue_time
            .observe(scheduled_at.since(sequence.arrived_at).as_secs_f64());
        c.inference_time.observe(at.since(scheduled_at).as_secs_f64());
        c.prefill_time
            .observe(sequence.first_token_at.since(scheduled_at).as_secs_f64());
        c.decode_time.observe(decode);
        c.time_per_output_token
            .observe(decode / f64::from((sequence.generated - 1).max(1)));
        events.push(EngineEvent::Finished(Finished {
            id: request.id,
            reason: request.finish,
            prompt_tokens: request.prompt_tokens,
            cached_tokens: sequence.cached_tokens,
            output_tokens: sequence.generated,
            preemptions: sequence.preemptions,
            arrived_at: sequence.arrived_at,
            scheduled_at,
            first_token_at: sequence.first_token_at,
            at,
        }));
    }

    fn count_step(&mut self, step: &Step, tally: &Tally) {
        let c = &mut self.counters;
        c.at = step.end;
        c.steps += 1;
        c.preemptions += step.preemptions;
        c.prefix_cache_queries += step.prefix_queries;
        c.prefix_cache_hits += step.prefix_hits;
        c.prompt_tokens += tally.prompt;
        c.prompt_tokens_cached += tally.cached;
        c.generation_tokens += tally.tokens;
        c.iteration_tokens
            .observe((tally.prompt - tally.cached + tally.tokens) as f64);
        if tally.steady > 0 {
            c.inter_token_latency
                .observe_n(step.end.since(step.start).as_secs_f64(), tally.steady);
        }
        self.refresh_gauges();
    }
}

/// A step that is being put together.
struct Plan {
    start: Mono,
    budget: u32,
    work: StepWork,
    step: Step,
}

/// What a step gave.
struct Tally {
    start: Mono,
    end: Mono,
    /// Tokens sampled.
    tokens: u64,
    /// Tokens whose predecessor came with the step before: they all took exactly one step.
    steady: u64,
    /// Prompt tokens of the requests that got their first token, and the cached ones among them.
    prompt: u64,
    cached: u64,
}

impl StepWork {
    fn add(&mut self, sequence: &Sequence, tokens: u32) {
        if tokens == 0 {
            return;
        }
        if sequence.decodes() {
            self.decode_requests += 1;
            self.decode_context_tokens += u64::from(sequence.computed + tokens);
            return;
        }
        let (new, context) = (f64::from(tokens), f64::from(sequence.computed));
        self.prefill_tokens += u64::from(tokens);
        self.attention_pairs += new * context + new * (new + 1.0) / 2.0;
    }
}
