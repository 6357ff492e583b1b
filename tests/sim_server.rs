//! The simulated vLLM server over real sockets, held against answers of a real one.

#[path = "sim_server/answers.rs"]
mod answers;
#[path = "sim_server/cache.rs"]
mod cache;
#[path = "sim_server/connections.rs"]
mod connections;
#[path = "sim_server/support.rs"]
mod support;
