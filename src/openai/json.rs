//! A scanner over raw JSON bytes: it finds where values begin and end, and never builds a tree.
//!
//! The grammar is RFC 8259 plus `NaN`, `Infinity` and `-Infinity`, which Python's `json` (and so the engine)
//! accepts. Escapes within strings are not checked here: a wrong one is the engine's to refuse.

use super::word::{any_below_space, first_of};
use memchr::memchr;
use smallvec::SmallVec;

/// Why a body is not read. Such a request is forwarded all the same and routed by load: the engine answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotJson {
    /// No byte but whitespace.
    #[error("the body is empty")]
    Empty,
    /// The body starts with a UTF-8 byte order mark.
    #[error("the body starts with a byte order mark")]
    ByteOrderMark,
    /// The first byte does not open an object: another JSON value, compressed bytes, a form.
    #[error("the body is not a JSON object")]
    NotObject,
    /// The body ends within the object.
    #[error("the body ends within a JSON value")]
    Truncated,
    /// A byte that the grammar does not allow, at this offset.
    #[error("unexpected byte at offset {0}")]
    Syntax(usize),
    /// The string that starts at this offset holds a raw control character.
    #[error("raw control character in the string at offset {0}")]
    ControlCharacter(usize),
    /// Something follows the object, at this offset.
    #[error("bytes after the JSON object at offset {0}")]
    TrailingBytes(usize),
}

/// A reading position in a body that is not known to be well-formed.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) const fn at(&self) -> usize {
        self.at
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The next byte that is not whitespace, which stays unread.
    pub(super) fn next_token(&mut self) -> Option<u8> {
        self.at = skip_whitespace(self.bytes, self.at);
        self.peek()
    }

    /// Steps over the byte that [`Self::next_token`] showed.
    pub(super) const fn bump(&mut self) {
        self.at += 1;
    }

    /// The error for the byte at the position, or for its absence.
    pub(super) fn fault(&self) -> NotJson {
        if self.at < self.bytes.len() {
            NotJson::Syntax(self.at)
        } else {
            NotJson::Truncated
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), NotJson> {
        if self.next_token() != Some(byte) {
            return Err(self.fault());
        }
        self.bump();
        Ok(())
    }

    /// Reads a string and gives what stands between its quotes, escapes and all.
    fn string(&mut self) -> Result<&'a [u8], NotJson> {
        let start = self.at;
        self.expect(b'"')?;
        let inner_start = self.at;
        let end = string_end(self.bytes, inner_start).ok_or(NotJson::Truncated)?;
        self.at = end + 1;
        let inner = &self.bytes[inner_start..end];
        if has_control_character(inner) {
            Err(NotJson::ControlCharacter(start))
        } else {
            Ok(inner)
        }
    }

    /// Reads an object's key and the colon after it.
    pub(super) fn key(&mut self) -> Result<&'a [u8], NotJson> {
        let key = self.string()?;
        self.expect(b':')?;
        Ok(key)
    }

    /// Reads one value of any depth, without recursion, and gives its bytes.
    pub(super) fn value(&mut self) -> Result<&'a [u8], NotJson> {
        let mut open = Containers::default();
        self.next_token();
        let start = self.at;
        loop {
            if self.scalar_or_open(&mut open)? {
                continue;
            }
            if self.close_or_next(&mut open)? {
                return Ok(&self.bytes[start..self.at]);
            }
        }
    }

    /// Reads a scalar, an empty container, or the opening of a container together with its first key;
    /// true when a value must follow.
    fn scalar_or_open(&mut self, open: &mut Containers) -> Result<bool, NotJson> {
        match self.next_token() {
            Some(b'"') => self.string().map(|_| false),
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| false),
            Some(b'{') => {
                self.bump();
                if self.next_token() == Some(b'}') {
                    self.bump();
                    return Ok(false);
                }
                open.push(true);
                self.key().map(|_| true)
            }
            Some(b'[') => {
                self.bump();
                if self.next_token() == Some(b']') {
                    self.bump();
                    return Ok(false);
                }
                open.push(false);
                Ok(true)
            }
            _ => self.word().map(|()| false),
        }
    }

    /// After a value: closes what closes here; true when nothing is open any more, false when a value must follow.
    fn close_or_next(&mut self, open: &mut Containers) -> Result<bool, NotJson> {
        while let Some(in_object) = open.top() {
            match (self.next_token(), in_object) {
                (Some(b','), true) => {
                    self.bump();
                    self.next_token();
                    return self.key().map(|_| false);
                }
                (Some(b','), false) => {
                    self.bump();
                    return Ok(false);
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.bump();
                    open.pop();
                }
                _ => return Err(self.fault()),
            }
        }
        Ok(true)
    }

    fn number(&mut self) -> Result<(), NotJson> {
        if self.peek() == Some(b'-') {
            self.bump();
            if self.peek() == Some(b'I') {
                return self.word();
            }
        }
        if self.peek() == Some(b'0') {
            self.bump()
        } else {
            self.digits()?
        }
        if self.peek() == Some(b'.') {
            self.bump();
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.bump();
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.bump();
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), NotJson> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.bump();
        }
        if self.at == start {
            Err(self.fault())
        } else {
            Ok(())
        }
    }

    fn word(&mut self) -> Result<(), NotJson> {
        const WORDS: [&[u8]; 5] = [b"true", b"false", b"null", b"NaN", b"Infinity"];
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        match WORDS.iter().find(|word| rest.starts_with(word)) {
            Some(word) => {
                self.at += word.len();
                Ok(())
            }
            None if WORDS.iter().any(|word| word.starts_with(rest)) => Err(NotJson::Truncated),
            None => Err(self.fault()),
        }
    }
}

