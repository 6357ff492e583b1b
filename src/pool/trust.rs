//! How far the guess of an endpoint's cache is to be trusted, from what its engine reports as cached.
//!
//! The guess is a log of what was sent there, kept to the engine's capacity. An engine that holds less than was
//! predicted has evicted it: another gateway or another model fills the same cache, it was reset, or output and
//! preemptions take more room than the log knows of. That prompt itself has just been computed, so its entries are
//! true again. But engines evict what was not used for longest: what was used before the part that is missing is gone
//! too, and its entries go. A systematic over-prediction shrinks the assumed capacity as well, so that it does not come
//! back. An engine that never finds anything again caches nothing, and then the entries of the prompt itself go.
//!
//! Engines that report no cached tokens with their responses still count them: [`Trust::served`] and
//! [`Trust::counted`] compare the two shares over many requests.

use crate::prefix::LastUse;
use crate::time::Mono;
use parking_lot::Mutex;
use std::time::Duration;

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
/// A prompt that was sent this long ago has been computed, if the engine took it at all.
const SETTLED: Duration = Duration::from_secs(5);
/// Requests without a report, until what they were predicted to match is compared with the engine's counters.
const COMPARED: u32 = 50;
/// Differences between the predicted and the counted share of cached tokens that are none: the counters are of a moment
/// at which some of the requests were on their way.
const SAME_SHARE: f64 = 0.1;
/// What one comparison changes of the assumed capacity.
const SHRINK_BY_COUNT: f64 = 0.9;
const RECOVER_BY_COUNT: f64 = 1.05;

/// What one response says of the endpoint's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They stay.
    Keep,
    /// Those are gone that were used before this position of the index.
    EvictBefore(u64),
    /// Those of the prompt are not there.
    Drop,
}

/// What was predicted for a request, and what its engine reported, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    pub predicted: u64,
    pub reported: u64,
    /// A difference up to this many is none.
    pub tolerance: u64,
    /// When the index last knew the prompt to be used there.
    pub last_use: Option<LastUse>,
}

/// The experience with one endpoint.
#[derive(Debug, Default)]
pub struct Trust(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    capacity_share: f64,
    over_share: f64,
    misses: u32,
    marks: [Mark; 2],
    window: Window,
}

/// Where the index stood at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: Mono,
    position: u64,
}

/// Requests without a report of their own.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    requests: u32,
    predicted_tokens: f64,
    prompt_tokens: f64,
    /// The engine's counters of hits and queries when it began.
    counters: Option<(f64, f64)>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            capacity_share: 1.0,
            over_share: 0.0,
            misses: 0,
            marks: [Mark::default(); 2],
            window: Window::default(),
        }
    }
}

impl Trust {
    /// Part of the reported capacity that is assumed to hold what was sent there.
    pub fn capacity_share(&self) -> f64 {
        self.0.lock().capacity_share
    }

    /// A prompt is sent there now, and written to the index at `position`.
    pub fn sent(&self, now: Mono, position: u64) {
        let marks = &mut self.0.lock().marks;
        if now.since(marks[1].at) >= SETTLED {
            *marks = [marks[1], Mark { at: now, position }];
        }
    }

    /// Takes what one request showed.
    pub fn observe(&self, of: Comparison) -> Verdict {
        let state = &mut *self.0.lock();
        if of.predicted == 0 && of.reported == 0 {
            return Verdict::Keep;
        }
        let over = of.predicted > of.reported.saturating_add(of.tolerance);
        state.over_share += NEWEST * (f64::from(u8::from(over)) - state.over_share);
        if over && state.over_share > SYSTEMATIC {
            state.shrink(SHRINK);
        } else if state.over_share < RARE {
            state.recover(RECOVER);
        }
        state.misses = if over && of.reported == 0 {
            state.misses + 1
        } else {
            0
        };
        match of.last_use.filter(|_| over) {
            _ if state.misses >= MISSES => Verdict::Drop,
            Some(last_use) => {
                let missing = if of.reported == 0 {
                    last_use.head
                } else {
                    last_use.tail
                };
                // What was sent just now may not have been computed yet.
                let [settled, _] = state.marks;
                if missing < settled.position {
                    Verdict::EvictBefore(missing)
                } else {
                    Verdict::Keep
                }
            }
            None => Verdict::Keep,
        }
    }

    /// A request was served without a report of what was cached; all in tokens.
    pub fn served(&self, predicted: u64, prompt: u64) {
        let window = &mut self.0.lock().window;
        window.requests += 1;
        window.predicted_tokens += predicted as f64;
        window.prompt_tokens += prompt as f64;
    }

