//! Whether a request may go now, and where: one decision under the queue's and the gate's conditions.

use super::queue::{Limit, Verdict};
use super::working_set::{Place, Visit, WorkingSet};
use crate::prefix::EndpointId;
use crate::scheduling::{Decision, EndpointView, RequestView, Scheduler};
use crate::time::Mono;
use rand::Rng;
use smallvec::SmallVec;

/// How full the endpoints are that may be sent requests.
#[derive(Clone, Debug)]
pub struct Room {
    endpoints: SmallVec<[Fullness; 16]>,
}

/// How full one endpoint is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fullness {
    pub endpoint: EndpointId,
    /// Prefill that it has pending, in seconds.
    pub pending_s: f64,
    /// Share of its KV cache that is in use, where it tells.
    pub kv_share: Option<f64>,
}

impl Fullness {
    /// With `pending_tokens` to prefill at the pace that `scheduler` believes of the endpoint.
    pub fn new(
        now: Mono,
        scheduler: &Scheduler,
        endpoint: EndpointId,
        pending_tokens: u64,
        kv_share: Option<f64>,
    ) -> Self {
        let pending_s = scheduler.prefill_s_per_token(now, endpoint) * pending_tokens as f64;
        Self {
            endpoint,
            pending_s,
            kv_share,
        }
    }

    fn is_within(&self, limit: &Limit) -> bool {
        self.pending_s <= limit.pending_s && self.kv_share.is_none_or(|share| share <= limit.kv_share)
    }
}

impl Room {
    /// Endpoints that may be sent requests.
    pub fn new(endpoints: impl IntoIterator<Item = Fullness>) -> Self {
        Self {
            endpoints: endpoints.into_iter().collect(),
        }
    }

    /// Whether there is no endpoint at all.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Whether any endpoint takes something; also when there is none, for then nothing is won by waiting.
    pub fn is_any_free(&self, limit: &Limit) -> bool {
        self.endpoints.is_empty() || self.endpoints.iter().any(|endpoint| endpoint.is_within(limit))
    }

    /// Prefill that the endpoint has pending, in seconds.
    fn pending_s(&self, endpoint: EndpointId) -> f64 {
        self.of(endpoint).map_or(0.0, |endpoint| endpoint.pending_s)
    }

    /// Whether the endpoint takes something.
    pub fn is_free(&self, endpoint: EndpointId, limit: &Limit) -> bool {
        self.of(endpoint).is_none_or(|endpoint| endpoint.is_within(limit))
    }

    fn of(&self, endpoint: EndpointId) -> Option<&Fullness> {
        self.endpoints.iter().find(|other| other.endpoint == endpoint)
    }
}

/// What a turn is decided by, beside the request.
#[derive(Clone, Copy)]
pub struct Conditions<'a> {
    pub now: Mono,
    pub scheduler: &'a Scheduler,
    /// Who is busy, and how busy is too busy; `None` while the queue is empty and some endpoint is free: then the choice is the policy's alone.
    pub room: Option<(&'a Room, &'a Limit)>,
    pub gate: Option<&'a WorkingSet>,
}

