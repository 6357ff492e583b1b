//! Server-sent events: lines, events, and which of them matter.

use super::ResponseFacts;
use super::facts::FactScanner;
use crate::openai::template::Template;
use memchr::{memchr2, memmem, memrchr2};
use std::sync::LazyLock;

/// Members that are worth parsing an event for. The quotes make them rare: within a JSON string a quote is escaped.
static MEMBERS: LazyLock<[memmem::Finder<'static>; 4]> =
    LazyLock::new(|| ["usage\"", "error\"", "_reason\"", "status\""].map(memmem::Finder::new));

/// Reads a stream of events cut anywhere.
#[derive(Debug, Default)]
pub(super) struct EventScanner {
    facts: FactScanner,
    template: Template,
    line: Line,
    /// The last line ended in CR: a LF that follows belongs to it.
    after_cr: bool,
}

/// How much of the current line is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// The start of the line, so far equal to this many bytes of `data:`.
    Start(u8),
    /// In the value of a `data:` line.
    Data,
    /// In a comment or another field.
    Skipped,
}

impl Default for Line {
    fn default() -> Self {
        Self::Start(0)
    }
}

const DATA: &[u8] = b"data:";

/// A line end and an empty line, in every mixture of line ends.
const EVENT_ENDS: [&[u8]; 5] = [b"\n\n", b"\n\r\n", b"\n\r", b"\r\r", b"\r\r\n"];

impl EventScanner {
    pub(super) fn finish(self) -> ResponseFacts {
        self.facts.facts()
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
        let Some(chunk) = self.skip_plain_events(chunk) else {
            return &[];
        };
        let whole_lines = memrchr2(b'\n', b'\r', chunk).map_or(0, |end| end + 1);
        let (lines, partial) = chunk.split_at(whole_lines);
        if !EVENT_ENDS.iter().any(|end| lines.ends_with(end)) || may_matter(lines) {
            return chunk;
        }
        self.after_cr = lines.ends_with(b"\r");
        partial
    }

    /// Skips events of no interest whose lines end in line feeds; gives the rest, `None` when all was skipped.
    fn skip_plain_events<'c>(&mut self, chunk: &'c [u8]) -> Option<&'c [u8]> {
        let mut rest = chunk;
        while !self.template.fits(rest) {
            let Some(at) = memmem::find(rest, b"\n\n") else {
                return Some(rest);
            };
            let (event, after) = rest.split_at(at + 2);
            if !self.template.fits(event) {
                if may_matter(event) {
                    return Some(rest);
                }
                self.template.learn(event);
            }
            self.after_cr = false;
            rest = after;
        }
        self.after_cr = false;
        None
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
                        Line::Data
                    } else {
                        Line::Start(known)
                    };
                }
                Line::Start(_) => self.line = Line::Skipped,
                Line::Data => return self.facts.push(rest),
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
            // The lines of one event's data are joined by a line feed.
            Line::Data => self.facts.push(b"\n"),
            _ => {}
        }
        self.line = Line::Start(0);
    }
}

/// Whether some member worth parsing for, with a value other than null, may stand in these lines.
fn may_matter(lines: &[u8]) -> bool {
    MEMBERS.iter().any(|key| {
        key.find_iter(lines).any(|at| {
            let after = skip_blanks(&lines[at + key.needle().len()..]);
            match after.first() {
                Some(b':') => skip_blanks(&after[1..]).first() != Some(&b'n'),
                // A value may stand on the next line, and `error` may be the word of a `type`.
                Some(byte) => matches!(byte, b'\n' | b'\r') || key.needle() == b"error\"",
                None => true,
            }
        })
    })
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let blanks = text
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t'))
        .count();
    &text[blanks..]
}
