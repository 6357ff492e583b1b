//! How long an engine step takes.

use super::EngineSpec;
use std::time::Duration;

/// What one step works on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Prompt tokens computed (recomputed ones after a preemption included).
    pub prefill_tokens: u64,
    /// (query token, key token) pairs of those prompt tokens: `n * context + n * (n + 1) / 2` for a chunk
    /// of `n` tokens after `context` tokens that are already in the cache.
    pub attention_pairs: f64,
    /// Requests that got a seat in this step.
    pub admitted_requests: u32,
    /// Prompt tokens of those requests, cached ones included.
    pub admitted_tokens: u64,
    /// Requests that decode one token.
    pub decode_requests: u32,
    /// Context tokens of the decoding requests.
    pub decode_context_tokens: u64,
}

/// Seconds per unit of work; a step takes the sum:
/// `step_overhead + weight_read + prefill_token * prefill_tokens + attention_pair * attention_pairs
/// + admit_request * admitted_requests + admit_token * admitted_tokens
/// + decode_request * decode_requests + decode_context_token * decode_context_tokens`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimingModel {
    /// Scheduling, launch and sampling of any step, seconds.
    pub step_overhead: f64,
    /// One pass over the model's weights, seconds per step.
    pub weight_read: f64,
    /// Seconds per prompt token computed.
    pub prefill_token: f64,
    /// Seconds per (query, key) pair of prompt tokens: the quadratic part of prefill.
    pub attention_pair: f64,
    /// Seconds per newly seated request: what the API process and the scheduler spend on it.
    pub admit_request: f64,
    /// Seconds per prompt token of a newly seated request, cached or not: parsing, hashing, hand-over.
    pub admit_token: f64,
    /// Seconds per decoding request and step.
    pub decode_request: f64,
    /// Seconds per context token of a decoding request and step: reading its KV cache.
    pub decode_context_token: f64,
}

impl TimingModel {
    /// Every step takes no time.
    pub const INSTANT: Self = Self {
        step_overhead: 0.0,
        weight_read: 0.0,
        prefill_token: 0.0,
        attention_pair: 0.0,
        admit_request: 0.0,
        admit_token: 0.0,
        decode_request: 0.0,
        decode_context_token: 0.0,
    };

    /// Qwen3-32B on two H100: the prefill constants follow published measurements, the decode ones are
    /// roofline estimates.
    pub const QWEN3_32B_2XH100: Self = Self {
        step_overhead: 3e-3,
        weight_read: 12.5e-3,
        prefill_token: 4.31e-5,
        attention_pair: 1.4e-9,
        decode_request: 2e-5,
        decode_context_token: 5.2e-8,
        ..Self::INSTANT
    };

    /// Llama-3.1-8B on one H100, from the same sources.
    pub const LLAMA31_8B_1XH100: Self = Self {
        step_overhead: 2e-3,
        weight_read: 6e-3,
        prefill_token: 2.7e-5,
        attention_pair: 6e-10,
        decode_request: 1e-5,
        decode_context_token: 4.9e-8,
        ..Self::INSTANT
    };

    /// A 0.8M-parameter Llama in float32 on one CPU thread, fitted to a real vLLM 0.32.0.
    pub const CPU_TINY: Self = Self {
        step_overhead: 3.1e-3,
        weight_read: 0.0,
        prefill_token: 6.1e-6,
        attention_pair: 1.5e-8,
        admit_request: 3.5e-3,
        admit_token: 1.8e-6,
        decode_request: 5.5e-5,
        decode_context_token: 1.5e-8,
    };

    /// A 21M-parameter Llama in float32 on one CPU thread, fitted to a real vLLM 0.32.0.
    pub const CPU_SMALL: Self = Self {
        step_overhead: 16e-3,
        weight_read: 0.0,
        prefill_token: 3.0e-4,
        attention_pair: 3.4e-7,
        admit_request: 13e-3,
        admit_token: 1.8e-6,
        decode_request: 8e-4,
        decode_context_token: 3.4e-7,
    };

    /// Time that a step with this work takes.
    pub fn step(&self, work: &StepWork) -> Duration {
        let seconds = self.step_overhead
            + self.weight_read
            + self.prefill_token * work.prefill_tokens as f64
            + self.attention_pair * work.attention_pairs
            + self.admit_request * f64::from(work.admitted_requests)
            + self.admit_token * work.admitted_tokens as f64
            + self.decode_request * f64::from(work.decode_requests)
            + self.decode_context_token * work.decode_context_tokens as f64;
        Duration::from_nanos((seconds.max(0.0) * 1e9).round() as u64)
    }

    /// Time to the first token of a prompt of `prompt_tokens` alone on an idle engine that has
    /// `cached_tokens` of it, when one step holds the rest.
    pub fn idle_ttft(&self, prompt_tokens: u32, cached_tokens: u32) -> Duration {
        let new = f64::from(prompt_tokens.saturating_sub(cached_tokens));
        self.step(&StepWork {
            prefill_tokens: new as u64,
            attention_pairs: new * f64::from(cached_tokens) + new * (new + 1.0) / 2.0,
            admitted_requests: 1,
            admitted_tokens: u64::from(prompt_tokens),
            ..StepWork::default()
        })
    }
}

/// A well-known kind of server: timing, cache size and seats together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FleetPreset {
    /// Qwen3-32B on two H100.
    #[value(name = "qwen3-32b-2xh100")]
    Qwen3On2H100,
    /// Llama-3.1-8B on one H100.
    #[value(name = "llama3.1-8b-1xh100")]
    Llama31On1H100,
    /// A toy model on one CPU thread: 8 ms to the first token.
    #[value(name = "cpu-tiny")]
    CpuTiny,
    /// A small model on one CPU thread: about 0.5 ms per uncached prompt token.
    #[value(name = "cpu-small")]
    CpuSmall,
    /// No simulated time at all.
    #[value(name = "instant")]
    Instant,
}

