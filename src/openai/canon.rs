//! The canonical form of a prompt: the bytes that prefix keys are made of.
//!
//! The form is injective (different content gives different bytes) and prefix-friendly (a prompt that grows at its
//! end keeps its bytes so far: nothing is counted or closed up front). Boundaries are control characters: JSON has none
//! in its strings, whatever else is in them, and in the spelling of [`super::text`], which texts and JSON values have here,
//! they stay escaped:
//!
//! ```text
//! prompt   := field* ( text | ids | json | message* )
//! field    := FIELD name-text value
//! value    := json* | part*
//! message  := MESSAGE ( role-text | json )? field* ( CONTENT part* )? | MESSAGE OPEN json
//! part     := text | media | json | OPEN json part* CLOSE
//! text     := TEXT text-bytes
//! json     := JSON minified-json
//! media    := MEDIA 16-digest-bytes
//! ids      := IDS ( 4-id-bytes | JSON minified-json CLOSE )*
//! ```
//!
//! The first of an id's bytes is no tag: ids are big-endian with the highest bit set.

use super::text;
use xxhash_rust::xxh3::Xxh3;

/// Takes the canonical bytes of a request's prompts.
pub trait PromptSink {
    /// Takes the next bytes of the current prompt. How they are cut into calls means nothing.
    fn write(&mut self, bytes: &[u8]);
    /// Ends the current prompt and starts the next one of the same request, which shares no bytes with it.
    /// Called between prompts only: neither before the first nor after the last.
    fn next_prompt(&mut self);
}

/// Begins a named field; its name follows.
pub(super) const FIELD: u8 = 0x18;
/// Begins a message; its role follows.
pub(super) const MESSAGE: u8 = 0x19;
/// Begins a text.
pub(super) const TEXT: u8 = 0x1A;
/// Begins a minified JSON value.
pub(super) const JSON: u8 = 0x1B;
/// Begins the digest of a media part.
pub(super) const MEDIA: u8 = 0x1C;
/// Begins a list of token ids.
pub(super) const IDS: u8 = 0x1D;
/// Begins a part that holds parts.
pub(super) const OPEN: u8 = 0x1E;
/// Begins a message's content.
pub(super) const CONTENT: u8 = 0x1F;
/// Ends a part that holds parts, or an odd token id; never mistaken for [`CONTENT`], which follows neither.
pub(super) const CLOSE: u8 = 0x1F;

/// Collects the many small pieces of a prompt, so that the sink sees few and large ones.
const BUFFER_BYTES: usize = 1024;

/// Writes canonical bytes into a sink.
pub(super) struct Canon<'s, S: PromptSink> {
    sink: &'s mut S,
    buffer: [u8; BUFFER_BYTES],
    length: usize,
    bytes: u64,
    media_parts: u32,
}

impl<'s, S: PromptSink> Canon<'s, S> {
    pub(super) const fn new(sink: &'s mut S) -> Self {
        Self {
            sink,
            buffer: [0; BUFFER_BYTES],
            length: 0,
            bytes: 0,
            media_parts: 0,
        }
    }

    /// Bytes written so far, over all prompts.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Media parts written so far, over all prompts.
    pub(super) const fn media_parts(&self) -> u32 {
        self.media_parts
    }

    pub(super) fn next_prompt(&mut self) {
        self.flush();
        self.sink.next_prompt();
    }

    /// Hands the sink what is still in the buffer.
    pub(super) fn flush(&mut self) {
        if self.length > 0 {
            self.sink.write(&self.buffer[..self.length]);
            self.length = 0;
        }
    }

    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if bytes.len() > BUFFER_BYTES - self.length {
            self.flush();
            if bytes.len() >= BUFFER_BYTES / 4 {
                return self.sink.write(bytes);
            }
        }
        self.buffer[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(super) fn tag(&mut self, tag: u8) {
        self.put(&[tag]);
    }

    /// A string's inside, under no tag of its own.
    pub(super) fn bare_text(&mut self, inside: &[u8]) {
        text::normalise(inside, &mut |piece| self.put(piece));
    }

    pub(super) fn text(&mut self, inside: &[u8]) {
        self.tag(TEXT);
        self.bare_text(inside);
    }

    /// Starts a field; `key` is the inside of its name.
    pub(super) fn field(&mut self, key: &[u8]) {
        self.tag(FIELD);
        self.bare_text(key);
    }

    pub(super) fn json(&mut self, value: &[u8]) {
        self.tag(JSON);
        text::minify(value, &mut |piece| self.put(piece));
    }

    /// An object (or any other value) without the members whose key is in `left_out`.
    pub(super) fn json_without(&mut self, value: &[u8], left_out: &[&[u8]]) {
        self.tag(JSON);
        text::minify_without(value, left_out, &mut |piece| self.put(piece));
    }

    /// A digest stands for a media part: it identifies megabytes of image data by a few bytes.
    pub(super) fn media(&mut self, part: &[u8], left_out: &[&[u8]]) {
        let mut digest = Xxh3::new();
        text::minify_without(part, left_out, &mut |piece| digest.update(piece));
        self.tag(MEDIA);
        self.put(&digest.digest128().to_be_bytes());
        self.media_parts = self.media_parts.saturating_add(1);
    }
}
