//! The file as a tree of values that know their place, before any meaning is given to them.
//!
//! Serde's derived types stop at the first fault. This tree lets the later passes go on after one, and
//! lets them point at any value by its path.

use super::diagnostic::{Diagnostic, Place};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value as Json};
use serde_saphyr::{DuplicateKeyPolicy, NonFiniteFloatPolicy, Options, Spanned};
use std::fmt;

/// A configuration nests about ten levels; the bound keeps hostile input off the stack's end.
const MAX_DEPTH: usize = 24;

/// Values in a file, aliases expanded. Thousands of endpoints fit; a "billion laughs" file does not.
const MAX_VALUES: usize = 200_000;

/// One value of the file.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Where its text begins; for a list or mapping, where the first item begins.
    pub place: Place,
    pub value: Value,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    Seq(Vec<Item>),
    Map(Vec<Entry>),
}

/// A string and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    pub text: String,
    /// True when it comes from an environment reference, so that it may stand for a number as well.
    pub expanded: bool,
}

/// One item of a list. Items with faults are taken out; the index stays the file's.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub index: usize,
    pub node: Node,
}

/// One `key: value` of a mapping; keys may repeat.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: String,
    pub key_place: Place,
    pub node: Node,
}

impl Node {
    /// Reads YAML text. The fault is one of syntax: the reader cannot go on after it.
    pub fn parse(text: &str) -> Result<Self, Box<Diagnostic>> {
        serde_saphyr::from_str_with_options(text, options()).map_err(|error| Box::new(syntax_fault(&error)))
    }

    /// The node and the place to point at for `path`, or for the nearest ancestor that the file has.
    /// Lists and mappings are pointed at by their key; the file as a whole has no place.
    pub fn find(&self, path: &str) -> (Option<&Self>, Option<Place>) {
        let (mut node, mut place) = (self, None);
        for step in steps(path) {
            let next = match (&node.value, step) {
                (Value::Map(entries), Step::Key(key)) => entries.iter().find(|e| e.key == key).map(|e| {
                    let compound = matches!(e.node.value, Value::Map(_) | Value::Seq(_) | Value::Null);
                    (&e.node, if compound { e.key_place } else { e.node.place })
                }),
                // By position among what is left, which is how the typed configuration counts.
                (Value::Seq(items), Step::Index(i)) => items.get(i).map(|item| (&item.node, item.node.place)),
                _ => None,
            };
            let Some((found, at)) = next else {
                return (None, place);
            };
            (node, place) = (found, Some(at));
        }
        (Some(node), place)
    }

    /// `path` with the list indices of the file as it was written, before faulty items were taken out.
    pub fn written_path(&self, path: &str) -> String {
        let mut written = String::new();
        let mut node = Some(self);
        for step in steps(path) {
            match step {
                Step::Key(key) => {
                    join_key(&mut written, key);
                    node = node.and_then(|n| n.get(key));
                }
                Step::Index(i) => {
                    let item = match node.map(|n| &n.value) {
                        Some(Value::Seq(items)) => items.get(i),
                        _ => None,
                    };
                    written.push_str(&format!("[{}]", item.map_or(i, |item| item.index)));
                    node = item.map(|item| &item.node);
                }
            }
        }
        written
    }

    /// The value of `key`, when this is a mapping that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.node),
            _ => None,
        }
    }

    /// The string, when this is one.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(&text.text),
            _ => None,
        }
    }

    /// The same value without places. Numbers that JSON cannot hold (NaN, beyond 64 bits) become null.
    pub fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(value) => integer(*value),
            Value::Float(value) => Number::from_f64(*value).map_or(Json::Null, Json::Number),
            Value::Text(value) => Json::String(value.text.clone()),
            Value::Seq(items) => Json::Array(items.iter().map(|item| item.node.to_json()).collect()),
            Value::Map(entries) => Json::Object(
                entries
                    .iter()
                    .map(|e| (e.key.clone(), e.node.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }
}

/// `value` as JSON if 64 bits hold it.
fn integer(value: i128) -> Json {
    let signed = i64::try_from(value).map(Json::from);
    signed
        .or_else(|_| u64::try_from(value).map(Json::from))
        .unwrap_or(Json::Null)
}

/// Appends `key` to a path.
pub(super) fn join_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// One step of a path.
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// Takes `pools[0].endpoints[1].url` apart.
fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split(['.', '['])
        .filter(|part| !part.is_empty())
        .map(|part| {
            let index = part.strip_suffix(']').and_then(|digits| digits.parse().ok());
            index.map_or(Step::Key(part), Step::Index)
        })
}

