//! The part of a sample line between the braces.

use memchr::{memchr, memchr2};
use std::borrow::Cow;

/// One label of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'a> {
    pub name: &'a str,
    raw_value: &'a [u8],
}

impl<'a> Label<'a> {
    /// The value with `\\`, `\"` and `\n` resolved; bytes that are not UTF-8 are replaced.
    pub fn value(&self) -> Cow<'a, str> {
        match memchr(b'\\', self.raw_value) {
            None => String::from_utf8_lossy(self.raw_value),
            Some(_) => Cow::Owned(unescape(self.raw_value)),
        }
    }

    /// Whether the value is `text`; does not allocate for values without escapes.
    pub fn is(&self, text: &str) -> bool {
        self.raw_value == text.as_bytes() || self.value() == text
    }
}

fn unescape(raw: &[u8]) -> String {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next() {
                Some(b'n') => out.push(b'\n'),
                Some(escaped @ (b'\\' | b'"')) => out.push(escaped),
                // As Prometheus' own parser: an unknown escape stays as written.
                Some(other) => out.extend([b'\\', other]),
                None => out.push(b'\\'),
            },
            other => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Iterator over labels; made only from text that [`end`] has accepted.
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    rest: &'a [u8],
}

impl<'a> Labels<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = Label<'a>;

    fn next(&mut self) -> Option<Label<'a>> {
        let (label, rest) = split_label(self.rest)?;
        self.rest = rest;
        Some(label)
    }
}

/// Index of the brace that closes the label set whose text starts at `inner`; `None` when malformed.
pub(super) fn end(inner: &[u8]) -> Option<usize> {
    let mut rest = inner;
    loop {
        let at = rest.trim_ascii_start();
        if at.first() == Some(&b'}') {
            return Some(inner.len() - at.len());
        }
        rest = split_label(at)?.1;
    }
}

/// Splits `name="value"` and the comma after it off `text`.
fn split_label(text: &[u8]) -> Option<(Label<'_>, &[u8])> {
    let equals = memchr(b'=', text)?;
    let name = std::str::from_utf8(text[..equals].trim_ascii()).ok()?;
    if !is_label_name(name) {
        return None;
    }
    let quoted = text[equals + 1..].trim_ascii_start().strip_prefix(b"\"")?;
    let close = closing_quote(quoted)?;
    let after = quoted[close + 1..].trim_ascii_start();
    let rest = match after.first() {
        Some(b',') => &after[1..],
        Some(b'}') | None => after,
        Some(_) => return None,
    };
    Some((
        Label {
            name,
            raw_value: &quoted[..close],
        },
        rest,
    ))
}

fn is_label_name(name: &str) -> bool {
    !name.is_empty()
        && !name.as_bytes()[0].is_ascii_digit()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        from = at + 2;
    }
}
