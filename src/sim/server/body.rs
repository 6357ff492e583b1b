//! Reading request bodies the way FastAPI and pydantic do, without building what nobody asks for.

use super::error::ApiError;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The top level of a JSON object; values are parsed when they are asked for. Like Python, the last
/// of equal keys counts.
pub(super) struct Body<'a> {
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> Body<'a> {
    /// # Errors
    /// What vLLM answers to an empty body, broken JSON, or JSON that is not an object.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ApiError> {
        if bytes.is_empty() {
            let fault = "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}";
            return Err(ApiError::validation(fault, Some("body".to_owned())));
        }
        let raw: &RawValue = serde_json::from_slice(bytes).map_err(|e| broken_json(bytes, &e))?;
        if !raw.get().starts_with('{') {
            return Err(not_an_object(raw.get()));
        }
        serde_json::from_str(raw.get()).map_err(|e| broken_json(bytes, &e))
    }

    /// Number of fields.
    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The JSON text of a field that is there and not null.
    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        let found = self.fields.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.get()).filter(|text| *text != "null")
    }

    /// A field that is there and not null.
    ///
    /// # Errors
    /// A validation error when it has another type; `expected` is pydantic's message.
    pub(super) fn get<T: Deserialize<'a>>(
        &self,
        name: &str,
        expected: Expected,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        serde_json::from_str(raw)
            .map(Some)
            .map_err(|_| wrong_type(name, raw, expected))
    }

    /// An integer that is there and not null. Like pydantic it takes a whole float and the text of an integer for one.
    ///
    /// # Errors
    /// A validation error when it is something else.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        let faulty = |expected| Err(wrong_type(name, raw, expected));
        match serde_json::from_str(raw) {
            Ok(serde_json::Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => Ok(Some(integer)),
                // Beyond the bounds of integers the nearest one is as wrong for every field as the number itself.
                (None, Some(float)) if float.fract() == 0.0 => Ok(Some(float as i64)),
                _ => faulty(WHOLE),
            },
            Ok(serde_json::Value::String(text)) => match text.trim().parse() {
                Ok(integer) => Ok(Some(integer)),
                Err(_) => faulty(INTEGER_TEXT),
            },
            _ => faulty(INTEGER),
        }
    }
}

/// Kind of value a field must have, as (pydantic's error type, its message).
pub(super) type Expected = (&'static str, &'static str);
pub(super) const STRING: Expected = ("string_type", "Input should be a valid string");
pub(super) const INTEGER: Expected = ("int_type", "Input should be a valid integer");
const INTEGER_TEXT: Expected = (
    "int_parsing",
    "Input should be a valid integer, unable to parse string as an integer",
);
const WHOLE: Expected = (
    "int_from_float",
    "Input should be a valid integer, got a number with a fractional part",
);
pub(super) const NUMBER: Expected = ("float_type", "Input should be a valid number");
pub(super) const BOOLEAN: Expected = ("bool_type", "Input should be a valid boolean");
pub(super) const LIST: Expected = ("list_type", "Input should be a valid list");
pub(super) const DICT: Expected = ("dict_type", "Input should be a valid dictionary");

/// The error for a field of the wrong type.
pub(super) fn wrong_type(name: &str, raw: &str, (kind, message): Expected) -> ApiError {
    let input = describe(raw);
    let fault = format!("{{'type': '{kind}', 'loc': 'body.{name}', 'msg': '{message}', 'input': '{input}'}}");
    ApiError::validation(&fault, Some(format!("body.{name}")))
}

fn not_an_object(raw: &str) -> ApiError {
    let fault = format!(
        "{{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or object to \
         extract fields from', 'input': '{}'}}",
        describe(raw)
    );
    ApiError::validation(&fault, Some("body".to_owned()))
}

/// vLLM's short form of an input in an error message.
fn describe(raw: &str) -> String {
    match serde_json::from_str(raw) {
        Ok(serde_json::Value::Array(items)) => format!("<list of {} items>", items.len()),
        Ok(serde_json::Value::Object(fields)) => format!("<dict of {} items>", fields.len()),
        Ok(serde_json::Value::String(text)) => text,
        _ => raw.to_owned(),
    }
}

/// Python's words for the same fault, at the character where it is.
fn broken_json(bytes: &[u8], error: &serde_json::Error) -> ApiError {
    let lines = bytes
        .split_inclusive(|&b| b == b'\n')
        .take(error.line().saturating_sub(1));
    let offset = lines.map(<[u8]>::len).sum::<usize>() + error.column();
    let at = if error.is_eof() {
        bytes.len()
    } else {
        offset.saturating_sub(1).min(bytes.len())
    };
    let position = String::from_utf8_lossy(&bytes[..at]).chars().count();
    let text = error.to_string();
    let reason = [
        ("trailing characters", "Extra data"),
        (
            "key must be a string",
            "Expecting property name enclosed in double quotes",
        ),
        ("EOF while parsing a string", "Unterminated string starting at"),
        (
            "EOF while parsing an object",
            "Expecting property name enclosed in double quotes",
        ),
        ("expected `:`", "Expecting ':' delimiter"),
        ("expected `,`", "Expecting ',' delimiter"),
        ("control character", "Invalid control character at"),
        ("escape", "Invalid \\\\escape"),
    ];
    let reason = reason
        .iter()
        .find(|(rust, _)| text.contains(rust))
        .map_or("Expecting value", |(_, py)| py);
    let fault = format!(
        "{{'type': 'json_invalid', 'loc': 'body.{position}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', \
         'ctx': {{'error': '{reason}'}}}}"
    );
    ApiError::validation(&fault, Some(format!("body.{position}")))
}

impl<'de: 'a, 'a> Deserialize<'de> for Body<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(8);
                while let Some(Key(key)) = map.next_key()? {
                    fields.push((key, map.next_value()?));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Fields).map(|fields| Self { fields })
    }
}

/// A key, borrowed from the body unless it has escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
