//! Does the file have the schema's shape? Walks the tree along the JSON Schema that the typed
//! configuration generates, names every fault, and takes faulty values out so that the rest can still be
//! read and checked for its meaning.

mod words;

use super::address::{EndpointUrl, LISTEN_EXPECTED, URL_EXPECTED};
use super::diagnostic::{Diagnostic, Place, nearest};
use super::environment::{Lookup, expand};
use super::tree::{Entry, Node, Text, Value, join_key};
use super::units::{ByteSize, Period, UnitError};
use serde_json::Value as Schema;
use std::collections::HashMap;
use std::net::SocketAddr;
use words::{bounds, describe, kind_of, list, subject};

/// What a walk has found.
pub(super) struct Findings {
    pub faults: Vec<Diagnostic>,
    /// Paths of values that were taken out: what is missing there is no second fault.
    pub damaged: Vec<String>,
}

/// Checks `tree` against `schema` and takes out what does not fit.
pub(super) fn check(tree: &mut Node, schema: &Schema, env: &Lookup<'_>) -> Findings {
    let mut walk = Walk {
        root: schema,
        env,
        faults: Vec::new(),
        damaged: Vec::new(),
    };
    if !walk.value(schema, tree, "") {
        tree.value = Value::Map(Vec::new());
    }
    Findings {
        faults: walk.faults,
        damaged: walk.damaged,
    }
}

struct Walk<'a> {
    root: &'a Schema,
    env: &'a Lookup<'a>,
    faults: Vec<Diagnostic>,
    damaged: Vec<String>,
}

