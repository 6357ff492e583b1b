//! Which endpoint: filters, scorers, pickers, presets and the least-cost model.

pub mod view;

pub use view::{Decision, DecisionKind, EndpointView, RequestView, Scored, Scraped};
