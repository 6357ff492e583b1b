//! How far the guess of an endpoint's cache is to be trusted, from what its engine reports as cached.
//!
//! The guess is a log of what was sent there, kept to the engine's capacity. An engine that holds less than was
//! predicted has evicted it: another gateway or another model fills the same cache, or output and preemptions
//! take more room than the log knows of. That prompt itself has just been computed, so its entries are true
//! again; what was used before it is what is gone. So a systematic over-prediction shrinks the assumed capacity,
//! which drops the entries that were not used for longest. An engine that never finds anything again caches
//! nothing, and then the entries of the prompt itself go.

use parking_lot::Mutex;

/// Weight of the newest request in the share of over-predicted ones: the last twenty or so count.
const NEWEST: f64 = 0.05;
/// Shares of over-predicted requests at which the assumed capacity shrinks, and below which it recovers.
const SYSTEMATIC: f64 = 0.2;
const RARE: f64 = 0.05;
/// What one request changes of the assumed capacity.
const SHRINK: f64 = 0.97;
const RECOVER: f64 = 1.002;
/// The assumed capacity never falls below this part of the reported one.
const LEAST: f64 = 0.05;
/// Requests in a row of which nothing that was predicted was found, until the engine is taken to cache nothing.
const MISSES: u32 = 3;

/// What one response says of the endpoint's entries for its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They stay.
    Keep,
    /// They are not there.
    Drop,
}

/// The experience with one endpoint.
#[derive(Debug, Default)]
pub struct Trust(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    capacity_share: f64,
    over_share: f64,
    misses: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            capacity_share: 1.0,
            over_share: 0.0,
            misses: 0,
        }
    }
}

impl Trust {
    /// Part of the reported capacity that is assumed to hold what was sent there.
    pub fn capacity_share(&self) -> f64 {
        self.0.lock().capacity_share
    }

    /// Takes the match that was predicted for a request and the one that the engine reported, in tokens; a
    /// difference up to `tolerance` tokens is none.
    pub fn observe(&self, predicted: u64, reported: u64, tolerance: u64) -> Verdict {
        let state = &mut *self.0.lock();
        if predicted == 0 && reported == 0 {
            return Verdict::Keep;
        }
        let over = predicted > reported.saturating_add(tolerance);
        state.over_share += NEWEST * (f64::from(u8::from(over)) - state.over_share);
        if over && state.over_share > SYSTEMATIC {
            state.capacity_share = (state.capacity_share * SHRINK).max(LEAST);
        } else if state.over_share < RARE {
            state.capacity_share = (state.capacity_share * RECOVER).min(1.0);
        }
        state.misses = if over && reported == 0 {
            state.misses + 1
        } else {
            0
        };
        if state.misses >= MISSES {
            Verdict::Drop
        } else {
            Verdict::Keep
        }
    }

    /// The engine is another process now.
    pub fn forget(&self) {
        *self.0.lock() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_and_then_changes_nothing() {
        let trust = Trust::default();
        for n in 0..200 {
            let reported = if n % 20 == 0 { 16 } else { 320 };
            assert_eq!(trust.observe(320, reported, 16), Verdict::Keep);
        }
        assert_eq!(trust.capacity_share(), 1.0);
        assert_eq!(
            trust.observe(336, 320, 16),
            Verdict::Keep,
            "a block is no difference"
        );
    }

    #[test]
    fn a_systematic_over_prediction_shrinks_the_capacity_and_it_recovers() {
        let trust = Trust::default();
        for n in 0..100 {
            trust.observe(320, if n % 2 == 0 { 16 } else { 320 }, 16);
        }
        let shrunk = trust.capacity_share();
        assert!((0.1..0.5).contains(&shrunk), "{shrunk}");
        for _ in 0..2_000 {
            trust.observe(320, 320, 16);
        }
        assert_eq!(trust.capacity_share(), 1.0);
        for _ in 0..1_000 {
            trust.observe(320, 16, 16);
        }
        assert_eq!(trust.capacity_share(), LEAST);
        trust.forget();
        assert_eq!(trust.capacity_share(), 1.0);
    }

    #[test]
    fn an_engine_that_finds_nothing_caches_nothing() {
        let trust = Trust::default();
        let verdicts = [0, 0, 0, 0, 64, 0].map(|reported| trust.observe(320, reported, 16));
        let [keep, drop] = [Verdict::Keep, Verdict::Drop];
        assert_eq!(verdicts, [keep, keep, drop, drop, keep, keep]);
        assert_eq!(trust.observe(0, 0, 16), keep);
    }
}
