//! Presets and plugins.

use super::super::diagnostic::Diagnostic;
use super::super::schema::{Plugin, PluginKind, PluginRole, PluginType, Scheduling};
use super::Check;
use std::collections::HashMap;

impl Check<'_> {
    pub(super) fn scheduling(&mut self, scheduling: &Scheduling, path: &str) {
        let plugins = format!("{path}.plugins");
        let given = self.tree.find(&plugins).0.is_some();
        if scheduling.preset.is_some() && given {
            let fault =
                Diagnostic::error("`preset` and `plugins` are both given: a preset is a set of plugins");
            self.report(
                &plugins,
                fault
                    .expected("one of the two")
                    .fix("remove `preset` to use these plugins, or remove them"),
            );
        }
        if !given || self.damaged(&plugins) {
            return;
        }
        self.pickers(&scheduling.plugins, &plugins);
        self.scorers(&scheduling.plugins, &plugins);
        for (i, plugin) in scheduling.plugins.iter().enumerate() {
            self.parameters(plugin, &format!("{plugins}[{i}].parameters"));
        }
    }

    /// Exactly one picker.
    fn pickers(&mut self, plugins: &[Plugin], path: &str) {
        let mut pickers = positions(plugins, PluginRole::Picker);
        let Some(first) = pickers.next() else {
            let fault = Diagnostic::error("no picker: nothing turns the scores into a choice");
            self.report(
                path,
                fault
                    .expected("one of max-score-picker, weighted-random-picker, random-picker")
                    .fix("add `- { type: max-score-picker }`"),
            );
            return;
        };
        for second in pickers {
            let fault = Diagnostic::error(format!(
                "`{}` is a second picker",
                plugins[second].kind.plugin_type().as_str()
            ));
            let line = self.line(&format!("{path}[{first}].type"));
            self.report(
                &format!("{path}[{second}].type"),
                fault
                    .expected(format!("one picker; line {line} has it"))
                    .fix("remove one of the two"),
            );
        }
    }

    /// Scorers: each once, with weights that can decide something.
    fn scorers(&mut self, plugins: &[Plugin], path: &str) {
        let mut seen: HashMap<PluginType, usize> = HashMap::new();
        for (i, plugin) in plugins
            .iter()
            .enumerate()
            .filter(|(_, p)| p.kind.plugin_type().role() != PluginRole::Picker)
        {
            let kind = plugin.kind.plugin_type();
            if let Some(first) = seen.insert(kind, i) {
                let line = self.line(&format!("{path}[{first}].type"));
                let fault = Diagnostic::error(format!("`{}` is given twice", kind.as_str()));
                self.report(
                    &format!("{path}[{i}].type"),
                    fault
                        .expected(format!("each plugin once; line {line} has it"))
                        .fix("add the weights up in one of them"),
                );
            }
        }
        self.weights(plugins, path);
    }

    fn weights(&mut self, plugins: &[Plugin], path: &str) {
        let weights: Vec<f64> = positions(plugins, PluginRole::Scorer)
            .map(|i| plugins[i].weight)
            .collect();
        let Some(picker) = positions(plugins, PluginRole::Picker).next() else {
            return;
        };
        let random = plugins[picker].kind == PluginKind::RandomPicker;
        let fix = "add `- { type: prefix-cache-scorer, weight: 3 }`, or use `preset: random`";
        let fault = match (random, weights.is_empty()) {
            (true, true) => return,
            (true, false) => {
                Diagnostic::warning("`random-picker` does not look at scores: the scorers have no effect")
                    .fix("use `weighted-random-picker` or `max-score-picker`")
            }
            (false, true) => Diagnostic::error("no scorer: nothing tells the endpoints apart").fix(fix),
            (false, false) if weights.iter().all(|w| *w == 0.0) => {
                Diagnostic::warning("every weight is 0: every endpoint scores the same").fix(fix)
            }
            (false, false) => return,
        };
        self.report(path, fault);
    }

    fn parameters(&mut self, plugin: &Plugin, path: &str) {
        let PluginKind::PrefixCacheAffinityFilter(filter) = &plugin.kind else {
            return;
        };
        let wait = format!("{path}.max_extra_wait");
        self.positive(&wait, filter.max_extra_wait, "the filter would keep nothing");
        if filter.min_match_ratio == 0.0 {
            let fault = Diagnostic::error("`min_match_ratio` is 0: the filter would keep everything");
            self.report(
                &format!("{path}.min_match_ratio"),
                fault.expected("a share above 0, such as 0.8"),
            );
        }
    }
}

/// Indices of the plugins with this role.
fn positions(plugins: &[Plugin], role: PluginRole) -> impl Iterator<Item = usize> {
    plugins
        .iter()
        .enumerate()
        .filter(move |(_, p)| p.kind.plugin_type().role() == role)
        .map(|(i, _)| i)
}