impl<'a> Walk<'a> {
    /// Follows `$ref`s.
    fn resolve(&self, schema: &'a Schema) -> &'a Schema {
        let target = schema["$ref"]
            .as_str()
            .and_then(|r| self.root.pointer(r.strip_prefix('#')?));
        target.map_or(schema, |target| self.resolve(target))
    }

    /// Records a fault at `path`; always false, as the value's verdict.
    fn fault(&mut self, fault: Diagnostic, path: &str, place: Place) -> bool {
        self.faults.push(fault.at(path, Some(place)));
        self.damaged.push(path.to_owned());
        false
    }

    /// Checks one value; false when it cannot be used.
    fn value(&mut self, schema: &'a Schema, node: &mut Node, path: &str) -> bool {
        if let Value::Text(text) = &mut node.value {
            match expand(&text.text, self.env) {
                Ok(None) => {}
                Ok(Some(expanded)) => {
                    *text = Text {
                        text: expanded,
                        expanded: true,
                    }
                }
                Err(error) => {
                    let fault = Diagnostic::error(error.to_string()).fix(error.fix());
                    return self.fault(fault, path, node.place);
                }
            }
        }
        let schema = self.resolve(schema);
        if let Some(branches) = schema["anyOf"].as_array() {
            return self.any_of(branches, node, path);
        }
        if let Some(branches) = schema["oneOf"].as_array() {
            let tagged = branches
                .iter()
                .all(|b| b["properties"]["type"]["const"].is_string());
            return if tagged {
                self.tagged(branches, node, path)
            } else {
                self.word(schema, node, path)
            };
        }
        if schema["enum"].is_array() || schema["const"].is_string() {
            return self.word(schema, node, path);
        }
        self.typed(schema, node, path)
    }

    /// A value with a `type` in the schema.
    fn typed(&mut self, schema: &'a Schema, node: &mut Node, path: &str) -> bool {
        let types = &schema["type"];
        let has =
            |name: &str| types == name || types.as_array().is_some_and(|all| all.iter().any(|t| t == name));
        match &mut node.value {
            Value::Null if has("null") => return true,
            // `admin:` with every key under it commented out is a usual state of a file.
            Value::Null if has("object") => node.value = Value::Map(Vec::new()),
            _ => {}
        }
        reread(node, has("integer") || has("number"), has("boolean"));
        match &mut node.value {
            Value::Map(_) if has("object") => self.object(schema, node, path),
            Value::Seq(_) if has("array") => self.array(schema, node, path),
            Value::Text(_) if has("string") => self.string(schema, node, path),
            Value::Int(_) if has("integer") || has("number") => self.number(schema, node, path),
            Value::Float(_) if has("number") => self.number(schema, node, path),
            Value::Bool(_) if has("boolean") => true,
            // `interval: 50` speaks of its missing unit, not of its type.
            Value::Int(n) if schema["format"].is_string() && has("string") => {
                node.value = Value::Text(Text {
                    text: n.to_string(),
                    expanded: false,
                });
                self.string(schema, node, path)
            }
            _ => self.mismatch(schema, node, path),
        }
    }

    /// A value of another type than the schema's.
    fn mismatch(&mut self, schema: &'a Schema, node: &Node, path: &str) -> bool {
        let expected = describe(self.root, schema);
        let key = subject(path);
        let fault = if matches!(node.value, Value::Null) {
            Diagnostic::error(format!("`{key}` has no value")).fix("give it a value, or remove the key")
        } else {
            let message = format!("{key} is {}", kind_of(node));
            let named = if path.is_empty() {
                message
            } else {
                format!("`{key}` is {}", kind_of(node))
            };
            Diagnostic::error(named).maybe_fix(words::type_fix(schema, node))
        };
        self.fault(fault.expected(expected), path, node.place)
    }

    /// The first branch that fits the value's kind; `null` branches stand for "not given".
    fn any_of(&mut self, branches: &'a [Schema], node: &mut Node, path: &str) -> bool {
        let is_null = |b: &&Schema| b["type"] == "null";
        if matches!(node.value, Value::Null) && branches.iter().any(|b| is_null(&b)) {
            return true;
        }
        let real: Vec<&Schema> = branches
            .iter()
            .filter(|b| !is_null(b))
            .map(|b| self.resolve(b))
            .collect();
        if let [one] = real.as_slice() {
            return self.value(one, node, path);
        }
        let fitting = real.iter().find(|b| {
            let mut copy = node.clone();
            reread(&mut copy, b["type"] == "integer", b["type"] == "boolean");
            match &copy.value {
                Value::Text(text) => b["const"] == text.text.as_str() || b["type"] == "string",
                Value::Int(_) => b["type"] == "integer",
                Value::Seq(_) => b["type"] == "array",
                Value::Map(_) => b["type"] == "object",
                _ => false,
            }
        });
        if let Some(branch) = fitting {
            return self.value(branch, node, path);
        }
        let expected: Vec<String> = real.iter().map(|b| describe(self.root, b)).collect();
        let words = real.iter().filter_map(|b| b["const"].as_str());
        let near = node
            .as_text()
            .and_then(|text| nearest(text, words))
            .map(|w| format!("write `{w}`"));
        // What a secret is instead of a text may be the secret.
        let is_secret = real.iter().any(|b| b["writeOnly"] == true);
        let (kind, quoted) = if is_secret {
            (words::plain_kind_of(node), words::plain_type_fix(node))
        } else {
            (kind_of(node), real.iter().find_map(|b| words::type_fix(b, node)))
        };
        let fault = Diagnostic::error(format!("`{}` is {kind}", subject(path)))
            .expected(expected.join(" or "))
            .maybe_fix(near.or(quoted));
        self.fault(fault, path, node.place)
    }

    /// One of several fixed words.
    fn word(&mut self, schema: &Schema, node: &Node, path: &str) -> bool {
        let known = words::known(schema);
        let expected = format!("one of {}", list(&known));
        let key = subject(path);
        let fault = match &node.value {
            Value::Text(text) if known.contains(&text.text.as_str()) => return true,
            Value::Text(text) => {
                let near = nearest(&text.text, known.iter().copied()).map(|w| format!("did you mean `{w}`?"));
                Diagnostic::error(format!("`{}` is no `{key}`", text.text)).maybe_fix(near)
            }
            Value::Null => Diagnostic::error(format!("`{key}` has no value")),
            _ => Diagnostic::error(format!("`{key}` is {}", kind_of(node))),
        };
        self.fault(fault.expected(expected), path, node.place)
    }

    /// A mapping whose `type` says which of `branches` it follows.
    fn tagged(&mut self, branches: &'a [Schema], node: &mut Node, path: &str) -> bool {
        let names: Vec<&str> = branches
            .iter()
            .filter_map(|b| b["properties"]["type"]["const"].as_str())
            .collect();
        let place = node.place;
        let Some(tag) = node.get("type") else {
            if let Value::Map(entries) = &node.value
                && let Some(entry) = entries
                    .iter()
                    .find(|e| words::meant_key(&branches[0], &e.key) == Some("type"))
            {
                let fault =
                    Diagnostic::error(format!("unknown key `{}`", entry.key)).fix("did you mean `type`?");
                return self.fault(fault, &format!("{path}.{}", entry.key), entry.key_place);
            }
            let fault = match node.as_text().filter(|text| names.contains(text)) {
                Some(name) => {
                    Diagnostic::error(format!("`{name}` stands alone")).fix(format!("write `- type: {name}`"))
                }
                None => Diagnostic::error(format!("`{}` has no `type`", subject(path))),
            };
            return self.fault(
                fault.expected(format!("a mapping with a `type`: one of {}", list(&names))),
                path,
                place,
            );
        };
        let named = tag.as_text().unwrap_or_default();
        if let Some(branch) = branches
            .iter()
            .find(|b| b["properties"]["type"]["const"] == named)
        {
            return self.object(branch, node, path);
        }
        let near = nearest(named, names.iter().copied()).map(|w| format!("did you mean `{w}`?"));
        let message = match tag.as_text() {
            Some(name) => format!("`{name}` is no plugin"),
            None => format!("`type` is {}", kind_of(tag)),
        };
        let fault = Diagnostic::error(message)
            .expected(format!("one of {}", list(&names)))
            .maybe_fix(near);
        let (path, place) = (format!("{path}.type"), tag.place);
        self.fault(fault, &path, place)
    }

    /// A mapping: unknown and repeated keys, each value, missing keys.
    fn object(&mut self, schema: &'a Schema, node: &mut Node, path: &str) -> bool {
        let Value::Map(entries) = &mut node.value else {
            return false;
        };
        let mut first: HashMap<String, usize> = HashMap::new();
        entries.retain_mut(|entry| match first.get(&entry.key) {
            Some(line) => {
                let fault = Diagnostic::error(format!("`{}` is given twice", entry.key))
                    .expected(format!("each key once; line {line} has it already"))
                    .fix("remove one of the two");
                let mut at = path.to_owned();
                join_key(&mut at, &entry.key);
                self.fault(fault, &at, entry.key_place)
            }
            None => {
                first.insert(entry.key.clone(), entry.key_place.line);
                self.entry(schema, entry, path)
            }
        });
        self.required(schema, node, path, &first)
    }

    /// One `key: value`.
    fn entry(&mut self, schema: &'a Schema, entry: &mut Entry, path: &str) -> bool {
        let mut at = path.to_owned();
        join_key(&mut at, &entry.key);
        let property = schema["properties"].get(&entry.key);
        let any = Some(&schema["additionalProperties"]).filter(|s| s.is_object());
        let Some(expected) = property.or(any) else {
            let fault = words::unknown_key(self.root, schema, &entry.key);
            return self.fault(fault, &at, entry.key_place);
        };
        // A value that is not there is best shown by its key.
        if matches!(entry.node.value, Value::Null) {
            entry.node.place = entry.key_place;
        }
        self.value(expected, &mut entry.node, &at)
    }

    /// Keys that have no default. `written` are the keys of the file, faulty ones included.
    fn required(
        &mut self,
        schema: &Schema,
        node: &Node,
        path: &str,
        written: &HashMap<String, usize>,
    ) -> bool {
        let mut complete = true;
        for key in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Schema::as_str)
        {
            let misspelt = written
                .keys()
                .any(|other| words::meant_key(schema, other) == Some(key));
            if !written.contains_key(key) && !misspelt {
                let expected = describe(self.root, &schema["properties"][key]);
                let fault = Diagnostic::error(format!("`{}` has no `{key}`", subject(path)))
                    .expected(format!("`{key}`: {expected}"));
                self.fault(fault, path, node.place);
            }
            complete &= node.get(key).is_some();
        }
        complete
    }

