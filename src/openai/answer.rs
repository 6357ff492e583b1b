//! What an engine generates, as the next turn of its conversation will say it.
//!
//! An engine caches the blocks that it generates like those that it was sent, and a client sends the answer back with
//! its next question. [`AnswerReader`] reads the answer off a response as it passes and gives the bytes by which the
//! canonical form of that next prompt goes on after the present one: they follow the prompt's own without a gap.
//!
//! It gives up, rather than guess, where the next prompt is not foreseen: a chat answer with reasoning, which templates
//! leave out of earlier turns, or with tool calls, which stand before the text; more than one choice.

mod piece;

use super::canon::{CONTENT, MESSAGE, PromptSink, TEXT};
use super::json::Cursor;
use super::path::PathKind;
use super::template::Template;
use super::text::normalise;
use memchr::{memchr, memmem};
use piece::Piece;
use std::sync::LazyLock;

/// A response, or a line of a stream, that is longer is not read.
const MAX_BYTES: usize = 256 * 1024;

/// Where reasoning ends that the server has not told apart.
static REASONING_END: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new("</think>"));

/// Reads one response body.
#[derive(Debug)]
pub struct AnswerReader {
    kind: PathKind,
    sse: bool,
    /// The body, or the line of the stream that has not ended yet.
    partial: Vec<u8>,
    template: Template,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No text came yet.
    Start,
    Text,
    /// What came is all that goes on with the prompt.
    Closed,
    /// The next prompt is not foreseen.
    Lost,
}

impl AnswerReader {
    /// Whether a next turn follows from the answers of this API.
    pub const fn reads(kind: PathKind) -> bool {
        matches!(kind, PathKind::Completions | PathKind::Chat | PathKind::Messages)
    }

    /// A reader for the response to a request of `kind`: server-sent events, or one JSON value.
    pub fn new(kind: PathKind, sse: bool) -> Self {
        Self {
            kind,
            sse,
            partial: Vec::new(),
            template: Template::default(),
            progress: if Self::reads(kind) {
                Progress::Start
            } else {
                Progress::Lost
            },
        }
    }

    /// Reads the next bytes of the body, cut anywhere.
    pub fn push(&mut self, chunk: &[u8], sink: &mut impl PromptSink) {
        let mut rest = chunk;
        while self.sse && self.goes_on() {
            let Some(end) = memchr(b'\n', rest) else { break };
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            if self.partial.is_empty() {
                self.line(line, sink);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole, sink);
                whole.clear();
                self.partial = whole;
            }
            rest = after;
        }
        self.keep(rest);
    }

    /// Whether the sink has the whole of what goes on with the prompt, and there is some.
    pub fn finish(mut self, sink: &mut impl PromptSink) -> bool {
        if !self.sse && self.goes_on() {
            let body = std::mem::take(&mut self.partial);
            piece::of_body(self.kind, body.trim_ascii_start(), &mut |piece| {
                self.piece(&piece, sink)
            });
        }
        matches!(self.progress, Progress::Text | Progress::Closed)
    }

    const fn goes_on(&self) -> bool {
        matches!(self.progress, Progress::Start | Progress::Text)
    }

    fn keep(&mut self, bytes: &[u8]) {
        if !self.goes_on() {
            return;
        }
        if self.partial.len() + bytes.len() > MAX_BYTES {
            self.progress = Progress::Lost;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, line: &[u8], sink: &mut impl PromptSink) {
        let Some(data) = line.strip_prefix(b"data:") else {
            return;
        };
        if let Some(text) = self.template.text_of(data) {
            return self.text(text, sink);
        }
        // `[DONE]` is no object, and what is no JSON says nothing.
        let Ok(value) = Cursor::new(data).value() else {
            return;
        };
        let piece = piece::of_event(self.kind, value);
        if let Piece::Text(text) = piece {
            let start = text.as_ptr().addr() - data.as_ptr().addr();
            self.template.remember(data, start..start + text.len());
        }
        self.piece(&piece, sink);
    }

    fn piece(&mut self, piece: &Piece<'_>, sink: &mut impl PromptSink) {
        match piece {
            _ if !self.goes_on() => {}
            Piece::Nothing => {}
            Piece::Text(text) => self.text(text, sink),
            Piece::NewText if self.progress == Progress::Start => {}
            Piece::NewText => sink.write(&[TEXT]),
            Piece::End if self.progress == Progress::Text => self.progress = Progress::Closed,
            Piece::End | Piece::Unforeseen => self.progress = Progress::Lost,
        }
    }

    fn text(&mut self, inside: &[u8], sink: &mut impl PromptSink) {
        if inside.is_empty() {
            return;
        }
        if self.kind != PathKind::Completions {
            if REASONING_END.find(inside).is_some() {
                self.progress = Progress::Lost;
                return;
            }
            if self.progress == Progress::Start {
                sink.write(&[MESSAGE]);
                sink.write(b"assistant");
                sink.write(&[CONTENT, TEXT]);
            }
        }
        self.progress = Progress::Text;
        normalise(inside, &mut |piece| sink.write(piece));
    }
}

#[cfg(test)]
mod tests;
