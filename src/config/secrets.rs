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

/// The words of `tree` that an excerpt must not show, as far as the file itself has them; also where a key stands
/// twice or a secret has another shape than it should.
pub(super) fn words(tree: &Node, source: &str) -> Vec<String> {
    let pools = children(tree, "pools").flat_map(|pools| match &pools.value {
        Value::Seq(items) => items.as_slice(),
        _ => &[],
    });
    let keys = pools.flat_map(|pool| children(&pool.node, "api_key"));
    let headers = children(tree, "traces").flat_map(|traces| children(traces, "headers"));
    let mut words = Vec::new();
    keys.chain(headers)
        .for_each(|secret| texts(secret, source, &mut words));
    words.retain(|word| !word.is_empty());
    words
}

/// The values of `key`, which may be repeated.
fn children<'a>(node: &'a Node, key: &'static str) -> impl Iterator<Item = &'a Node> {
    let entries = match &node.value {
        Value::Map(entries) => entries.as_slice(),
        _ => &[],
    };
    let wanted = entries.iter().filter(move |entry| entry.key == key);
    wanted.map(|entry| &entry.node)
}

/// Collects the words below `node`, numbers as `source` has them, without names of files.
fn texts(node: &Node, source: &str, found: &mut Vec<String>) {
    match &node.value {
        Value::Null => {}
        Value::Text(text) => found.push(text.text.clone()),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
            let line = source
                .lines()
                .nth(node.place.line.saturating_sub(1))
                .unwrap_or_default();
            let word = line
                .chars()
                .skip(node.place.column.saturating_sub(1))
                .take(node.place.width);
            found.push(word.collect());
        }
        Value::Seq(items) => items.iter().for_each(|item| texts(&item.node, source, found)),
        Value::Map(entries) => {
            let others = entries.iter().filter(|entry| entry.key != "file");
            others.for_each(|entry| texts(&entry.node, source, found));
        }
    }
}

/// What an excerpt of a text that is no YAML must not show: the rest of each line with a secret's key, and of the
/// lines below `headers`.
pub(super) fn words_of_unreadable(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut headers: Option<usize> = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        headers = headers.filter(|of| indent > *of || line.trim().is_empty());
        let after = match ["api_key", "headers"].map(|key| line.find(key)) {
            [Some(at), _] => &line[at..],
            [None, Some(at)] => {
                headers = Some(indent);
                &line[at..]
            }
            [None, None] if headers.is_some() => line,
            [None, None] => continue,
        };
        let word = after.split_once(':').map_or("", |(_, rest)| rest.trim());
        if !matches!(word, "" | "{" | "}") {
            words.push(word.to_owned());
        }
    }
    words
}