    /// A list: each item; items that cannot be used are taken out.
    fn array(&mut self, schema: &'a Schema, node: &mut Node, path: &str) -> bool {
        let place = node.place;
        let Value::Seq(items) = &mut node.value else {
            return false;
        };
        if schema["minItems"]
            .as_u64()
            .is_some_and(|min| (items.len() as u64) < min)
        {
            let fault =
                Diagnostic::error(format!("`{}` is empty", subject(path))).expected("at least one item");
            return self.fault(fault, path, place);
        }
        items.retain_mut(|item| {
            self.value(
                &schema["items"],
                &mut item.node,
                &format!("{path}[{}]", item.index),
            )
        });
        true
    }

    /// A string in one of the schema's formats.
    fn string(&mut self, schema: &Schema, node: &Node, path: &str) -> bool {
        let text = node.as_text().unwrap_or_default();
        let unit = |error: UnitError| {
            Diagnostic::error(error.to_string())
                .expected(error.expected())
                .maybe_fix(error.fix())
        };
        let fault = match schema["format"].as_str() {
            Some("homing-duration") => text.parse::<Period>().err().map(unit),
            Some("homing-size") => text.parse::<ByteSize>().err().map(unit),
            Some("homing-url") => text.parse::<EndpointUrl>().err().map(|error| {
                Diagnostic::error(error.to_string())
                    .expected(URL_EXPECTED)
                    .maybe_fix(error.fix(text))
            }),
            Some("homing-listen") => text.parse::<SocketAddr>().err().map(|_| {
                Diagnostic::error(format!("`{text}` is no address to listen on"))
                    .expected(LISTEN_EXPECTED)
                    .maybe_fix(words::listen_fix(text))
            }),
            _ => None,
        };
        fault.is_none_or(|fault| self.fault(fault, path, node.place))
    }

