//! What a response says about itself: token counts, how it ended, errors within a 200.
//!
//! The scanner sees the bytes of a response body as they pass; it changes and delays nothing, keeps a few hundred
//! bytes whatever the body's size, and looks at no event of a stream that cannot matter.

mod facts;
mod sse;

use facts::FactScanner;
use sse::EventScanner;

/// Why the engine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or stop string, or the end of a turn.
    Stop,
    /// The bound on output tokens, or the model's context.
    Length,
    /// The model calls a tool.
    ToolCalls,
    /// The engine gave the request up, for example because it is shutting down: the text is cut although the
    /// status is 200. Never a success.
    Abort,
    /// Any other word.
    Other,
}

/// What a whole response body said. `None` where it said nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseFacts {
    /// Prompt length in tokens, cached ones included (also where the API counts those apart).
    pub prompt_tokens: Option<u64>,
    /// Tokens generated, over all choices.
    pub completion_tokens: Option<u64>,
    /// Prompt tokens that the engine took from its prefix cache.
    pub cached_tokens: Option<u64>,
    /// How the last choice ended; [`FinishReason::Abort`] when any was aborted.
    pub finish: Option<FinishReason>,
    /// The body is, or its stream holds, an error.
    pub error: bool,
}

/// Reads [`ResponseFacts`] off a response body as it passes.
#[derive(Debug)]
pub struct UsageScanner {
    body: Body,
}

#[derive(Debug)]
enum Body {
    Json(FactScanner),
    Events(EventScanner),
}

impl UsageScanner {
    /// A scanner for one body: server-sent events, or one JSON value.
    pub fn new(sse: bool) -> Self {
        let body = if sse {
            Body::Events(EventScanner::default())
        } else {
            Body::Json(FactScanner::default())
        };
        Self { body }
    }

    /// Reads the next bytes of the body, cut anywhere.
    pub fn push(&mut self, chunk: &[u8]) {
        match &mut self.body {
            Body::Json(facts) => facts.push(chunk),
            Body::Events(events) => events.push(chunk),
        }
    }

    /// What the body said.
    pub fn finish(self) -> ResponseFacts {
        match self.body {
            Body::Json(facts) => facts.facts(),
            Body::Events(events) => events.finish(),
        }
    }
}

#[cfg(test)]
mod tests;
