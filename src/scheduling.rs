//! Which endpoint: filters, scorers, pickers, presets and the least-cost model.
//!
//! [`Scheduler::evaluate`] looks and changes nothing, so `/explain` may ask it too; [`Scheduler::commit`] records what
//! the next decision must see. The caller holds both together (in the gateway under a short lock), reserving
//! the endpoint's load in between: a pick that the next one cannot see would send bursts to one endpoint.
//!
//! ```
//! use homing::prefix::EndpointId;
//! use homing::scheduling::{EndpointView, Policy, RequestView, Scheduler};
//! use homing::time::Mono;
//! use rand::SeedableRng;
//!
//! let mut scheduler = Scheduler::new(Policy::preset("least-cost").unwrap());
//! let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(1);
//! let request = RequestView { model: "m", prompt_tokens: 800, keyed: true, ..Default::default() };
//! let idle = EndpointView::idle(EndpointId(0), "pod-a");
//! let warm = EndpointView { match_tokens: 768, match_ratio: 0.96, ..EndpointView::idle(EndpointId(1), "pod-b") };
//!
//! let decision = scheduler.evaluate(Mono::ZERO, &request, &[idle, warm], &mut rng);
//! assert_eq!(decision.chosen().unwrap().id, warm.id);
//! let dispatch = scheduler.commit(Mono::ZERO, &request, &decision, &warm);
//! scheduler.observe_first_byte(Mono::from_secs_f64(0.04), &dispatch);
//! ```

mod field;
pub mod least_cost;
pub mod output;
pub mod plugins;
pub mod policy;
mod recency;
pub mod rivals;
pub mod scorers;
pub mod sticky;
pub mod view;
pub mod warmth;

#[cfg(test)]
mod seeds;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use least_cost::model::Constants;
pub use least_cost::{LeastCostParameters, NAME as LEAST_COST, StreamRate, TERMS as LEAST_COST_TERMS};
pub use plugins::{PLUGIN_TYPES, PluginError, PluginSpec};
pub use policy::{PRESETS, Policy};
pub use rivals::{PREFIX_KEY_BLOCKS, Rival};
pub use view::{AdapterStanding, Decision, DecisionKind, EndpointView, RequestView, Scored, Scraped};

use crate::prefix::EndpointId;
use crate::time::Mono;
use field::Field;
use least_cost::AtDispatch;
use least_cost::model::FleetModel;
use output::OutputLengths;
use policy::Rule;
use rand::Rng;
use recency::{Recency, Use};
use std::sync::Arc;

/// [`index_margin`] without a working-set gate.
///
/// An index that forgets before the engine does sends requests away from what they could have reused: one of half the
/// size makes coding sessions wait almost twice as long. One that remembers too long loses little by visits in
/// vain. Measured in `docs/routing.md`.
const INDEX_MARGIN: f64 = 1.5;

/// The same where a working-set gate keeps the caches from overflowing. It has to know what was evicted: an index that
/// takes it for cached sends conversations where they are computed anew amid others. Measured in `docs/overload.md`.
const GATED_INDEX_MARGIN: f64 = 1.0;

/// Blocks that the prefix index keeps of an endpoint, relative to what its engine is said to hold.
pub const fn index_margin(is_gated: bool) -> f64 {
    if is_gated {
        GATED_INDEX_MARGIN
    } else {
        INDEX_MARGIN
    }
}

/// One pool's scheduling: a policy and what it remembers from pick to pick.
#[derive(Clone, Debug)]
pub struct Scheduler {
    policy: Policy,
    term_names: Arc<[&'static str]>,
    recency: Recency,
    outputs: OutputLengths,
    /// How fast the endpoints prefill, for policies that do not ask.
    pace: FleetModel,
}

/// A committed pick. The request keeps it: to take the pick back, or to report how long the first byte took.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch {
    /// Where it went.
    pub endpoint: EndpointId,
    /// When.
    pub at: Mono,
    /// Time to the first byte that `least-cost` predicted, in seconds; `None` with policies that predict nothing.
    pub predicted_first_byte_s: Option<f64>,
    conditions: AtDispatch,
    before: Use,
    recorded: Use,
}

impl Dispatch {
    /// Prompt tokens that the endpoint was believed to have cached.
    pub fn cached_tokens(&self) -> u32 {
        self.conditions.cached_tokens
    }
}

