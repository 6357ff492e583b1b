//! JSON strings as text, and JSON values without their accidental spelling.

use super::json::{Members, leading_string};
use memchr::memchr;
use smallvec::SmallVec;
use std::borrow::Cow;

/// Gives the text of a string's inside to `out`, piece by piece.
///
/// A lone surrogate comes out as its three generalised UTF-8 (WTF-8) bytes; a wrong escape as its own bytes.
pub(super) fn decode(inside: &[u8], out: &mut impl FnMut(&[u8])) {
    unescape::<false>(inside, out);
}

/// Gives a value to `out` without the whitespace outside its strings, and its strings with no escape but
/// `\"` and `\\`: two spellings of one value that differ only in those come out the same.
///
/// Object order and the spelling of numbers are kept. The value must have passed [`super::json::Cursor::value`].
pub(super) fn minify(value: &[u8], out: &mut impl FnMut(&[u8])) {
    let mut run = 0;
    let mut at = 0;
    while let Some(&byte) = value.get(at) {
        match byte {
            b'"' => {
                let inside = leading_string(&value[at..]);
                let (start, end) = (at + 1, at + 1 + inside.len());
                if memchr(b'\\', inside).is_some() {
                    out(&value[run..start]);
                    unescape::<true>(inside, out);
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
        unescape::<true>(key, out);
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

/// With `MINIMAL` the two escapes that a JSON string cannot do without stay.
fn unescape<const MINIMAL: bool>(inside: &[u8], out: &mut impl FnMut(&[u8])) {
    let mut rest = inside;
    while let Some(at) = memchr(b'\\', rest) {
        if at > 0 {
            out(&rest[..at]);
        }
        let escape = Escape::read(&rest[at..]);
        let text = escape.text();
        if MINIMAL && matches!(text, b"\"" | b"\\") {
            out(b"\\");
        }
        out(text);
        rest = &rest[at + escape.spelled..];
    }
    if !rest.is_empty() {
        out(rest);
    }
}

/// One decoded escape.
struct Escape {
    text: [u8; 4],
    length: usize,
    /// How many bytes it took in the body.
    spelled: usize,
}

impl Escape {
    /// Reads the escape at the start of `rest`, which starts with a backslash.
    fn read(rest: &[u8]) -> Self {
        let byte = match rest.get(1) {
            Some(&byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'u') => return Self::read_unit(rest),
            _ => {
                return Self {
                    text: [b'\\', 0, 0, 0],
                    length: 1,
                    spelled: 1,
                };
            }
        };
        Self {
            text: [byte, 0, 0, 0],
            length: 1,
            spelled: 2,
        }
    }

    fn read_unit(rest: &[u8]) -> Self {
        let Some(unit) = utf16_unit(rest) else {
            return Self {
                text: [b'\\', 0, 0, 0],
                length: 1,
                spelled: 1,
            };
        };
        if let 0xD800..=0xDBFF = unit
            && let Some(low @ 0xDC00..=0xDFFF) = rest.get(6..).and_then(utf16_unit)
        {
            return Self::code_point(0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 12);
        }
        Self::code_point(unit, 6)
    }

    /// Generalised UTF-8: as UTF-8, but surrogates are encoded too, as Python's strings may hold them.
    const fn code_point(code: u32, spelled: usize) -> Self {
        const fn tail(code: u32, shift: u32) -> u8 {
            0x80 | (code >> shift & 0x3F) as u8
        }
        let (text, length) = match code {
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
        };
        Self {
            text,
            length,
            spelled,
        }
    }

    fn text(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

/// The UTF-16 code unit of a `\uXXXX` at the start of `rest`.
fn utf16_unit(rest: &[u8]) -> Option<u32> {
    let hex = rest.strip_prefix(b"\\u")?.first_chunk::<4>()?;
    hex.iter()
        .try_fold(0, |unit, &digit| Some(unit << 4 | (digit as char).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::{decode, minify};

    fn text(inside: &str) -> Vec<u8> {
        let mut out = Vec::new();
        decode(inside.as_bytes(), &mut |piece| out.extend_from_slice(piece));
        out
    }

    fn minified(value: &str) -> String {
        let mut out = Vec::new();
        minify(value.as_bytes(), &mut |piece| out.extend_from_slice(piece));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn escapes_decode_as_the_rfc_says() {
        assert_eq!(text(r#"a\"\\\/\b\f\n\r\tz"#), b"a\"\\/\x08\x0c\n\r\tz");
        assert_eq!(text(r"\u0041\u00e9\u20AC\ud83d\uDE00"), "Aé€😀".as_bytes());
        assert_eq!(text(r"\u0000"), b"\0");
    }

    #[test]
    fn lone_surrogates_become_generalised_utf8() {
        assert_eq!(text(r"\ud800"), b"\xED\xA0\x80");
        assert_eq!(text(r"\udc00x"), b"\xED\xB0\x80x");
        assert_eq!(text(r"\ud800\u0041"), b"\xED\xA0\x80A");
        assert_eq!(text(r"\ud800\ud83d\ude00"), b"\xED\xA0\x80\xF0\x9F\x98\x80");
    }

    #[test]
    fn wrong_escapes_stay_as_they_are() {
        assert_eq!(text(r"\x\u12"), br"\x\u12");
        assert_eq!(text(r"\u12g4\"), br"\u12g4\");
    }

    #[test]
    fn minify_drops_spelling_and_keeps_meaning() {
        assert_eq!(
            minified(" { \"a\" : [ 1.0 , -2e3, true ] ,\n\"b c\":\"x  \\u0041\\n\\\"\\\\\" } "),
            "{\"a\":[1.0,-2e3,true],\"b c\":\"x  A\n\\\"\\\\\"}"
        );
    }
}
