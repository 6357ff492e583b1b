//! What to do when more work comes than the fleet can take: wait in the right place, and keep the working set inside
//! the caches.
//!
//! [`queue`] holds requests back in the router while every endpoint has enough to prefill, so that each is placed by
//! what is true when its turn comes. [`working_set`] decides which conversations may begin while the running ones
//! fill the caches. Both are state machines over [`Mono`](crate::time::Mono): the gateway and the replay run the same
//! code.

pub mod drain;
pub mod queue;
pub mod turn;
pub mod working_set;

use std::time::Duration;

/// Share of what was observed that counts still, `elapsed` later: exponential forgetting.
fn kept(elapsed: Duration, half_life_s: f64) -> f64 {
    (-elapsed.as_secs_f64() / half_life_s).exp2()
}
