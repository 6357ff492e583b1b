//! JSON strings as text, and JSON values without their accidental spelling.
//!
//! One value can be spelled in many ways: `"a"` is `"\u0061"`. The canonical form spells a value as serialisers do
//! by default: no whitespace between tokens, no escape that is not needed, and `\n` rather than `\u000a`. So nearly
//! every string of a request passes as the slice that it is, its line ends included.

use super::json::{Members, string_at};
use memchr::memchr;
use smallvec::SmallVec;
use std::borrow::Cow;

/// Strings from this length on are searched for doubtful escapes before their escapes are looked at one by one.
const LONG_STRING: usize = 256;

/// Gives the inside of a string to `out` in canonical spelling, piece by piece.
///
/// A lone surrogate comes out as its three generalised UTF-8 (WTF-8) bytes; a wrong escape as it is.
pub(super) fn normalise(inside: &[u8], out: &mut impl FnMut(&[u8])) {
    let Some(first) = memchr(b'\\', inside) else {
        return out(inside);
    };
    if inside.len() >= LONG_STRING && !has_doubtful_escape(&inside[first..]) {
        return out(inside);
    }
    let mut block = Block::default();
    let mut rest = inside;
    let mut kept = first;
    while let Some(at) = next_escape(rest, kept) {
        let escape = Escape::read(&rest[at..]);
        kept = at + escape.spelled;
        if let Some(spelling) = escape.canonical() {
            block.run(rest, at, out);
            block.letter(spelling, out);
            rest = &rest[kept..];
            kept = 0;
        }
    }
    block.run(rest, rest.len(), out);
    block.flush(out);
}

/// Whether a backslash comes before `u` or `/`: all other valid escapes have no shorter form.
///
/// Of the letters that may follow a backslash, the code of these two is odd. Wrong escapes and the second half of `\\\\`
/// may look so too, which costs a closer look. Sums of bits instead of a search, for the sake of vector operations.
fn has_doubtful_escape(inside: &[u8]) -> bool {
    let after_backslash = |letter: u8, next: u8| u8::from(letter == b'\\').wrapping_neg() & next;
    let next = inside.iter().skip(1);
    let pairs = inside.iter().zip(next);
    pairs.fold(0, |all, (&letter, &next)| all | after_backslash(letter, next)) & 1 == 1
}

/// The next backslash from `from` on. Escapes often come in groups, where a call to the vectorised search would cost
/// more than it finds.
fn next_escape(rest: &[u8], from: usize) -> Option<usize> {
    let ahead = rest.get(from..)?;
    if ahead.first() == Some(&b'\\') {
        Some(from)
    } else {
        memchr(b'\\', ahead).map(|at| from + at)
    }
}

/// Gives a value to `out` in canonical spelling; order of members and spelling of numbers are kept.
///
/// The value must have passed [`super::json::Cursor::value`].
pub(super) fn minify(value: &[u8], out: &mut impl FnMut(&[u8])) {
    let mut run = 0;
    let mut at = 0;
    while let Some(&byte) = value.get(at) {
        match byte {
            b'"' => {
                let inside = string_at(&value[at..]).unwrap_or_default();
                let (start, end) = (at + 1, at + 1 + inside.len());
                if memchr(b'\\', inside).is_some() {
                    out(&value[run..start]);
                    normalise(inside, out);
                    run = end;
                }
                at = end + 1;
            }
            b' ' | b'\n' | b'\r' | b'\t' => {
                out(&value[run..at]);
                at += 1;
                run = at;
            }
            _ => at += 1,
        }
    }
    out(&value[run..]);
}

/// As [`minify`], without the members of the outermost object whose key is in `left_out`.
pub(super) fn minify_without(value: &[u8], left_out: &[&[u8]], out: &mut impl FnMut(&[u8])) {
    let mut scratch = SmallVec::new();
    let mut is_left_out = |key| left_out.contains(&word_text(key, &mut scratch));
    if !Members::of(value).any(|(key, _)| is_left_out(key)) {
        return minify(value, out);
    }
    out(b"{");
    let kept = Members::of(value).filter(|&(key, _)| !is_left_out(key));
    for (index, (key, value)) in kept.enumerate() {
        out(if index == 0 { b"\"" } else { b",\"" });
        normalise(key, out);
        out(b"\":");
        minify(value, out);
    }
    out(b"}");
}

