//! Trace replay in virtual time: workloads against modelled endpoints, through the gateway's own scheduling code.
//!
//! [`trace`] reads recorded traffic and [`generate`] makes some up; [`run`](run::run) plays a [`Workload`] against a
//! [`FleetSpec`] with one policy, and [`report`] sums up. Nothing reads a clock or global randomness: the same
//! arguments give the same numbers. The endpoints are [`engine`](super::engine) models, the index is the gateway's,
//! and so are the scheduler and the load counts that it sees.

mod fleet;
pub mod generate;
pub mod plot;
pub mod report;
mod run;
pub mod trace;
pub mod workload;

pub use fleet::{Change, ChangeKind, FleetSpec};
pub use run::{Held, Outcome, Overload, Record, run, run_with};
pub use workload::{Session, Turn, Workload};
