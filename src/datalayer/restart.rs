//! Whether the engine behind an address is still the process it was at the last scrape.

use super::vllm::EngineMetrics;

/// Start times closer than this are the same start: some exporters derive it from the boot time on every
/// scrape, which moves with clock corrections. No engine restarts this fast with its counters unchanged.
const SAME_START_S: f64 = 1.0;

/// What gave a restart away. Whatever the engine had cached is gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Restart {
    /// `process_start_time_seconds` changed.
    StartTime { before_s: f64, after_s: f64 },
    /// A counter went down: only a new process starts over.
    Counter {
        name: &'static str,
        before: f64,
        after: f64,
    },
}

/// Compares two consecutive scrapes of one endpoint; `None` when they may come from the same process.
///
/// A value that is unknown on either side says nothing.
pub fn between(before: &EngineMetrics, after: &EngineMetrics) -> Option<Restart> {
    if let (Some(before_s), Some(after_s)) = (before.process_start_time_s, after.process_start_time_s)
        && (after_s - before_s).abs() > SAME_START_S
    {
        return Some(Restart::StartTime { before_s, after_s });
    }
    counters(before)
        .into_iter()
        .zip(counters(after))
        .find_map(|((name, before), (_, after))| {
            let (before, after) = before.zip(after)?;
            (after < before).then_some(Restart::Counter { name, before, after })
        })
}

fn counters(metrics: &EngineMetrics) -> [(&'static str, Option<f64>); 5] {
    [
        ("prefix_cache_queries", metrics.prefix_cache_queries_tokens),
        ("prefix_cache_hits", metrics.prefix_cache_hits_tokens),
        ("prompt_tokens", metrics.prompt_tokens),
        ("generation_tokens", metrics.generation_tokens),
        ("num_preemptions", metrics.preemptions),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(start: Option<f64>, prompt_tokens: Option<f64>) -> EngineMetrics {
        EngineMetrics {
            process_start_time_s: start,
            prompt_tokens,
            ..EngineMetrics::default()
        }
    }

    #[test]
    fn a_running_engine_is_not_a_restart() {
        let before = scrape(Some(1.7e9), Some(10.0));
        assert_eq!(between(&before, &before), None);
        assert_eq!(between(&before, &scrape(Some(1.7e9 + 0.5), Some(11.0))), None);
        assert_eq!(between(&before, &scrape(None, None)), None);
        assert_eq!(between(&scrape(None, None), &before), None);
    }

    #[test]
    fn counters_that_fall_or_a_new_start_time_are() {
        let before = scrape(Some(1.7e9), Some(10.0));
        let reset = Restart::Counter {
            name: "prompt_tokens",
            before: 10.0,
            after: 0.0,
        };
        assert_eq!(between(&before, &scrape(None, Some(0.0))), Some(reset));
        let later = between(&before, &scrape(Some(1.7e9 + 60.0), Some(10.0)));
        assert!(matches!(later, Some(Restart::StartTime { .. })));
        // Another server took over the address, one that has been up for longer.
        assert!(between(&before, &scrape(Some(1.6e9), Some(99.0))).is_some());
    }
}
