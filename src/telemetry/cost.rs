//! Metric families of what `least-cost` reckons with, and how well that comes true.

use super::metrics::Families;
use super::names;
use crate::scheduling::{Constants, Decision, LEAST_COST, LEAST_COST_TERMS};
use prometheus::{Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec};

/// Observed over predicted: as fine around 1 as the model can be, and far enough to see it fail.
const RATIO_BUCKETS: &[f64] = &[
    0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0,
];

/// The families.
#[derive(Clone)]
pub(super) struct CostFamilies {
    terms: CounterVec,
    ratio: HistogramVec,
    prefill: GaugeVec,
    step: GaugeVec,
}

impl CostFamilies {
    pub fn new(build: &Families) -> prometheus::Result<Self> {
        let on_endpoint = ["pool", "endpoint"];
        Ok(Self {
            terms: build.float_counters(
                names::COST,
                "Seconds that least-cost reckoned for the endpoints that it chose, by term of the cost.",
                &["pool", "endpoint", "term"],
            )?,
            ratio: build.histograms(
                names::FIRST_BYTE_RATIO,
                "Observed over predicted time to the first byte, of streams that were not retried.",
                &on_endpoint,
                RATIO_BUCKETS,
            )?,
            prefill: build.gauges(
                names::LEARNT_PREFILL,
                "What the scheduler has learnt: seconds per uncached prompt token.",
                &on_endpoint,
            )?,
            step: build.gauges(
                names::LEARNT_STEP,
                "What the scheduler has learnt: seconds per engine step, whatever is in it.",
                &on_endpoint,
            )?,
        })
    }

    /// The handles of one endpoint.
    pub fn endpoint(&self, pool: &str, endpoint: &str) -> CostMetrics {
        let labels = [pool, endpoint];
        let term = |term: &&str| self.terms.with_label_values(&[pool, endpoint, term]);
        CostMetrics {
            terms: LEAST_COST_TERMS.iter().map(term).collect(),
            ratio: self.ratio.with_label_values(&labels),
            prefill: self.prefill.with_label_values(&labels),
            step: self.step.with_label_values(&labels),
        }
    }
}

/// One endpoint's handles.
pub struct CostMetrics {
    /// In the order of [`LEAST_COST_TERMS`].
    terms: Vec<Counter>,
    ratio: Histogram,
    prefill: Gauge,
    step: Gauge,
}

impl CostMetrics {
    /// Adds up what the chosen endpoint was reckoned to cost; nothing with policies that do not reckon in seconds.
    pub fn count(&self, decision: &Decision) {
        let Some(chosen) = decision.chosen().filter(|_| decision.policy == LEAST_COST) else {
            return;
        };
        for (counter, seconds) in self.terms.iter().zip(&chosen.terms) {
            counter.inc_by(seconds.max(0.0));
        }
    }

    /// A stream's first byte came after `observed_s` instead of `predicted_s` seconds.
    pub fn compare(&self, observed_s: f64, predicted_s: f64) {
        if predicted_s > 0.0 {
            self.ratio.observe(observed_s / predicted_s);
        }
    }

    /// What is believed of the endpoint now.
    pub fn show(&self, constants: &Constants) {
        self.prefill.set(constants.prefill_s_per_token);
        self.step.set(constants.step_s);
    }
}
