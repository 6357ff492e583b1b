//! The effective configuration as YAML: what the file says and, marked, what it leaves to the defaults.

use super::schema::{Choice, Config};
use super::tree::{Node, Value};
use super::yaml::inline;
use serde_json::Value as Json;

const MARK: &str = "  # default";

/// Writes `config`, which was read from `tree`. The text reads back as the same configuration.
pub(super) fn write(config: &Config, tree: &Node) -> Result<String, serde_json::Error> {
    let mut shown = config.clone();
    for pool in &mut shown.pools {
        if let Choice::Preset(preset) = pool.scheduling.choice() {
            pool.scheduling.preset = Some(preset);
        }
    }
    let mut out = String::new();
    mapping(&serde_json::to_value(shown)?, Some(tree), 0, &mut out);
    Ok(out)
}

fn mapping(value: &Json, written: Option<&Node>, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    // Null stands for "not given" here: no key is shown for what has neither value nor default.
    for (key, value) in value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, v)| !v.is_null())
    {
        let node = written.and_then(|w| w.get(key));
        match value {
            Json::Object(map) if !map.is_empty() => {
                out.push_str(&format!("{pad}{key}:\n"));
                mapping(value, node, indent + 2, out);
            }
            Json::Array(items) if items.iter().any(Json::is_object) => {
                out.push_str(&format!("{pad}{key}:\n"));
                list(items, node, indent + 2, out);
            }
            _ => {
                let mark = if node.is_none() { MARK } else { "" };
                out.push_str(&format!("{pad}{key}: {}{mark}\n", inline(value)));
            }
        }
    }
}

fn list(items: &[Json], written: Option<&Node>, indent: usize, out: &mut String) {
    for (i, item) in items.iter().enumerate() {
        let node = match written.map(|w| &w.value) {
            Some(Value::Seq(nodes)) => nodes.get(i).map(|item| &item.node),
            _ => None,
        };
        let start = out.len();
        mapping(item, node, indent + 2, out);
        // The item's first key shares its line with the dash.
        out.replace_range(start + indent..start + indent + 1, "-");
    }
}
