//! Keys whose names are settled but whose work is not done yet. They are refused in so many words rather
//! than read and ignored; each goes from here with the change that gives it its effect.

use super::super::diagnostic::Diagnostic;
use super::super::schema::Config;
use super::Check;
use crate::scheduling::plugins::PLUGIN_TYPES;

impl Check<'_> {
    pub(super) fn unsupported(&mut self, config: &Config) {
        for (i, pool) in config.pools.iter().enumerate() {
            let path = format!("pools[{i}]");
            for (j, plugin) in pool.scheduling.plugins.iter().enumerate() {
                let name = plugin.kind.plugin_type().as_str();
                if !PLUGIN_TYPES.iter().any(|known| known.name == name) {
                    self.not_yet(
                        &format!("{path}.scheduling.plugins[{j}].type"),
                        &format!("`{name}`"),
                        "remove it",
                    );
                }
            }
        }
    }

    fn not_yet(&mut self, path: &str, what: &str, fix: &str) {
        self.report(
            path,
            Diagnostic::error(format!("{what} is not yet supported")).fix(fix),
        );
    }
}
