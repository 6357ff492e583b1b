//! The engine requests that one HTTP request stands for, from submission to the last token.

use super::driver::{Driver, Outcome, Progress, Refused};
use super::request::{GenerationRequest, Prompt};
use crate::sim::engine::{BlockContent, FinishReason, RequestId, SimRequest};
use crate::sim::output::Output;
use std::sync::Arc;
use std::task::{Context, Poll};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Sentences of twelve tokens that an output without a bound has at most.
const NATURAL_SENTENCES: u64 = 8;
const SENTENCE_TOKENS: u32 = 12;

/// One choice.
pub(super) struct Part {
    id: RequestId,
    progress: Arc<Progress>,
    pub(super) output: Output,
    pub(super) prompt_tokens: u32,
    /// Prompt tokens in whole blocks.
    whole_block_tokens: u32,
    /// Index of the prompt it belongs to.
    pub(super) prompt: usize,
    finish: FinishReason,
}

/// Why a choice has ended, in vLLM's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Length,
    Stop,
    Abort,
}

impl Ended {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Stop => "stop",
            Self::Abort => "abort",
        }
    }
}

impl Part {
    /// Tokens that may be shown, and how it ended if it did. The last token waits for the end, because
    /// they are told together.
    pub(super) fn visible(&self) -> (u32, Option<Ended>) {
        match self.progress.outcome() {
            Some(Outcome::Finished(_)) => (self.output.tokens(), Some(self.ended())),
            Some(Outcome::Aborted) => (
                self.progress.generated().min(self.output.tokens()),
                Some(Ended::Abort),
            ),
            None => (
                self.progress
                    .generated()
                    .min(self.output.tokens().saturating_sub(1)),
                None,
            ),
        }
    }

    fn ended(&self) -> Ended {
        match self.finish {
            FinishReason::Length => Ended::Length,
            FinishReason::Stop => Ended::Stop,
        }
    }

    /// Prompt tokens that were cached; 0 until it has finished.
    pub(super) fn cached_tokens(&self) -> u32 {
        match self.progress.outcome() {
            Some(Outcome::Finished(finished)) => finished.cached_tokens,
            _ => 0,
        }
    }

    /// Prompt tokens that this request added to the cache; 0 until it has finished.
    fn created_tokens(&self) -> u32 {
        match self.progress.outcome() {
            Some(Outcome::Finished(finished)) => {
                self.whole_block_tokens.saturating_sub(finished.cached_tokens)
            }
            _ => 0,
        }
    }
}

/// All choices of one HTTP request. Dropping it gives up what has not ended.
pub(super) struct Generation {
    driver: Arc<Driver>,
    pub(super) parts: Vec<Part>,
}

/// Token counts as `usage` reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u32,
    pub(super) completion_tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) created_tokens: u32,
}

impl Generation {
    /// Hands the request to the engine.
    pub(super) fn start(
        driver: &Arc<Driver>,
        request: &GenerationRequest,
        block_size: u32,
        max_model_len: u32,
    ) -> Result<Self, Refused> {
        let mut plans = Vec::with_capacity(request.prompts.len() * request.n as usize);
        for (index, prompt) in request.prompts.iter().enumerate() {
            let chain = BlockChain::of_prompt(request, prompt, block_size);
            for choice in 0..request.n {
                plans.push(Plan::new(request, index, choice, &chain, max_model_len));
            }
        }
        let with_content = driver.publishes_blocks();
        let requests = plans
            .iter()
            .map(|plan| plan.sim_request(request, with_content))
            .collect();
        let submitted = driver.submit(requests, request.stream)?;
        let parts = plans.into_iter().zip(submitted).map(|(plan, (id, progress))| {
            let prompt_tokens = request.prompts[plan.prompt].tokens.len() as u32;
            Part {
                id,
                progress,
                prompt_tokens,
                whole_block_tokens: prompt_tokens - prompt_tokens % block_size.max(1),
                prompt: plan.prompt,
                finish: plan.finish,
                output: plan.output,
            }
        });
        Ok(Self {
            driver: driver.clone(),
            parts: parts.collect(),
        })
    }

    /// Asks to be woken at the next change of any choice.
    pub(super) fn register(&self, cx: &Context) {
        self.parts
            .iter()
            .for_each(|part| part.progress.register(cx.waker()));
    }

