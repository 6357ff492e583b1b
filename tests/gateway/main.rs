//! The gateway as a process, between raw clients and scripted model servers.

mod bodies;
mod chaos;
mod clock;
mod contract;
mod discovery;
mod endings;
mod field_cases;
mod floods;
mod framing;
mod front;
mod keepalive;
mod kv_events;
mod life;
mod names;
mod overload;
mod random_endings;
mod record;
mod reload;
mod seeds;
mod segments;
mod soak;
#[allow(
    dead_code,
    unused_imports,
    reason = "each part of the tests uses its own part of it"
)]
mod support;
mod tls;
mod traces;
mod truth;
mod working_set;
