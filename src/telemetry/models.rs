//! Families per model and endpoint: how fast tokens come, and how many.
//!
//! Clients name models, so the label is bounded: only names that an endpoint answered well are labels, and of those so
//! many; the rest share one.

use super::metrics::{Families, SECOND_BUCKETS};
use super::names;
use parking_lot::RwLock;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};
use std::sync::Arc;

/// Models told apart per endpoint.
const MAX_MODELS: usize = 64;
/// The label of models beyond.
const OTHER: &str = "other";

/// Seconds from one token to the next: from speculative decoding on a small model to a preempted request.
const TOKEN_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
    2.5,
];

/// The families.
#[derive(Clone)]
pub(super) struct ModelFamilies {
    first_token: HistogramVec,
    inter_token: HistogramVec,
    tokens: IntCounterVec,
}

/// One model's handles on one endpoint.
#[derive(Debug)]
pub struct ModelMetrics {
    /// Seconds to the first byte of a streamed response.
    pub first_token: Histogram,
    /// Mean seconds from one token of a streamed response to the next.
    pub inter_token: Histogram,
    prompt_tokens: IntCounter,
    cached_tokens: IntCounter,
    completion_tokens: IntCounter,
}

/// The models of one endpoint that have been seen.
#[derive(Debug, Default)]
pub(super) struct SeenModels {
    seen: RwLock<Vec<(Box<str>, Arc<ModelMetrics>)>>,
}

impl ModelFamilies {
    pub(super) fn new(build: &Families<'_>) -> prometheus::Result<Self> {
        let on_model = ["pool", "endpoint", "model"];
        Ok(Self {
            first_token: build.histograms(
                names::TIME_TO_FIRST_TOKEN,
                "From the choice of the endpoint to the first byte of a streamed response, by model.",
                &on_model,
                SECOND_BUCKETS,
            )?,
            inter_token: build.histograms(
                names::INTER_TOKEN,
                "Mean time from one token of a streamed response to the next, by model.",
                &on_model,
                TOKEN_BUCKETS,
            )?,
            tokens: build.counters(
                names::TOKENS,
                "Tokens that engines reported, by model and kind (prompt, cached, completion).",
                &["pool", "endpoint", "model", "kind"],
            )?,
        })
    }

    fn of(&self, pool: &str, endpoint: &str, model: &str) -> ModelMetrics {
        let labels = [pool, endpoint, model];
        let tokens = |kind| self.tokens.with_label_values(&[pool, endpoint, model, kind]);
        ModelMetrics {
            first_token: self.first_token.with_label_values(&labels),
            inter_token: self.inter_token.with_label_values(&labels),
            prompt_tokens: tokens("prompt"),
            cached_tokens: tokens("cached"),
            completion_tokens: tokens("completion"),
        }
    }
}

impl SeenModels {
    /// The handles of `model`, made at first sight.
    pub(super) fn get(
        &self,
        families: &ModelFamilies,
        pool: &str,
        endpoint: &str,
        model: &str,
    ) -> Arc<ModelMetrics> {
        let find = |seen: &[(Box<str>, Arc<ModelMetrics>)], name: &str| {
            let found = seen.iter().find(|(known, _)| **known == *name);
            found.map(|(_, metrics)| metrics.clone())
        };
        if let Some(known) = find(&self.seen.read(), model) {
            return known;
        }
        let mut seen = self.seen.write();
        let name = if seen.len() < MAX_MODELS { model } else { OTHER };
        find(&seen, name).unwrap_or_else(|| {
            let metrics = Arc::new(families.of(pool, endpoint, name));
            seen.push((name.into(), metrics.clone()));
            metrics
        })
    }
}

impl ModelMetrics {
    /// Counts what the engine said of one request.
    pub fn count_tokens(&self, prompt: Option<u64>, cached: Option<u64>, completion: Option<u64>) {
        self.prompt_tokens.inc_by(prompt.unwrap_or(0));
        self.cached_tokens.inc_by(cached.unwrap_or(0));
        self.completion_tokens.inc_by(completion.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use crate::telemetry::Metrics;

    #[test]
    fn models_beyond_the_bound_share_a_label() {
        let metrics = Metrics::new().unwrap();
        let endpoint = metrics.endpoint("p", "e");
        for n in 0..100 {
            let model = endpoint.model(&format!("m{n}")).unwrap();
            model.count_tokens(Some(1), None, None);
        }
        let page = String::from_utf8(metrics.encode().unwrap()).unwrap();
        let line = |model: &str| {
            let series = format!(
                "homing_tokens_total{{endpoint=\"e\",kind=\"prompt\",model=\"{model}\",pool=\"p\"}} "
            );
            page.lines()
                .find_map(|line| line.strip_prefix(&series))
                .map(str::to_owned)
        };
        assert_eq!(line("m63").as_deref(), Some("1"));
        assert_eq!(line("m64"), None);
        assert_eq!(line("other").as_deref(), Some("36"));
    }

    #[test]
    fn all_series_of_an_endpoint_go_and_none_comes_back() {
        let metrics = Metrics::new().unwrap();
        let (gone, stays) = (metrics.endpoint("p", "gone"), metrics.endpoint("p", "stays"));
        for endpoint in [&gone, &stays] {
            endpoint.count_request(418, "chat");
            endpoint.count_retry("connect-failed");
            endpoint.count_scrape("timeout");
            endpoint.show_state(crate::pool::State::Ready);
            endpoint.model("m").unwrap().first_token.observe(1.0);
        }
        gone.forget();
        gone.count_request(200, "chat");
        gone.count_scrape("success");
        assert!(gone.model("n").is_none());
        let page = String::from_utf8(metrics.encode().unwrap()).unwrap();
        let of = |name: &str| {
            page.lines()
                .filter(|line| line.contains(&format!("endpoint=\"{name}\"")))
                .count()
        };
        assert_eq!(of("gone"), 0, "{page}");
        assert!(of("stays") > 20);
    }
}
