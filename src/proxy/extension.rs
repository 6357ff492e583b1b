//! The index goes on where the engine does: what it generates is in its cache when the next turn comes.

use crate::openai::{AnswerReader, FinishReason, PathKind, ResponseFacts};
use crate::pool::{Plan, Prompt};
use crate::prefix::ChainHasher;

/// The keys of an answer, made as it passes: of its text no more than a chunk is kept.
#[derive(Debug)]
pub struct Extension {
    reader: AnswerReader,
    hasher: Box<ChainHasher>,
}

impl Extension {
    /// For the response to a request with `prompt`; `None` where its next turn is not foreseen.
    pub fn of(prompt: &Prompt, kind: PathKind, sse: bool) -> Option<Self> {
        // A try that fails must leave the prompt's own state as it is.
        let hasher = prompt.continuation.clone()?;
        let reader = AnswerReader::new(kind, sse);
        Some(Self { reader, hasher })
    }

    /// Reads the next bytes of the response.
    pub fn push(&mut self, data: &[u8]) {
        self.reader.push(data, &mut *self.hasher);
    }

    /// Writes the keys of a whole answer to the index.
    pub fn finish(mut self, plan: &Plan, facts: &ResponseFacts) {
        let ended = matches!(
            facts.finish,
            Some(FinishReason::Stop | FinishReason::Length | FinishReason::ToolCalls)
        );
        if !ended || !self.reader.finish(&mut *self.hasher) {
            return;
        }
        let keys = self.hasher.finish();
        if let Some(chain) = keys.chains().first() {
            plan.extend(keys.full_blocks(chain));
        }
    }
}
