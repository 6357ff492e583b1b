//! One pass over a request body: which top-level values it has, and where.

use super::json::{Cursor, NotJson, Shape, shape, string_inside};
use super::text::{to_bytes, to_text, word_text};
use smallvec::SmallVec;
use std::borrow::Cow;

/// Declares the top-level fields that are remembered, each with its name in the API.
macro_rules! fields {
    ($($field:ident = $name:literal,)*) => {
        /// A top-level field of a request that the gateway reads.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Field {
            $($field,)*
        }

        impl Field {
            const COUNT: usize = [$(Self::$field,)*].len();

            /// The field's name in the API.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$field => $name,)*
                }
            }

            fn of(key: &[u8]) -> Option<Self> {
                $(
                    if key == $name.as_bytes() {
                        return Some(Self::$field);
                    }
                )*
                None
            }
        }
    };
}

fields! {
    Model = "model",
    Messages = "messages",
    Prompt = "prompt",
    Input = "input",
    Stream = "stream",
    MaxTokens = "max_tokens",
    MaxCompletionTokens = "max_completion_tokens",
    MaxOutputTokens = "max_output_tokens",
    Tools = "tools",
    System = "system",
    Instructions = "instructions",
    CacheSalt = "cache_salt",
    N = "n",
    BestOf = "best_of",
    Echo = "echo",
    SessionId = "session_id",
    PromptCacheKey = "prompt_cache_key",
    ChatTemplate = "chat_template",
    ChatTemplateKwargs = "chat_template_kwargs",
    Documents = "documents",
    ReasoningEffort = "reasoning_effort",
    Reasoning = "reasoning",
    Thinking = "thinking",
    OutputConfig = "output_config",
    AddGenerationPrompt = "add_generation_prompt",
    ContinueFinalMessage = "continue_final_message",
    AddSpecialTokens = "add_special_tokens",
    TruncatePromptTokens = "truncate_prompt_tokens",
    TruncationSide = "truncation_side",
    MmProcessorKwargs = "mm_processor_kwargs",
    MediaIoKwargs = "media_io_kwargs",
    MmPayload = "mm_payload",
    PromptEmbeds = "prompt_embeds",
    Suffix = "suffix",
    PreviousResponseId = "previous_response_id",
    PreviousInputMessages = "previous_input_messages",
}

/// What stands where in a request body. Nothing is copied: every value is a slice of the body.
///
/// Values may stand in any order in the body, and `model` and `cache_salt` seed the prefix keys, so the body is
/// looked over first ([`Self::parse`]) and the prompt is read afterwards ([`Self::feed`]).
#[derive(Clone, Debug)]
pub struct Peek<'a> {
    values: [&'a [u8]; Field::COUNT],
}

impl<'a> Peek<'a> {
    /// Checks that the body is one JSON object and finds its top-level values. Of equal keys the last one counts,
    /// as in Python's `json`, which the engine reads it with.
    pub fn parse(body: &'a [u8]) -> Result<Self, NotJson> {
        let mut cursor = Cursor::new(body);
        match cursor.next_token() {
            Some(b'{') => cursor.bump(),
            Some(0xEF) if body.starts_with(b"\xEF\xBB\xBF") => return Err(NotJson::ByteOrderMark),
            Some(_) => return Err(NotJson::NotObject),
            None => return Err(NotJson::Empty),
        }
        let mut peek = Self {
            values: [&[]; Field::COUNT],
        };
        peek.read_members(&mut cursor)?;
        match cursor.next_token() {
            None => Ok(peek),
            Some(_) => Err(NotJson::TrailingBytes(cursor.at())),
        }
    }

    fn read_members(&mut self, cursor: &mut Cursor<'a>) -> Result<(), NotJson> {
        if cursor.next_token() == Some(b'}') {
            cursor.bump();
            return Ok(());
        }
        let mut scratch = SmallVec::new();
        loop {
            let key = cursor.key()?;
            let value = cursor.value()?;
            if let Some(field) = Field::of(word_text(key, &mut scratch)) {
                self.values[field as usize] = value;
            }
            match cursor.next_token() {
                Some(b',') => cursor.bump(),
                Some(b'}') => {
                    cursor.bump();
                    return Ok(());
                }
                _ => return Err(cursor.fault()),
            }
            cursor.next_token();
        }
    }

    /// A field's value as it stands in the body; empty when absent or null.
    pub(super) fn value(&self, field: Field) -> &'a [u8] {
        let value = self.values[field as usize];
        if shape(value) == Shape::Null { &[] } else { value }
    }

    /// The model or LoRA adapter that is asked for; empty when the body names none.
    pub fn model(&self) -> Cow<'a, str> {
        self.text(Field::Model).unwrap_or_default()
    }

    /// The salt that separates this request's cached blocks from others'.
    pub fn cache_salt(&self) -> Option<Cow<'a, [u8]>> {
        string_inside(self.value(Field::CacheSalt)).map(to_bytes)
    }

    /// Whether a stream of events is asked for.
    pub fn stream(&self) -> bool {
        self.value(Field::Stream) == b"true"
    }

    /// The client's bound on the completion in tokens, whichever of its names it has.
    pub fn max_output_tokens(&self) -> Option<u32> {
        [
            Field::MaxCompletionTokens,
            Field::MaxTokens,
            Field::MaxOutputTokens,
        ]
        .into_iter()
        .find_map(|field| self.count(field))
    }

    /// How many completions the engine makes per prompt: `best_of` to choose from, or `n`; at least 1.
    pub fn best_of(&self) -> u32 {
        let counts = [Field::N, Field::BestOf].map(|field| self.count(field).unwrap_or(1));
        counts.into_iter().fold(1, u32::max)
    }

    /// Whether a completion is to begin with its prompt.
    pub fn echo(&self) -> bool {
        self.value(Field::Echo) == b"true"
    }

    /// What the client says its requests of one conversation have in common: `session_id`, else `prompt_cache_key`.
    pub fn session(&self) -> Option<Cow<'a, str>> {
        self.text(Field::SessionId)
            .or_else(|| self.text(Field::PromptCacheKey))
    }

    fn text(&self, field: Field) -> Option<Cow<'a, str>> {
        string_inside(self.value(field)).map(to_text)
    }

    /// A number that is a count; larger ones saturate.
    fn count(&self, field: Field) -> Option<u32> {
        self.number(field)
            .filter(|&count| count >= 0.0)
            .map(|count| count as u32)
    }

    fn number(&self, field: Field) -> Option<f64> {
        let number: f64 = str::from_utf8(self.value(field)).ok()?.parse().ok()?;
        number.is_finite().then_some(number)
    }
}
