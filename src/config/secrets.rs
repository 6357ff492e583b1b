//! Secrets: words given in the file, by `${NAME}`, or by a file of their own; none of them is ever shown.

use super::diagnostic::Diagnostic;
use super::schema::{Config, Secret};
use super::tree::{Node, Value};

/// Reads the files that secrets stand in, and names those that cannot be used.
pub(super) fn read(config: &mut Config, tree: &Node) -> Vec<Diagnostic> {
    let mut faults = Vec::new();
    for (path, secret) in all(config) {
        let Some(file) = secret.file().map(ToOwned::to_owned) else {
            continue;
        };
        let why = match secret.read() {
            Ok(()) if !secret.expose().is_empty() => continue,
            Ok(()) => "the file is empty".to_owned(),
            Err(error) => format!("the file cannot be read: {error}"),
        };
        let path = format!("{path}.file");
        let (_, place) = tree.find(&path);
        faults.push(
            Diagnostic::error(format!("{}: {why}", file.display()))
                .expected("a file that holds the secret and nothing else")
                .at(tree.written_path(&path), place),
        );
    }
    faults
}

/// Each secret of the configuration with its path.
fn all(config: &mut Config) -> impl Iterator<Item = (String, &mut Secret)> {
    let pools = config.pools.iter_mut().enumerate().filter_map(|(i, pool)| {
        let secret = pool.api_key.as_mut()?;
        Some((format!("pools[{i}].api_key"), secret))
    });
    let headers = config.traces.headers.iter_mut();
    let headers = headers.map(|(name, secret)| (format!("traces.headers.{name}"), secret));
    pools.chain(headers)
}

/// The words of `tree` that an excerpt must not show, as far as the file itself has them.
pub(super) fn words(tree: &Node) -> Vec<String> {
    let pools = match tree.get("pools").map(|pools| &pools.value) {
        Some(Value::Seq(items)) => items.iter().map(|item| &item.node).collect(),
        _ => Vec::new(),
    };
    let keys = pools.into_iter().filter_map(|pool| pool.get("api_key"));
    let headers = match tree.get("traces").and_then(|traces| traces.get("headers")) {
        Some(Node {
            value: Value::Map(entries),
            ..
        }) => entries.iter().map(|entry| &entry.node).collect(),
        _ => Vec::new(),
    };
    let secrets = keys.chain(headers).filter_map(Node::as_text);
    secrets
        .filter(|word| !word.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}