/// The text of a string's inside, borrowed when it has no escape; bytes that are not UTF-8 are replaced.
pub(super) fn to_text(inside: &[u8]) -> Cow<'_, str> {
    match to_bytes(inside) {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// The bytes of a string's inside, borrowed when it has no escape.
pub(super) fn to_bytes(inside: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\\', inside).is_none() {
        return Cow::Borrowed(inside);
    }
    let mut bytes = Vec::with_capacity(inside.len());
    decode(inside, &mut |piece| bytes.extend_from_slice(piece));
    Cow::Owned(bytes)
}

/// An object's key, or a value that is one of a few words, as text; `scratch` holds it when it has escapes.
pub(super) fn word_text<'k>(inside: &'k [u8], scratch: &'k mut SmallVec<[u8; 64]>) -> &'k [u8] {
    if !inside.contains(&b'\\') {
        return inside;
    }
    scratch.clear();
    decode(inside, &mut |piece| scratch.extend_from_slice(piece));
    scratch
}

/// Gives the text of a string's inside to `out`.
fn decode(inside: &[u8], out: &mut impl FnMut(&[u8])) {
    let mut rest = inside;
    while let Some(at) = memchr(b'\\', rest) {
        out(&rest[..at]);
        let escape = Escape::read(&rest[at..]);
        let (letter, length) = escape.code.map_or(([b'\\', 0, 0, 0], 1), generalised_utf8);
        out(&letter[..length]);
        rest = &rest[at + escape.spelled..];
    }
    out(rest);
}

/// Gathers respelled text, so that what takes it gets few large pieces whatever the escapes.
struct Block {
    bytes: [u8; Self::BYTES],
    length: usize,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            bytes: [0; Self::BYTES],
            length: 0,
        }
    }
}

impl Block {
    const BYTES: usize = 512;

    /// Runs up to this length are copied as this many bytes whatever their length: a copy of a fixed size is a few
    /// moves, one of any size is a call. What was copied too much is overwritten by what comes next.
    const SHORT_RUN: usize = 32;

    /// Adds the first `length` bytes of `rest`.
    fn run(&mut self, rest: &[u8], length: usize, out: &mut impl FnMut(&[u8])) {
        if length > Self::BYTES - self.length {
            self.flush(out);
            if length > Self::BYTES {
                return out(&rest[..length]);
            }
        }
        let room = &mut self.bytes[self.length..];
        match (
            room.first_chunk_mut::<{ Self::SHORT_RUN }>(),
            rest.first_chunk::<{ Self::SHORT_RUN }>(),
        ) {
            (Some(room), Some(run)) if length <= Self::SHORT_RUN => *room = *run,
            _ => room[..length].copy_from_slice(&rest[..length]),
        }
        self.length += length;
    }

    fn letter(&mut self, (letter, length): ([u8; 8], usize), out: &mut impl FnMut(&[u8])) {
        if self.length > Self::BYTES - letter.len() {
            self.flush(out);
        }
        if let Some(room) = self.bytes[self.length..].first_chunk_mut() {
            *room = letter;
        }
        self.length += length;
    }

    fn flush(&mut self, out: &mut impl FnMut(&[u8])) {
        if self.length > 0 {
            out(&self.bytes[..self.length]);
            self.length = 0;
        }
    }
}

/// One escape of a string.
struct Escape {
    /// The code point that it stands for; `None` for a wrong escape, of which this is the backslash alone.
    code: Option<u32>,
    /// How many bytes it takes in the body.
    spelled: usize,
}

impl Escape {
    /// Reads the escape at the start of `rest`, which starts with a backslash.
    #[inline]
    fn read(rest: &[u8]) -> Self {
        match rest.get(1).map_or(0, |&letter| ONE_LETTER[usize::from(letter)]) {
            0 => Self::read_unit(rest),
            letter => Self {
                code: Some(u32::from(letter)),
                spelled: 2,
            },
        }
    }

