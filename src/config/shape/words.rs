//! How the schema and the file's values are spoken of in messages.

use super::super::diagnostic::{Diagnostic, nearest};
use super::super::tree::{Node, Value};
use super::super::units::Quantity;
use super::{LISTEN_EXPECTED, URL_EXPECTED};
use serde_json::Value as Schema;
use std::net::IpAddr;

/// Keys of other gateways and proxies, and the word here.
const SYNONYMS: &[(&str, &str)] = &[
    ("bind", "listen"),
    ("address", "listen"),
    ("port", "listen"),
    ("addr", "url"),
    ("host", "url"),
    ("target", "url"),
    ("server", "url"),
    ("workers", "threads"),
    ("worker_threads", "threads"),
    ("backends", "endpoints"),
    ("servers", "endpoints"),
    ("replicas", "endpoints"),
    ("upstreams", "pools"),
    ("clusters", "pools"),
    ("services", "pools"),
    ("policy", "preset"),
    ("algorithm", "preset"),
    ("strategy", "preset"),
    ("max_body_size", "request_body"),
    ("client_max_body_size", "request_body"),
    ("max_retries", "retries"),
    ("num_retries", "retries"),
    ("max_concurrency", "max_inflight"),
    ("max_connections", "max_inflight"),
    ("scrape_interval", "interval"),
    ("kind", "type"),
    ("params", "parameters"),
    ("model", "models"),
];

/// Last part of a path, for messages: `retries`, `endpoints[1]`.
pub(super) fn subject(path: &str) -> &str {
    if path.is_empty() {
        "the file"
    } else {
        path.rsplit('.').next().unwrap_or(path)
    }
}

/// What a value of the file is, with its article.
pub(super) fn kind_of(node: &Node) -> String {
    match &node.value {
        Value::Null => "empty".to_owned(),
        Value::Bool(value) => format!("the truth value {value}"),
        Value::Int(n) => format!("the number {n}"),
        Value::Float(f) => format!("the number {f}"),
        Value::Text(text) => format!("the text `{}`", text.text),
        Value::Seq(_) => "a list".to_owned(),
        Value::Map(_) => "a mapping".to_owned(),
    }
}

/// The same without the value itself.
pub(super) fn plain_kind_of(node: &Node) -> String {
    match &node.value {
        Value::Bool(_) => "a truth value".to_owned(),
        Value::Int(_) | Value::Float(_) => "a number".to_owned(),
        Value::Text(_) => "a text".to_owned(),
        _ => kind_of(node),
    }
}

/// What to do with it where a text is wanted.
pub(super) fn plain_type_fix(node: &Node) -> Option<String> {
    let is_word = matches!(node.value, Value::Bool(_) | Value::Int(_) | Value::Float(_));
    is_word.then(|| "put it in quotes".to_owned())
}

/// `a, b, c`.
pub(super) fn list(words: &[&str]) -> String {
    words.join(", ")
}

