//! What an engine reports about itself. All of it moves at step ends only, as on a real vLLM.

use crate::time::Mono;

/// Bucket bounds in tokens per request (`build_1_2_5_buckets` of vLLM, 4,096-token model).
pub const REQUEST_TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0,
];
/// Bucket bounds in tokens per step.
pub const STEP_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
/// Bucket bounds in seconds to the first token.
pub const TTFT_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Bucket bounds in seconds between tokens.
pub const TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Bucket bounds in seconds per request.
pub const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
/// Bucket bounds in preemptions per request.
pub const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// A histogram with fixed bucket bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Observations per bucket, the last one above all bounds; not cumulative.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram; `bounds` are inclusive upper bounds in ascending order.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    /// Counts one observation.
    pub fn observe(&mut self, value: f64) {
        self.observe_n(value, 1);
    }

    /// Counts `n` observations of the same value.
    pub fn observe_n(&mut self, value: f64, n: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += n;
        self.sum += value * n as f64;
    }

    /// (upper bound, observations up to it) of each bucket; the last bound is infinite.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |below, (bound, count)| {
            *below += count;
            Some((bound, *below))
        })
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all observed values.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// Everything that `/metrics` of a vLLM server says about its engine. Names follow vLLM's.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineCounters {
    /// End of the step that these values describe.
    pub at: Mono,
    /// `vllm:num_requests_running`.
    pub requests_running: u32,
    /// `vllm:num_requests_waiting`.
    pub requests_waiting: u32,
    /// `vllm:kv_cache_usage_perc`: referenced blocks over all blocks, 0..=1.
    pub kv_cache_usage: f64,
    /// `vllm:prefix_cache_queries_total`, tokens: prompt tokens of every first admission.
    pub prefix_cache_queries: u64,
    /// `vllm:prefix_cache_hits_total`, tokens.
    pub prefix_cache_hits: u64,
    /// `vllm:prompt_tokens_total`: prompts whose prefill is complete, cached tokens included.
    pub prompt_tokens: u64,
    /// `vllm:prompt_tokens_cached_total`; the rest of `prompt_tokens` is source `local_compute`.
    pub prompt_tokens_cached: u64,
    /// `vllm:generation_tokens_total`.
    pub generation_tokens: u64,
    /// `vllm:num_preemptions_total`.
    pub preemptions: u64,
    /// `vllm:request_success_total{finished_reason="length"}`.
    pub finished_length: u64,
    /// `vllm:request_success_total{finished_reason="stop"}`.
    pub finished_stop: u64,
    /// Engine steps done.
    pub steps: u64,
    /// `vllm:request_prompt_tokens`.
    pub request_prompt_tokens: Histogram,
    /// `vllm:request_generation_tokens`.
    pub request_generation_tokens: Histogram,
    /// `vllm:request_params_max_tokens`.
    pub request_params_max_tokens: Histogram,
    /// `vllm:request_prefill_kv_computed_tokens`.
    pub request_prefill_kv_computed_tokens: Histogram,
    /// `vllm:request_num_preemptions`.
    pub request_num_preemptions: Histogram,
    /// `vllm:iteration_tokens_total`.
    pub iteration_tokens: Histogram,
    /// `vllm:time_to_first_token_seconds`.
    pub time_to_first_token: Histogram,
    /// `vllm:inter_token_latency_seconds`.
    pub inter_token_latency: Histogram,
    /// `vllm:request_time_per_output_token_seconds`.
    pub time_per_output_token: Histogram,
    /// `vllm:e2e_request_latency_seconds`.
    pub e2e_latency: Histogram,
    /// `vllm:request_queue_time_seconds`.
    pub queue_time: Histogram,
    /// `vllm:request_inference_time_seconds`.
    pub inference_time: Histogram,
    /// `vllm:request_prefill_time_seconds`.
    pub prefill_time: Histogram,
    /// `vllm:request_decode_time_seconds`.
    pub decode_time: Histogram,
}

impl Default for EngineCounters {
    fn default() -> Self {
        Self {
            at: Mono::ZERO,
            requests_running: 0,
            requests_waiting: 0,
            kv_cache_usage: 0.0,
            prefix_cache_queries: 0,
            prefix_cache_hits: 0,
            prompt_tokens: 0,
            prompt_tokens_cached: 0,
            generation_tokens: 0,
            preemptions: 0,
            finished_length: 0,
            finished_stop: 0,
            steps: 0,
            request_prompt_tokens: Histogram::new(REQUEST_TOKENS),
            request_generation_tokens: Histogram::new(REQUEST_TOKENS),
            request_params_max_tokens: Histogram::new(REQUEST_TOKENS),
            request_prefill_kv_computed_tokens: Histogram::new(REQUEST_TOKENS),
            request_num_preemptions: Histogram::new(PREEMPTIONS),
            iteration_tokens: Histogram::new(STEP_TOKENS),
            time_to_first_token: Histogram::new(TTFT_SECONDS),
            inter_token_latency: Histogram::new(TOKEN_SECONDS),
            time_per_output_token: Histogram::new(TOKEN_SECONDS),
            e2e_latency: Histogram::new(REQUEST_SECONDS),
            queue_time: Histogram::new(REQUEST_SECONDS),
            inference_time: Histogram::new(REQUEST_SECONDS),
            prefill_time: Histogram::new(REQUEST_SECONDS),
            decode_time: Histogram::new(REQUEST_SECONDS),
        }
    }
}
