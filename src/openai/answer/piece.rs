//! One event of an answer, or the whole of it: what it adds to the text.

use crate::openai::json::{Elements, Members, Shape, shape, string_at, string_inside};
use crate::openai::path::PathKind;

/// What an event adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Nothing,
    /// Text, as it stands between its quotes.
    Text(&'a [u8]),
    /// Another text of the same message begins.
    NewText,
    /// Something else follows the text.
    End,
    /// The next prompt will have something before the text, or instead of it.
    Unforeseen,
}

/// What the JSON value of one event adds.
pub(super) fn of_event(kind: PathKind, event: &[u8]) -> Piece<'_> {
    match kind {
        PathKind::Messages => of_block_event(event),
        _ => of_choices(kind, event, b"delta"),
    }
}

/// Gives what a whole response consists of. It is not checked: an engine that writes no JSON is none to foresee.
pub(super) fn of_body<'a>(kind: PathKind, body: &'a [u8], out: &mut impl FnMut(Piece<'a>)) {
    match kind {
        PathKind::Messages => Elements::of(Members::of(body).value_at(b"content")).for_each(|block| {
            let [start, text] = of_block(block);
            out(start);
            out(text);
        }),
        _ => out(of_choices(kind, body, b"message")),
    }
}

/// A member of an object, the last of that name; empty when there is none.
fn member<'a>(object: &'a [u8], name: &[u8]) -> &'a [u8] {
    let members = Members::of(object).filter(|(key, _)| *key == name);
    members.last().map_or(&[], |(_, value)| value)
}

/// A chat's choice has its text in a message of its own, a completion's choice at hand.
fn of_choices<'a>(kind: PathKind, value: &'a [u8], message: &[u8]) -> Piece<'a> {
    let mut choices = Elements::of(Members::of(value).value_at(b"choices"));
    let Some(choice) = choices.next() else {
        return Piece::Nothing;
    };
    if choices.next().is_some() {
        return Piece::Unforeseen;
    }
    if kind == PathKind::Chat {
        of_message(Members::of(choice).value_at(message))
    } else {
        string_at(Members::of(choice).value_at(b"text")).map_or(Piece::Nothing, Piece::Text)
    }
}

fn of_message(message: &[u8]) -> Piece<'_> {
    let mut piece = Piece::Nothing;
    for (key, value) in Members::of(message) {
        match (key, string_inside(value)) {
            (b"content", Some(text)) => piece = Piece::Text(text),
            (b"role", _) => {}
            // Token ids and the like are no part of what a client sends back; what is, would stand before the text.
            _ if is_nothing(value) || key.ends_with(b"token_ids") => {}
            _ => return Piece::Unforeseen,
        }
    }
    piece
}

fn is_nothing(value: &[u8]) -> bool {
    shape(value) == Shape::Null || value == b"\"\"" || Elements::is_empty_array(value)
}

/// `/v1/messages` streams a message block by block.
fn of_block_event(event: &[u8]) -> Piece<'_> {
    match string_inside(member(event, b"type")) {
        Some(b"content_block_start") => {
            let [start, text] = of_block(member(event, b"content_block"));
            // A text block starts empty.
            if text == Piece::Text(b"") { start } else { text }
        }
        Some(b"content_block_delta") => match string_inside(member(member(event, b"delta"), b"text")) {
            Some(text) => Piece::Text(text),
            None => Piece::Nothing,
        },
        _ => Piece::Nothing,
    }
}

fn of_block(block: &[u8]) -> [Piece<'_>; 2] {
    match string_inside(member(block, b"type")) {
        Some(b"text") => {
            let text = string_inside(member(block, b"text")).unwrap_or_default();
            [Piece::NewText, Piece::Text(text)]
        }
        Some(b"tool_use") => [Piece::Nothing, Piece::End],
        _ => [Piece::Nothing, Piece::Unforeseen],
    }
}
