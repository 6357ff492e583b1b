//! Preset `least-cost`: where will this request cost the least, in seconds?
//!
//! ```text
//! cost(e) = a P                                        wait: behind uncached tokens already sent there
//!         + a (L - h) + q (L^2 - h^2) / 2              prefill: the request's own miss
//!         + steps (o + k A + d N)                      drag: running decodes share the steps until the first token
//!         + 0.25 a (L - h) min(1, cached / capacity)   eviction: part of the price of what the miss pushes out
//!         + 20 max(0, A' / capacity - 0.9)             overflow: a wall before the KV cache runs over
//!         + 0.05 E[output] (k A + d N)                 decode: part of the request's own decode time
//! ```
//!
//! L prompt tokens, h cached ones on e, P pending prefill tokens, N in-flight requests, A their context tokens, A' with
//! this request, steps = 1 + (P + L - h) / token budget. The constants a, q, o, k, d of each endpoint are learnt while
//! running, see [`model`]. Everything but the capacity is the gateway's own count, current at each pick: a scrape's
//! age does not matter. How the formula came about and where it loses: `docs/routing.md`.

pub mod model;

use super::field::{Field, Order};
use super::view::{Decision, EndpointView};
use crate::prefix::EndpointId;
use crate::time::Mono;
use model::{Constants, FleetModel};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Names of the cost's terms, in seconds.
pub(super) const TERMS: &[&str] = &["wait", "prefill", "drag", "eviction", "overflow", "decode"];

/// What `least-cost` can be told; the defaults are the preset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeastCostParameters {
    /// Constants to start from, until observations take over.
    pub start: Constants,
    /// Tokens that an engine computes per step (vLLM's `max_num_batched_tokens`).
    pub step_tokens: f64,
    /// Share of the miss's price that evicting others' blocks is charged at.
    pub eviction_share: f64,
    /// Share of the KV capacity from which the wall rises.
    pub overflow_from: f64,
    /// Seconds per unit of capacity beyond it.
    pub overflow_s: f64,
    /// Share of its own decode time that the request is charged.
    pub decode_share: f64,
    /// Costs that differ by less than this count as equal, in seconds: the model cannot tell them apart, and taking
    /// turns then spreads better than its noise.
    pub resolution_s: f64,
    /// False keeps the constants at their start values.
    pub learn: bool,
}

impl Default for LeastCostParameters {
    fn default() -> Self {
        Self {
            start: Constants::default(),
            step_tokens: 8192.0,
            eviction_share: 0.25,
            overflow_from: 0.9,
            overflow_s: 20.0,
            decode_share: 0.05,
            resolution_s: 0.002,
            learn: true,
        }
    }
}

/// The preset with all that it has learnt.
#[derive(Clone, Debug)]
pub(super) struct LeastCost {
    parameters: LeastCostParameters,
    pub fleet: FleetModel,
}

/// A request's cost on one endpoint, term by term, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    wait: f64,
    prefill: f64,
    drag: f64,
    eviction: f64,
    overflow: f64,
    decode: f64,
}

impl Cost {
    fn total(&self) -> f64 {
        self.wait + self.prefill + self.drag + self.eviction + self.overflow + self.decode
    }

    /// In the order of [`TERMS`].
    fn terms(&self) -> SmallVec<[f64; 6]> {
        smallvec![
            self.wait,
            self.prefill,
            self.drag,
            self.eviction,
            self.overflow,
            self.decode
        ]
    }

    /// The part that passes before the first byte.
    fn first_byte(&self) -> f64 {
        self.wait + self.prefill + self.drag
    }
}

impl LeastCost {
    pub fn new(parameters: LeastCostParameters) -> Self {
        let fleet = FleetModel::new(parameters.start, parameters.step_tokens, parameters.learn);
        Self { parameters, fleet }
    }

