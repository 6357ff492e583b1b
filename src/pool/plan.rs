//! One request's way through a pool: the decision, the endpoint being tried, and the ones after it.

use super::endpoint::Endpoint;
use super::gate::Staying;
use super::keys::Keys;
use super::load::Reservation;
use super::prompt::{Prompt, PromptShape};
use super::snapshot::Snapshot;
use super::trust::{Comparison, Verdict};
use super::{CHUNK_BYTES, Pool};
use crate::prefix::{BlockHash, EndpointId, LastUse, Provisional};
use crate::scheduling::{Decision, Dispatch};
use crate::time::Mono;
use smallvec::SmallVec;
use std::sync::Arc;

/// A decision being carried out. Dropping it gives back whatever is still reserved.
#[derive(Debug)]
pub struct Plan {
    pub pool: Arc<Pool>,
    pub prompt: Prompt,
    pub decision: Decision,
    /// The snapshot that the decision read.
    pub snapshot: Arc<Snapshot>,
    /// Endpoints tried so far, the present one last.
    pub tried: SmallVec<[EndpointId; 4]>,
    pub attempt: Option<Attempt>,
    /// Its conversation's part in the working set.
    pub(super) staying: Option<Staying>,
}

/// One try at one endpoint.
#[derive(Debug)]
pub struct Attempt {
    pub endpoint: Arc<Endpoint>,
    /// Cached prefix tokens that the index predicted there.
    pub match_tokens: u32,
    pub dispatch: Dispatch,
    pub reservation: Reservation,
    /// Active tokens on the endpoint before this request.
    pub active_before: u64,
    /// Tokens per KV block of the endpoint, when it was picked.
    pub block_tokens: u32,
    /// Where the prompt's entries stood in the index before this try; `None` when it had none there.
    pub(super) last_use: Option<LastUse>,
    /// Index entries written for this try, one per chain; emptied when they are confirmed or undone.
    pub(super) provisional: SmallVec<[Provisional; 1]>,
}

/// A prompt's length and its predicted match in KV blocks of the endpoint that serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    pub matched: u32,
    pub total: u32,
}

impl Plan {
    /// Length of the prompt, in KV blocks of the endpoint that has it, or was to have it.
    pub fn shape(&self) -> PromptShape {
        let block_tokens = match &self.attempt {
            Some(attempt) => attempt.block_tokens,
            None => self.pool.chosen_block_tokens(&self.decision, &self.snapshot),
        };
        self.prompt.shape(block_tokens)
    }

    /// The prompt in KV blocks of the present endpoint; a partial block counts nowhere.
    pub fn blocks(&self) -> Blocks {
        let Some(attempt) = &self.attempt else {
            return Blocks::default();
        };
        let block_tokens = attempt.block_tokens.max(1);
        Blocks {
            matched: attempt.match_tokens / block_tokens,
            total: self.prompt.tokens / block_tokens,
        }
    }

    /// Tries so far.
    pub fn attempts(&self) -> u32 {
        self.tried.len() as u32
    }

    /// Whether another endpoint may be tried after a failure.
    pub fn may_retry(&self) -> bool {
        self.attempts() <= self.pool.settings.retries
    }

    /// As [`Plan::may_retry`], and takes the retry out of the pool's budget.
    pub fn claim_retry(&self, now: Mono) -> bool {
        self.may_retry() && self.pool.retry_budget.withdraw(now)
    }

    /// The engine accepted the request: what was written to the index for it stays. Blocks that the engine's
    /// events tell of stay provisional to the end of the response: what no event has confirmed by then goes.
    pub fn confirm(&mut self) {
        let Some(attempt) = self.attempt.as_mut().filter(|_| !self.prompt.is_exact()) else {
            return;
        };
        let chains = self.prompt.chains(attempt.block_tokens);
        for (chain, provisional) in chains.into_iter().zip(attempt.provisional.drain(..)) {
            self.pool.index.confirm(chain, provisional);
        }
    }

