//! `/metrics` with the names, labels and types of vLLM 0.32.

mod families;

use super::{Inner, SimOptions};
use crate::sim::engine::{EngineCounters, Histogram};
use families::*;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// The page.
pub(super) fn render(server: &Inner) -> String {
    let counters = server.driver.counters();
    let mut page = Page::new(server);
    page.process();
    page.gauges(&counters);
    page.token_counters(&counters);
    page.request_counters(&counters);
    page.histograms(&counters);
    page.config(&server.options);
    page.out
}

/// A label set without its braces, ending in a comma unless empty.
type Labels<'a> = &'a str;

struct Page<'a> {
    server: &'a Inner,
    out: String,
    /// `model_name="..."`.
    model: String,
    created: f64,
}

/// Appends formatted text; writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{
        let _ = writeln!($out, $($arg)*);
    }};
}

impl<'a> Page<'a> {
    fn new(server: &'a Inner) -> Self {
        let model = server
            .options
            .model()
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        Self {
            server,
            out: String::with_capacity(64 << 10),
            model: format!("model_name=\"{model}\""),
            created: server.started_unix,
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        put!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample; labels stand in alphabetical order around `model_name`.
    fn sample(&mut self, name: &str, before: Labels, after: &str, value: f64) {
        put!(self.out, "{name}{{{before}{}{after}}} {value:?}", self.model);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, "engine=\"0\",", "", value);
    }

    /// A counter and the time since which it counts; each series is (labels before, labels after, value).
    fn counter(&mut self, name: &str, help: &str, series: &[(Labels, &str, f64)]) {
        let total = format!("{name}_total");
        self.head(&total, "counter", help);
        for (before, after, value) in series {
            self.sample(&total, before, after, *value);
        }
        let created = format!("{name}_created");
        self.head(&created, "gauge", help);
        for (before, after, _) in series {
            self.sample(&created, before, after, self.created);
        }
    }

    fn simple_counter(&mut self, name: &str, help: &str, value: u64) {
        self.counter(name, help, &[("engine=\"0\",", "", value as f64)]);
    }

    fn histogram(&mut self, name: &str, help: &str, values: &Histogram) {
        self.head(name, "histogram", help);
        let model = &self.model;
        for (bound, count) in values.cumulative() {
            let le = if bound.is_infinite() {
                "+Inf".to_owned()
            } else {
                format!("{bound:?}")
            };
            let count = count as f64;
            put!(
                self.out,
                "{name}_bucket{{engine=\"0\",le=\"{le}\",{model}}} {count:?}"
            );
        }
        self.sample(
            &format!("{name}_count"),
            "engine=\"0\",",
            "",
            values.count() as f64,
        );
        self.sample(&format!("{name}_sum"), "engine=\"0\",", "", values.sum());
        let created = format!("{name}_created");
        self.head(&created, "gauge", help);
        self.sample(&created, "engine=\"0\",", "", self.created);
    }

    fn process(&mut self) {
        let name = "process_start_time_seconds";
        self.head(
            name,
            "gauge",
            "Start time of the process since unix epoch in seconds.",
        );
        put!(self.out, "{name} {:?}", self.created);
        for what in ["flops", "read_bytes", "write_bytes"] {
            let text = match what {
                "flops" => "floating point operations",
                "read_bytes" => "bytes read from memory",
                _ => "bytes written to memory",
            };
            let help =
                format!("Estimated number of {text} per GPU (for Model Flops Utilization calculations).");
            self.simple_counter(&format!("vllm:estimated_{what}_per_gpu"), &help, 0);
        }
    }

    fn gauges(&mut self, c: &EngineCounters) {
        let waiting = f64::from(c.requests_waiting);
        self.gauge(
            "vllm:num_requests_running",
            "Number of requests in model execution batches.",
            f64::from(c.requests_running),
        );
        self.gauge(
            "vllm:num_requests_waiting",
            "Number of requests waiting to be processed.",
            waiting,
        );
        let name = "vllm:num_requests_waiting_by_reason";
        self.head(name, "gauge", WAITING_HELP);
        self.sample(name, "engine=\"0\",", ",reason=\"capacity\"", waiting);
        self.sample(name, "engine=\"0\",", ",reason=\"deferred\"", 0.0);
        let name = "vllm:engine_sleep_state";
        self.head(name, "gauge", SLEEP_HELP);
        let asleep = f64::from(u8::from(self.server.driver.is_sleeping()));
        self.sample(name, "engine=\"0\",", ",sleep_state=\"awake\"", 1.0 - asleep);
        self.sample(
            name,
            "engine=\"0\",",
            ",sleep_state=\"weights_offloaded\"",
            asleep,
        );
        self.sample(name, "engine=\"0\",", ",sleep_state=\"discard_all\"", 0.0);
        self.gauge(
            "vllm:kv_cache_usage_perc",
            "KV-cache usage. 1 means 100 percent usage.",
            c.kv_cache_usage,
        );
    }

    fn token_counters(&mut self, c: &EngineCounters) {
        for (name, help, value) in TOKEN_COUNTERS {
            self.simple_counter(&format!("vllm:{name}"), help, value(c));
            match *name {
                "prompt_tokens" => self.prompt_sources(c),
                "prompt_tokens_cached" => self.cached_sources(c),
                _ => {}
            }
        }
    }

    fn prompt_sources(&mut self, c: &EngineCounters) {
        let (cached, computed) = (
            c.prompt_tokens_cached as f64,
            (c.prompt_tokens - c.prompt_tokens_cached) as f64,
        );
        let sources = [
            ("local_compute", computed),
            ("local_cache_hit", cached),
            ("external_kv_transfer", 0.0),
        ];
        self.by_label(
            "vllm:prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            "source",
            &sources,
        );
    }

    fn cached_sources(&mut self, c: &EngineCounters) {
        let hits = c.prefix_cache_hits as f64;
        let tiers = [
            ("device", hits),
            ("host", 0.0),
            ("p2p", 0.0),
            ("disk", 0.0),
            ("external_unspecified", 0.0),
        ];
        self.by_label(
            "vllm:prompt_tokens_cached_by_source",
            CACHED_BY_SOURCE_HELP,
            "source",
            &tiers,
        );
    }

    /// A counter with one more label, which sorts after `model_name`.
    fn by_label(&mut self, name: &str, help: &str, label: &str, values: &[(&str, f64)]) {
        let labels: Vec<String> = values
            .iter()
            .map(|(value, _)| format!(",{label}=\"{value}\""))
            .collect();
        let series: Vec<_> = labels
            .iter()
            .zip(values)
            .map(|(after, (_, v))| ("engine=\"0\",", after.as_str(), *v))
            .collect();
        self.counter(name, help, &series);
    }

    fn request_counters(&mut self, c: &EngineCounters) {
        let reasons = [
            ("engine=\"0\",finished_reason=\"stop\",", c.finished_stop),
            ("engine=\"0\",finished_reason=\"length\",", c.finished_length),
            ("engine=\"0\",finished_reason=\"abort\",", 0),
            ("engine=\"0\",finished_reason=\"error\",", 0),
            ("engine=\"0\",finished_reason=\"repetition\",", 0),
        ];
        let series = reasons.map(|(labels, value)| (labels, "", value as f64));
        self.counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            &series,
        );
        let driver = &self.server.driver;
        let rejected =
            [&driver.rejected_requests, &driver.rejected_tokens].map(|n| n.load(Ordering::Relaxed) as f64);
        self.counter(
            "vllm:admission_rejections",
            REJECTIONS_HELP,
            &[
                ("", ",reason=\"max_num_queued_reqs\"", rejected[0]),
                ("", ",reason=\"max_num_queued_tokens\"", rejected[1]),
            ],
        );
    }

