//! Homing: a KV-cache-aware L7 load balancer for fleets of vLLM servers.
//!
//! The pure core ([`prefix`], [`openai`], [`scheduling`], [`sim::engine`]) takes time, randomness and
//! state as arguments; the shell ([`proxy`], [`datalayer`], [`admin`], [`lifecycle`]) holds the sockets
//! and the clocks.

#![warn(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "nothing that a client or an operator sends may end a thread"
)]
#![warn(
    clippy::print_stdout,
    reason = "it panics when the reader has left: write to `stdout()` and pass the error on"
)]

pub mod admin;
pub mod cli;
pub mod config;
pub mod datalayer;
pub mod discovery;
pub mod kv_events;
pub mod lifecycle;
#[deny(clippy::disallowed_methods)]
pub mod openai;
#[deny(clippy::disallowed_methods)]
pub mod overload;
pub mod pool;
#[deny(clippy::disallowed_methods)]
pub mod prefix;
pub mod proxy;
#[deny(clippy::disallowed_methods)]
pub mod scheduling;
pub mod sim;
pub mod telemetry;
pub mod time;
pub mod tls;
pub mod tokens;
