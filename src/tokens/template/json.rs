//! `tojson` as `transformers` defines it: Python's `json.dumps` with `ensure_ascii=False`, no HTML escapes.

use super::python;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Deepest nesting that is serialized.
const MAX_DEPTH: usize = 100;

struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let style = Style::of(&positional, &named)?;
    named.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

impl Style {
    fn of(positional: &[Value], named: &Kwargs) -> Result<Self, Error> {
        let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
            let given = match positional.get(index) {
                Some(value) => Some(value.clone()),
                None => named.get::<Option<Value>>(name)?,
            };
            Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
        };
        let flag = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let ensure_ascii = flag(argument(0, "ensure_ascii")?);
        let indent = argument(1, "indent")?.map(indentation).transpose()?;
        let separators = argument(2, "separators")?;
        let sort_keys = flag(argument(3, "sort_keys")?);
        let (item, key) = match separators {
            Some(pair) => (pair.get_item_by_index(0)?, pair.get_item_by_index(1)?),
            None => (
                Value::from(if indent.is_some() { "," } else { ", " }),
                Value::from(": "),
            ),
        };
        let text = |value: &Value| {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| wrong("separators must be texts"))
        };
        Ok(Self {
            ensure_ascii,
            indent,
            item_separator: text(&item)?,
            key_separator: text(&key)?,
            sort_keys,
        })
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(wrong("nested too deep for JSON"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => python::number(value, out),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth, out)?,
            ValueKind::Map => self.object(value, depth, out)?,
            _ => return Err(wrong("value has no JSON form")),
        }
        Ok(())
    }

    fn list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('[');
        let mut is_empty = true;
        for item in value.try_iter()? {
            self.before_item(is_empty, depth + 1, out);
            is_empty = false;
            self.write(&item, depth + 1, out)?;
        }
        self.after_items(is_empty, depth, out);
        out.push(']');
        Ok(())
    }

    fn object(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.before_item(index == 0, depth + 1, out);
            self.key(key, out)?;
            out.push_str(&self.key_separator);
            self.write(&value.get_item(key)?, depth + 1, out)?;
        }
        self.after_items(keys.is_empty(), depth, out);
        out.push('}');
        Ok(())
    }

    fn key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default(), out),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                let mut text = String::new();
                self.write(key, 0, &mut text)?;
                self.string(&text, out);
            }
            _ => return Err(wrong("key has no JSON form")),
        }
        Ok(())
    }

    fn before_item(&self, is_first: bool, depth: usize, out: &mut String) {
        if !is_first {
            out.push_str(&self.item_separator);
        }
        self.new_line(depth, out);
    }

    fn after_items(&self, is_empty: bool, depth: usize, out: &mut String) {
        if !is_empty {
            self.new_line(depth, out);
        }
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A number of blanks, or the text itself.
fn indentation(value: Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let blanks = usize::try_from(value).ok().filter(|blanks| *blanks <= 100);
    blanks
        .map(|blanks| " ".repeat(blanks))
        .ok_or_else(|| wrong("indent must be a small number or a text"))
}
