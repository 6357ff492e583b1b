//! Plugins from configuration: filters, weighted scorers and one picker make a policy.

use super::field::{Field, Order};
use super::scorers::{Prepared, Scorer, TOKEN_LOAD_THRESHOLD};
use super::sticky::Affinity;
use super::view::{Decision, EndpointView};
use rand::{Rng, RngExt};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// One plugin as configuration names it.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginSpec {
    /// The `type:` of the plugin, one of [`PLUGIN_TYPES`].
    pub kind: String,
    /// Factor of a scorer's value; filters and pickers have none.
    pub weight: f64,
    /// Settings by name. All are numbers: tokens, shares, or seconds.
    pub parameters: BTreeMap<String, f64>,
}

impl PluginSpec {
    /// A plugin without settings.
    pub fn new(kind: &str, weight: f64) -> Self {
        Self {
            kind: kind.to_owned(),
            weight,
            parameters: BTreeMap::new(),
        }
    }
}

/// A plugin that configuration can name, and the settings that it takes.
#[derive(Clone, Copy, Debug)]
pub struct PluginType {
    /// The `type:`.
    pub name: &'static str,
    /// Names of the settings under `parameters:`.
    pub parameters: &'static [&'static str],
    /// True for scorers, which alone take a weight.
    pub weighted: bool,
}

/// Every plugin type.
pub const PLUGIN_TYPES: &[PluginType] = &[
    scorer("prefix-cache-scorer", &[]),
    scorer("queue-scorer", &[]),
    scorer("kv-cache-utilization-scorer", &[]),
    scorer("no-hit-lru-scorer", &[]),
    scorer("running-requests-size-scorer", &[]),
    scorer("active-request-scorer", &[]),
    scorer("token-load-scorer", &["threshold_tokens"]),
    scorer("session-affinity-scorer", &[]),
    scorer("lora-affinity-scorer", &[]),
    unweighted(
        "prefix-cache-affinity-filter",
        &["min_match_ratio", "max_extra_wait_s", "prefill_tokens_per_s"],
    ),
    unweighted("max-score-picker", &[]),
    unweighted("weighted-random-picker", &[]),
    unweighted("random-picker", &[]),
];

const fn scorer(name: &'static str, parameters: &'static [&'static str]) -> PluginType {
    PluginType {
        name,
        parameters,
        weighted: true,
    }
}

const fn unweighted(name: &'static str, parameters: &'static [&'static str]) -> PluginType {
    PluginType {
        name,
        parameters,
        weighted: false,
    }
}

/// Why a list of plugins makes no policy.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PluginError {
    /// No plugin has this type.
    #[error("unknown plugin type `{0}`")]
    UnknownType(String),
    /// The plugin takes no such setting.
    #[error("plugin `{kind}` has no parameter `{parameter}`")]
    UnknownParameter {
        /// The plugin's type.
        kind: String,
        /// The setting that it does not take.
        parameter: String,
    },
    /// The setting's value makes no sense.
    #[error("parameter `{parameter}` of plugin `{kind}` must be a finite number above 0")]
    BadParameter {
        /// The plugin's type.
        kind: String,
        /// The setting.
        parameter: String,
    },
    /// Weights are finite and not negative.
    #[error("weight of plugin `{0}` must be a finite number, at least 0")]
    BadWeight(String),
    /// A policy has one picker at most.
    #[error("more than one picker: `{0}` comes after another")]
    SecondPicker(String),
    /// Nothing would tell the candidates apart.
    #[error("no scorer and no random-picker among the plugins")]
    NothingToScore,
}

/// How the choice is made of the totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Picker {
    /// Highest total; equals take turns.
    MaxScore,
    /// At random, with chances in proportion to the totals.
    WeightedRandom,
    /// At random, whatever the totals.
    Random,
}

/// Filters, weighted scorers and a picker.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    name: &'static str,
    filters: SmallVec<[Affinity; 1]>,
    scorers: SmallVec<[(Scorer, f64); 6]>,
    picker: Picker,
}

impl Plan {
    /// llm-d's weights: prefix 3, queue 2, KV 2, no-hit-lru 2.
    pub fn optimized_baseline() -> Self {
        let scorers = [
            (Scorer::PrefixCache, 3.0),
            (Scorer::Queue, 2.0),
            (Scorer::KvCacheUtilization, 2.0),
            (Scorer::NoHitLru, 2.0),
        ];
        Self {
            name: "optimized-baseline",
            filters: SmallVec::new(),
            scorers: scorers.into_iter().collect(),
            picker: Picker::MaxScore,
        }
    }