    fn read_unit(rest: &[u8]) -> Self {
        let unit = utf16_unit(rest);
        if let Some(high @ 0xD800..=0xDBFF) = unit
            && let Some(low @ 0xDC00..=0xDFFF) = rest.get(6..).and_then(utf16_unit)
        {
            return Self {
                code: Some(0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00)),
                spelled: 12,
            };
        }
        Self {
            code: unit,
            spelled: if unit.is_some() { 6 } else { 1 },
        }
    }

    /// The canonical spelling, its length among eight bytes; `None` when the escape already has it.
    #[inline]
    fn canonical(&self) -> Option<([u8; 8], usize)> {
        match (self.code?, self.spelled) {
            (0x2F, 2) => Some((*b"/\0\0\0\0\0\0\0", 1)),
            (_, 2) => None,
            (code @ (0..0x20 | 0x22 | 0x5C), _) => Some(needed_escape(code as u8)),
            (code, _) => {
                let ([a, b, c, d], length) = generalised_utf8(code);
                Some(([a, b, c, d, 0, 0, 0, 0], length))
            }
        }
    }
}

/// What a one-letter escape stands for; 0 where there is none.
const ONE_LETTER: [u8; 256] = {
    let mut table = [0; 256];
    let pairs = *b"\"\"\\\\//b\x08f\x0Cn\nr\rt\t";
    let mut at = 0;
    while at < pairs.len() {
        table[pairs[at] as usize] = pairs[at + 1];
        at += 2;
    }
    table
};

/// The value of a hexadecimal digit; above 15 where there is none.
const HEX_DIGIT: [u8; 256] = {
    let mut table = [u8::MAX; 256];
    let digits = *b"0123456789abcdef";
    let mut value = 0;
    while value < 16 {
        table[digits[value] as usize] = value as u8;
        table[digits[value].to_ascii_uppercase() as usize] = value as u8;
        value += 1;
    }
    table
};

/// The UTF-16 code unit of a `\uXXXX` at the start of `rest`.
fn utf16_unit(rest: &[u8]) -> Option<u32> {
    let hex = rest.strip_prefix(b"\\u")?.first_chunk::<4>()?;
    let [a, b, c, d] = hex.map(|digit| u32::from(HEX_DIGIT[usize::from(digit)]));
    ((a | b | c | d) < 16).then_some(a << 12 | b << 8 | c << 4 | d)
}

/// The shortest escape of a quote, a backslash or a control character, with its length.
fn needed_escape(letter: u8) -> ([u8; 8], usize) {
    let short = match letter {
        8 => b'b',
        12 => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        b'"' | b'\\' => letter,
        _ => {
            let hex = b"0123456789abcdef";
            let (high, low) = (hex[usize::from(letter >> 4)], hex[usize::from(letter & 15)]);
            return ([b'\\', b'u', b'0', b'0', high, low, 0, 0], 6);
        }
    };
    ([b'\\', short, 0, 0, 0, 0, 0, 0], 2)
}

/// A code point in UTF-8, with its length; surrogates are encoded too, as Python's strings may hold them.
const fn generalised_utf8(code: u32) -> ([u8; 4], usize) {
    const fn tail(code: u32, shift: u32) -> u8 {
        0x80 | (code >> shift & 0x3F) as u8
    }
    match code {
        0..0x80 => ([code as u8, 0, 0, 0], 1),
        0x80..0x800 => ([0xC0 | (code >> 6) as u8, tail(code, 0), 0, 0], 2),
        0x800..0x1_0000 => ([0xE0 | (code >> 12) as u8, tail(code, 6), tail(code, 0), 0], 3),
        _ => (
            [
                0xF0 | (code >> 18) as u8,
                tail(code, 12),
                tail(code, 6),
                tail(code, 0),
            ],
            4,
        ),
    }
}

#[cfg(test)]
mod tests;