/// The open containers of a value, one bit each (set: object), so that depth costs neither stack nor much heap.
#[derive(Default)]
struct Containers {
    words: SmallVec<[u64; 4]>,
    depth: usize,
}

impl Containers {
    fn push(&mut self, object: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.words.len() {
            self.words.push(0);
        }
        self.words[word] = self.words[word] & !(1 << bit) | u64::from(object) << bit;
        self.depth += 1;
    }

    const fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    fn top(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.words[last / 64] >> (last % 64) & 1 == 1)
    }
}

fn skip_whitespace(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// The closing quote of a string whose inside begins at `start`.
///
/// Looks for quotes alone: an escaped one is told by the odd run of backslashes before it, which is cheaper
/// than stopping at every `\n` of a long prompt.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    const WORDS: usize = 2;
    let mut from = start;
    for &word in bytes.get(start..)?.as_chunks().0.iter().take(WORDS) {
        match first_of(word, b'"', b'\\') {
            Some(at) if word[at] == b'"' => return Some(from + at),
            Some(_) => break,
            None => from += word.len(),
        }
    }
    loop {
        let quote = from + memchr(b'"', bytes.get(from..)?)?;
        let backslashes = bytes[start..quote]
            .iter()
            .rev()
            .take_while(|&&byte| byte == b'\\')
            .count();
        if backslashes % 2 == 0 {
            return Some(quote);
        }
        from = quote + 1;
    }
}

/// Minima instead of a search: without an early exit the compiler makes them vector operations, with as many bytes at a
/// time two that do not wait for each other. The last ones are looked at twice rather than one by one.
fn has_control_character(text: &[u8]) -> bool {
    const LANES: usize = 32;
    let Some(last) = text.last_chunk::<LANES>() else {
        return has_control_character_short(text);
    };
    let mut least = *last;
    for chunk in text.as_chunks::<LANES>().0 {
        for (least, byte) in least.iter_mut().zip(chunk) {
            *least = (*least).min(*byte);
        }
    }
    least.iter().any(|&byte| byte < b' ')
}

/// The same for less than 32 bytes.
fn has_control_character_short(text: &[u8]) -> bool {
    match text.last_chunk() {
        Some(last) => any_below_space(*last) || text.as_chunks().0.iter().copied().any(any_below_space),
        None => text.iter().any(|&byte| byte < b' '),
    }
}

