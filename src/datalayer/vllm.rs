//! vLLM's metric names, of all versions, folded into one [`EngineMetrics`].
//!
//! Names and meanings: vLLM `v1/metrics/loggers.py`. A server with several engine cores (data parallel)
//! or several front-end processes repeats a series per `engine` or `pid` label.

use super::exposition::{NotExposition, Sample, Samples};
use crate::scheduling::Scraped;

mod cache;
mod lora;

pub use lora::LoraRequests;

/// One scrape of one vLLM server. `None` means unknown: the metric was missing, not finite or negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineMetrics {
    /// Requests in the queue, summed over engines.
    pub waiting: Option<f64>,
    /// Requests in the batch, summed over engines.
    pub running: Option<f64>,
    /// Share of KV blocks in use, 0..=1; the fullest engine.
    pub kv_usage: Option<f64>,
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// KV blocks of all engines together.
    pub num_gpu_blocks: Option<u64>,
    /// KV capacity of all engines together, in tokens.
    pub capacity_tokens: Option<u64>,
    /// Whether the engine reuses cached prefixes at all.
    pub prefix_caching: Option<bool>,
    /// Prompt tokens looked up in the prefix cache since the engine started.
    pub prefix_cache_queries_tokens: Option<f64>,
    /// Prompt tokens found there since the engine started.
    pub prefix_cache_hits_tokens: Option<f64>,
    /// Prompt tokens of finished prefills since the engine started, cached ones included.
    pub prompt_tokens: Option<f64>,
    /// Tokens generated since the engine started.
    pub generation_tokens: Option<f64>,
    /// Requests evicted from the batch for want of KV blocks since the engine started.
    pub preemptions: Option<f64>,
    /// Seconds since the epoch; the newest when several processes report one.
    pub process_start_time_s: Option<f64>,
    /// False when any engine sleeps: it then accepts requests and does not run them.
    pub awake: Option<bool>,
    /// LoRA adapters in use.
    pub lora: Option<LoraRequests>,
    /// Lines of the page that could not be read.
    pub malformed_lines: u64,
}

impl EngineMetrics {
    /// Reads a `/metrics` body.
    ///
    /// # Errors
    /// [`NotExposition`] when the body is something else, a web page for instance.
    pub fn parse(body: &[u8]) -> Result<Self, NotExposition> {
        let mut samples = Samples::only(body, |name| Family::of(name).is_some())?;
        let mut fold = Fold::default();
        for sample in samples.by_ref() {
            fold.add(&sample);
        }
        Ok(fold.finish(samples.malformed()))
    }

    /// The gauges that scheduling reads.
    pub fn gauges(&self) -> Scraped {
        Scraped {
            waiting: self.waiting,
            running: self.running,
            kv_usage: self.kv_usage,
        }
    }
}

#[derive(Clone, Copy)]
enum Family {
    Waiting,
    Running,
    KvUsage,
    CacheInfo,
    CacheQueries,
    CacheHits,
    PromptTokens,
    GenerationTokens,
    Preemptions,
    StartTime,
    SleepState,
    Lora,
}

impl Family {
    /// The family of a metric name. Renamed ones: `gpu_cache_usage_perc` became `kv_cache_usage_perc` and
    /// `gpu_prefix_cache_*` became `prefix_cache_*`; counters were once exported without `_total`.
    fn of(name: &[u8]) -> Option<Self> {
        if name == b"process_start_time_seconds" {
            return Some(Self::StartTime);
        }
        let name = name.strip_prefix(b"vllm:")?;
        Some(match name {
            b"num_requests_waiting" => Self::Waiting,
            b"num_requests_running" => Self::Running,
            b"kv_cache_usage_perc" | b"gpu_cache_usage_perc" => Self::KvUsage,
            b"cache_config_info" => Self::CacheInfo,
            b"engine_sleep_state" => Self::SleepState,
            b"lora_requests_info" => Self::Lora,
            _ => match name.strip_suffix(b"_total").unwrap_or(name) {
                b"prefix_cache_queries" | b"gpu_prefix_cache_queries" => Self::CacheQueries,
                b"prefix_cache_hits" | b"gpu_prefix_cache_hits" => Self::CacheHits,
                b"prompt_tokens" => Self::PromptTokens,
                b"generation_tokens" => Self::GenerationTokens,
                b"num_preemptions" => Self::Preemptions,
                _ => return None,
            },
        })
    }
}

#[derive(Default)]
struct Fold<'a> {
    metrics: EngineMetrics,
    engines: cache::Engines<'a>,
    /// A counter under its old and its new name is one counter: the names are summed apart.
    counters: [Counter<'a>; 5],
    lora_newest: f64,
}

#[derive(Default)]
struct Counter<'a> {
    by_name: smallvec::SmallVec<[(&'a str, f64); 2]>,
}

impl<'a> Counter<'a> {
    fn add(&mut self, name: &'a str, value: f64) {
        match self.by_name.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += value,
            None => self.by_name.push((name, value)),
        }
    }

    fn total(&self) -> Option<f64> {
        self.by_name.iter().map(|(_, sum)| *sum).reduce(f64::max)
    }
}

impl<'a> Fold<'a> {
    fn add(&mut self, sample: &Sample<'a>) {
        let Some(family) = Family::of(sample.name.as_bytes()) else {
            return;
        };
        if !sample.value.is_finite() || sample.value < 0.0 {
            return;
        }
        let (metrics, value) = (&mut self.metrics, sample.value);
        match family {
            Family::Waiting => add(&mut metrics.waiting, value),
            Family::Running => add(&mut metrics.running, value),
            Family::KvUsage => max(&mut metrics.kv_usage, value.min(1.0)),
            Family::StartTime => max(&mut metrics.process_start_time_s, value),
            Family::CacheInfo => self.engines.add(sample),
            Family::SleepState => {
                if sample.label("sleep_state").is_some_and(|state| state.is("awake")) {
                    metrics.awake = Some(metrics.awake.unwrap_or(true) && value != 0.0);
                }
            }
            // The value is the time of the last change; label sets of the past stay on the page.
            Family::Lora => {
                if metrics.lora.is_none() || value > self.lora_newest {
                    (metrics.lora, self.lora_newest) = (Some(LoraRequests::of(sample)), value);
                }
            }
            Family::CacheQueries => self.counters[0].add(sample.name, value),
            Family::CacheHits => self.counters[1].add(sample.name, value),
            Family::PromptTokens => self.counters[2].add(sample.name, value),
            Family::GenerationTokens => self.counters[3].add(sample.name, value),
            Family::Preemptions => self.counters[4].add(sample.name, value),
        }
    }

    fn finish(self, malformed_lines: u64) -> EngineMetrics {
        let [queries, hits, prompt, generation, preemptions] = self.counters.map(|counter| counter.total());
        EngineMetrics {
            block_size: self.engines.block_size(),
            num_gpu_blocks: self.engines.num_gpu_blocks(),
            capacity_tokens: self.engines.capacity_tokens(),
            prefix_caching: self.engines.prefix_caching(),
            prefix_cache_queries_tokens: queries,
            prefix_cache_hits_tokens: hits,
            prompt_tokens: prompt,
            generation_tokens: generation,
            preemptions,
            malformed_lines,
            ..self.metrics
        }
    }
}

fn add(sum: &mut Option<f64>, value: f64) {
    *sum = Some(sum.unwrap_or(0.0) + value);
}

fn max(greatest: &mut Option<f64>, value: f64) {
    *greatest = Some(greatest.unwrap_or(value).max(value));
}

#[cfg(test)]
mod tests;
