//! Messages and their parts in canonical form.

use super::canon::{CLOSE, CONTENT, Canon, MESSAGE, OPEN, PromptSink};
use super::json::{Elements, Members, Shape, shape, string_inside};
use super::text::word_text;
use smallvec::SmallVec;

/// A hint to a provider's cache on a message, part or tool: it moves from turn to turn and is never rendered.
const CACHE_CONTROL: &[u8] = b"cache_control";

/// An object's members other than those that a form names, each as raw key and value, in body order.
type OtherMembers<'a> = SmallVec<[(&'a [u8], &'a [u8]); 8]>;

/// A message with more members than this besides role and content is none of the API's; its members are kept as they
/// stand.
const MOST_MEMBERS: usize = 16;

impl<S: PromptSink> Canon<'_, S> {
    /// The messages of a conversation, or the items of a `/v1/responses` input.
    pub(super) fn messages(&mut self, messages: &[u8]) {
        let mut messages = Elements::of(messages);
        loop {
            let rest = messages.rest();
            if shape(rest) == Shape::Object {
                // Its end is where its members end: to look for it first would be a pass of its own.
                let mut members = Members::of(rest);
                self.message(&mut members);
                messages.resume(members.after());
            } else if let Some(other) = messages.next() {
                // No message starts so: it must not read as one more part of the message before.
                self.put(&[MESSAGE, OPEN]);
                self.json(other);
            } else {
                return;
            }
        }
    }

    /// A message made of a role and a content that the API takes apart from the messages.
    pub(super) fn lead_message(&mut self, role: &[u8], content: &[u8]) {
        self.tag(MESSAGE);
        self.put(role);
        self.content(content);
    }

    /// The declarations of tools.
    pub(super) fn tools(&mut self, tools: &[u8]) {
        if shape(tools) != Shape::Array {
            return self.json(tools);
        }
        for tool in Elements::of(tools) {
            self.json_without(tool, &[CACHE_CONTROL]);
        }
    }

    fn message(&mut self, members: &mut Members<'_>) {
        let (mut role, mut content): (&[u8], &[u8]) = (&[], &[]);
        let mut others = OtherMembers::new();
        let mut scratch = SmallVec::new();
        for (key, value) in members {
            match word_text(key, &mut scratch) {
                b"role" => role = value,
                b"content" => content = value,
                name => note_member(&mut others, name, (key, value)),
            }
        }
        self.tag(MESSAGE);
        match string_inside(role) {
            Some(role) => self.bare_text(role),
            None if is_none(role) => {}
            None => self.json(role),
        }
        let is_known = others.len() <= MOST_MEMBERS;
        for (key, value) in others {
            if is_known {
                self.message_field(word_text(key, &mut scratch), key, value);
            } else {
                self.field(key);
                self.json(value);
            }
        }
        self.content(content);
    }

    /// A member of a message other than role and content: name, tool calls, reasoning, and whatever comes to be.
    fn message_field(&mut self, name: &[u8], key: &[u8], value: &[u8]) {
        match name {
            CACHE_CONTROL => {}
            _ if is_none(value) => {}
            // What clients that echo a whole response message send for "none".
            b"tool_calls" | b"annotations" if Elements::is_empty_array(value) => {}
            // An item of a `/v1/responses` input without a type is a message.
            b"type" if is_word(value, b"message") => {}
            // The result of a call in `/v1/responses`: text, or parts as in a message.
            b"output" => {
                self.field(key);
                self.parts(value, 0);
            }
            _ => {
                self.field(key);
                self.json(value);
            }
        }
    }

    /// A content of none, null or no parts renders nothing, and is nothing here.
    fn content(&mut self, content: &[u8]) {
        if is_none(content) || Elements::is_empty_array(content) {
            return;
        }
        self.tag(CONTENT);
        self.parts(content, 0);
    }

    /// A string is one text part; a list is its parts; anything else is kept as it is.
    fn parts(&mut self, content: &[u8], nesting: u8) {
        match shape(content) {
            Shape::Array => Elements::of(content).for_each(|part| self.part(part, nesting)),
            _ => self.part(content, nesting),
        }
    }

    fn part(&mut self, part: &[u8], nesting: u8) {
        if let Some(inside) = string_inside(part) {
            return self.text(inside);
        }
        if shape(part) != Shape::Object {
            return self.json(part);
        }
        let view = PartView::of(part);
        match view.kind() {
            PartKind::Text(inside) => self.text(inside),
            PartKind::Media => self.media(part, &[CACHE_CONTROL]),
            PartKind::Holder(parts) if nesting == 0 => {
                self.tag(OPEN);
                self.json_without(part, &[CACHE_CONTROL, b"content"]);
                if !is_none(parts) {
                    self.parts(parts, nesting + 1);
                }
                self.tag(CLOSE);
            }
            PartKind::Holder(_) | PartKind::Unknown => self.json_without(part, &[CACHE_CONTROL]),
        }
    }
}