    /// The try failed or was refused: gives back its reservation and its index entries.
    pub fn abandon(&mut self) -> Option<Arc<Endpoint>> {
        self.discredit();
        let attempt = self.attempt.take()?;
        Some(attempt.endpoint.clone())
    }

    /// The try never reached its endpoint: as [`Plan::abandon`], and the scheduler forgets the pick.
    pub fn never_sent(&mut self) -> Option<Arc<Endpoint>> {
        if let Some(attempt) = &self.attempt {
            self.pool.revert(&attempt.dispatch);
        }
        self.abandon()
    }

    /// The engine answered with an error: the try stays, its index entries go.
    pub fn discredit(&mut self) {
        let Some(attempt) = &mut self.attempt else { return };
        let chains = self.prompt.chains(attempt.block_tokens);
        for (chain, provisional) in chains.into_iter().zip(attempt.provisional.drain(..)) {
            self.pool.index.undo(chain, provisional);
        }
    }

    /// The engine has generated `blocks`, which go on with the prompt's chain, and caches them too.
    ///
    /// They become more recent than the prompt's own, which were sent before the engine began to generate them: by
    /// as much as that took they outlive their parents in the index, where nothing finds them any more.
    pub fn extend(&self, blocks: &[BlockHash]) {
        if let Some(attempt) = self.attempt.as_ref().filter(|_| !blocks.is_empty())
            && !attempt.endpoint.is_retired()
        {
            self.pool.index.insert(attempt.endpoint.id, blocks);
        }
    }

    /// Learns from the engine's own count of cached tokens, if it gave one, where the index goes by what was sent.
    /// `prompt_tokens` is the engine's count of the prompt.
    pub fn learn_match(&self, cached_tokens: Option<u64>, prompt_tokens: u64) {
        let (Some(attempt), Some(Keys::Chunks(keys))) = (&self.attempt, &self.prompt.keys) else {
            return;
        };
        if self.pool.exact.is_some() || self.prompt.tokens == 0 || prompt_tokens == 0 {
            return;
        }
        // The match was measured with the estimate of the prompt's tokens that it is a share of.
        let tokens_per_estimated = prompt_tokens as f64 / f64::from(self.prompt.tokens);
        let predicted = (f64::from(attempt.match_tokens) * tokens_per_estimated) as u64;
        let chunk_tokens = CHUNK_BYTES as f64 * prompt_tokens as f64 / keys.total_bytes().max(1) as f64;
        let tolerance = u64::from(attempt.block_tokens) + chunk_tokens.ceil() as u64;
        let endpoint = &attempt.endpoint;
        if endpoint.is_retired() {
            return;
        }
        let Some(reported) = cached_tokens else {
            return endpoint.trust.served(predicted, prompt_tokens);
        };
        let verdict = endpoint.trust.observe(Comparison {
            predicted,
            reported,
            tolerance,
            last_use: attempt.last_use,
        });
        match verdict {
            Verdict::Keep => {}
            Verdict::EvictBefore(position) => self.pool.index.evict_before(endpoint.id, position),
            Verdict::Drop => {
                for chain in self.prompt.chains(attempt.block_tokens) {
                    self.pool.index.truncate(endpoint.id, chain, 0);
                }
            }
        }
    }

    /// The answer had this many tokens: they are part of the conversation from now on.
    pub fn said(&mut self, now: Mono, output_tokens: u32) {
        if let Some(staying) = &mut self.staying {
            staying.said(now, output_tokens);
        }
    }

    /// Takes the decision out, for what is kept of it after the request.
    pub fn take_decision(&mut self) -> Decision {
        let empty = Decision {
            ranked: Vec::new(),
            filtered: Vec::new(),
            term_names: self.decision.term_names.clone(),
            ..self.decision
        };
        std::mem::replace(&mut self.decision, empty)
    }

