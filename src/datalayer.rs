//! What an engine says about itself: its `/metrics` page and its load header, as values.
//!
//! `exposition`, `vllm`, `load_header` and `restart` are pure: they turn bytes into values. `fetch` and `watch` are
//! the shell around them; `dns` and `resolve` find where endpoints are.
//! `models` and `tokenize` ask engines for what KV block keys depend on.

pub mod dns;
pub mod exposition;
pub mod fetch;
pub mod load_header;
pub mod models;
pub mod resolve;
pub mod restart;
pub mod tokenize;
pub mod vllm;
pub mod watch;
