//! An incremental JSON reader that knows where the facts of a response stand.

use super::super::word::first_of;
use super::{FinishReason, ResponseFacts};
use memchr::memchr2;

/// Containers are told apart down to this depth; facts stand no deeper.
const TRACKED_DEPTH: usize = 6;

/// The longest key or value that matters is `cache_creation_input_tokens`; longer ones are cut and match nothing.
const TOKEN_BYTES: usize = 32;

/// Reads JSON values cut anywhere and keeps what they say. It never fails: what is not JSON says nothing.
#[derive(Debug, Default)]
pub(super) struct FactScanner {
    facts: ResponseFacts,
    /// Anthropic's count of prompt tokens written to the cache, which its `input_tokens` leaves out.
    cache_creation: u64,
    /// `cache_read_input_tokens` was given: `input_tokens` leaves cached ones out.
    cached_apart: bool,
    places: [Place; TRACKED_DEPTH],
    depth: usize,
    /// Brackets open within a container where no fact stands.
    ignored: u64,
    lexing: Lexing,
    /// A key and its colon are next, not a value.
    in_key: bool,
    token: Token,
    /// The key of the value that is next; spent by that value.
    field: Field,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lexing {
    #[default]
    Between,
    /// Outside of any object, after something that is none: nothing more is read of this value.
    Lost,
    String,
    /// In a string, after a backslash.
    Escape,
    /// In a number or a word.
    Scalar,
}

/// What a container is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// The value itself, or what wraps it in an event (`response`, `message`).
    #[default]
    Root,
    Choices,
    /// One of `choices`.
    Choice,
    /// The `delta` of a message.
    Delta,
    Usage,
    UsageDetails,
    Ignored,
}

/// The keys that matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    #[default]
    Unknown,
    Choices,
    Delta,
    Envelope,
    Usage,
    UsageDetails,
    Error,
    /// `type` and `object`, whose word may be `error`.
    Kind,
    Status,
    FinishReason,
    /// In a message how it ended; in a choice only which stop string did it.
    StopReason,
    PromptTokens,
    CompletionTokens,
    CachedTokens,
    CacheRead,
    CacheCreation,
}

impl Field {
    fn of(key: &[u8]) -> Self {
        match key {
            b"choices" => Self::Choices,
            b"delta" => Self::Delta,
            b"response" | b"message" => Self::Envelope,
            b"usage" => Self::Usage,
            b"prompt_tokens_details" | b"input_tokens_details" => Self::UsageDetails,
            b"error" => Self::Error,
            b"type" | b"object" => Self::Kind,
            b"status" => Self::Status,
            b"finish_reason" => Self::FinishReason,
            b"stop_reason" => Self::StopReason,
            b"prompt_tokens" | b"input_tokens" => Self::PromptTokens,
            b"completion_tokens" | b"output_tokens" => Self::CompletionTokens,
            b"cached_tokens" => Self::CachedTokens,
            b"cache_read_input_tokens" => Self::CacheRead,
            b"cache_creation_input_tokens" => Self::CacheCreation,
            _ => Self::Unknown,
        }
    }
}

/// A short key or scalar, gathered over chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Token {
    bytes: [u8; TOKEN_BYTES],
    /// More than [`TOKEN_BYTES`] when it was cut.
    length: usize,
}

impl Token {
    fn extend(&mut self, piece: &[u8]) {
        let room = TOKEN_BYTES.saturating_sub(self.length);
        let kept = piece.len().min(room);
        if kept > 0 {
            self.bytes[self.length..self.length + kept].copy_from_slice(&piece[..kept]);
        }
        self.length = self.length.saturating_add(piece.len());
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl FactScanner {
    /// What was read so far.
    pub(super) fn facts(&self) -> ResponseFacts {
        let mut facts = self.facts;
        if self.cached_apart {
            let apart = facts
                .cached_tokens
                .unwrap_or(0)
                .saturating_add(self.cache_creation);
            facts.prompt_tokens = facts.prompt_tokens.map(|tokens| tokens.saturating_add(apart));
        }
        facts
    }

    /// Whether nothing of a value has been read.
    pub(super) fn at_rest(&self) -> bool {
        self.depth == 0 && self.lexing == Lexing::Between
    }

    /// Forgets the value that was being read, whole or not, and reads the next one from its start.
    pub(super) fn next_value(&mut self) {
        self.depth = 0;
        self.ignored = 0;
        self.in_key = false;
        self.lexing = Lexing::Between;
        self.field = Field::Unknown;
    }

    /// Reads the next bytes of the value.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !rest.is_empty() {
            rest = match self.lexing {
                Lexing::Between => self.between(rest),
                Lexing::String => self.string(rest),
                Lexing::Escape => {
                    self.token.extend(&rest[..1]);
                    self.lexing = Lexing::String;
                    &rest[1..]
                }
                Lexing::Scalar => self.scalar(rest),
                Lexing::Lost => return,
            };
        }
    }

