//! The Jinja environment of `transformers`: its settings, and the names it adds.

use super::{json, python};
use minijinja::formatting::{self, FormatStyle};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;
use std::borrow::Cow;

/// Steps that one rendering may take: hundreds of times those of a long conversation, and well under a second.
const FUEL: u64 = 5_000_000;

pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, _, value| Ok(out.write_str(&python::text(value))?));
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("format", |pattern: &str, args: Rest<Value>| {
        formatting::format(FormatStyle::Printf, pattern, &printable(&args))
    });
    environment.add_filter("string", |value: &Value| python::text(value).into_owned());
    environment.add_test("sequence", |value: &Value| is_sized(value));
    environment.add_test("iterable", |value: &Value| {
        is_sized(value) || value.is_undefined()
    });
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(
            ErrorKind::InvalidOperation,
            python::text(message).into_owned(),
        ))
    });
    environment
}

/// Tags on lines of their own leave no trace.
pub(super) fn syntax() -> SyntaxConfig {
    // Only delimiters can be wrong, and these are the default ones.
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .unwrap_or_default()
}

/// Python's strings are sequences, and so is to Jinja whatever has a length and items.
fn is_sized(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
    )
}

/// Python methods that minijinja-contrib lacks.
fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), method, args) {
        (Some(text), "removeprefix", [affix]) => Ok(affix
            .as_str()
            .and_then(|affix| text.strip_prefix(affix))
            .unwrap_or(text)
            .into()),
        (Some(text), "removesuffix", [affix]) => Ok(affix
            .as_str()
            .and_then(|affix| text.strip_suffix(affix))
            .unwrap_or(text)
            .into()),
        (Some(_), "format", _) => pycompat::unknown_method_callback(state, value, method, &printable(args)),
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Arguments of a format as Python prints them, where that is not how minijinja does.
fn printable(args: &[Value]) -> Vec<Value> {
    let print = |arg: &Value| match arg.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq => Value::from(python::text(arg).into_owned()),
        ValueKind::Map if !arg.is_kwargs() => Value::from(python::text(arg).into_owned()),
        _ => arg.clone(),
    };
    args.iter().map(print).collect()
}

/// `strftime_now(format)`, at a given time.
pub(super) fn strftime_now(now: jiff::civil::DateTime) -> Value {
    Value::from_function(move |format: &str, _: Kwargs| -> Result<String, Error> {
        jiff::fmt::strtime::format(format, now)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
    })
}

/// `{% generation %}` marks what the assistant wrote, for training; it prints nothing. An `if` that is always
/// true does the same and keeps the tag's handling of white space.
pub(super) fn without_generation_tags(source: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = source;
    while let Some(tag) = GenerationTag::find(rest) {
        out.push_str(&rest[..tag.word.start]);
        out.push_str(tag.replacement);
        rest = &rest[tag.word.end..];
    }
    if out.is_empty() {
        Cow::Borrowed(source)
    } else {
        Cow::Owned(out + rest)
    }
}

struct GenerationTag {
    word: std::ops::Range<usize>,
    replacement: &'static str,
}

impl GenerationTag {
    fn find(source: &str) -> Option<Self> {
        let mut from = 0;
        loop {
            let open = from + source[from..].find("{%")? + 2;
            let body = source[open..].trim_start_matches(['-', '+']).trim_start();
            let start = source.len() - body.len();
            let word = body
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or_default();
            let replacement = match word {
                "generation" => "if true",
                "endgeneration" => "endif",
                _ => "",
            };
            if !replacement.is_empty() {
                return Some(Self {
                    word: start..start + word.len(),
                    replacement,
                });
            }
            from = open;
        }
    }
}
