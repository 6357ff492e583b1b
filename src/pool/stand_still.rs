//! Engines that hang look well: `/health` answers, the queue is empty. What gives them away is that nothing moves
//! while requests are in flight.

use crate::datalayer::vllm::EngineMetrics;
use crate::time::Mono;
use std::time::Duration;

/// Since when an engine with requests has shown no sign of work.
#[derive(Clone, Debug, Default)]
pub struct StandStill {
    since: Option<Mono>,
    last: Option<Signs>,
}

/// Whatever moves while an engine works: token counters at the end of requests and steps, the batch and the KV cache
/// also in a long prefill; and the heads of responses, as the gateway saw them.
#[derive(Clone, Debug, PartialEq)]
struct Signs {
    prompt_tokens: f64,
    generation_tokens: f64,
    running: Option<f64>,
    waiting: Option<f64>,
    kv_usage: Option<f64>,
    heads: u64,
}

impl StandStill {
    /// Takes a scrape. An engine that does not count its tokens gives no sign of work, nor of its absence.
    pub fn observe(&mut self, now: Mono, busy: bool, engine: &EngineMetrics, heads: u64) {
        let signs =
            engine
                .prompt_tokens
                .zip(engine.generation_tokens)
                .map(|(prompt_tokens, generation_tokens)| Signs {
                    prompt_tokens,
                    generation_tokens,
                    running: engine.running,
                    waiting: engine.waiting,
                    kv_usage: engine.kv_usage,
                    heads,
                });
        let works = signs.is_none() || signs != self.last;
        if !busy {
            self.since = None;
        } else if works || self.since.is_none() {
            self.since = signs.is_some().then_some(now);
        }
        self.last = signs;
    }

    /// How long nothing has moved.
    pub fn time(&self, now: Mono) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(generation_tokens: f64) -> EngineMetrics {
        EngineMetrics {
            prompt_tokens: Some(10.0),
            generation_tokens: Some(generation_tokens),
            ..EngineMetrics::default()
        }
    }

    fn at(seconds: f64) -> Mono {
        Mono::from_secs_f64(seconds)
    }

    #[test]
    fn an_idle_engine_may_stand_still() {
        let mut still = StandStill::default();
        for seconds in [0.0, 50.0, 100.0] {
            still.observe(at(seconds), false, &engine(5.0), 0);
        }
        still.observe(at(101.0), true, &engine(5.0), 0);
        still.observe(at(103.0), true, &engine(5.0), 0);
        assert_eq!(
            still.time(at(103.0)),
            Duration::from_secs(2),
            "only since it has a request"
        );
    }

    #[test]
    fn any_movement_starts_over() {
        let mut still = StandStill::default();
        still.observe(at(0.0), true, &engine(5.0), 0);
        still.observe(at(3.0), true, &engine(5.0), 0);
        assert_eq!(still.time(at(3.0)), Duration::from_secs(3));
        still.observe(at(4.0), true, &engine(6.0), 0);
        assert_eq!(still.time(at(4.0)), Duration::ZERO);
        still.observe(at(6.0), true, &engine(6.0), 1);
        assert_eq!(still.time(at(7.0)), Duration::from_secs(1));
        still.observe(at(8.0), false, &engine(6.0), 1);
        assert_eq!(still.time(at(9.0)), Duration::ZERO);
    }

    #[test]
    fn an_engine_without_counters_is_never_suspected() {
        let mut still = StandStill::default();
        for seconds in [0.0, 100.0] {
            still.observe(at(seconds), true, &EngineMetrics::default(), 0);
        }
        assert_eq!(still.time(at(200.0)), Duration::ZERO);
    }
}
