//! Start, readiness, drain and exit of the process.

pub mod build;
pub mod drain;
mod exact;
pub mod readiness;
pub mod reload;
pub mod server;
pub mod stamp;
pub mod supervisor;

pub use drain::{Drain, InFlight};
pub use readiness::Readiness;
