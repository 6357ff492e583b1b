//! What the gate learns from traffic: how likely conversations come back, and what it costs that they were evicted.

use crate::time::Mono;

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

/// A share of two sums with exponential forgetting.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    part: f64,
    whole: f64,
    settled: Mono,
}

impl Share {
    fn observe(&mut self, now: Mono, part: f64, whole: f64) {
        let keep = (-now.since(self.settled).as_secs_f64() / HALF_LIFE_S).exp2();
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
        self.tokens * (-now.since(self.settled).as_secs_f64() / DEMAND_HALF_LIFE_S).exp2()
    }
}