    fn place(&self) -> Option<Place> {
        self.depth.checked_sub(1).map(|last| self.places[last])
    }

    /// Reads on to where something else than [`Lexing::Between`] applies.
    fn between<'c>(&mut self, bytes: &'c [u8]) -> &'c [u8] {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            match byte {
                b'"' => match string_end(after) {
                    // Whole, and without escapes: as nearly all are.
                    Some(end) if after[end] == b'"' && self.depth > 0 => {
                        if self.ignored == 0 {
                            self.end_of_string(&after[..end]);
                        }
                        rest = &after[end + 1..];
                        continue;
                    }
                    _ => {
                        self.token.length = 0;
                        self.lexing = Lexing::String;
                    }
                },
                b'{' | b'[' => self.open(byte == b'{'),
                b'}' | b']' => self.close(),
                b',' => {
                    self.field = Field::Unknown;
                    self.in_key = self.place() != Some(Place::Choices);
                }
                b':' => self.in_key = false,
                b' ' | b'\n' | b'\r' | b'\t' => {
                    rest = after;
                    continue;
                }
                _ if self.ignored > 0 => {}
                _ => {
                    self.token.length = 0;
                    self.lexing = Lexing::Scalar;
                    return rest;
                }
            }
            rest = after;
            if self.depth == 0 {
                self.lexing = Lexing::Lost;
            }
            if self.lexing != Lexing::Between {
                break;
            }
        }
        rest
    }

    fn string<'c>(&mut self, rest: &'c [u8]) -> &'c [u8] {
        let Some(end) = string_end(rest) else {
            self.gather(rest);
            return &[];
        };
        let (piece, after) = (&rest[..end], &rest[end + 1..]);
        if rest[end] == b'\\' {
            self.gather(piece);
            self.gather(b"\\");
            self.lexing = Lexing::Escape;
            return after;
        }
        self.lexing = Lexing::Between;
        if self.ignored > 0 {
        } else if self.token.length == 0 {
            self.end_of_string(piece);
        } else {
            self.token.extend(piece);
            let token = self.token;
            self.end_of_string(token.get());
        }
        after
    }

    fn gather(&mut self, piece: &[u8]) {
        if self.ignored == 0 {
            self.token.extend(piece);
        }
    }

    fn end_of_string(&mut self, text: &[u8]) {
        if self.in_key {
            self.field = Field::of(text);
        } else {
            self.word(text);
            self.field = Field::Unknown;
        }
    }

    fn scalar<'c>(&mut self, rest: &'c [u8]) -> &'c [u8] {
        let Some(end) = rest.iter().position(|&byte| ends_scalar(byte)) else {
            self.token.extend(rest);
            return &[];
        };
        self.lexing = if self.depth == 0 {
            Lexing::Lost
        } else {
            Lexing::Between
        };
        if matches!(self.place(), Some(Place::Usage | Place::UsageDetails)) {
            self.token.extend(&rest[..end]);
            self.number();
        }
        self.field = Field::Unknown;
        &rest[end..]
    }

    fn open(&mut self, object: bool) {
        if self.ignored > 0 {
            self.ignored += 1;
            return;
        }
        let place = self.place_of_value(object);
        if place == Place::Ignored || self.depth == TRACKED_DEPTH {
            self.ignored = 1;
            return;
        }
        self.places[self.depth] = place;
        self.depth += 1;
        self.in_key = object;
        self.field = Field::Unknown;
    }

    fn place_of_value(&mut self, object: bool) -> Place {
        match (self.place(), self.field, object) {
            (None, _, true) => Place::Root,
            // No colon came since the key.
            _ if self.in_key => Place::Ignored,
            (Some(Place::Root), Field::Envelope, true) => Place::Root,
            (Some(Place::Root), Field::Choices, false) => Place::Choices,
            (Some(Place::Choices), _, true) => Place::Choice,
            (Some(Place::Root), Field::Delta, true) => Place::Delta,
            (Some(Place::Root), Field::Usage, true) => Place::Usage,
            (Some(Place::Usage), Field::UsageDetails, true) => Place::UsageDetails,
            (Some(Place::Root), Field::Error, true) => {
                self.facts.error = true;
                Place::Ignored
            }
            _ => Place::Ignored,
        }
    }

    const fn close(&mut self) {
        if self.ignored > 0 {
            self.ignored -= 1;
        } else {
            self.depth = self.depth.saturating_sub(1);
        }
        self.in_key = false;
        self.field = Field::Unknown;
    }

    /// A string value.
    fn word(&mut self, word: &[u8]) {
        match (self.place(), self.field) {
            (Some(Place::Root), Field::Error) => self.facts.error = true,
            (Some(Place::Root), Field::Kind) => self.facts.error |= word == b"error",
            (Some(Place::Root), Field::Status) => {
                if let Some(finish) = finish_of_status(word) {
                    self.finished(finish);
                }
            }
            (Some(Place::Choice), Field::FinishReason)
            | (Some(Place::Root | Place::Delta), Field::StopReason) => self.finished(finish_of_reason(word)),
            _ => {}
        }
    }

    fn finished(&mut self, finish: FinishReason) {
        if self.facts.finish != Some(FinishReason::Abort) {
            self.facts.finish = Some(finish);
        }
    }

    /// A number, or a word that is none.
    fn number(&mut self) {
        let Some(number) = whole_number(self.token.get()) else {
            return;
        };
        let place = self.place();
        let facts = &mut self.facts;
        match (place, self.field) {
            (Some(Place::Usage), Field::PromptTokens) => facts.prompt_tokens = Some(number),
            (Some(Place::Usage), Field::CompletionTokens) => facts.completion_tokens = Some(number),
            (Some(Place::UsageDetails), Field::CachedTokens) => facts.cached_tokens = Some(number),
            (Some(Place::Usage), Field::CacheRead) => {
                facts.cached_tokens = Some(number);
                self.cached_apart = true;
            }
            (Some(Place::Usage), Field::CacheCreation) => {
                self.cache_creation = number;
                self.cached_apart = true;
            }
            _ => {}
        }
    }
}