    pub fn decide(&self, now: Mono, field: Field, term_names: &Arc<[&'static str]>) -> Decision {
        let prompt_tokens = f64::from(field.req.prompt_tokens);
        let output_tokens = field.output_tokens;
        let capacity = mean_capacity(field.kept());
        let order = Order::LowestWithin(self.parameters.resolution_s);
        field.rank("least-cost", term_names, order, |_, view| {
            let constants = self.fleet.constants(now, view.id);
            let cost = self.cost(&constants, prompt_tokens, output_tokens, capacity, view);
            (cost.total(), cost.terms())
        })
    }

    /// Predicted time to the first byte on one endpoint, in seconds.
    pub fn first_byte_s(&self, now: Mono, prompt_tokens: u32, view: &EndpointView) -> f64 {
        let constants = self.fleet.constants(now, view.id);
        self.cost(&constants, f64::from(prompt_tokens), 0.0, None, view)
            .first_byte()
    }

    fn cost(
        &self,
        constants: &Constants,
        prompt_tokens: f64,
        output_tokens: f64,
        fallback_capacity: Option<f64>,
        view: &EndpointView,
    ) -> Cost {
        let p = &self.parameters;
        let cached = f64::from(view.match_tokens).min(prompt_tokens);
        let missing = prompt_tokens - cached;
        let pending = view.pending_prefill_tokens as f64;
        let active = view.active_tokens as f64;
        let decode_step = constants.decode_step_s(active, f64::from(view.inflight));
        let steps = 1.0 + (pending + missing) / p.step_tokens;
        // An unknown capacity is neutral: the mean of the known ones, and no capacity term when none is known.
        let capacity = view
            .capacity_tokens
            .filter(|tokens| *tokens > 0)
            .map(|tokens| tokens as f64);
        let share = |tokens: f64| {
            capacity
                .or(fallback_capacity)
                .map_or(0.0, |capacity| tokens / capacity)
        };
        let own_price = constants.prefill_s_per_token * missing;
        Cost {
            wait: constants.prefill_s_per_token * pending,
            prefill: constants.prefill_s(prompt_tokens, cached),
            drag: steps * (constants.step_s + decode_step),
            eviction: p.eviction_share * own_price * share(view.cached_tokens as f64).min(1.0),
            overflow: p.overflow_s
                * (share(active + prompt_tokens + output_tokens) - p.overflow_from).max(0.0),
            decode: p.decode_share * output_tokens * decode_step,
        }
    }
}

/// Mean KV capacity of the candidates whose capacity is known, in tokens.
fn mean_capacity(views: &[&EndpointView]) -> Option<f64> {
    let known = || {
        views
            .iter()
            .filter_map(|view| view.capacity_tokens)
            .filter(|tokens| *tokens > 0)
    };
    let count = known().count();
    (count > 0).then(|| known().map(|tokens| tokens as f64).sum::<f64>() / count as f64)
}

/// What was true when a request was sent, kept until its first byte teaches the model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AtDispatch {
    /// L, in tokens.
    pub prompt_tokens: u32,
    /// h on the chosen endpoint, in tokens.
    pub cached_tokens: u32,
    /// P before this request, in tokens.
    pub pending_tokens: u64,
    /// A before this request, in tokens.
    pub active_tokens: u64,
    /// N before this request.
    pub inflight: u32,
}

impl AtDispatch {
    pub(super) fn new(prompt_tokens: u32, view: &EndpointView) -> Self {
        Self {
            prompt_tokens,
            cached_tokens: view.match_tokens.min(prompt_tokens),
            pending_tokens: view.pending_prefill_tokens,
            active_tokens: view.active_tokens,
            inflight: view.inflight,
        }
    }
}

/// How one stream went, for the decode constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamRate {
    /// Time per output token after the first, in seconds.
    pub s_per_token: f64,
    /// Context tokens in flight on the endpoint while it ran, typically the mean of start and end.
    pub active_tokens: f64,
    /// Requests in flight on the endpoint while it ran.
    pub inflight: f64,
}

impl LeastCost {
    pub fn observe_first_byte(&mut self, now: Mono, id: EndpointId, at: &AtDispatch, elapsed_s: f64) {
        self.fleet.observe_first_byte(now, id, at, elapsed_s);
    }

    pub fn observe_stream(&mut self, now: Mono, id: EndpointId, rate: &StreamRate) {
        self.fleet.observe_stream(now, id, rate);
    }
}

#[cfg(test)]
mod tests;
