//! A simulated vLLM server: a pure engine model, and the HTTP server that runs it in real time.

#[deny(clippy::disallowed_methods)]
pub mod engine;
pub mod kv_publisher;
mod output;
pub mod replay;
pub mod server;
pub mod tokenizer;
