//! A histogram's counts as plain numbers, for readers that take differences and percentiles themselves.

use prometheus::Histogram;
use prometheus::core::Metric;
use serde::{Deserialize, Serialize};

/// Observations per bucket, not cumulative; the last one counts what lies beyond the last bound.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BucketCounts {
    /// Upper bounds in seconds.
    pub bounds_s: Vec<f64>,
    /// One more than bounds.
    pub counts: Vec<u64>,
}

impl BucketCounts {
    /// Reads `histogram`.
    pub fn of(histogram: &Histogram) -> Self {
        let metric = histogram.metric();
        let proto = metric.get_histogram();
        let mut counts = Vec::with_capacity(proto.get_bucket().len() + 1);
        let mut bounds_s = Vec::with_capacity(proto.get_bucket().len());
        let mut below = 0;
        for bucket in proto.get_bucket() {
            bounds_s.push(bucket.upper_bound());
            counts.push(bucket.cumulative_count() - below);
            below = bucket.cumulative_count();
        }
        // Buckets and total are not read at one moment.
        counts.push(proto.get_sample_count().saturating_sub(below));
        Self { bounds_s, counts }
    }

    /// Adds the counts of a histogram with the same bounds.
    pub fn add(&mut self, other: &Self) {
        if self.counts.is_empty() {
            *self = other.clone();
            return;
        }
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum += more;
        }
    }

    /// What was counted after `earlier` was read.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().enumerate();
        let before = |at| earlier.counts.get(at).copied().unwrap_or(0);
        Self {
            bounds_s: self.bounds_s.clone(),
            counts: counts.map(|(at, now)| now.saturating_sub(before(at))).collect(),
        }
    }

    /// The value below which the share `quantile` of the observations lie, in seconds: linear within a bucket, as
    /// PromQL's `histogram_quantile` has it; beyond the last bound, that bound. `None` without observations.
    pub fn quantile_s(&self, quantile: f64) -> Option<f64> {
        let total: u64 = self.counts.iter().sum();
        if total == 0 {
            return None;
        }
        let rank = quantile * total as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (&upper, &count) in self.bounds_s.iter().zip(&self.counts) {
            let count = count as f64;
            if count > 0.0 && below + count >= rank {
                return Some(lower + (upper - lower) * (rank - below) / count);
            }
            below += count;
            lower = upper;
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::HistogramOpts;

    fn histogram(observed: &[f64]) -> BucketCounts {
        let opts = HistogramOpts::new("t", "t").buckets(vec![1.0, 2.0, 4.0]);
        let histogram = Histogram::with_opts(opts).unwrap();
        observed.iter().for_each(|v| histogram.observe(*v));
        BucketCounts::of(&histogram)
    }

    #[test]
    fn counts_per_bucket() {
        assert_eq!(histogram(&[0.5, 1.5, 1.6, 3.0, 9.0]).counts, [1, 2, 1, 1]);
    }

    #[test]
    fn quantiles_are_linear_within_a_bucket() {
        let counts = histogram(&[0.5, 0.5, 1.5, 1.5]);
        assert_eq!(counts.quantile_s(0.5), Some(1.0));
        assert_eq!(counts.quantile_s(0.75), Some(1.5));
        assert_eq!(histogram(&[9.0]).quantile_s(0.5), Some(4.0));
        assert_eq!(histogram(&[]).quantile_s(0.5), None);
    }

    #[test]
    fn differences_and_sums() {
        let (early, late) = (histogram(&[0.5]), histogram(&[0.5, 1.5, 9.0]));
        assert_eq!(late.since(&early).counts, [0, 1, 0, 1]);
        let mut sum = BucketCounts::default();
        sum.add(&early);
        sum.add(&late);
        assert_eq!(sum.counts, [2, 1, 0, 1]);
    }
}
