//! Names and descriptions of vLLM's metric families.

use crate::sim::engine::{EngineCounters, Histogram};

/// A family: its name, its description, and where its values are.
type Counter = (&'static str, &'static str, fn(&EngineCounters) -> u64);
type Distribution = (&'static str, &'static str, fn(&EngineCounters) -> &Histogram);

/// Counters of the engine by name without `vllm:` and `_total`.
pub(super) const TOKEN_COUNTERS: &[Counter] = &[
    (
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        |c| c.prefix_cache_queries,
    ),
    (
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        |c| c.prefix_cache_hits,
    ),
    ("external_prefix_cache_queries", EXTERNAL_QUERIES_HELP, |_| 0),
    ("external_prefix_cache_hits", EXTERNAL_HITS_HELP, |_| 0),
    (
        "mm_cache_queries",
        "Multi-modal cache queries, in terms of number of queried items.",
        |_| 0,
    ),
    (
        "mm_cache_hits",
        "Multi-modal cache hits, in terms of number of cached items.",
        |_| 0,
    ),
    (
        "num_preemptions",
        "Cumulative number of preemption from the engine.",
        |c| c.preemptions,
    ),
    ("prompt_tokens", "Number of prefill tokens processed.", |c| {
        c.prompt_tokens
    }),
    (
        "prompt_tokens_cached",
        "Number of cached prompt tokens (local + external).",
        |c| c.prompt_tokens_cached,
    ),
    (
        "generation_tokens",
        "Number of generation tokens processed.",
        |c| c.generation_tokens,
    ),
];

/// Histograms of the engine by name without `vllm:`.
pub(super) const HISTOGRAMS: &[Distribution] = &[
    (
        "request_prompt_tokens",
        "Number of prefill tokens processed.",
        |c| &c.request_prompt_tokens,
    ),
    (
        "request_generation_tokens",
        "Number of generation tokens processed.",
        |c| &c.request_generation_tokens,
    ),
    (
        "iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        |c| &c.iteration_tokens,
    ),
    ("request_max_num_generation_tokens", MAX_GENERATION_HELP, |c| {
        &c.request_generation_tokens
    }),
    ("request_params_max_tokens", MAX_TOKENS_HELP, |c| {
        &c.request_params_max_tokens
    }),
    (
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        |c| &c.time_to_first_token,
    ),
    (
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        |c| &c.inter_token_latency,
    ),
    ("request_time_per_output_token_seconds", TPOT_HELP, |c| {
        &c.time_per_output_token
    }),
    (
        "e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        |c| &c.e2e_latency,
    ),
    (
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        |c| &c.queue_time,
    ),
    ("request_inference_time_seconds", INFERENCE_HELP, |c| {
        &c.inference_time
    }),
    (
        "request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        |c| &c.prefill_time,
    ),
    (
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        |c| &c.decode_time,
    ),
    ("request_num_preemptions", PREEMPTIONS_HELP, |c| {
        &c.request_num_preemptions
    }),
    ("request_prefill_kv_computed_tokens", COMPUTED_HELP, |c| {
        &c.request_prefill_kv_computed_tokens
    }),
];

pub(super) const WAITING_HELP: &str = "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling \
    capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all \
    reasons equals vllm:num_requests_waiting.";
pub(super) const SLEEP_HELP: &str = "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; \
    weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.";
pub(super) const EXTERNAL_QUERIES_HELP: &str = "External prefix cache queries from KV connector cross-instance cache sharing, in \
    terms of number of queried tokens.";
pub(super) const EXTERNAL_HITS_HELP: &str = "External prefix cache hits from KV connector cross-instance cache sharing, in terms \
    of number of cached tokens.";
pub(super) const CACHED_BY_SOURCE_HELP: &str = "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), \
    host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at \
    admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.";
pub(super) const REJECTIONS_HELP: &str = "Number of admission attempts rejected by a queue limit, by reason.";
pub(super) const MAX_GENERATION_HELP: &str = "Histogram of maximum number of requested generation tokens.";
pub(super) const MAX_TOKENS_HELP: &str = "Histogram of the max_tokens request parameter.";
pub(super) const TPOT_HELP: &str = "Histogram of time_per_output_token_seconds per request.";
pub(super) const INFERENCE_HELP: &str = "Histogram of time spent in RUNNING phase for request.";
pub(super) const PREEMPTIONS_HELP: &str = "Histogram of the number of times a request was preempted.";
pub(super) const COMPUTED_HELP: &str =
    "Histogram of new KV tokens computed during prefill (excluding cached tokens).";
