//! Server-sent events: lines, events, and which of them matter.

use super::ResponseFacts;
use super::facts::FactScanner;
use memchr::{memchr2, memmem, memrchr2};
use std::sync::LazyLock;

/// Members that are worth parsing an event for. Their quotes make them rare: within a JSON string a quote is escaped.
static KEYS: LazyLock<[memmem::Finder<'static>; 3]> =
    LazyLock::new(|| ["usage\"", "error\"", "_reason\""].map(memmem::Finder::new));

/// Reads a stream of events cut anywhere.
#[derive(Debug, Default)]
pub(super) struct EventScanner {
    facts: FactScanner,
    line: Line,
    /// The last line ended in CR: a LF that follows belongs to it.
    after_cr: bool,
    done: bool,
}

/// How much of the current line is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// The start of the line, so far equal to this many bytes of `data:`.
    Start(u8),
    /// In the value of a `data:` line, so far equal to this many bytes of ` [DONE]`.
    Data(u8),
    /// In the value of a `data:` line that is not `[DONE]`.
    Json,
    /// In a comment or another field.
    Skipped,
}

impl Default for Line {
    fn default() -> Self {
        Self::Start(0)
    }
}

const DATA: &[u8] = b"data:";
const DONE: &[u8] = b" [DONE]";

/// A line end and an empty line, in every mixture of line ends.
const EVENT_ENDS: [&[u8]; 5] = [b"\n\n", b"\n\r\n", b"\n\r", b"\r\r", b"\r\r\n"];

impl EventScanner {
    pub(super) fn finish(self) -> ResponseFacts {
        let done = self.done || self.line == Line::Data(DONE.len() as u8);
        ResponseFacts {
            done,
            ..self.facts.facts()
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        if self.line != Line::Start(0) {
            rest = self.rest_of_line(rest);
        }
        if self.line == Line::Start(0) && self.facts.at_rest() {
            rest = self.skip_events(rest);
        }
        while !rest.is_empty() {
            rest = self.rest_of_line(rest);
        }
    }

    /// Skips what is whole events of no interest, as nearly every chunk of a stream is; gives what is to be read.
    fn skip_events<'c>(&mut self, chunk: &'c [u8]) -> &'c [u8] {
        let whole_lines = memrchr2(b'\n', b'\r', chunk).map_or(0, |end| end + 1);
        let (lines, partial) = chunk.split_at(whole_lines);
        if !EVENT_ENDS.iter().any(|end| lines.ends_with(end)) || may_matter(lines) {
            return chunk;
        }
        self.skipped_lines(lines);
        partial
    }

    /// Lines that hold no fact but perhaps the end of the stream.
    fn skipped_lines(&mut self, lines: &[u8]) {
        self.after_cr = lines.ends_with(b"\r");
        let text = lines.trim_ascii_end();
        let last = memrchr2(b'\n', b'\r', text).map_or(text, |end| &text[end + 1..]);
        if let Some(value) = last.strip_prefix(DATA) {
            self.done |= value.trim_ascii_start() == b"[DONE]";
        }
    }

    /// Reads the current line on, to its end or the chunk's; gives what follows the line.
    fn rest_of_line<'c>(&mut self, bytes: &'c [u8]) -> &'c [u8] {
        let end = memchr2(b'\n', b'\r', bytes);
        let (piece, after) = bytes.split_at(end.unwrap_or(bytes.len()));
        self.piece(piece);
        match after.split_first() {
            Some((&terminator, after)) => {
                self.end_of_line(terminator);
                after
            }
            None => after,
        }
    }

    fn piece(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first() {
            self.after_cr = false;
            match self.line {
                Line::Start(known) if byte == DATA[usize::from(known)] => {
                    let known = known + 1;
                    self.line = if usize::from(known) == DATA.len() {
                        Line::Data(0)
                    } else {
                        Line::Start(known)
                    };
                }
                Line::Start(_) => self.line = Line::Skipped,
                // The space before the value may be missing.
                Line::Data(0) if byte == b'[' => self.line = Line::Data(2),
                Line::Data(known) if DONE.get(usize::from(known)) == Some(&byte) => {
                    self.line = Line::Data(known + 1);
                }
                Line::Data(known) => {
                    self.facts.push(&DONE[..usize::from(known)]);
                    self.line = Line::Json;
                    continue;
                }
                Line::Json => return self.facts.push(rest),
                Line::Skipped => return,
            }
            rest = after;
        }
    }

    fn end_of_line(&mut self, terminator: u8) {
        let line_feed_of_crlf = self.after_cr && terminator == b'\n' && self.line == Line::Start(0);
        self.after_cr = terminator == b'\r';
        match self.line {
            Line::Start(0) if !line_feed_of_crlf => self.facts.next_value(),
            Line::Data(known) if usize::from(known) == DONE.len() => self.done = true,
            _ => {}
        }
        self.line = Line::Start(0);
    }
}

/// Whether some member worth parsing for, with a value other than null, may stand in these whole lines.
fn may_matter(lines: &[u8]) -> bool {
    KEYS.iter().any(|key| {
        key.find_iter(lines).any(|at| {
            let after = lines[at + key.needle().len()..].trim_ascii_start();
            match after.strip_prefix(b":") {
                Some(value) => value.trim_ascii_start().first() != Some(&b'n'),
                // The word of a `"type":"error"`.
                None => key.needle() == b"error\"",
            }
        })
    })
}