    /// The engine's counters of prefix cache hits and queries, in tokens, as they are now.
    pub fn counted(&self, hits: f64, queries: f64) {
        let state = &mut *self.0.lock();
        let window = state.window;
        let Some((hits_before, queries_before)) = window.counters else {
            state.window.counters = Some((hits, queries));
            return;
        };
        if window.requests < COMPARED {
            return;
        }
        state.window = Window {
            counters: Some((hits, queries)),
            ..Window::default()
        };
        let found = (hits - hits_before) / (queries - queries_before);
        let predicted = window.predicted_tokens / window.prompt_tokens;
        // A counter that went back is no share, and neither is one of nothing.
        if !(0.0..=1.0).contains(&found) || !predicted.is_finite() {
        } else if predicted > found + SAME_SHARE {
            state.shrink(SHRINK_BY_COUNT);
        } else {
            state.recover(RECOVER_BY_COUNT);
        }
    }

    /// The engine is another process now.
    pub fn forget(&self) {
        *self.0.lock() = State::default();
    }
}

impl State {
    fn shrink(&mut self, factor: f64) {
        self.capacity_share = (self.capacity_share * factor).max(LEAST);
    }

    fn recover(&mut self, factor: f64) {
        self.capacity_share = (self.capacity_share * factor).min(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(trust: &Trust, predicted: u64, reported: u64) -> Verdict {
        trust.observe(Comparison {
            predicted,
            reported,
            tolerance: 16,
            last_use: None,
        })
    }

    #[test]
    fn now_and_then_changes_nothing() {
        let trust = Trust::default();
        for n in 0..200 {
            let reported = if n % 20 == 0 { 16 } else { 320 };
            assert_eq!(observe(&trust, 320, reported), Verdict::Keep);
        }
        assert_eq!(trust.capacity_share(), 1.0);
        assert_eq!(
            observe(&trust, 336, 320),
            Verdict::Keep,
            "a block is no difference"
        );
    }

    #[test]
    fn a_systematic_over_prediction_shrinks_the_capacity_and_it_recovers() {
        let trust = Trust::default();
        for n in 0..100 {
            observe(&trust, 320, if n % 2 == 0 { 16 } else { 320 });
        }
        let shrunk = trust.capacity_share();
        assert!((0.1..0.5).contains(&shrunk), "{shrunk}");
        for _ in 0..2_000 {
            observe(&trust, 320, 320);
        }
        assert_eq!(trust.capacity_share(), 1.0);
        for _ in 0..1_000 {
            observe(&trust, 320, 16);
        }
        assert_eq!(trust.capacity_share(), LEAST);
        trust.forget();
        assert_eq!(trust.capacity_share(), 1.0);
    }

    #[test]
    fn an_engine_that_finds_nothing_caches_nothing() {
        let trust = Trust::default();
        let verdicts = [0, 0, 0, 0, 64, 0].map(|reported| observe(&trust, 320, reported));
        let [keep, drop] = [Verdict::Keep, Verdict::Drop];
        assert_eq!(verdicts, [keep, keep, drop, drop, keep, keep]);
        assert_eq!(observe(&trust, 0, 0), keep);
    }

    /// A prompt that was last used where the index stood at `head` and `tail`, and is not found.
    fn missing(trust: &Trust, reported: u64, head: u64, tail: u64) -> Verdict {
        trust.observe(Comparison {
            predicted: 320,
            reported,
            tolerance: 16,
            last_use: Some(LastUse { head, tail }),
        })
    }

    #[test]
    fn what_was_used_before_the_missing_part_is_gone_too() {
        let trust = Trust::default();
        for (second, position) in [(10.0, 100), (12.0, 200), (20.0, 300)] {
            trust.sent(Mono::from_secs_f64(second), position);
        }
        assert_eq!(missing(&trust, 320, 20, 10), Verdict::Keep, "it was found");
        assert_eq!(missing(&trust, 0, 20, 10), Verdict::EvictBefore(20));
        assert_eq!(
            missing(&trust, 64, 20, 10),
            Verdict::EvictBefore(10),
            "its start was found"
        );
        assert_eq!(missing(&trust, 0, 150, 140), Verdict::Keep, "sent just now");
        assert_eq!(observe(&trust, 320, 320), Verdict::Keep);
        trust.sent(Mono::from_secs_f64(26.0), 400);
        assert_eq!(missing(&trust, 0, 150, 140), Verdict::EvictBefore(150));
    }

    #[test]
    fn counters_tell_of_an_engine_that_reports_nothing() {
        let trust = Trust::default();
        let (mut hits, mut queries) = (1_000.0, 9_000.0);
        let mut serve = |requests: u32, found: f64| {
            for _ in 0..requests {
                trust.served(80, 100);
                (hits, queries) = (hits + found, queries + 100.0);
                trust.counted(hits, queries);
            }
            trust.capacity_share()
        };
        assert_eq!(serve(100, 80.0), 1.0, "as predicted");
        assert_eq!(serve(49, 20.0), 1.0, "too few to tell");
        let shrunk = serve(500, 20.0);
        assert!(
            (0.3..0.5).contains(&shrunk),
            "ten comparisons of 0.9 each: {shrunk}"
        );
        assert_eq!(serve(2_000, 75.0), 1.0, "it recovers");
        trust.counted(0.0, 0.0);
        trust.served(80, 100);
        assert_eq!(trust.capacity_share(), 1.0, "counters that went back say nothing");
    }
}