impl FleetPreset {
    /// The step timing of this kind of server.
    pub const fn timing(self) -> TimingModel {
        match self {
            Self::Qwen3On2H100 => TimingModel::QWEN3_32B_2XH100,
            Self::Llama31On1H100 => TimingModel::LLAMA31_8B_1XH100,
            Self::CpuTiny => TimingModel::CPU_TINY,
            Self::CpuSmall => TimingModel::CPU_SMALL,
            Self::Instant => TimingModel::INSTANT,
        }
    }

    /// KV cache size in tokens.
    pub const fn kv_tokens(self) -> u64 {
        match self {
            Self::Qwen3On2H100 => 307_328,
            Self::Llama31On1H100 => 430_000,
            Self::CpuTiny | Self::Instant => 65_536,
            Self::CpuSmall => 32_768,
        }
    }

    /// The engine with blocks of `block_size` tokens, and vLLM's default of 256 seats and 8,192 tokens
    /// per step.
    pub fn spec(self, block_size: u32) -> EngineSpec {
        EngineSpec {
            timing: self.timing(),
            ..EngineSpec::new(
                block_size,
                (self.kv_tokens() / u64::from(block_size.max(1))) as u32,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Engine, FinishReason, RequestId, SimRequest};
    use super::*;
    use crate::time::Mono;

    fn assert_near(label: &str, seconds: Duration, measured_ms: f64, tolerance: f64) {
        let ms = seconds.as_secs_f64() * 1e3;
        let ratio = ms / measured_ms;
        assert!(
            (ratio - 1.0).abs() <= tolerance,
            "{label}: {ms:.1} ms, measured {measured_ms} ms"
        );
    }

    /// Prompt tokens, cold TTFT ms, hit TTFT ms, as measured on vLLM 0.32.0 (float32, one thread).
    type Row = (u32, f64, f64);

    fn check_ttft(timing: TimingModel, block_size: u32, rows: &[Row]) {
        for &(tokens, cold_ms, hit_ms) in rows {
            assert_near(
                &format!("{tokens} cold"),
                timing.idle_ttft(tokens, 0),
                cold_ms,
                0.25,
            );
            let cached = (tokens - 1) / block_size * block_size;
            assert_near(
                &format!("{tokens} hit"),
                timing.idle_ttft(tokens, cached),
                hit_ms,
                0.25,
            );
        }
    }

    #[test]
    fn cpu_tiny_matches_measured_ttft() {
        let rows = [
            (128, 8.5, 7.8),
            (512, 12.1, 7.4),
            (1024, 22.0, 8.7),
            (2048, 62.0, 14.6),
            (4000, 158.0, 14.0),
        ];
        check_ttft(TimingModel::CPU_TINY, 32, &rows);
    }

    #[test]
    fn cpu_small_matches_measured_ttft() {
        let rows = [
            (128, 72.6, 72.2),
            (512, 244.0, 86.0),
            (1024, 516.0, 94.0),
            (2048, 1600.0, 160.0),
            (4000, 3960.0, 88.0),
        ];
        check_ttft(TimingModel::CPU_SMALL, 128, &rows);
    }

    /// Inter-token latency of `n` requests of 64 + 64 tokens, halfway through their output.
    fn itl(timing: TimingModel, n: u32) -> Duration {
        timing.step(&StepWork {
            decode_requests: n,
            decode_context_tokens: u64::from(n) * 96,
            ..StepWork::default()
        })
    }

    #[test]
    fn decode_rates_match_measured_inter_token_latency() {
        for (n, tiny_ms, small_ms) in [(1, 3.0, 16.6), (8, 3.2, 25.5), (32, 5.4, 45.0), (64, 6.5, 61.0)] {
            assert_near("tiny", itl(TimingModel::CPU_TINY, n), tiny_ms, 0.25);
            assert_near("small", itl(TimingModel::CPU_SMALL, n), small_ms, 0.25);
        }
    }

    /// Measured: 30 prompts of 1,500 tokens at once, 60 tokens out, on 255 blocks of 128 took 26 to 40 s, filled the
    /// cache to 99 % and preempted 2.
    #[test]
    fn a_burst_on_a_small_server_goes_as_measured() {
        let spec = EngineSpec {
            timing: TimingModel::CPU_SMALL,
            max_num_batched_tokens: 2048,
            ..EngineSpec::new(128, 255)
        };
        let mut engine = Engine::new(spec);
        for id in 0..30 {
            let request = SimRequest {
                id: RequestId(id),
                block_hashes: (0..11).map(|block| id * 100 + block).collect(),
                prompt_tokens: 1500,
                output_tokens: 60,
                output_seed: id,
                finish: FinishReason::Length,
                content: None,
            };
            engine.submit(Mono::ZERO, request).unwrap();
        }
        let (mut fullest, mut events) = (0.0_f64, Vec::new());
        while let Some(at) = engine.next_event_at() {
            engine.advance(at, &mut events);
            fullest = fullest.max(engine.counters().kv_cache_usage);
        }
        let counters = engine.counters();
        let took_s = counters.at.as_secs_f64();
        assert!((26.0..40.0).contains(&took_s), "{took_s} s");
        assert!((0.98..=1.0).contains(&fullest), "{fullest}");
        assert_eq!(counters.preemptions, 2);
    }
}
