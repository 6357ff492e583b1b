//! Events that differ from the one before in their text only.
//!
//! Nearly every event of a stream is the last one with other words in it. To see that takes a comparison, far less than
//! a search for what might matter.

use memchr::{memchr, memchr3, memmem};
use std::ops::Range;
use std::sync::LazyLock;

/// Events longer than this are not remembered.
const MAX_BYTES: usize = 1024;

/// Members whose text says nothing that is looked for. A quote within a JSON string is escaped, so these bytes are
/// a member wherever they stand.
static TEXTS: LazyLock<[memmem::Finder<'static>; 3]> =
    LazyLock::new(|| ["\"content\":\"", "\"text\":\"", "\"delta\":\""].map(memmem::Finder::new));

/// The last event that did not matter.
#[derive(Debug, Default)]
pub(super) struct Template {
    event: Vec<u8>,
    /// The text between its quotes.
    text: Range<usize>,
}

impl Template {
    /// Takes an event that does not matter for comparison with those to come.
    pub(super) fn learn(&mut self, event: &[u8]) {
        let start = TEXTS
            .iter()
            .find_map(|member| member.find(event).map(|at| at + member.needle().len()));
        let text = start.and_then(|start| Some(start..start + text_length(&event[start..])?));
        self.event.clear();
        self.text = 0..0;
        if let Some(text) = text {
            self.remember(event, text);
        }
    }

    /// Takes an event whose text, without its quotes, is at `text`.
    pub(super) fn remember(&mut self, event: &[u8], text: Range<usize>) {
        self.event.clear();
        self.text = 0..0;
        if event.len() <= MAX_BYTES {
            self.event.extend_from_slice(event);
            self.text = text;
        }
    }

    /// Whether `event` is the known one with another text in the same place, and so says as little.
    pub(super) fn fits(&self, event: &[u8]) -> bool {
        self.text_of(event).is_some()
    }

    /// The text of an event that is the known one but for that.
    pub(super) fn text_of<'e>(&self, event: &'e [u8]) -> Option<&'e [u8]> {
        let Range { start, end } = self.text;
        let (head, tail) = (&self.event[..start], &self.event[end..]);
        if tail.is_empty() {
            return None;
        }
        let text = event.strip_prefix(head)?.strip_suffix(tail)?;
        // The text ends where its string does, so what follows is read as in the known event.
        is_plain(text).then_some(text)
    }
}

/// No quote, line end or escape; the escapes are left to the search. A token's few bytes are looked at in less time than
/// a vector search takes to begin.
fn is_plain(text: &[u8]) -> bool {
    const SHORT: usize = 32;
    if text.len() <= SHORT {
        return !text
            .iter()
            .any(|byte| matches!(byte, b'"' | b'\\' | b'\n' | b'\r'));
    }
    memchr3(b'"', b'\\', b'\n', text).is_none() && memchr(b'\r', text).is_none()
}

/// Bytes until the quote that ends a string.
fn text_length(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|&byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "data: {\"id\":\"c-1\",\"choices\":[{\"text\":\" the\",\"finish_reason\":null}]}\n\n";

    fn fits(other: &str) -> bool {
        let mut template = Template::default();
        template.learn(KNOWN.as_bytes());
        template.fits(other.as_bytes())
    }

    #[test]
    fn other_words_fit() {
        assert!(fits(KNOWN));
        for text in [
            "",
            " ",
            "the",
            " then",
            " a much longer text than before",
            "usage: {",
            "模型",
        ] {
            assert!(fits(&KNOWN.replace(" the", text)), "{text:?}");
        }
    }

    #[test]
    fn anything_else_does_not() {
        for (from, to) in [
            ("null", "\"stop\""),
            ("c-1", "c-2"),
            ("the\"", "the\",\"error\":\"x\""),
            (" the", "\\\""),
            (" the", "a\nb"),
            ("}]}", "}],\"usage\":{\"prompt_tokens\":1}}"),
            ("\n\n", "\n"),
            (" the\"", "\",\"usage\":{\"x\":1},\"a\":\"\""),
        ] {
            assert!(!fits(&KNOWN.replace(from, to)), "{from} -> {to}");
        }
        assert!(!fits(""));
        assert!(!Template::default().fits(KNOWN.as_bytes()));
    }

    #[test]
    fn a_known_text_may_have_escapes() {
        let mut template = Template::default();
        template.learn(KNOWN.replace(" the", "\\\"").as_bytes());
        assert!(template.fits(KNOWN.as_bytes()));
        assert!(!template.fits(KNOWN.replace(" the", "\\").as_bytes()));
    }
}
