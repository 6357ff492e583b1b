//! What the gateway tells about itself: metrics, the access log, traces, recent decisions.

pub mod access_log;
pub mod buckets;
pub mod cost;
pub mod decisions;
mod endpoints;
mod kv;
mod lines;
pub mod metrics;
pub mod models;
pub mod names;
pub mod queue;
pub mod recorder;
mod series;
pub mod traces;
pub mod working_set;

pub use buckets::BucketCounts;
pub use endpoints::EndpointMetrics;
pub use metrics::Metrics;
pub use queue::QueueMetrics;
pub use working_set::WorkingSetMetrics;
