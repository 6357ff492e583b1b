//! From the configuration's words to the scheduler's rule.

use super::schema::{Choice, Plugin, PluginKind, Scheduling};
use crate::scheduling::Policy;
use crate::scheduling::plugins::{PluginError, PluginSpec};

impl Scheduling {
    /// The rule that this configuration asks for, in its start state.
    ///
    /// # Errors
    /// A plugin that the scheduler does not have or a setting that it refuses. A checked configuration has
    /// neither.
    pub fn policy(&self) -> Result<Policy, PluginError> {
        match self.choice() {
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
    use super::super::schema::{PluginRole, PluginType, Preset};
    use super::*;
    use crate::scheduling::plugins::PLUGIN_TYPES;
    use crate::scheduling::policy::PRESETS;

    #[test]
    fn every_preset_of_the_schema_is_one_of_the_scheduler() {
        let words: Vec<&str> = Preset::ALL.iter().map(|p| p.as_str()).collect();
        assert_eq!(words, PRESETS);
        for preset in Preset::ALL {
            let scheduling = Scheduling {
                preset: Some(preset),
                plugins: Vec::new(),
            };
            assert!(scheduling.policy().is_ok(), "{preset:?}");
        }
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