impl Scheduler {
    /// A scheduler that remembers nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            term_names: policy.term_names(),
            policy,
            recency: Recency::default(),
            outputs: OutputLengths::default(),
            pace: {
                let assumed = LeastCostParameters::default();
                FleetModel::new(assumed.start, assumed.step_tokens, assumed.learn)
            },
        }
    }

    /// The policy's name, as decisions carry it.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Ranks the candidates for a request. No side effects but on `rng`.
    pub fn evaluate(
        &self,
        now: Mono,
        req: &RequestView,
        candidates: &[EndpointView],
        rng: &mut (impl Rng + ?Sized),
    ) -> Decision {
        let output_tokens = self.outputs.expected(req.model, req.max_output_tokens);
        let field = Field::new(req, output_tokens, candidates, &self.recency, rng.next_u64());
        self.policy.decide(now, field, &self.term_names, rng)
    }

    /// Records that the request goes to `chosen`: the decision's first choice, or a later one on a retry.
    /// `chosen` is the view that the decision saw, from before the pick's own load was added.
    pub fn commit(
        &mut self,
        now: Mono,
        req: &RequestView,
        decision: &Decision,
        chosen: &EndpointView,
    ) -> Dispatch {
        let cold = decision.kind == DecisionKind::Cold;
        let (before, recorded) = self.recency.record(chosen.id, cold);
        let mut predicted_first_byte_s = None;
        match &mut self.policy.0 {
            Rule::LeastCost(least_cost) => {
                let predicted_s = least_cost.commit(now, req, decision.ranked.len(), chosen);
                predicted_first_byte_s = Some(predicted_s);
            }
            Rule::Rival(state) => {
                let output_tokens = self.outputs.expected(req.model, req.max_output_tokens);
                state.commit(now, req.prompt_tokens, output_tokens, chosen);
            }
            _ => {}
        }
        let conditions = AtDispatch::new(req.prompt_tokens, chosen);
        Dispatch {
            endpoint: chosen.id,
            at: now,
            predicted_first_byte_s,
            conditions,
            before,
            recorded,
        }
    }

    /// Takes a pick back that never reached its endpoint.
    pub fn revert(&mut self, dispatch: &Dispatch) {
        self.recency
            .revert(dispatch.endpoint, dispatch.before, dispatch.recorded);
    }

    /// The endpoint's id was released; whoever gets it next starts without a past.
    pub fn forget(&mut self, id: EndpointId) {
        self.recency.forget(id);
        match &mut self.policy.0 {
            Rule::LeastCost(least_cost) => least_cost.fleet.forget(id),
            Rule::Rival(state) => state.fleet.forget(id),
            _ => self.pace.forget(id),
        }
    }

    /// Learns from a first byte. Not to be called for requests that were retried or failed.
    pub fn observe_first_byte(&mut self, now: Mono, dispatch: &Dispatch) {
        let elapsed_s = now.since(dispatch.at).as_secs_f64();
        let (id, at) = (dispatch.endpoint, &dispatch.conditions);
        match &mut self.policy.0 {
            Rule::LeastCost(least_cost) => least_cost.observe_first_byte(now, id, at, elapsed_s),
            Rule::Rival(state) => state.fleet.observe_first_byte(now, id, at, elapsed_s),
            _ => self.pace.observe_first_byte(now, id, at, elapsed_s),
        }
    }

    /// Learns from a stream that ended well.
    pub fn observe_stream(&mut self, now: Mono, id: EndpointId, rate: &StreamRate) {
        if let Rule::LeastCost(least_cost) = &mut self.policy.0 {
            least_cost.observe_stream(now, id, rate);
        }
    }

    /// Learns how long a model's answers are, in tokens.
    pub fn observe_output(&mut self, model: &str, output_tokens: u32) {
        self.outputs.observe(model, output_tokens);
    }

    /// Output tokens to reckon with for a request; what callers add to an endpoint's active tokens.
    pub fn expected_output_tokens(&self, model: &str, max_output_tokens: Option<u32>) -> u32 {
        self.outputs.expected(model, max_output_tokens) as u32
    }

    /// Time that an endpoint takes to prefill one more uncached prompt token, its share of a step included, in
    /// seconds, as far as is known.
    pub fn prefill_s_per_token(&self, now: Mono, id: EndpointId) -> f64 {
        self.fleet().pace_s_per_token(now, id)
    }

    /// What is believed of an endpoint. Rules that count in seconds learn all of it, the others how fast it prefills.
    pub fn learnt(&self, now: Mono, id: EndpointId) -> Constants {
        self.fleet().constants(now, id)
    }

    fn fleet(&self) -> &FleetModel {
        match &self.policy.0 {
            Rule::LeastCost(least_cost) => &least_cost.fleet,
            Rule::Rival(state) => &state.fleet,
            _ => &self.pace,
        }
    }

    /// Tells the policy what an endpoint takes, instead of letting it learn.
    pub fn assume(&mut self, id: EndpointId, constants: Constants) {
        let fleet = match &mut self.policy.0 {
            Rule::LeastCost(least_cost) => &mut least_cost.fleet,
            Rule::Rival(state) => &mut state.fleet,
            _ => &mut self.pace,
        };
        fleet.assume(id, constants);
    }
}