    /// Plugins in the order in which they are configured; without a picker, `max-score-picker`.
    pub fn from_specs(specs: &[PluginSpec]) -> Result<Self, PluginError> {
        let mut plan = Self {
            name: "plugins",
            filters: SmallVec::new(),
            scorers: SmallVec::new(),
            picker: Picker::MaxScore,
        };
        let mut pickers = 0;
        for spec in specs {
            let kind = checked(spec)?;
            match kind {
                "prefix-cache-affinity-filter" => plan.filters.push(affinity(spec)),
                "max-score-picker" | "weighted-random-picker" | "random-picker" => {
                    pickers += 1;
                    plan.picker = picker(kind);
                }
                _ => plan.scorers.push((scorer_of(spec), spec.weight)),
            }
            if pickers > 1 {
                return Err(PluginError::SecondPicker(spec.kind.clone()));
            }
        }
        if plan.scorers.is_empty() && plan.picker != Picker::Random {
            return Err(PluginError::NothingToScore);
        }
        Ok(plan)
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn term_names(&self) -> Arc<[&'static str]> {
        self.scorers.iter().map(|(scorer, _)| scorer.name()).collect()
    }

    /// total(e) = sum of weight x score over the scorers, then the picker.
    pub fn decide(
        &self,
        mut field: Field,
        term_names: &Arc<[&'static str]>,
        rng: &mut (impl Rng + ?Sized),
    ) -> Decision {
        for filter in &self.filters {
            filter.apply(&mut field);
        }
        let prepared: SmallVec<[(Prepared, f64); 6]> = self
            .scorers
            .iter()
            .map(|(scorer, weight)| (scorer.prepare(&field), *weight))
            .collect();
        let picker = self.picker;
        let value = |index: usize, view: &EndpointView| {
            let terms: SmallVec<[f64; 6]> = prepared
                .iter()
                .map(|(scorer, weight)| weight * scorer.score(index, view))
                .collect();
            (picker.total(terms.iter().sum(), rng), terms)
        };
        field.rank(self.name, term_names, Order::HighestFirst, value)
    }
}

impl Picker {
    /// The number to rank by. Sampling in proportion without replacement: the highest of ln(u)/weight
    /// (Efraimidis and Spirakis 2006), so that the ranking behind the first is a sample too.
    fn total(self, score: f64, rng: &mut (impl Rng + ?Sized)) -> f64 {
        match self {
            Self::MaxScore => score,
            Self::Random => rng.random(),
            Self::WeightedRandom => {
                let uniform: f64 = rng.random::<f64>().max(f64::MIN_POSITIVE);
                uniform.ln() / score.max(f64::MIN_POSITIVE)
            }
        }
    }
}

/// The type's static name, once its weight and settings have been found good.
fn checked(spec: &PluginSpec) -> Result<&'static str, PluginError> {
    let found = PLUGIN_TYPES.iter().find(|known| known.name == spec.kind);
    let Some(kind) = found else {
        return Err(PluginError::UnknownType(spec.kind.clone()));
    };
    if !(spec.weight.is_finite() && spec.weight >= 0.0) {
        return Err(PluginError::BadWeight(spec.kind.clone()));
    }
    for (parameter, value) in &spec.parameters {
        let (kind_name, parameter) = (spec.kind.clone(), parameter.clone());
        if !kind.parameters.contains(&parameter.as_str()) {
            return Err(PluginError::UnknownParameter {
                kind: kind_name,
                parameter,
            });
        }
        if !(value.is_finite() && *value > 0.0) {
            return Err(PluginError::BadParameter {
                kind: kind_name,
                parameter,
            });
        }
    }
    Ok(kind.name)
}

fn scorer_of(spec: &PluginSpec) -> Scorer {
    match spec.kind.as_str() {
        "queue-scorer" => Scorer::Queue,
        "kv-cache-utilization-scorer" => Scorer::KvCacheUtilization,
        "no-hit-lru-scorer" => Scorer::NoHitLru,
        "running-requests-size-scorer" => Scorer::RunningRequests,
        "active-request-scorer" => Scorer::ActiveRequests,
        "session-affinity-scorer" => Scorer::SessionAffinity,
        "lora-affinity-scorer" => Scorer::LoraAffinity,
        "token-load-scorer" => {
            let threshold_tokens = spec.parameters.get("threshold_tokens").copied();
            Scorer::TokenLoad {
                threshold_tokens: threshold_tokens.unwrap_or(TOKEN_LOAD_THRESHOLD),
            }
        }
        _ => Scorer::PrefixCache,
    }
}

fn affinity(spec: &PluginSpec) -> Affinity {
    let default = Affinity::default();
    let setting = |name: &str, otherwise: f64| spec.parameters.get(name).copied().unwrap_or(otherwise);
    Affinity {
        min_match_ratio: setting("min_match_ratio", default.min_match_ratio),
        max_extra_wait_s: setting("max_extra_wait_s", default.max_extra_wait_s),
        prefill_tokens_per_s: setting("prefill_tokens_per_s", default.prefill_tokens_per_s),
    }
}

fn picker(kind: &str) -> Picker {
    match kind {
        "weighted-random-picker" => Picker::WeightedRandom,
        "random-picker" => Picker::Random,
        _ => Picker::MaxScore,
    }
}

#[cfg(test)]
mod tests;