/// Where a string ends or an escape stands.
fn string_end(rest: &[u8]) -> Option<usize> {
    const WORDS: usize = 4;
    let mut at = 0;
    for &bytes in rest.as_chunks().0.iter().take(WORDS) {
        if let Some(found) = first_of(bytes, b'"', b'\\') {
            return Some(at + found);
        }
        at += bytes.len();
    }
    memchr2(b'"', b'\\', &rest[at..]).map(|found| at + found)
}

/// Bytes that a number or a word does not contain.
const ENDS_SCALAR: [bool; 256] = {
    let mut ends = [false; 256];
    let list = b" \n\r\t,:]}\"{[";
    let mut at = 0;
    while at < list.len() {
        ends[list[at] as usize] = true;
        at += 1;
    }
    ends
};

fn ends_scalar(byte: u8) -> bool {
    ENDS_SCALAR[usize::from(byte)]
}

/// A whole number that fits; `None` for any other word.
fn whole_number(digits: &[u8]) -> Option<u64> {
    let value = |sum: u64, digit: &u8| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    };
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, value)
}

/// `finish_reason` of a choice and `stop_reason` of a message.
fn finish_of_reason(word: &[u8]) -> FinishReason {
    match word {
        b"stop" | b"end_turn" | b"stop_sequence" => FinishReason::Stop,
        b"length" | b"max_tokens" => FinishReason::Length,
        b"tool_calls" | b"tool_use" | b"function_call" => FinishReason::ToolCalls,
        b"abort" => FinishReason::Abort,
        _ => FinishReason::Other,
    }
}

/// `status` of a response; it is `in_progress` until the end.
const fn finish_of_status(word: &[u8]) -> Option<FinishReason> {
    match word {
        b"completed" => Some(FinishReason::Stop),
        b"incomplete" => Some(FinishReason::Length),
        b"cancelled" => Some(FinishReason::Abort),
        b"failed" => Some(FinishReason::Other),
        _ => None,
    }
}
