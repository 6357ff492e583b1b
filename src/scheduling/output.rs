//! How many tokens a model's answers tend to have.

use xxhash_rust::xxh3::xxh3_64;

/// Models remembered; names beyond that share one slot by hash.
const SLOTS: usize = 64;

/// The quantile that is tracked. The median: one endless answer does not move it.
const QUANTILE: f64 = 0.5;

/// Expectation before anything was seen, in tokens.
const START_TOKENS: f64 = 256.0;

/// Largest step of the tracked quantile, as a factor of its value.
const STEP: f64 = 0.05;

/// A running quantile of output tokens per model, in fixed memory.
#[derive(Clone, Debug)]
pub struct OutputLengths {
    tokens: Box<[f64]>,
}

impl Default for OutputLengths {
    fn default() -> Self {
        Self {
            tokens: vec![START_TOKENS; SLOTS].into(),
        }
    }
}

impl OutputLengths {
    /// E[output tokens]: the model's running quantile, at most what the client allows.
    pub fn expected(&self, model: &str, max_output_tokens: Option<u32>) -> f64 {
        let usual = self.tokens[slot(model)];
        max_output_tokens.map_or(usual, |max| usual.min(f64::from(max)))
    }

    /// A finished answer. The estimate moves up or down by a share of itself whose odds balance at the quantile
    /// (stochastic approximation, Robbins and Monro 1951).
    pub fn observe(&mut self, model: &str, output_tokens: u32) {
        let estimate = &mut self.tokens[slot(model)];
        let above = f64::from(output_tokens) > *estimate;
        let move_by = if above { QUANTILE } else { QUANTILE - 1.0 };
        *estimate = (*estimate * (1.0 + 2.0 * STEP * move_by)).max(1.0);
    }
}

fn slot(model: &str) -> usize {
    (xxh3_64(model.as_bytes()) % SLOTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settles_on_the_median_despite_outliers() {
        let mut lengths = OutputLengths::default();
        for round in 0..2000 {
            lengths.observe("m", if round % 3 == 0 { 100_000 } else { 100 });
        }
        let expected = lengths.expected("m", None);
        assert!((90.0..=115.0).contains(&expected), "{expected}");
    }

    #[test]
    fn the_clients_bound_caps_the_expectation() {
        assert_eq!(OutputLengths::default().expected("m", Some(16)), 16.0);
        assert_eq!(
            OutputLengths::default().expected("m", Some(100_000)),
            START_TOKENS
        );
    }
}
