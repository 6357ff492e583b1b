//! How many tokens a prompt's bytes are, learnt per model from what the engines report.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Start value: English text and code in the tokenizers of current models run at 3.5 to 4.8 bytes a token.
pub const DEFAULT_BYTES_PER_TOKEN: f64 = 4.0;
/// Nothing below one byte per token is text, and nothing above 16 is seen outside of degenerate prompts.
const BOUNDS: std::ops::RangeInclusive<f64> = 1.0..=16.0;
/// Weight of prompts so far, in bytes, at most: older ones fade as newer ones come.
const MEMORY_BYTES: f64 = 256.0 * 1024.0;
/// Prompts shorter than this say more about the chat template than about the text.
const SHORTEST_BYTES: u64 = 64;
/// Models tracked at most; a client can send any name, and memory is bounded.
const MAX_MODELS: usize = 256;

/// Bytes-per-token estimate of one model: the ratio of two sums with exponential forgetting.
#[derive(Debug)]
pub struct TokenRate {
    /// `(bytes, tokens)` as two `f32` in one word, so that a reader never sees half an update.
    sums: AtomicU64,
}

impl Default for TokenRate {
    fn default() -> Self {
        // A small prior: the first real prompts soon outweigh it.
        let (bytes, tokens) = (256.0_f32, 256.0 / DEFAULT_BYTES_PER_TOKEN as f32);
        Self {
            sums: AtomicU64::new(pack(bytes, tokens)),
        }
    }
}

impl TokenRate {
    /// Current bytes per token.
    pub fn bytes_per_token(&self) -> f64 {
        let (bytes, tokens) = unpack(self.sums.load(Ordering::Relaxed));
        f64::from(bytes / tokens).clamp(*BOUNDS.start(), *BOUNDS.end())
    }

    /// Tokens that `bytes` of prompt content are estimated to be.
    pub fn tokens(&self, bytes: u64) -> u32 {
        (bytes as f64 / self.bytes_per_token())
            .ceil()
            .min(f64::from(u32::MAX)) as u32
    }

    /// Learns from one response: a prompt of `bytes` was `tokens` tokens. Implausible pairs are ignored.
    pub fn observe(&self, bytes: u64, tokens: u64) {
        if bytes < SHORTEST_BYTES || tokens == 0 || !BOUNDS.contains(&(bytes as f64 / tokens as f64)) {
            return;
        }
        let fold = |word| {
            let (old_bytes, old_tokens) = unpack(word);
            let total = f64::from(old_bytes) + bytes as f64;
            let keep = (MEMORY_BYTES / total).min(1.0);
            let folded_tokens = (f64::from(old_tokens) + tokens as f64) * keep;
            Some(pack((total * keep) as f32, folded_tokens as f32))
        };
        // The closure always returns a value, so the update cannot fail.
        let _ = self.sums.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fold);
    }
}

fn pack(bytes: f32, tokens: f32) -> u64 {
    u64::from(bytes.to_bits()) << 32 | u64::from(tokens.to_bits())
}

fn unpack(word: u64) -> (f32, f32) {
    (f32::from_bits((word >> 32) as u32), f32::from_bits(word as u32))
}

/// The estimates of all models of one pool.
#[derive(Debug, Default)]
pub struct TokenRates {
    by_model: RwLock<HashMap<Box<str>, Arc<TokenRate>>>,
    /// Over all models of the pool.
    pub overall: TokenRate,
    /// Serves models beyond the bound.
    other: Arc<TokenRate>,
}

impl TokenRates {
    /// The estimate of `model`, made on first use.
    pub fn of(&self, model: &str) -> Arc<TokenRate> {
        if let Some(rate) = self.by_model.read().get(model) {
            return rate.clone();
        }
        let mut by_model = self.by_model.write();
        if by_model.len() >= MAX_MODELS && !by_model.contains_key(model) {
            return self.other.clone();
        }
        by_model.entry(model.into()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_at_four_bytes_a_token() {
        let rate = TokenRate::default();
        assert_eq!(rate.tokens(400), 100);
        assert_eq!(rate.tokens(401), 101);
        assert_eq!(rate.tokens(0), 0);
    }

    #[test]
    fn converges_on_what_engines_report_and_follows_a_change() {
        let rate = TokenRate::default();
        for _ in 0..200 {
            rate.observe(5_000, 1_000);
        }
        assert!(
            (rate.bytes_per_token() - 5.0).abs() < 0.05,
            "{}",
            rate.bytes_per_token()
        );
        for _ in 0..400 {
            rate.observe(3_000, 1_000);
        }
        assert!(
            (rate.bytes_per_token() - 3.0).abs() < 0.1,
            "{}",
            rate.bytes_per_token()
        );
    }

    #[test]
    fn ignores_implausible_reports() {
        let rate = TokenRate::default();
        rate.observe(1_000, 0);
        rate.observe(1_000, 100_000);
        rate.observe(1_000_000, 2);
        rate.observe(10, 9);
        assert_eq!(rate.bytes_per_token(), DEFAULT_BYTES_PER_TOKEN);
    }

    #[test]
    fn a_flood_of_model_names_is_bounded() {
        let rates = TokenRates::default();
        for i in 0..10_000 {
            rates.of(&format!("m{i}")).observe(4_000, 1_000);
        }
        assert_eq!(rates.by_model.read().len(), MAX_MODELS);
    }
}
