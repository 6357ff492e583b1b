//! The prompt of a request in canonical form.

use super::canon::{CLOSE, Canon, IDS, PromptSink};
use super::ids::{TokenId, TokenIds};
use super::json::{Elements, Shape, shape, string_inside};
use super::path::PathKind;
use super::peek::{Field, Peek};

/// What [`Peek::feed`] gave to the sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fed {
    /// Prompts, each a chain of its own; 0 when the request has no prompt to key on.
    pub prompts: u32,
    /// The exact prompt length over all prompts, when every one is a list of token ids.
    pub tokens: Option<u64>,
    /// Canonical bytes over all prompts.
    pub bytes: u64,
    /// Images, audio clips, files and the like, over all prompts.
    pub media_parts: u32,
}

/// Fields that change how a prompt is rendered, in the order in which they lead the canonical form. They come first
/// because a template puts most of them first; those that only change its end are rarely set at all.
const RENDERING_FIELDS: [Field; 17] = [
    Field::PreviousResponseId,
    Field::PreviousInputMessages,
    Field::ChatTemplate,
    Field::ChatTemplateKwargs,
    Field::ReasoningEffort,
    Field::Reasoning,
    Field::Thinking,
    Field::OutputConfig,
    Field::AddSpecialTokens,
    Field::AddGenerationPrompt,
    Field::ContinueFinalMessage,
    Field::TruncatePromptTokens,
    Field::TruncationSide,
    Field::MmProcessorKwargs,
    Field::MediaIoKwargs,
    Field::Documents,
    Field::Suffix,
];

/// Set in a token id, whose first byte could else be a tag.
const NO_TAG: u32 = 1 << 31;

impl Peek<'_> {
    /// Walks the request's prompt and gives its canonical bytes to `sink`.
    ///
    /// `model` and `cache_salt` are not among them: they seed the keys. Nothing fails: what the API does not know
    /// is keyed by its bytes, and the engine says what it thinks of it.
    pub fn feed<S: PromptSink>(&self, kind: PathKind, sink: &mut S) -> Fed {
        if !kind.carries_prompt() {
            return Fed::default();
        }
        let mut feeder = Feeder {
            peek: self,
            kind,
            canon: Canon::new(sink),
            prompts: 0,
            ids: 0,
            all_ids: true,
        };
        feeder.request();
        feeder.finish()
    }
}

struct Feeder<'p, 's, S: PromptSink> {
    peek: &'p Peek<'p>,
    kind: PathKind,
    canon: Canon<'s, S>,
    prompts: u32,
    ids: u64,
    all_ids: bool,
}

impl<'p, S: PromptSink> Feeder<'p, '_, S> {
    fn finish(mut self) -> Fed {
        self.canon.flush();
        Fed {
            prompts: self.prompts,
            tokens: (self.all_ids && self.prompts > 0).then_some(self.ids),
            bytes: self.canon.bytes(),
            media_parts: self.canon.media_parts(),
        }
    }

    fn request(&mut self) {
        let messages = self.peek.value(Field::Messages);
        match self.kind {
            PathKind::Completions => self.prompts(self.peek.value(Field::Prompt)),
            PathKind::Embeddings if messages.is_empty() => self.prompts(self.peek.value(Field::Input)),
            PathKind::Tokenize if messages.is_empty() => self.prompts(self.peek.value(Field::Prompt)),
            PathKind::Responses => self.conversation(Field::Instructions, self.peek.value(Field::Input)),
            _ => self.conversation(Field::System, messages),
        }
    }

    /// A conversation: `lead` holds the system text where the API has it outside of the messages.
    fn conversation(&mut self, lead: Field, messages: &[u8]) {
        if messages.is_empty() || Elements::is_empty_array(messages) {
            return;
        }
        self.start_prompt();
        self.all_ids = false;
        let system = self.peek.value(lead);
        if !system.is_empty() {
            self.canon.lead_message(b"system", system);
        }
        match shape(messages) {
            Shape::Array => self.canon.messages(messages),
            Shape::String if self.kind == PathKind::Responses => self.canon.lead_message(b"user", messages),
            _ => self.canon.json(messages),
        }
    }

    /// A `prompt` or an `input` of texts or token ids: one prompt, or a list of them.
    fn prompts(&mut self, prompt: &[u8]) {
        match shape(prompt) {
            Shape::Absent => self.embeds_alone(),
            Shape::Array => match Elements::of(prompt).next().map(shape) {
                None => {}
                Some(Shape::Scalar | Shape::Null) => self.one_prompt(prompt),
                Some(_) => Elements::of(prompt).for_each(|prompt| self.one_prompt(prompt)),
            },
            _ => self.one_prompt(prompt),
        }
    }

    /// A completion may be asked for with ready embeddings and no prompt at all.
    fn embeds_alone(&mut self) {
        if !self.peek.value(Field::PromptEmbeds).is_empty() {
            self.start_prompt();
            self.all_ids = false;
        }
    }

    fn one_prompt(&mut self, prompt: &[u8]) {
        self.start_prompt();
        match (shape(prompt), string_inside(prompt)) {
            (Shape::Array, _) => return self.token_ids(prompt),
            (_, Some(inside)) => self.canon.text(inside),
            _ => self.canon.json(prompt),
        }
        self.all_ids = false;
    }

    fn token_ids(&mut self, ids: &[u8]) {
        self.canon.tag(IDS);
        for id in TokenIds::of(ids) {
            match id {
                TokenId::Plain(id) => self.canon.put(&(id | NO_TAG).to_be_bytes()),
                TokenId::Odd(element) => {
                    self.canon.json(element);
                    self.canon.tag(CLOSE);
                }
            }
            self.ids += 1;
        }
    }

    /// Starts a prompt with the fields that change how it is rendered, so that every prompt's bytes stand alone.
    fn start_prompt(&mut self) {
        if self.prompts > 0 {
            self.canon.next_prompt();
        }
        self.prompts = self.prompts.saturating_add(1);
        for field in RENDERING_FIELDS {
            let value = self.peek.value(field);
            if !value.is_empty() && !self.is_default(field, value) {
                self.canon.field(field.name().as_bytes());
                self.canon.json(value);
            }
        }
        for field in [Field::MmPayload, Field::PromptEmbeds] {
            let value = self.peek.value(field);
            if !value.is_empty() {
                self.canon.field(field.name().as_bytes());
                self.canon.media(value, &[]);
            }
        }
        self.template_object();
        let tools = self.peek.value(Field::Tools);
        if !tools.is_empty() && !Elements::is_empty_array(tools) {
            self.canon.field(Field::Tools.name().as_bytes());
            self.canon.tools(tools);
        }
    }

    /// In `/v1/responses`, `prompt` names a stored template that leads the input.
    fn template_object(&mut self) {
        let template = self.peek.value(Field::Prompt);
        if self.kind == PathKind::Responses && !template.is_empty() {
            self.canon.field(Field::Prompt.name().as_bytes());
            self.canon.json(template);
        }
    }

    /// Whether a field says what the engine does without it.
    fn is_default(&self, field: Field, value: &[u8]) -> bool {
        match field {
            Field::AddGenerationPrompt => value == b"true",
            Field::ContinueFinalMessage => value == b"false",
            Field::AddSpecialTokens if self.peek.value(Field::Messages).is_empty() => value == b"true",
            Field::AddSpecialTokens => value == b"false",
            _ => false,
        }
    }
}
