//! What scheduling needs from the OpenAI-compatible API: requests and responses are read, never changed.
//!
//! - [`PathKind`] tells which API a path belongs to;
//! - [`Peek`] finds the model, the limits and the prompt in a request body, and [`Peek::feed`] gives the
//!   prompt's canonical bytes to a [`PromptSink`], from which the prefix keys are made;
//! - [`UsageScanner`] reads token counts, the reason of the end and errors off a response as it passes;
//! - [`AnswerReader`] gives the canonical bytes by which an answer will go on with its prompt in the next turn;
//! - [`ErrorBody`] writes the gateway's own errors in the shape that clients know.

mod answer;
mod canon;
mod error;
mod ids;
mod json;
mod message;
mod path;
mod peek;
mod plain;
mod prompt;
mod template;
mod text;
mod usage;
mod word;

pub use answer::AnswerReader;
pub use canon::PromptSink;
pub use error::ErrorBody;
pub use json::NotJson;
pub use path::PathKind;
pub use peek::Peek;
pub use plain::PlainPrompt;
pub use prompt::Fed;
pub use usage::{FinishReason, ResponseFacts, UsageScanner};

#[cfg(test)]
mod tests;