    /// A number within the schema's bounds.
    fn number(&mut self, schema: &Schema, node: &Node, path: &str) -> bool {
        let value = match node.value {
            Value::Int(n) => n as f64,
            Value::Float(f) => f,
            _ => return false,
        };
        let (low, high) = bounds(schema);
        let (above, below) = (
            low.is_none_or(|low| value >= low),
            high.is_none_or(|high| value <= high),
        );
        if value.is_finite() && above && below {
            return true;
        }
        let expected = match high {
            Some(high) if !below => format!("a number of at most {high}"),
            _ => describe(self.root, schema),
        };
        let fault = Diagnostic::error(format!("`{}` is {value}", subject(path))).expected(expected);
        self.fault(fault, path, node.place)
    }
}

/// A whole value that came from the environment may stand for a number or a truth value.
fn reread(node: &mut Node, number: bool, boolean: bool) {
    let Value::Text(Text { text, expanded: true }) = &node.value else {
        return;
    };
    let (int, float) = (
        text.trim().parse().ok().map(Value::Int),
        text.trim().parse().ok().map(Value::Float),
    );
    let read = match text.as_str() {
        "true" if boolean => Some(Value::Bool(true)),
        "false" if boolean => Some(Value::Bool(false)),
        _ if number => int.or(float),
        _ => None,
    };
    if let Some(value) = read {
        node.value = value;
    }
}
