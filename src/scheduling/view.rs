//! The values that scheduling reads and returns.

use crate::prefix::{BlockHash, EndpointId};
use smallvec::SmallVec;
use std::sync::Arc;

/// What scheduling knows of one request.
#[derive(Clone, Debug, Default)]
pub struct RequestView<'a> {
    /// Model name as the client sent it; empty when the body names none.
    pub model: &'a str,
    /// Prompt length L in tokens: exact for token ids, otherwise estimated from bytes; 0 when unkeyed.
    pub prompt_tokens: u32,
    /// False for requests that carry no prompt (or an unreadable one): they are routed by load alone.
    pub keyed: bool,
    /// The client's bound on the completion, if it set one.
    pub max_output_tokens: Option<u32>,
    /// Chained hash of the prompt's first blocks, at most [`PREFIX_KEY_BLOCKS`](super::PREFIX_KEY_BLOCKS) of
    /// them: what consistent-hash policies place by. `None` when the prompt has no whole block.
    pub prefix_key: Option<BlockHash>,
    /// Hash of the session header's value, when the client sent one.
    pub session: Option<u64>,
    /// The request must not go to these endpoints (already tried, or over `max_inflight`).
    pub exclude: &'a [EndpointId],
}

/// Gauges from the engine's `/metrics`, each `None` when it was never seen or is stale:
/// unknown is neutral, never best.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scraped {
    /// `vllm:num_requests_waiting`.
    pub waiting: Option<f64>,
    /// `vllm:num_requests_running`.
    pub running: Option<f64>,
    /// `vllm:kv_cache_usage_perc`, 0..=1.
    pub kv_usage: Option<f64>,
}

/// How an engine stands to one LoRA adapter, by `vllm:lora_requests_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterStanding {
    /// Requests with it are in the batch.
    Running,
    /// It is not loaded, and there is room for one more.
    FreeSlot,
    /// Requests with it wait until another adapter makes room.
    Waiting,
    /// All slots are taken by others.
    NoSlot,
}

/// One candidate as a decision sees it. All own counts include requests that were picked but not yet sent.
#[derive(Clone, Copy, Debug)]
pub struct EndpointView<'a> {
    pub id: EndpointId,
    pub name: &'a str,
    /// Cached prefix tokens h(e) that the engine can reuse: whole engine blocks, at most `prompt_tokens - 1`.
    pub match_tokens: u32,
    /// Share of the prompt's content that this endpoint is believed to hold, 0..=1, partial tail included:
    /// it may pull a short prompt home, but is never reported as matched blocks.
    pub match_ratio: f64,
    pub scraped: Scraped,
    /// How the engine stands to the model that is asked for; `None` when it reports no adapters, or its report is stale.
    pub adapter: Option<AdapterStanding>,
    /// The gateway's own in-flight requests N(e).
    pub inflight: u32,
    /// Uncached prompt tokens sent there and not yet at their first byte, P(e).
    pub pending_prefill_tokens: u64,
    /// Context tokens (prompt + expected output so far) of in-flight requests, A(e).
    pub active_tokens: u64,
    /// Prompt tokens that the prefix index believes this endpoint holds, in use or not. Cache content, which
    /// `kv_usage` is not: an idle engine reports usage 0 with a cache full of reusable blocks.
    pub cached_tokens: u64,
    /// KV capacity in tokens (`num_gpu_blocks x block_size`), if known.
    pub capacity_tokens: Option<u64>,
}

impl<'a> EndpointView<'a> {
    /// An endpoint that holds nothing, does nothing, and of which nothing was scraped.
    pub fn idle(id: EndpointId, name: &'a str) -> Self {
        Self {
            id,
            name,
            match_tokens: 0,
            match_ratio: 0.0,
            scraped: Scraped::default(),
            adapter: None,
            inflight: 0,
            pending_prefill_tokens: 0,
            active_tokens: 0,
            cached_tokens: 0,
            capacity_tokens: None,
        }
    }
}

/// Why the request went where it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// Some candidate's match saves enough to be worth going home.
    Warm,
    /// A prompt that nobody holds.
    Cold,
    /// No prompt to key on: by load.
    Unkeyed,
}

impl DecisionKind {
    /// The word used in headers, metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
            Self::Unkeyed => "unkeyed",
        }
    }
}

/// One candidate of a decision with what it was worth.
#[derive(Clone, Debug)]
pub struct Scored {
    pub id: EndpointId,
    /// Total score (higher is better) or cost in seconds (lower is better): see [`Decision::lower_is_better`].
    pub total: f64,
    /// One value per name in [`Decision::term_names`].
    pub terms: SmallVec<[f64; 6]>,
    pub match_tokens: u32,
}

/// The outcome of scheduling one request: a value that feeds headers, logs, admin pages and metrics.
#[derive(Clone, Debug)]
pub struct Decision {
    pub kind: DecisionKind,
    /// What the numbers mean: the preset's or policy's name.
    pub policy: &'static str,
    pub lower_is_better: bool,
    /// Shared with the scheduler: configured plugins make the list, so it is not static.
    pub term_names: Arc<[&'static str]>,
    /// Best first; a retry takes the next one. Empty when no candidate is left.
    pub ranked: Vec<Scored>,
    /// Candidates that were set aside, with the reason. One that only a preference (an affinity filter) set
    /// aside still stands in `ranked`, after all others, so that a retry can reach it.
    pub filtered: Vec<(EndpointId, &'static str)>,
}

impl Decision {
    /// The endpoint to send to first.
    pub fn chosen(&self) -> Option<&Scored> {
        self.ranked.first()
    }
}
