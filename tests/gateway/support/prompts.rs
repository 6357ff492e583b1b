//! Prompts of token ids, for every test that compares what is predicted with what an engine reports.

use rand::RngExt;
use rand::rngs::StdRng;

/// A prompt of a family whose members share prefixes of all lengths: a few long texts, cut anywhere, with tails of their
/// own.
pub fn shared_prefixes(rng: &mut StdRng) -> Vec<u32> {
    let text = rng.random_range(0..6_u32);
    let shared = rng.random_range(0..300_u32);
    let own = rng.random_range(1..60_u32);
    let salt = rng.random_range(0..8_u32);
    let own = (0..own).map(|at| 1000 + 100 * salt + at % 7);
    (0..shared)
        .map(|at| 10 + text * 37 + at % 31)
        .chain(own)
        .collect()
}