/// How the YAML is read: YAML 1.2's `true` and `false` only (`off` is a word here), and repeated keys and
/// NaN let through so that a later pass can name all of them.
fn options() -> Options {
    serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_nodes: MAX_VALUES },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_VALUES },
    }
}

/// What the YAML reader says, in this module's words and with advice for the usual slips.
fn syntax_fault(error: &serde_saphyr::Error) -> Diagnostic {
    let place = error.location().map(|at| place(&at));
    let full = error.without_snippet().to_string();
    // The reader ends its messages with the position, which the excerpt shows already.
    let message = full.rfind(" at line ").map_or(full.as_str(), |end| &full[..end]);
    let fault = Diagnostic::error(message).at("", place);
    if message.contains("tab") {
        fault.fix("indent with spaces")
    } else if message.contains("mapping values are not allowed") {
        fault.fix("check the indentation, or put the value in quotes if the `:` belongs to it")
    } else if message.contains("multiple YAML documents") {
        Diagnostic::error("the file holds more than one YAML document")
            .at("", place)
            .fix("remove the `---` line")
    } else if message.contains("illegal placement") {
        fault.fix("look for a bracket or quote in the lines above that is never closed")
    } else if message.contains("unknown anchor") {
        fault.fix("define it earlier in the file with `&name`, or put a text that starts with `*` in quotes")
    } else if message.contains("expected string scalar") {
        Diagnostic::error("a key must be a plain word")
            .at("", place)
            .fix("put text with brackets in quotes")
    } else {
        fault
    }
}

/// The reader's location as a [`Place`].
fn place(at: &serde_saphyr::Location) -> Place {
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).max(1);
    Place {
        line: number(at.line()),
        column: number(at.column()),
        width: number(at.span().len()),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self {
            place: place(&spanned.referenced),
            value: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(Text {
            text: value.to_owned(),
            expanded: false,
        }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(node) = access.next_element()? {
            items.push(Item {
                index: items.len(),
                node,
            });
        }
        Ok(Value::Seq(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, node)) = access.next_entry::<Spanned<String>, Node>()? {
            entries.push(Entry {
                key_place: place(&key.referenced),
                key: key.value,
                node,
            });
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_place() {
        let tree = Node::parse("a:\n  - x: 1\n    ä: 'two words'\n  - 12\nb: off\nc:\n").unwrap();
        let at = |path: &str| {
            let place = tree.find(path).1.unwrap();
            (place.line, place.column, place.width)
        };
        assert_eq!(at("a"), (1, 1, 1));
        assert_eq!(at("a[0].x"), (2, 8, 1));
        assert_eq!(at("a[0].ä"), (3, 8, 11));
        assert_eq!(at("a[1]"), (4, 5, 2));
        assert_eq!(at("b"), (5, 4, 3));
        assert_eq!(tree.get("b").and_then(Node::as_text), Some("off"));
        assert_eq!(at("c"), (6, 1, 1));
        assert_eq!(at("a[0].missing"), (2, 5, 1));
    }

    #[test]
    fn repeated_keys_and_nan_are_kept_and_anchors_expand() {
        let tree = Node::parse("a: &x { p: 1 }\na: .nan\nb: *x\nc:\n  <<: *x\n  p: 2\n3: y\n").unwrap();
        let Value::Map(entries) = &tree.value else {
            panic!("a mapping")
        };
        let keys: Vec<&str> = entries.iter().map(|e| e.key.as_str()).collect();
        assert_eq!(keys, ["a", "a", "b", "c", "3"]);
        assert!(matches!(entries[1].node.value, Value::Float(f) if f.is_nan()));
        assert_eq!(tree.get("b").unwrap().to_json(), serde_json::json!({ "p": 1 }));
        assert_eq!(tree.get("c").unwrap().to_json(), serde_json::json!({ "p": 2 }));
    }

    #[test]
    fn hostile_input_is_refused() {
        assert!(Node::parse(&"[".repeat(100_000)).is_err());
        assert!(Node::parse(&"- ".repeat(10_000)).is_err());
        let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..10 {
            let previous = format!("*a{}, ", i - 1).repeat(10);
            laughs.push_str(&format!("a{i}: &a{i} [{previous}]\n"));
        }
        assert!(Node::parse(&laughs).is_err());
    }
}
