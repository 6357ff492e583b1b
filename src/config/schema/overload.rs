//! What happens when more work comes than the endpoints can take.

use super::super::units::{ByteSize, Period};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// What happens when more work comes than the endpoints can take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Overload {
    /// Requests wait in the gateway while every endpoint has enough to prefill, and are placed when their turn comes.
    pub queue: Queue,
    /// New conversations wait in that queue while the running ones fill the endpoints' KV caches.
    pub working_set: WorkingSet,
}

/// The gateway's queue. At normal load nothing waits, and every request goes where it would go without the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Off: every request is sent to an endpoint at once and waits there.
    pub enabled: bool,
    /// Most requests that wait at a time. Beyond: 429 with Retry-After, for the tenant that holds the most.
    pub max_requests: NonZeroUsize,
    /// Most bytes of request bodies that wait at a time.
    pub max_bytes: ByteSize,
    /// Longest wait. Longer: 429 with Retry-After.
    pub timeout: Period,
    /// An endpoint that has more than this to prefill gets nothing from the queue.
    pub hold_above: Period,
    /// The same for a tenant that takes much more than another that is there too: at most `hold_above`. Less lets the
    /// other's requests through sooner; much less than an engine step takes costs throughput.
    pub hold_flood_above: Period,
    /// Short prompts may go before long ones, but never before one that came this much earlier.
    pub overtake: Period,
    /// Request header that names the tenant; the queue is shared fairly between tenants. Default: the API key.
    #[schemars(example = "x-tenant")]
    pub tenant_header: Option<String>,
    /// Request header by which a client may say `high` (eight times its share) or `low` (an eighth). Default: none.
    #[schemars(example = "x-priority")]
    pub priority_header: Option<String>,
    /// Shares of tenants, by the value of `tenant_header`; 1 for those not named.
    pub weights: BTreeMap<String, f64>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            enabled: true,
            max_requests: NonZeroUsize::MIN.saturating_add(1023),
            max_bytes: ByteSize::mib(256),
            timeout: Period::from_secs(60),
            hold_above: Period::from_secs(1),
            hold_flood_above: Period::from_millis(300),
            overtake: Period::from_secs(60),
            tenant_header: None,
            priority_header: None,
            weights: BTreeMap::new(),
        }
    }
}

/// What keeps the working set inside the KV caches: past their capacity every turn evicts somebody else's context, and
/// less gets done the more is asked. For long conversations such as those of coding agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkingSet {
    /// On: conversations that have begun go on, new ones begin when there is room. Needs `overload.queue`.
    pub enabled: bool,
    /// Share of an endpoint's KV capacity that conversations may hold when another one is admitted.
    pub fraction: f64,
    /// How long an idle conversation counts at most; less once 99 of 100 are seen to come back sooner.
    pub idle: Period,
    /// How long a conversation may pause and still go on before new ones begin.
    pub tenure: Period,
    /// How long a conversation that comes back after its context was evicted waits for an endpoint with room for it.
    pub return_wait: Period,
    /// The gate is open while at most this share of the tokens computed anew had been in a cache a moment ago: then
    /// nothing is evicted too early.
    pub regret: f64,
    /// The gate is open while the prompts of the last minutes, had nothing of them been cached, would have taken at most
    /// this share of the time that the endpoints have: then evicting costs little. 0: whatever they take.
    pub spare: f64,
    /// Longest wait of a new conversation. Longer: 429 with Retry-After.
    pub timeout: Period,
    /// Request headers that may name the conversation, the first that is there. Without one it is known by its blocks.
    pub session_headers: Vec<String>,
}

impl Default for WorkingSet {
    fn default() -> Self {
        Self {
            enabled: false,
            fraction: 0.9,
            idle: Period::from_secs(150),
            tenure: Period::from_secs(900),
            return_wait: Period::from_secs(30),
            regret: 0.2,
            spare: 1.0,
            timeout: Period::from_secs(120),
            session_headers: vec!["x-session-id".to_owned()],
        }
    }
}
