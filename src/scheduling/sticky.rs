//! Sticky until saturated: the endpoints that hold most of the prompt, unless they are too far behind.

use super::field::{Field, Order};
use super::view::{Decision, EndpointView};
use smallvec::smallvec;
use std::sync::Arc;

/// Reason given for an endpoint that holds too little of the prompt.
const BELOW_AFFINITY: &str = "below prefix affinity";

/// `prefix-cache-affinity-filter`: keeps the endpoints that hold most of the prompt, unless waiting for the best of
/// them costs too much more than the best of the others. Formula and defaults are llm-d-router's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affinity {
    /// Share of the prompt's tokens that has to be cached.
    pub min_match_ratio: f64,
    /// How much longer the request may wait for an endpoint that holds it than for another, in seconds.
    pub max_extra_wait_s: f64,
    /// Converts pending tokens to seconds.
    pub prefill_tokens_per_s: f64,
}

impl Default for Affinity {
    fn default() -> Self {
        Self {
            min_match_ratio: 0.8,
            max_extra_wait_s: 18.0,
            prefill_tokens_per_s: 15_928.0,
        }
    }
}

impl Affinity {
    pub(super) fn apply(&self, field: &mut Field) {
        let prompt_tokens = field.req.prompt_tokens;
        let holds = |view: &EndpointView| {
            view.match_tokens > 0
                && f64::from(view.match_tokens) >= self.min_match_ratio * f64::from(prompt_tokens)
        };
        let holders = field.kept().iter().filter(|view| holds(view));
        let best = holders.min_by_key(|view| work_tokens(prompt_tokens, view));
        let others = field.kept().iter().filter(|view| !holds(view));
        let least_pending = others.map(|view| view.pending_prefill_tokens).min();
        let extra = match (best, least_pending) {
            (Some(best), Some(least)) => best.pending_prefill_tokens.saturating_sub(least),
            _ => 0,
        };
        if extra as f64 <= self.max_extra_wait_s * self.prefill_tokens_per_s {
            field.set_aside(BELOW_AFFINITY, holds);
        }
    }
}

/// P + L - h: tokens to compute before this request's first token.
pub(super) fn work_tokens(prompt_tokens: u32, view: &EndpointView) -> u64 {
    view.pending_prefill_tokens + u64::from(prompt_tokens.saturating_sub(view.match_tokens))
}

/// Preset `sticky`: the filter, then the fewest tokens to compute before the first one out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sticky {
    affinity: Affinity,
}

/// Names of the preset's terms, in seconds.
pub(super) const TERMS: &[&str] = &["wait", "prefill"];

impl Sticky {
    pub fn decide(&self, mut field: Field, term_names: &Arc<[&'static str]>) -> Decision {
        self.affinity.apply(&mut field);
        let prompt_tokens = field.req.prompt_tokens;
        let rate = self.affinity.prefill_tokens_per_s;
        field.rank("sticky", term_names, Order::LowestFirst, |_, view| {
            let wait_s = view.pending_prefill_tokens as f64 / rate;
            let prefill_s = f64::from(prompt_tokens.saturating_sub(view.match_tokens)) / rate;
            (wait_s + prefill_s, smallvec![wait_s, prefill_s])
        })
    }
}

#[cfg(test)]
mod tests;
