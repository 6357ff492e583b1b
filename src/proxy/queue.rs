//! Waiting for a turn: whose request it is, the wait itself, and what a client is told that waited in vain.

use super::Gateway;
use super::answer;
use super::auth;
use super::context::Refusal;
use super::error::Reason;
use crate::overload::queue::FlowId;
use crate::pool::Plan;
use crate::pool::waiting::{Claim, Sharing, TICK, Turned, TurnedAway, Waiting};
use http::HeaderMap;
use pingora_core::Result;
use pingora_proxy::Session;
use xxhash_rust::xxh3::xxh3_64;

/// Shares of a request that its client calls urgent, or says can wait.
const URGENT: (&str, f64) = ("high", 8.0);
const PATIENT: (&str, f64) = ("low", 0.125);

/// Whose request it is, for a fair share of the queue.
pub fn claim(sharing: &Sharing, headers: &HeaderMap, bytes: usize) -> Claim {
    let tenant = match &sharing.tenant_header {
        Some(name) => headers.get(name).map(|value| value.as_bytes()),
        None => auth::presented(headers),
    };
    let tenant = tenant.map_or(0, xxh3_64);
    let weight = sharing.weights.get(&tenant).copied().unwrap_or(1.0);
    let priority = sharing
        .priority_header
        .as_ref()
        .and_then(|name| headers.get(name));
    let priority = [URGENT, PATIENT]
        .into_iter()
        .position(|(word, _)| priority.is_some_and(|value| value == word));
    // A tenant's urgent and patient requests are flows of their own, so that one cannot hold up the other.
    let flow = priority.map_or(tenant, |at| tenant.rotate_left(1 + at as u32) ^ (1 + at as u64));
    Claim {
        flow: FlowId(flow),
        weight: weight * priority.map_or(1.0, |at| [URGENT, PATIENT][at].1),
        bytes: bytes as u64,
    }
}

impl Gateway {
    /// Waits until it is the request's turn, its time or the gateway's is over, or its client leaves.
    ///
    /// # Errors
    /// When the client has left.
    pub(super) async fn wait(
        &self,
        session: &mut Session,
        mut waiting: Waiting,
    ) -> Result<std::result::Result<Plan, Refusal>> {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                biased;
                turn = waiting.turn() => return Ok(turn.map_err(|away| refusal(&away))),
                // Nothing is left to read: whatever comes is the client's going away.
                Err(_) = session.downstream_session.read_body_or_idle(true) => return Err(answer::client_gone()),
                () = self.drain.over() => return Ok(Err(Refusal::plain(Reason::Draining))),
                _ = tick.tick() => waiting.tick(self.now()),
            }
        }
    }
}

/// What the client is told.
pub fn refusal(away: &TurnedAway) -> Refusal {
    let (reason, detail) = match (away.any_ready, away.why) {
        (false, _) => (Reason::NoEndpoint, None),
        (true, Turned::Full) => (Reason::TooManyRequests, Some("Too many requests are waiting.")),
        (true, Turned::GaveWay) => (
            Reason::TooManyRequests,
            Some("Too many requests are waiting, and most of them with this key."),
        ),
        (true, Turned::TimedOut) => (
            Reason::TooManyRequests,
            Some("No endpoint had room within the longest wait."),
        ),
        (true, Turned::NoRoom) => (
            Reason::TooManyRequests,
            Some("No endpoint's KV cache had room for another conversation within the longest wait."),
        ),
    };
    Refusal {
        reason,
        detail: detail.map(str::to_owned),
        retry_after: Some(away.retry_after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use http::header::AUTHORIZATION;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        pairs.collect()
    }

    #[test]
    fn keys_are_tenants_and_priorities_are_flows_of_their_own() {
        let sharing = Sharing {
            priority_header: Some("x-priority".parse().unwrap()),
            ..Sharing::default()
        };
        let of = |pairs: &[(&'static str, &'static str)]| claim(&sharing, &headers(pairs), 7);
        let key = (AUTHORIZATION.as_str(), "Bearer one");
        let plain = of(&[key]);
        assert_eq!((plain.weight, plain.bytes), (1.0, 7));
        assert_eq!(plain, of(&[("x-api-key", "one")]));
        assert_ne!(plain.flow, of(&[("x-api-key", "two")]).flow);
        let (high, low) = (
            of(&[key, ("x-priority", "high")]),
            of(&[key, ("x-priority", "low")]),
        );
        assert_eq!((high.weight, low.weight), (8.0, 0.125));
        assert!(high.flow != plain.flow && low.flow != plain.flow && high.flow != low.flow);
        assert_eq!(of(&[key, ("x-priority", "whatever")]), plain);
    }

    #[test]
    fn priorities_are_flows_of_their_own_without_keys_too() {
        let sharing = Sharing {
            priority_header: Some("x-priority".parse().unwrap()),
            ..Sharing::default()
        };
        let of = |pairs: &[(&'static str, &'static str)]| claim(&sharing, &headers(pairs), 0).flow;
        let (plain, high) = (of(&[]), of(&[("x-priority", "high")]));
        let low = of(&[("x-priority", "low")]);
        assert!(plain != high && plain != low && high != low);
    }

    #[test]
    fn a_header_may_name_the_tenant_and_weigh_it() {
        let sharing = Sharing {
            tenant_header: Some("x-tenant".parse().unwrap()),
            weights: [(xxh3_64(b"gold"), 4.0)].into(),
            ..Sharing::default()
        };
        let gold = claim(&sharing, &headers(&[("x-tenant", "gold"), ("x-api-key", "a")]), 0);
        assert_eq!(gold.weight, 4.0);
        assert_eq!(
            gold.flow,
            claim(&sharing, &headers(&[("x-tenant", "gold")]), 0).flow
        );
        assert_eq!(claim(&sharing, &headers(&[]), 0).flow, FlowId(0));
    }
}
