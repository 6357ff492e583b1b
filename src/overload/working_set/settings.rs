//! What the gate can be told.

use std::time::Duration;

/// What the gate can be told; the defaults were chosen by event simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkingSetSettings {
    /// phi: share of an endpoint's KV capacity that conversations may fill when one is admitted. The rest is for what
    /// the caches hold of those that have ended.
    pub fraction: f64,
    /// tau: an idle conversation counts at most this long; less once it is known how long pauses are. Must exceed the
    /// longest usual pause between turns.
    pub idle: Duration,
    /// How long a conversation that was served may come back without waiting behind new ones.
    pub tenure: Duration,
    /// How long a conversation that comes back and whose context was evicted waits for an endpoint with room for it.
    pub return_wait: Duration,
    /// Theta: the gate is open while regret is at most this.
    pub regret: f64,
    /// Prompts of which some endpoint holds at least this share bring little that is new, and never wait.
    pub known: f64,
    /// Idle conversations of a touch class count when at least this share of them comes back.
    pub reuse: f64,
    /// The gate is open while the prompts of the last minutes, had nothing of them been cached, would have taken at most
    /// this share of the time that the endpoints have: then evicting costs little. 0: whatever they take.
    pub spare: f64,
    /// Conversations remembered at a time.
    pub max_conversations: usize,
}

impl Default for WorkingSetSettings {
    fn default() -> Self {
        Self {
            fraction: 0.9,
            idle: Duration::from_secs(150),
            tenure: Duration::from_secs(900),
            return_wait: Duration::from_secs(30),
            regret: 0.2,
            known: 0.9,
            reuse: 0.5,
            spare: 1.0,
            max_conversations: 65_536,
        }
    }
}