    /// Picks the next-best endpoint of the same decision that still takes requests.
    pub fn advance(&mut self, now: Mono) -> bool {
        self.abandon();
        // After a reload the newest pool knows better, unless none of the candidates is left in it.
        let newest = self.pool.newest().clone();
        self.attempt = newest.pick_next(self, now);
        if self.attempt.is_some() {
            self.pool = newest;
        } else if !Arc::ptr_eq(&newest, &self.pool) {
            self.attempt = self.pool.pick_next(self, now);
        }
        if let Some(attempt) = &self.attempt {
            self.tried.push(attempt.endpoint.id);
            if let Some(staying) = &self.staying {
                staying.moved(now, attempt.endpoint.id);
            }
        }
        self.attempt.is_some()
    }
}

impl Drop for Plan {
    /// A request that ends before the engine answered leaves nothing behind.
    fn drop(&mut self) {
        self.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::lifecycle::build::{Materials, pools};
    use crate::pool::MAX_CHUNKS;
    use crate::pool::health::Thresholds;
    use crate::prefix::{ChainHasher, Chunking, PrefixIndex};
    use crate::telemetry::Metrics;

    /// A pool of one ready endpoint that goes by its traffic.
    fn pool() -> Arc<Pool> {
        let text = "pools: [{ name: p, endpoints: [{ name: e0, url: 'http://127.0.0.1:1' }] }]";
        let config = Config::parse(text, "test").unwrap();
        let materials = Materials {
            index: &Arc::new(PrefixIndex::new(1 << 24)),
            metrics: &Metrics::new().unwrap(),
        };
        let pools = pools(&materials, &config, None).unwrap();
        let pool = pools.for_model("m").unwrap().clone();
        let thresholds = Thresholds {
            unhealthy_after: 1,
            healthy_after: 1,
        };
        pool.update(0, |status| status.health_checked(Mono::ZERO, Ok(()), thresholds));
        pool
    }

    /// 1,600 bytes that begin like no other name's, and are 400 tokens.
    fn prompt(name: &str) -> Prompt {
        let chunking = Chunking {
            chunk_bytes: CHUNK_BYTES,
            max_blocks: MAX_CHUNKS,
        };
        let mut hasher = ChainHasher::new(1, chunking);
        hasher.write(name.repeat(1600 / name.len()).as_bytes());
        Prompt {
            keys: Some(Keys::Chunks(hasher.finish())),
            tokens: 400,
            fills_cache: true,
            ..Prompt::unkeyed("m")
        }
    }

    /// Serves a prompt; the engine reports `cached` tokens. Gives the predicted ones.
    fn serve(pool: &Arc<Pool>, second: f64, name: &str, cached: Option<u64>) -> u32 {
        let mut plan = pool.place(prompt(name), Mono::from_secs_f64(second));
        let predicted = plan.attempt.as_ref().unwrap().match_tokens;
        plan.confirm();
        plan.learn_match(cached, 400);
        predicted
    }

    #[test]
    fn an_engine_that_evicted_a_prompt_evicted_what_was_used_before_it() {
        let pool = pool();
        for (second, name) in [(10.0, "a"), (11.0, "b"), (20.0, "c"), (30.0, "d")] {
            assert_eq!(serve(&pool, second, name, Some(0)), 0);
        }
        assert!(
            serve(&pool, 31.0, "b", Some(0)) > 300,
            "the index did not know better"
        );
        let known = ["a", "b", "c", "d"].map(|name| {
            let (decision, _) = pool.explain(&prompt(name), Mono::from_secs_f64(32.0));
            decision.chosen().unwrap().match_tokens > 300
        });
        assert_eq!(known, [false, true, true, true]);
    }

    #[test]
    fn the_answer_goes_on_with_the_prompt() {
        let pool = pool();
        let Some(Keys::Chunks(whole)) = prompt("abcd").keys else {
            panic!()
        };
        let chain = whole.full_blocks(&whole.chains()[0]);
        let mut plan = pool.place(prompt("abcd"), Mono::from_secs_f64(1.0));
        plan.confirm();
        let blocks = || pool.index.blocks(EndpointId(0));
        let before = blocks();
        plan.extend(&[7, 8]);
        plan.extend(chain);
        plan.extend(&[]);
        assert_eq!(blocks(), before + 2, "what is there already is not counted again");
    }
}
