//! Preset `least-cost`: where will this request cost the least, in seconds?
//!
//! ```text
//! cost(e) = a P                                  wait: behind uncached tokens already sent there
//!         + m,  m = a (L - h) + q (L^2 - h^2)/2   prefill: the request's own miss
//!         + steps (o + k A + d N)                drag: running decodes share the steps until the first token
//!         + rho/(1 - rho) m                      crowding: the miss delays whatever comes behind it,
//!         + 2 u/(1 - u) (L - h)/capacity T       and the blocks it needs are missing to others while it runs
//!         + 20 max(0, A'/capacity - 0.9)         overflow: a wall before the KV cache runs over
//! ```
//!
//! L prompt tokens, h cached ones on e, P pending prefill tokens, N in-flight requests, A their context tokens, A' the KV
//! tokens held with this request, steps = 1 + (P + L - h) / token budget, T how long the request will run. rho is the
//! fleet's load with prefill, u the share of its KV caches that requests in flight hold: with both low a
//! request looks after itself, with either high locality is what keeps the fleet from collapsing.
//!
//! The constants a, q, o, k, d of each endpoint are learnt while running, see [`model`]. Loads are the gateway's own
//! counts, current at each pick; of the scraped gauges only the ratio of KV tokens held to context tokens in flight
//! is used, which moves slowly: a scrape's age hardly matters. How the formula came about and where it loses:
//! `docs/routing.md`.

mod crowding;
pub mod model;

use super::field::{Field, Order};
use super::scorers::mean;
use super::view::{Decision, EndpointView, RequestView};
use crate::prefix::EndpointId;
use crate::time::Mono;
use crowding::Crowding;
use model::{Constants, FleetModel};
use smallvec::SmallVec;
use std::sync::Arc;

/// The preset's name.
pub const NAME: &str = "least-cost";

/// Names of the cost's terms, in seconds.
pub const TERMS: &[&str] = &["wait", "prefill", "drag", "crowding", "overflow"];

/// What `least-cost` can be told; the defaults are the preset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeastCostParameters {
    /// Constants to start from, until observations take over.
    pub start: Constants,
    /// Tokens that an engine computes per step (vLLM's `max_num_batched_tokens`).
    pub step_tokens: f64,
    /// Factor on what a miss costs the requests behind it.
    pub delay_weight: f64,
    /// Factor on what a miss costs by the KV blocks that it occupies.
    pub occupancy_weight: f64,
    /// Share of the KV capacity from which the wall rises.
    pub overflow_from: f64,
    /// Seconds per unit of capacity beyond it.
    pub overflow_s: f64,
    /// Costs that differ by less than this count as equal, in seconds: the model cannot tell them apart, and taking
    /// turns then spreads better than its noise. Finer than 0.1 s and full fleets fill unevenly.
    pub resolution_s: f64,
    /// False keeps the constants at their start values.
    pub learn: bool,
}

impl Default for LeastCostParameters {
    fn default() -> Self {
        Self {
            start: Constants::default(),
            step_tokens: 8192.0,
            delay_weight: 1.0,
            occupancy_weight: 2.0,
            overflow_from: 0.9,
            overflow_s: 20.0,
            resolution_s: 0.1,
            learn: true,
        }
    }
}

/// The preset with all that it has learnt.
#[derive(Clone, Debug)]
pub(super) struct LeastCost {
    parameters: LeastCostParameters,
    pub fleet: FleetModel,
    crowding: Crowding,
}

/// A request's cost on one endpoint, term by term, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    wait: f64,
    prefill: f64,
    drag: f64,
    crowding: f64,
    overflow: f64,
}

impl Cost {
    fn total(&self) -> f64 {
        self.wait + self.prefill + self.drag + self.crowding + self.overflow
    }

    /// In the order of [`TERMS`].
    fn terms(&self) -> SmallVec<[f64; 6]> {
        let terms = [
            self.wait,
            self.prefill,
            self.drag,
            self.crowding,
            self.overflow,
            0.0,
        ];
        SmallVec::from_buf_and_len(terms, TERMS.len())
    }