impl Conditions<'_> {
    /// The request's decision, or why it must wait; `visit` is what the gate is to know of it. A decision without
    /// candidates is returned as it is.
    ///
    /// # Errors
    /// [`Verdict::Gated`] or [`Verdict::Busy`].
    pub fn decide(
        &self,
        req: &RequestView,
        visit: &Visit,
        views: &[EndpointView],
        rng: &mut (impl Rng + ?Sized),
    ) -> Result<Decision, Verdict> {
        let gated = self.gated(req, visit, views);
        let mut exclude: SmallVec<[EndpointId; 16]> = req.exclude.into();
        exclude.extend_from_slice(&gated);
        let req = RequestView {
            exclude: &exclude,
            ..req.clone()
        };
        let decision = self.scheduler.evaluate(self.now, &req, views, rng);
        let Some(chosen) = decision.chosen().map(|scored| scored.id) else {
            return if gated.is_empty() {
                Ok(decision)
            } else {
                Err(Verdict::Gated)
            };
        };
        match self.room {
            Some((room, limit)) if !room.is_free(chosen, limit) => {
                let diverted = limit
                    .diverts
                    .then(|| self.diverted(&req, chosen, room, limit, views, rng));
                diverted.flatten().ok_or(Verdict::Busy(chosen))
            }
            _ => Ok(decision),
        }
    }

    /// The decision among free endpoints only, if that one's first token would come sooner than the `busy` one's.
    fn diverted(
        &self,
        req: &RequestView,
        busy: EndpointId,
        room: &Room,
        limit: &Limit,
        views: &[EndpointView],
        rng: &mut (impl Rng + ?Sized),
    ) -> Option<Decision> {
        let full = views
            .iter()
            .map(|view| view.id)
            .filter(|id| !room.is_free(*id, limit));
        let exclude: SmallVec<[EndpointId; 16]> = req.exclude.iter().copied().chain(full).collect();
        let req = RequestView {
            exclude: &exclude,
            ..req.clone()
        };
        let decision = self.scheduler.evaluate(self.now, &req, views, rng);
        let first_token_s = |id: EndpointId| {
            let view = views.iter().find(|view| view.id == id)?;
            let missing = req.prompt_tokens.saturating_sub(view.match_tokens);
            let prefill_s = self.scheduler.prefill_s_per_token(self.now, id) * f64::from(missing);
            Some(room.pending_s(id) + prefill_s)
        };
        let is_sooner = first_token_s(decision.chosen()?.id)? < first_token_s(busy)?;
        is_sooner.then_some(decision)
    }

    /// Endpoints whose caches have no room for the request.
    fn gated(&self, req: &RequestView, visit: &Visit, views: &[EndpointView]) -> SmallVec<[EndpointId; 16]> {
        let Some(gate) = self.gate else {
            return SmallVec::new();
        };
        let kind = gate.kind(self.now, visit);
        if !kind.needs_room() {
            return SmallVec::new();
        }
        let pace = |view: &EndpointView| self.scheduler.prefill_s_per_token(self.now, view.id);
        let tokens_per_s: f64 = views.iter().map(|view| pace(view).recip()).sum();
        let output_tokens = self
            .scheduler
            .expected_output_tokens(req.model, req.max_output_tokens);
        let place = |view: &EndpointView| Place {
            endpoint: view.id,
            match_tokens: view.match_tokens,
            capacity_tokens: view.capacity_tokens,
        };
        let places: SmallVec<[Place; 16]> = views.iter().map(place).collect();
        gate.full(self.now, kind, visit, output_tokens, &places, tokens_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overload::queue::{QueueSettings, Standing};
    use crate::scheduling::Policy;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    const FULL: EndpointId = EndpointId(0);
    const FREE: EndpointId = EndpointId(1);

    fn fullness(endpoint: EndpointId, pending_s: f64, kv_share: Option<f64>) -> Fullness {
        Fullness {
            endpoint,
            pending_s,
            kv_share,
        }
    }

    #[test]
    fn an_endpoint_is_free_within_both_limits() {
        let limit = QueueSettings::default().limit(Standing::Floods);
        let free =
            |pending_s, kv_share| Room::new([fullness(FULL, pending_s, kv_share)]).is_free(FULL, &limit);
        assert!(free(0.3, Some(0.9)) && free(0.0, None));
        assert!(!free(0.31, Some(0.1)) && !free(0.0, Some(0.91)));
        let even = QueueSettings::default().limit(Standing::Even);
        let room = Room::new([fullness(FULL, 1.0, Some(1.0))]);
        assert!(room.is_any_free(&even) && !room.is_any_free(&limit));
        assert!(Room::new([]).is_any_free(&limit), "nothing is won by waiting");
    }

    /// Where a prompt of 8,000 tokens goes of which the full endpoint holds this many; nothing is pending at the free one.
    fn decided(standing: Standing, match_tokens: u32, pending_s: f64) -> Result<EndpointId, Verdict> {
        let mut scheduler = Scheduler::new(Policy::preset("least-cost").unwrap());
        let pace = crate::scheduling::Constants {
            prefill_s_per_token: 2e-4,
            ..crate::scheduling::Constants::default()
        };
        scheduler.assume(FULL, pace);
        scheduler.assume(FREE, pace);
        let views = [
            EndpointView {
                match_tokens,
                ..EndpointView::idle(FULL, "full")
            },
            // The policy avoids it for its KV cache, which is nearly full.
            EndpointView {
                active_tokens: 99_000,
                capacity_tokens: Some(100_000),
                ..EndpointView::idle(FREE, "free")
            },
        ];
        let room = Room::new([fullness(FULL, pending_s, None), fullness(FREE, 0.0, None)]);
        let limit = QueueSettings::default().limit(standing);
        let conditions = Conditions {
            now: Mono::ZERO,
            scheduler: &scheduler,
            room: Some((&room, &limit)),
            gate: None,
        };
        let req = RequestView {
            prompt_tokens: 8_000,
            keyed: true,
            ..RequestView::default()
        };
        let decision = conditions.decide(&req, &Visit::default(), &views, &mut Pcg64Mcg::seed_from_u64(1));
        decision.map(|decision| decision.chosen().unwrap().id)
    }

    #[test]
    fn beside_a_flood_nobody_waits_where_another_endpoint_answers_sooner() {
        assert_eq!(decided(Standing::Even, 0, 2.0), Err(Verdict::Busy(FULL)));
        assert_eq!(decided(Standing::Beside, 0, 2.0), Ok(FREE));
        // All but 64 tokens are cached on the full one, and 8,000 take the free one 1.6 s.
        assert_eq!(decided(Standing::Beside, 7_936, 2.0), Ok(FREE));
        let waits = Err(Verdict::Busy(FULL));
        assert_eq!(decided(Standing::Beside, 7_936, 1.2), waits);
        assert_eq!(decided(Standing::Beside, 7_936, 0.9), Ok(FULL));
    }
}