/// What a value is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    String,
    Array,
    Object,
    Null,
    /// A number or a boolean.
    Scalar,
    /// No value at all.
    Absent,
}

/// The shape of a value that [`Cursor::value`] gave; an empty slice stands for an absent one.
pub(super) fn shape(value: &[u8]) -> Shape {
    match value.first() {
        None => Shape::Absent,
        Some(b'"') => Shape::String,
        Some(b'[') => Shape::Array,
        Some(b'{') => Shape::Object,
        Some(b'n') => Shape::Null,
        Some(_) => Shape::Scalar,
    }
}

/// The inside of a string value, escapes and all; `None` for any other value.
pub(super) fn string_inside(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// The inside of the string that bytes start with; `None` when they start with something else.
pub(super) fn string_at(bytes: &[u8]) -> Option<&[u8]> {
    let inside = bytes.strip_prefix(b"\"")?;
    inside.get(..string_end(inside, 0)?)
}

/// The elements of the array that well-formed bytes start with; none for any other value.
pub(super) struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    pub(super) fn of(array: &'a [u8]) -> Self {
        Self {
            rest: array.strip_prefix(b"[").unwrap_or_default(),
        }
    }

    /// The bytes from the next element on.
    #[inline]
    pub(super) fn rest(&mut self) -> &'a [u8] {
        self.rest = skip_separators(self.rest);
        self.rest
    }

    /// Goes on at `rest`, which follows what the caller has read itself.
    pub(super) const fn resume(&mut self, rest: &'a [u8]) {
        self.rest = rest;
    }

    /// Whether a value is an array without elements.
    pub(super) fn is_empty_array(value: &'a [u8]) -> bool {
        shape(value) == Shape::Array && Self::of(value).next().is_none()
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (value, after) = next_value(self.rest)?;
        self.rest = after;
        Some(value)
    }
}

/// The members of the object that well-formed bytes start with, as raw key (between its quotes) and value;
/// none for any other value.
pub(super) struct Members<'a> {
    rest: &'a [u8],
}

impl<'a> Members<'a> {
    pub(super) fn of(object: &'a [u8]) -> Self {
        Self {
            rest: object.strip_prefix(b"{").unwrap_or_default(),
        }
    }

    /// What follows the object, once all its members have been given.
    pub(super) fn after(&self) -> &'a [u8] {
        skip_separators(self.rest).strip_prefix(b"}").unwrap_or_default()
    }

    /// The bytes from the value of the first member named `key` on: where that ends is left open. Nothing is read
    /// beyond, so that need not be well-formed; what is not before yields some part of it, or nothing.
    pub(super) fn value_at(mut self, key: &[u8]) -> &'a [u8] {
        while let Some((name, after)) = next_value(self.rest) {
            if string_inside(name) == Some(key) {
                return skip_separators(after);
            }
            let Some((_, after)) = next_value(after) else {
                break;
            };
            self.rest = after;
        }
        &[]
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, after) = next_value(self.rest)?;
        let (value, after) = next_value(after)?;
        self.rest = after;
        Some((string_inside(key)?, value))
    }
}

const fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | b',' | b':')
}

fn skip_separators(rest: &[u8]) -> &[u8] {
    let separators = rest.iter().take_while(|byte| is_separator(**byte)).count();
    &rest[separators..]
}

/// The next value of well-formed bytes and what follows it, past any separator before it.
fn next_value(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = skip_separators(rest);
    let end = value_end(rest, 0)?;
    Some(rest.split_at(end))
}

/// The end of a well-formed value: brackets need only be counted.
fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    match bytes.get(start)? {
        b'"' => Some(string_end(bytes, start + 1)? + 1),
        b'{' | b'[' => container_end(bytes, start),
        b'}' | b']' => None,
        _ => {
            let scalar = bytes[start..]
                .iter()
                .position(|byte| b" \n\r\t,:]}".contains(byte));
            Some(scalar.map_or(bytes.len(), |length| start + length))
        }
    }
}

fn container_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = start;
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at + 1)?,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests;