/// Adds a member; of those with the same `name` the last one counts, in the place of the first. Not looked for in an
/// object that has very many: the search would be quadratic.
fn note_member<'a>(others: &mut OtherMembers<'a>, name: &[u8], member: (&'a [u8], &'a [u8])) {
    let mut scratch = SmallVec::new();
    let mut is_same = |key| word_text(key, &mut scratch) == name;
    let known = others
        .iter()
        .take(MOST_MEMBERS)
        .position(|&(key, _)| is_same(key));
    match known {
        Some(place) => others[place] = member,
        None => others.push(member),
    }
}

/// What the engine does with a part.
enum PartKind<'a> {
    /// Renders this text, and nothing besides.
    Text(&'a [u8]),
    /// Renders place holders and runs an encoder on the data.
    Media,
    /// A tool's result, whose content is made of parts again.
    Holder(&'a [u8]),
    Unknown,
}

/// The members of a part that tell its kind.
#[derive(Default)]
struct PartView<'a> {
    kind: &'a [u8],
    text: &'a [u8],
    content: &'a [u8],
    /// A member named like a media type, which makes it one without a `type` too.
    media_member: bool,
    /// A member that a plain text part does not have.
    other_member: bool,
}

impl<'a> PartView<'a> {
    fn of(part: &'a [u8]) -> Self {
        let mut view = Self::default();
        let mut scratch = SmallVec::new();
        for (key, value) in Members::of(part) {
            match word_text(key, &mut scratch) {
                b"type" => view.kind = value,
                b"text" => view.text = value,
                CACHE_CONTROL => continue,
                b"content" => (view.content, view.other_member) = (value, true),
                // What a response's text part has for "none" when a client sends it back.
                b"annotations" | b"logprobs" if is_none(value) || Elements::is_empty_array(value) => {}
                key => {
                    view.media_member |= is_media(key);
                    view.other_member = true;
                }
            }
        }
        view
    }

    fn kind(&self) -> PartKind<'a> {
        let mut scratch = SmallVec::new();
        let kind = string_inside(self.kind).map(|kind| word_text(kind, &mut scratch));
        match (kind, string_inside(self.text)) {
            (Some(b"text" | b"input_text" | b"output_text"), Some(text)) if !self.other_member => {
                PartKind::Text(text)
            }
            (Some(b"tool_result"), _) => PartKind::Holder(self.content),
            (Some(kind), _) if is_media(kind) => PartKind::Media,
            (None, _) if self.media_member => PartKind::Media,
            _ => PartKind::Unknown,
        }
    }
}

/// Whether a value is absent or null.
fn is_none(value: &[u8]) -> bool {
    matches!(shape(value), Shape::Absent | Shape::Null)
}

/// Whether a value is the string `word`, however it is spelled.
fn is_word(value: &[u8], word: &[u8]) -> bool {
    string_inside(value).is_some_and(|inside| word_text(inside, &mut SmallVec::new()) == word)
}

fn is_media(word: &[u8]) -> bool {
    matches!(
        word,
        b"image_url"
            | b"input_image"
            | b"image"
            | b"image_pil"
            | b"image_embeds"
            | b"input_audio"
            | b"audio_url"
            | b"audio"
            | b"audio_embeds"
            | b"video_url"
            | b"input_video"
            | b"video"
            | b"file"
            | b"input_file"
            | b"document"
    )
}
