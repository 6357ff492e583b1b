//! What the queue can be told, and what that makes of an endpoint.

use std::time::Duration;

/// What the queue can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSettings {
    /// Requests that may wait at a time.
    pub max_requests: usize,
    /// Bytes of request bodies that may wait at a time.
    pub max_bytes: u64,
    /// B: an endpoint with more than this to prefill, in seconds, gets nothing from the queue.
    pub hold_above_s: f64,
    /// The same for a flow that floods, see [`Standing`]; at most `hold_above_s`.
    pub hold_flood_above_s: f64,
    /// Share of its KV cache in use from which on an endpoint gets nothing of a flow that floods.
    pub flood_kv_share: f64,
    /// Own miss, in mean misses, from which a request goes W later than one that misses nothing; shorter ones in
    /// proportion.
    pub long_miss: f64,
    /// W: nobody is overtaken by a request that arrived this much later, or more.
    pub overtake: Duration,
    /// Requests of one flow that are looked at when an endpoint frees.
    pub look_ahead: usize,
}

impl Default for QueueSettings {
    /// Chosen by event simulation, see `docs/overload.md`.
    fn default() -> Self {
        Self {
            max_requests: 1024,
            max_bytes: 256 << 20,
            hold_above_s: 1.0,
            hold_flood_above_s: 0.3,
            flood_kv_share: 0.9,
            long_miss: 3.0,
            overtake: Duration::from_secs(60),
            look_ahead: 96,
        }
    }
}

/// What a flow is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody floods.
    Even,
    /// It has had much more lately than another that is there too.
    Floods,
    /// It is there beside one that floods.
    Beside,
}

impl QueueSettings {
    /// How full an endpoint may be that takes a request of a flow of this standing.
    pub fn limit(&self, standing: Standing) -> Limit {
        let (pending_s, kv_share) = match standing {
            Standing::Floods => (
                self.hold_flood_above_s.min(self.hold_above_s),
                self.flood_kv_share,
            ),
            Standing::Even | Standing::Beside => (self.hold_above_s, f64::INFINITY),
        };
        Limit {
            pending_s,
            kv_share,
            diverts: standing == Standing::Beside,
        }
    }
}

/// How full an endpoint may be that takes a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Prefill that it has pending, in seconds.
    pub pending_s: f64,
    /// Share of its KV cache that is in use, as far as is known.
    pub kv_share: f64,
    /// Where the best endpoint is fuller, the request goes to another one if that answers sooner; otherwise it waits
    /// for the best one.
    pub diverts: bool,
}