    fn histograms(&mut self, c: &EngineCounters) {
        for (name, help, values) in HISTOGRAMS {
            if *name == "request_params_max_tokens" {
                let params_n = self.server.params_n.lock().clone();
                self.histogram(
                    "vllm:request_params_n",
                    "Histogram of the n request parameter.",
                    &params_n,
                );
            }
            self.histogram(&format!("vllm:{name}"), help, values(c));
        }
    }

    fn config(&mut self, options: &SimOptions) {
        let name = "vllm:cache_config_info";
        self.head(name, "gauge", "Information of the LLMEngine CacheConfig");
        // vLLM counts the block that it keeps back as a placeholder, which no request can have.
        let (block, blocks) = (options.engine.block_size, options.engine.num_blocks + 1);
        let tokens = u64::from(block) * u64::from(blocks);
        let concurrency = tokens as f64 / f64::from(options.max_model_len.max(1));
        put!(
            self.out,
            "{name}{{_block_size_resolved=\"True\",block_size=\"{block}\",cache_dtype=\"auto\",\
             cache_hit_alignment_tokens=\"None\",effective_attention_block_size=\"{block}\",\
             enable_mamba_shared_prefix_checkpoint=\"False\",enable_prefix_caching=\"True\",engine=\"0\",\
             gpu_memory_utilization=\"0.92\",hash_block_size=\"None\",is_attention_free=\"False\",\
             kv_cache_dtype_skip_layers=\"[]\",kv_cache_layout=\"None\",kv_cache_max_concurrency=\"{concurrency:?}\",\
             kv_cache_memory_bytes=\"None\",kv_cache_size_tokens=\"{tokens}\",kv_offloading_backend=\"native\",\
             kv_offloading_size=\"None\",kv_sharing_fast_prefill=\"False\",mamba_block_size=\"None\",\
             mamba_cache_dtype=\"auto\",mamba_cache_mode=\"none\",mamba_page_size_padded=\"None\",\
             mamba_ssm_cache_dtype=\"float32\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
             num_gpu_blocks_override=\"None\",prefix_cache_retention_interval=\"0\",\
             prefix_caching_hash_algo=\"sha256\",prefix_match_unit=\"None\",replayssm_buffer_len=\"16\",\
             skip_page_size_padded=\"None\",sliding_window=\"None\",swa_bounded_replay=\"True\",\
             use_kda_recoverssm=\"False\",use_replayssm=\"False\",user_specified_block_size=\"True\"}} 1.0"
        );
    }
}
