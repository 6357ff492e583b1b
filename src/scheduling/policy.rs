//! Which rule decides: presets, plugins from configuration, and the rules of other routers.

use super::field::{Field, Order};
use super::least_cost::{self, LeastCost, LeastCostParameters};
use super::plugins::{Plan, PluginError, PluginSpec};
use super::rivals::{self, RIVALS, Rival, RivalState};
use super::sticky::{self, Sticky};
use super::view::{Decision, EndpointView};
use crate::time::Mono;
use rand::Rng;
use smallvec::smallvec;
use std::sync::Arc;

/// Names of the presets that configuration accepts.
pub const PRESETS: &[&str] = &[
    "least-cost",
    "optimized-baseline",
    "sticky",
    "round-robin",
    "random",
    "least-request",
];

/// A rule that ranks candidates, with the state that it learns or keeps.
#[derive(Clone, Debug)]
pub struct Policy(pub(super) Rule);

#[derive(Clone, Debug)]
pub(super) enum Rule {
    LeastCost(Box<LeastCost>),
    Plugins(Plan),
    Sticky(Sticky),
    RoundRobin,
    Random,
    LeastRequest,
    Rival(Box<RivalState>),
}

impl Policy {
    /// A preset by its name in configuration; `None` when there is none of that name.
    pub fn preset(name: &str) -> Option<Self> {
        let rule = match name {
            "least-cost" => return Some(Self::least_cost(LeastCostParameters::default())),
            "optimized-baseline" => Rule::Plugins(Plan::optimized_baseline()),
            "sticky" => Rule::Sticky(Sticky::default()),
            "round-robin" => Rule::RoundRobin,
            "random" => Rule::Random,
            "least-request" => Rule::LeastRequest,
            _ => return None,
        };
        Some(Self(rule))
    }

    /// Preset `least-cost` with settings of its own.
    pub fn least_cost(parameters: LeastCostParameters) -> Self {
        Self(Rule::LeastCost(Box::new(LeastCost::new(parameters))))
    }

    /// The plugins of a configuration.
    ///
    /// # Errors
    /// An unknown type or setting, a value out of range, or nothing that could choose.
    pub fn plugins(specs: &[PluginSpec]) -> Result<Self, PluginError> {
        Plan::from_specs(specs).map(|plan| Self(Rule::Plugins(plan)))
    }

    /// The rule of another router. The ones that count in seconds start and learn as `parameters` say.
    pub fn rival(rival: Rival, parameters: &LeastCostParameters) -> Self {
        let state = RivalState::new(rival, parameters.start, parameters.step_tokens, parameters.learn);
        Self(Rule::Rival(Box::new(state)))
    }

    /// A preset or a rival by name, with what those that count in seconds should start from.
    pub fn named(name: &str, parameters: &LeastCostParameters) -> Option<Self> {
        if name == "least-cost" {
            return Some(Self::least_cost(*parameters));
        }
        let rival = RIVALS.iter().find(|(known, _)| *known == name);
        rival
            .map(|(_, rival)| Self::rival(*rival, parameters))
            .or_else(|| Self::preset(name))
    }

    /// Every name that [`Policy::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS
            .iter()
            .copied()
            .chain(RIVALS.iter().map(|(name, _)| *name))
    }

    /// The word that decisions carry.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Rule::LeastCost(_) => "least-cost",
            Rule::Plugins(plan) => plan.name(),
            Rule::Sticky(_) => "sticky",
            Rule::RoundRobin => "round-robin",
            Rule::Random => "random",
            Rule::LeastRequest => "least-request",
            Rule::Rival(state) => state.name(),
        }
    }

    pub(super) fn term_names(&self) -> Arc<[&'static str]> {
        match &self.0 {
            Rule::LeastCost(_) => least_cost::TERMS.into(),
            Rule::Plugins(plan) => plan.term_names(),
            Rule::Sticky(_) => sticky::TERMS.into(),
            Rule::RoundRobin | Rule::Random => [].into(),
            Rule::LeastRequest => ["inflight"].into(),
            Rule::Rival(_) => rivals::TERMS.into(),
        }
    }

    pub(super) fn decide(
        &self,
        now: Mono,
        field: Field,
        term_names: &Arc<[&'static str]>,
        rng: &mut (impl Rng + ?Sized),
    ) -> Decision {
        match &self.0 {
            Rule::LeastCost(least_cost) => least_cost.decide(now, field, term_names),
            Rule::Plugins(plan) => plan.decide(field, term_names, rng),
            Rule::Sticky(sticky) => sticky.decide(field, term_names),
            Rule::RoundRobin => {
                let recency = field.recency;
                let turn = |view: &EndpointView| recency.of(view.id).picked as f64;
                field.rank("round-robin", term_names, Order::LowestFirst, |_, view| {
                    (turn(view), smallvec![])
                })
            }
            Rule::Random => {
                let draw = |_, _: &EndpointView| (rng.next_u32().into(), smallvec![]);
                field.rank("random", term_names, Order::LowestFirst, draw)
            }
            Rule::LeastRequest => field.rank("least-request", term_names, Order::LowestFirst, |_, view| {
                let inflight = f64::from(view.inflight);
                (inflight, smallvec![inflight])
            }),
            Rule::Rival(state) => state.decide(now, field, term_names),
        }
    }
}
