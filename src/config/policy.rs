//! From the configuration's words to the scheduler's rule.

use super::schema::{Choice, Plugin, PluginKind, Preset, Scheduling};
use crate::scheduling::plugins::{PluginError, PluginSpec};
use crate::scheduling::{LeastCostParameters, Policy};

impl Scheduling {
    /// The rule that this configuration asks for, in its start state.
    ///
    /// # Errors
    /// A plugin that the scheduler does not have or a setting that it refuses. A checked configuration has
    /// neither.
    pub fn policy(&self) -> Result<Policy, PluginError> {
        match self.choice() {
            Choice::Preset(Preset::LeastCost) => Ok(Policy::least_cost(LeastCostParameters {
                start: self.start.constants(),
                ..LeastCostParameters::default()
            })),
            Choice::Preset(preset) => Policy::preset(preset.as_str())
                .ok_or_else(|| PluginError::UnknownType(preset.as_str().to_owned())),
            Choice::Plugins(plugins) => {
                Policy::plugins(&plugins.iter().map(PluginSpec::from).collect::<Vec<_>>())
            }
        }
    }
}

impl From<&Plugin> for PluginSpec {
    fn from(plugin: &Plugin) -> Self {
        let mut spec = Self::new(plugin.kind.plugin_type().as_str(), plugin.weight);
        match &plugin.kind {
            PluginKind::TokenLoadScorer(load) => {
                spec.parameters
                    .insert("threshold_tokens".to_owned(), load.threshold_tokens as f64);
            }
            PluginKind::PrefixCacheAffinityFilter(filter) => {
                spec.parameters.extend([
                    ("min_match_ratio".to_owned(), filter.min_match_ratio),
                    ("max_extra_wait_s".to_owned(), filter.max_extra_wait.as_secs_f64()),
                    ("prefill_tokens_per_s".to_owned(), filter.prefill_tokens_per_s),
                ]);
            }
            _ => {}
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::{PluginRole, PluginType};
    use super::*;
    use crate::prefix::EndpointId;
    use crate::scheduling::Scheduler;
    use crate::scheduling::plugins::PLUGIN_TYPES;
    use crate::scheduling::policy::PRESETS;
    use crate::time::Mono;

    #[test]
    fn every_preset_of_the_schema_is_one_of_the_scheduler() {
        let words: Vec<&str> = Preset::ALL.iter().map(|p| p.as_str()).collect();
        assert_eq!(words, PRESETS);
        for preset in Preset::ALL {
            let scheduling = Scheduling {
                preset: Some(preset),
                ..Scheduling::default()
            };
            assert!(scheduling.policy().is_ok(), "{preset:?}");
        }
    }

    #[test]
    fn least_cost_starts_from_what_the_file_says() {
        let prefill_s = |scheduling: &str| {
            let text =
                format!("pools: [{{ endpoints: [{{ url: 'http://a:1' }}], scheduling: {scheduling} }}]");
            let config = super::super::Config::parse(&text, "x").unwrap();
            let scheduler = Scheduler::new(config.pools[0].scheduling.policy().unwrap());
            let constants = scheduler.learnt(Mono::ZERO, EndpointId(0));
            (constants.prefill_s_per_token, constants.attention_s_per_pair)
        };
        assert_eq!(prefill_s("{}"), (4.31e-5, 1.4e-9));
        assert_eq!(
            prefill_s("{ start: { fleet: llama3.1-8b-1xh100 } }"),
            (2.7e-5, 6e-10)
        );
        // Half as fast: twice the seconds, of attention as well.
        let (token, pair) = prefill_s("{ start: { prefill_tokens_per_s: 11600 } }");
        assert!(
            (token - 8.62e-5).abs() < 1e-7 && (pair - 2.8e-9).abs() < 1e-11,
            "{token} {pair}"
        );
    }

    #[test]
    fn every_plugin_of_the_scheduler_is_taken_with_its_parameters() {
        for known in PLUGIN_TYPES {
            let kind = PluginType::ALL.iter().find(|p| p.as_str() == known.name).unwrap();
            assert_eq!(
                known.weighted,
                kind.role() == PluginRole::Scorer,
                "{}",
                known.name
            );
            let plugin: Plugin = serde_json::from_value(serde_json::json!({ "type": known.name })).unwrap();
            let spec = PluginSpec::from(&plugin);
            let given: Vec<&str> = spec.parameters.keys().map(String::as_str).collect();
            let mut taken = known.parameters.to_vec();
            taken.sort_unstable();
            assert_eq!(given, taken, "{}", known.name);
        }
    }

    #[test]
    fn plugins_of_a_file_make_a_policy() {
        let text = "pools: [{ endpoints: [{ url: 'http://a:1' }], scheduling: { plugins: [
            { type: prefix-cache-affinity-filter, parameters: { max_extra_wait: 2s } },
            { type: session-affinity-scorer, weight: 2 },
            { type: max-score-picker } ] } }]";
        let config = super::super::Config::parse(text, "x").unwrap();
        let scheduling = &config.pools[0].scheduling;
        assert!(scheduling.policy().is_ok());
        assert_eq!(
            PluginSpec::from(&scheduling.plugins[0]).parameters["max_extra_wait_s"],
            2.0
        );
    }
}