    /// The part that passes before the first byte.
    fn first_byte(&self) -> f64 {
        self.wait + self.prefill + self.drag
    }
}

/// What of a request and of the whole fleet enters the cost on each endpoint.
struct Conditions {
    prompt_tokens: f64,
    output_tokens: f64,
    /// One part of [`LeastCostParameters::step_tokens`]: dividing once saves each candidate from waiting for it.
    steps_per_token: f64,
    /// Stands in for an unknown capacity: the mean of the known ones.
    capacity: Option<f64>,
    /// rho / (1 - rho).
    behind: f64,
    /// u / (1 - u).
    full: f64,
    held_share: f64,
}

impl LeastCost {
    pub fn new(parameters: LeastCostParameters) -> Self {
        let fleet = FleetModel::new(parameters.start, parameters.step_tokens, parameters.learn);
        Self {
            parameters,
            fleet,
            crowding: Crowding::default(),
        }
    }

    pub fn decide(&self, now: Mono, field: Field, term_names: &Arc<[&'static str]>) -> Decision {
        let conditions = Conditions {
            prompt_tokens: f64::from(field.req.prompt_tokens),
            output_tokens: field.output_tokens,
            steps_per_token: self.parameters.step_tokens.recip(),
            capacity: mean_capacity(field.kept()),
            behind: self.crowding.behind(now),
            full: self.crowding.full(field.kept().iter().copied()),
            held_share: self.crowding.held_share(),
        };
        let order = Order::LowestWithin(self.parameters.resolution_s);
        field.rank(NAME, term_names, order, |_, view| {
            let cost = self.cost(&self.fleet.constants(now, view.id), &conditions, view);
            (cost.total(), cost.terms())
        })
    }

    /// Notes a pick among `endpoints`, and predicts its time to the first byte in seconds.
    pub fn commit(&mut self, now: Mono, req: &RequestView, endpoints: usize, view: &EndpointView) -> f64 {
        let conditions = Conditions {
            prompt_tokens: f64::from(req.prompt_tokens),
            output_tokens: 0.0,
            steps_per_token: self.parameters.step_tokens.recip(),
            capacity: None,
            behind: 0.0,
            full: 0.0,
            held_share: 1.0,
        };
        let cost = self.cost(&self.fleet.constants(now, view.id), &conditions, view);
        self.crowding.record(now, cost.prefill, endpoints, view);
        cost.first_byte()
    }

    fn cost(&self, constants: &Constants, on: &Conditions, view: &EndpointView) -> Cost {
        let p = &self.parameters;
        let cached = f64::from(view.match_tokens).min(on.prompt_tokens);
        let missing = on.prompt_tokens - cached;
        let pending = view.pending_prefill_tokens as f64;
        let active = view.active_tokens as f64;
        let step_s = constants.step_s + constants.decode_step_s(active, f64::from(view.inflight));
        let steps = 1.0 + (pending + missing) * on.steps_per_token;
        let prefill = constants.prefill_s(on.prompt_tokens, cached);
        // An unknown capacity is neutral: the mean of the known ones, and no capacity term when none is known.
        let capacity = view
            .capacity_tokens
            .filter(|tokens| *tokens > 0)
            .map(|tokens| tokens as f64);
        let share_per_token = capacity.or(on.capacity).map_or(0.0, f64::recip);
        let held_tokens = (active + on.prompt_tokens + on.output_tokens) * on.held_share;
        let occupied = missing * share_per_token * on.output_tokens * step_s;
        Cost {
            wait: constants.prefill_s_per_token * pending,
            prefill,
            drag: steps * step_s,
            crowding: p.delay_weight * on.behind * prefill + p.occupancy_weight * on.full * occupied,
            overflow: p.overflow_s * (held_tokens * share_per_token - p.overflow_from).max(0.0),
        }
    }
}

/// Mean KV capacity of the candidates whose capacity is known, in tokens.
fn mean_capacity(views: &[&EndpointView]) -> Option<f64> {
    let capacities = views.iter().filter_map(|view| view.capacity_tokens);
    let known = capacities.filter(|tokens| *tokens > 0);
    mean(known.map(|tokens| tokens as f64))
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