/// The words that a schema of fixed words allows.
pub(super) fn known(schema: &Schema) -> Vec<&str> {
    let branches = schema["oneOf"].as_array().into_iter().flatten();
    let constants = branches.filter_map(|b| b["const"].as_str());
    let nested = schema["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|b| b["enum"].as_array())
        .flatten();
    let own = schema["enum"].as_array().into_iter().flatten();
    constants
        .chain(nested.chain(own).filter_map(Schema::as_str))
        .chain(schema["const"].as_str())
        .collect()
}

/// Least and greatest allowed number.
pub(super) fn bounds(schema: &Schema) -> (Option<f64>, Option<f64>) {
    let natural = match schema["format"].as_str() {
        Some("uint32") => Some(f64::from(u32::MAX)),
        Some("uint" | "uint64") => Some(u64::MAX as f64),
        _ => None,
    };
    (schema["minimum"].as_f64(), schema["maximum"].as_f64().or(natural))
}

/// What the schema expects, in words.
pub(super) fn describe(root: &Schema, schema: &Schema) -> String {
    if let Some(target) = schema["$ref"]
        .as_str()
        .and_then(|r| root.pointer(r.strip_prefix('#')?))
    {
        return describe(root, target);
    }
    if let Some(branches) = schema["anyOf"].as_array() {
        let real = branches.iter().filter(|b| b["type"] != "null");
        return real.map(|b| describe(root, b)).collect::<Vec<_>>().join(" or ");
    }
    let words = known(schema);
    match words.as_slice() {
        [] => {}
        [one] => return format!("`{one}`"),
        many => return format!("one of {}", list(many)),
    }
    match schema["format"].as_str() {
        Some("homing-duration") => return Quantity::Duration.expected().to_owned(),
        Some("homing-size") => return Quantity::Size.expected().to_owned(),
        Some("homing-url") => return URL_EXPECTED.to_owned(),
        Some("homing-listen") => return LISTEN_EXPECTED.to_owned(),
        _ => {}
    }
    let kind = schema["type"]
        .as_str()
        .or_else(|| schema["type"][0].as_str())
        .unwrap_or("object");
    match kind {
        "object" => match schema["properties"].as_object() {
            Some(keys) => format!(
                "a mapping with the keys {}",
                list(&keys.keys().map(String::as_str).collect::<Vec<_>>())
            ),
            None => "a mapping of `key: value` pairs".to_owned(),
        },
        "array" => "a list".to_owned(),
        "string" => "a text".to_owned(),
        "boolean" => "true or false".to_owned(),
        "integer" => format!("a whole number{}", range(schema)),
        _ => format!("a number{}", range(schema)),
    }
}

/// The allowed range, in words.
fn range(schema: &Schema) -> String {
    match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
        (Some(low), Some(high)) => format!(" from {low} to {high}"),
        (Some(low), None) => format!(" of at least {low}"),
        (None, Some(high)) => format!(" of at most {high}"),
        (None, None) => String::new(),
    }
}

/// What to write when a value has another type than the schema's.
pub(super) fn type_fix(schema: &Schema, node: &Node) -> Option<String> {
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str())?;
    match (kind, &node.value) {
        ("object", Value::Text(text)) => sole_key(schema).map(|key| format!("write `{key}: {}`", text.text)),
        ("array", Value::Text(text)) => Some(format!("write it as a list: `[{}]`", text.text)),
        ("array", Value::Int(n)) => Some(format!("write it as a list: `[\"{n}\"]`")),
        ("array", Value::Map(_)) => Some("start each item with `- `".to_owned()),
        ("object", Value::Seq(_)) => Some("remove the `- ` in front".to_owned()),
        ("integer" | "number", Value::Text(text)) if text.text.parse::<f64>().is_ok() => {
            Some(format!("remove the quotes: `{}`", text.text))
        }
        ("string", Value::Int(n)) => Some(format!("put it in quotes: `\"{n}\"`")),
        ("string", Value::Float(f)) => Some(format!("put it in quotes: `\"{f}\"`")),
        ("string", Value::Bool(b)) => Some(format!("put it in quotes: `\"{b}\"`")),
        ("string", Value::Seq(items)) if items.len() == 1 => {
            Some("remove the brackets or the `- `".to_owned())
        }
        ("boolean", Value::Text(text)) => match text.text.to_ascii_lowercase().as_str() {
            "yes" | "on" | "y" | "true" => Some("write `true`".to_owned()),
            "no" | "off" | "n" | "false" => Some("write `false`".to_owned()),
            _ => None,
        },
        _ => None,
    }
}

/// The key that a bare value in place of a mapping was meant for: the only one, or the only needed one.
fn sole_key(schema: &Schema) -> Option<&str> {
    let mut all = keys(schema);
    match (
        schema["required"].as_array().map(Vec::as_slice),
        all.next(),
        all.next(),
    ) {
        (Some([one]), _, _) => one.as_str(),
        (_, Some(only), None) => Some(only),
        _ => None,
    }
}