    /// Ready when all choices have ended.
    pub(super) fn poll_ended(&self, cx: &Context) -> Poll<()> {
        let ended = || self.parts.iter().all(|part| part.progress.outcome().is_some());
        if ended() {
            return Poll::Ready(());
        }
        self.register(cx);
        if ended() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Counts so far. A prompt counts once, however many choices it has.
    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let mut last_prompt = None;
        for part in &self.parts {
            usage.completion_tokens += part.visible().0;
            if last_prompt.replace(part.prompt) != Some(part.prompt) {
                usage.prompt_tokens += part.prompt_tokens;
                usage.cached_tokens += part.cached_tokens();
                usage.created_tokens += part.created_tokens();
            }
        }
        usage
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        for part in self.parts.iter().filter(|part| part.progress.outcome().is_none()) {
            self.driver.abort(part.id);
        }
    }
}

/// A choice before it is submitted.
struct Plan {
    prompt: usize,
    output: Output,
    finish: FinishReason,
    hashes: Arc<[u64]>,
}

impl Plan {
    fn new(
        request: &GenerationRequest,
        prompt: usize,
        choice: u32,
        chain: &BlockChain,
        max_model_len: u32,
    ) -> Self {
        let mix = [chain.content, u64::from(choice), request.seed]
            .map(u64::to_le_bytes)
            .concat();
        let seed = xxh3_64_with_seed(&mix, 0);
        let room = max_model_len
            .saturating_sub(request.prompts[prompt].tokens.len() as u32)
            .max(1);
        let natural = match request.ignore_eos {
            true => u32::MAX,
            false => (SENTENCE_TOKENS * (1 + (seed % NATURAL_SENTENCES) as u32)).max(request.min_tokens),
        };
        let tokens = request.max_tokens.unwrap_or(natural).min(room);
        let mut output = Output::generate(seed, tokens, request.api == super::request::Api::Completions);
        output.stop_at(&request.stop, request.min_tokens);
        let by_itself = request.max_tokens.is_none() && natural <= room;
        let finish = if by_itself || output.stop.is_some() {
            FinishReason::Stop
        } else {
            FinishReason::Length
        };
        let hashes = chain.extend(&output.ids);
        Self {
            prompt,
            output,
            finish,
            hashes,
        }
    }

    fn sim_request(&self, request: &GenerationRequest, with_content: bool) -> SimRequest {
        let prompt = &request.prompts[self.prompt].tokens;
        let content = with_content.then(|| {
            Arc::new(BlockContent {
                tokens: [prompt.as_slice(), &self.output.ids].concat(),
                lora_name: request.lora.clone(),
                cache_salt: request.cache_salt.clone(),
            })
        });
        SimRequest {
            id: RequestId(0),
            block_hashes: self.hashes.clone(),
            prompt_tokens: prompt.len() as u32,
            output_tokens: self.output.tokens(),
            output_seed: 0,
            finish: self.finish,
            content,
        }
    }
}

/// Chained hashes of a prompt's full blocks, and the tokens left over.
struct BlockChain {
    block_size: usize,
    hashes: Vec<u64>,
    tail: Vec<u32>,
    root: u64,
    /// Hash of the whole prompt.
    content: u64,
}

impl BlockChain {
    /// The root stands for everything that keeps equal tokens apart: adapter and salt.
    fn of_prompt(request: &GenerationRequest, prompt: &Prompt, block_size: u32) -> Self {
        let lora = request
            .lora
            .as_deref()
            .map_or(0, |lora| xxh3_64_with_seed(lora.as_bytes(), 1));
        let root = request
            .cache_salt
            .as_deref()
            .map_or(lora, |salt| xxh3_64_with_seed(salt.as_bytes(), lora ^ 2));
        let block_size = block_size.max(1) as usize;
        let blocks = prompt.tokens.chunks_exact(block_size);
        let tail = blocks.remainder().to_vec();
        let hashes = hash_blocks(root, blocks);
        let content = hash_tokens(hashes.last().copied().unwrap_or(0), &tail);
        Self {
            block_size,
            hashes,
            tail,
            root,
            content,
        }
    }

    /// Hashes of all full blocks of prompt and output.
    fn extend(&self, output: &[u32]) -> Arc<[u64]> {
        if self.tail.len() + output.len() < self.block_size {
            return self.hashes.as_slice().into();
        }
        let rest = [self.tail.as_slice(), output].concat();
        let parent = self.hashes.last().copied().unwrap_or(self.root);
        let more = hash_blocks(parent, rest.chunks_exact(self.block_size));
        self.hashes.iter().copied().chain(more).collect()
    }
}

fn hash_blocks<'a>(root: u64, blocks: impl Iterator<Item = &'a [u32]>) -> Vec<u64> {
    blocks
        .scan(root, |parent, block| {
            *parent = hash_tokens(*parent, block);
            Some(*parent)
        })
        .collect()
}

fn hash_tokens(parent: u64, tokens: &[u32]) -> u64 {
    let bytes: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, parent)
}
