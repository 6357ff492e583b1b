//! What the gate learns from traffic: how likely conversations come back, and what it costs that they were evicted.

use crate::overload::kept;
use crate::time::Mono;
use std::time::Duration;

/// Touch classes: conversations that came 1, 2, 3, 4, 5 to 8, 9 to 16 and more times.
pub(super) const CLASSES: usize = 7;

/// Half-life of what was seen, in seconds.
const HALF_LIFE_S: f64 = 600.0;

/// Idle periods without reuse that are assumed at the start: who has seen nothing keeps nobody out.
const NEVER_STRENGTH: f64 = 4.0;

/// The touch class of a conversation that came `turns` times.
pub(super) fn class_of(turns: u32) -> usize {
    match turns {
        0..=4 => turns.saturating_sub(1) as usize,
        5..=8 => 4,
        9..=16 => 5,
        _ => 6,
    }
}

/// A usual number of turns of the class.
pub(super) const fn turns_of(class: usize) -> u32 {
    match class {
        0..=3 => class as u32 + 1,
        4 => 6,
        5 => 12,
        _ => 24,
    }
}

/// Tokens by which a prompt is longer than the one before, in the mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growth(Share);

impl Growth {
    pub fn observe(&mut self, now: Mono, tokens: f64) {
        self.0.observe(now, tokens, 1.0);
    }

    pub fn tokens_per_turn(&self) -> f64 {
        self.0.part / self.0.whole.max(1.0)
    }
}

/// Classes of pauses by their length: four per doubling, from a second up to fifteen hours.
const LENGTHS: usize = 64;

/// Pauses that have to be seen before they say anything.
const FEW_PAUSES: f64 = 50.0;

/// Share of the pauses that are no longer than a usual one.
const USUAL: f64 = 0.99;

/// An idle conversation counts this much longer than the usual pause: a cache keeps it for longer still if it has ended.
const USUAL_MARGIN: f64 = 1.5;

/// How long conversations paused that came back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    counts: [f64; LENGTHS],
    halved: Mono,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            counts: [0.0; LENGTHS],
            halved: Mono::ZERO,
        }
    }
}

impl Pauses {
    pub fn observe(&mut self, now: Mono, pause: Duration) {
        self.forget(now);
        let class = (pause.as_secs_f64().max(1.0).log2() * 4.0).ceil() as usize;
        self.counts[class.min(LENGTHS - 1)] += 1.0;
    }

    /// How long an idle conversation is to count: 99 of 100 pauses were no longer (but up to a fifth shorter) even without
    /// the margin. `None` until enough were seen.
    pub fn usual(&mut self, now: Mono) -> Option<Duration> {
        self.forget(now);
        let all: f64 = self.counts.iter().sum();
        let mut shorter = 0.0;
        let class = self.counts.iter().position(|count| {
            shorter += count;
            shorter >= USUAL * all
        })?;
        (all >= FEW_PAUSES).then(|| Duration::from_secs_f64(USUAL_MARGIN * (class as f64 / 4.0).exp2()))
    }

    fn forget(&mut self, now: Mono) {
        let half_lives = (now.since(self.halved).as_secs_f64() / HALF_LIFE_S).floor();
        if half_lives >= 1.0 {
            self.halved = now;
            let keep = (-half_lives).exp2();
            self.counts.iter_mut().for_each(|count| *count *= keep);
        }
    }
}

/// A share of two sums with exponential forgetting.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    part: f64,
    whole: f64,
    settled: Mono,
}

impl Share {
    fn observe(&mut self, now: Mono, part: f64, whole: f64) {
        let keep = kept(now.since(self.settled), HALF_LIFE_S);
        self.part = self.part * keep + part;
        self.whole = self.whole * keep + whole;
        self.settled = self.settled.max(now);
    }
}

/// How often idle conversations of one class came back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reuse(Share);

impl Reuse {
    pub fn observe(&mut self, now: Mono, reused: bool) {
        self.0.observe(now, f64::from(u8::from(reused)), 1.0);
    }

    /// p_k, 0..=1.
    pub fn share(&self) -> f64 {
        self.0.part / (self.0.whole + NEVER_STRENGTH)
    }
}

/// Missing tokens that were known a moment ago, of all missing ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Regret(Share);

impl Regret {
    pub fn observe(&mut self, now: Mono, avoidable_tokens: f64, missing_tokens: f64) {
        self.0.observe(now, avoidable_tokens, missing_tokens);
    }

    /// Theta, 0..=1.
    pub fn share(&self) -> f64 {
        self.0.part / self.0.whole.max(1.0)
    }
}

/// Half-life of what is asked for at present, in seconds: long enough for some hundred turns.
const DEMAND_HALF_LIFE_S: f64 = 60.0;

/// Prompt tokens that were sent to the fleet, per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    tokens: f64,
    settled: Mono,
}

impl Demand {
    pub fn observe(&mut self, now: Mono, tokens: f64) {
        self.tokens = self.decayed(now) + tokens;
        self.settled = self.settled.max(now);
    }

    /// Mean of the last minutes: of a steady rate r, exponential forgetting keeps r / ln 2 half-lives.
    pub fn tokens_per_s(&self, now: Mono) -> f64 {
        self.decayed(now) * std::f64::consts::LN_2 / DEMAND_HALF_LIFE_S
    }

    fn decayed(&self, now: Mono) -> f64 {
        self.tokens * kept(now.since(self.settled), DEMAND_HALF_LIFE_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_pause_is_longer_than_99_of_100() {
        let at = |seconds| Mono::from_secs_f64(seconds);
        let mut pauses = Pauses::default();
        let mut observe = |count, seconds| {
            (0..count).for_each(|_| pauses.observe(at(1.0), Duration::from_secs(seconds)));
            pauses
                .usual(at(1.0))
                .map(|usual| usual.as_secs_f64() / USUAL_MARGIN)
        };
        assert_eq!(observe(49, 8), None, "too few");
        assert_eq!(observe(50, 8), Some(8.0));
        assert_eq!(observe(1, 100), Some(8.0), "one of a hundred");
        let usual = observe(1, 100).unwrap();
        // A hundred seconds lie between 2^6.5 and 2^6.75.
        assert!((usual - 107.63).abs() < 0.01, "{usual}");
        assert!(pauses.usual(at(601.0)).is_some());
        assert_eq!(pauses.usual(at(1202.0)), None, "three of four are forgotten");
    }
}