/// What to write for a listen address that is none.
pub(super) fn listen_fix(text: &str) -> Option<String> {
    let text = text.trim();
    let bare = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"))
        .unwrap_or(text);
    let bare = bare.trim_end_matches('/');
    let (host, port) = bare.rsplit_once(':').unwrap_or(("", bare));
    if let Ok(address) = bare.parse::<IpAddr>() {
        let shown = if address.is_ipv6() {
            format!("[{address}]")
        } else {
            address.to_string()
        };
        return Some(format!("add a port: `{shown}:8080`"));
    }
    let port: u16 = port.parse().ok()?;
    match host {
        "" | "*" => Some(format!(
            "write `0.0.0.0:{port}` for every interface or `127.0.0.1:{port}` for this machine only"
        )),
        "localhost" => Some(format!("write `127.0.0.1:{port}`")),
        host if host.parse::<IpAddr>().is_ok() => Some(format!("write `{host}:{port}`")),
        _ => Some("write the IP address of a network interface instead of a name".to_owned()),
    }
}

/// The key of `schema` that was surely meant by `key`: one slip of the keyboard away, or another program's
/// word for it.
pub(super) fn meant_key<'s>(schema: &'s Schema, key: &str) -> Option<&'s str> {
    let mut close = keys(schema).filter(|known| strsim::damerau_levenshtein(known, key) == 1);
    let synonym = || {
        let here: Vec<&str> = SYNONYMS
            .iter()
            .filter(|(other, _)| *other == key)
            .map(|(_, here)| *here)
            .collect();
        keys(schema).find(|known| here.contains(known))
    };
    close.next().or_else(synonym)
}

/// The keys that `schema` knows.
fn keys(schema: &Schema) -> impl Iterator<Item = &str> {
    schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(|p| p.keys())
        .map(String::as_str)
}

/// A key that the schema does not have at this place.
pub(super) fn unknown_key(root: &Schema, schema: &Schema, key: &str) -> Diagnostic {
    if let (Some(plugin), "weight" | "parameters") = (schema["properties"]["type"]["const"].as_str(), key) {
        return Diagnostic::error(format!("`{plugin}` takes no `{key}`")).fix("remove it");
    }
    let known: Vec<&str> = keys(schema).collect();
    let elsewhere = || {
        let homes = homes_of(root, key);
        (!homes.is_empty()).then(|| format!("`{key}` belongs {}", homes.join(" or ")))
    };
    let meant = |word: &str| format!("did you mean `{word}`?");
    let near = || nearest(key, known.iter().copied()).map(meant);
    Diagnostic::error(format!("unknown key `{key}`"))
        .expected(format!("one of {}", list(&known)))
        .maybe_fix(meant_key(schema, key).map(meant).or_else(elsewhere).or_else(near))
}

/// Where in the schema `key` is at home, as "under `pools[].metrics`".
fn homes_of(root: &Schema, key: &str) -> Vec<String> {
    fn visit(root: &Schema, schema: &Schema, path: &str, key: &str, homes: &mut Vec<String>) {
        let target = schema["$ref"]
            .as_str()
            .and_then(|r| root.pointer(r.strip_prefix('#')?));
        let schema = target.unwrap_or(schema);
        for branch in ["anyOf", "oneOf"]
            .iter()
            .filter_map(|k| schema[*k].as_array())
            .flatten()
        {
            visit(root, branch, path, key, homes);
        }
        if schema["items"].is_object() {
            visit(root, &schema["items"], &format!("{path}[]"), key, homes);
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let home = if path.is_empty() {
                "at the top level".to_owned()
            } else {
                format!("under `{path}`")
            };
            if name == key && !homes.contains(&home) {
                homes.push(home);
            }
            let below = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            visit(root, property, &below, key, homes);
        }
    }
    let mut homes = Vec::new();
    visit(root, root, "", key, &mut homes);
    homes
}
