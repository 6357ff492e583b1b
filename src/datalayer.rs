//! What an engine says about itself: its `/metrics` page and its load header, as values.
//!
//! Pure: the fetching is done elsewhere, these modules turn bytes into [`vllm::EngineMetrics`].

pub mod exposition;
pub mod load_header;
pub mod restart;
pub mod vllm;
