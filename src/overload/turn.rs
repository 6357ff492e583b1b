//! Whether a request may go now, and where: one decision under the queue's and the gate's conditions.

use super::queue::Verdict;
use super::working_set::WorkingSet;
use crate::prefix::EndpointId;
use crate::scheduling::{Decision, EndpointView, RequestView, Scheduler};
use crate::time::Mono;
use rand::Rng;
use smallvec::SmallVec;

/// Which endpoints have little enough to prefill to be sent more.
#[derive(Clone, Debug)]
pub struct Room {
    limit_s: f64,
    pending_s: SmallVec<[(EndpointId, f64); 16]>,
}

impl Room {
    /// Endpoints that may be sent requests, each with the prefill that it has pending, in seconds.
    pub fn new(hold_above_s: f64, pending_s: impl IntoIterator<Item = (EndpointId, f64)>) -> Self {
        Self {
            limit_s: hold_above_s,
            pending_s: pending_s.into_iter().collect(),
        }
    }

    /// Whether there is no endpoint at all.
    pub fn is_empty(&self) -> bool {
        self.pending_s.is_empty()
    }

    /// Whether any endpoint takes something; also when there is none, for then nothing is won by waiting.
    pub fn is_any_free(&self) -> bool {
        self.pending_s.is_empty()
            || self
                .pending_s
                .iter()
                .any(|(_, pending_s)| *pending_s <= self.limit_s)
    }

    /// Whether the endpoint takes something.
    pub fn is_free(&self, endpoint: EndpointId) -> bool {
        let found = self.pending_s.iter().find(|(id, _)| *id == endpoint);
        found.is_none_or(|(_, pending_s)| *pending_s <= self.limit_s)
    }
}

/// What a turn is decided by, beside the request.
#[derive(Clone, Copy)]
pub struct Conditions<'a> {
    pub now: Mono,
    pub scheduler: &'a Scheduler,
    /// Who is busy; `None` while the queue is empty and some endpoint is free: then the choice is the policy's alone.
    pub room: Option<&'a Room>,
    pub gate: Option<&'a WorkingSet>,
}

impl Conditions<'_> {
    /// The request's decision, or why it must wait. `fresh`: it would add a conversation to the working set. A
    /// decision without candidates is returned as it is.
    ///
    /// # Errors
    /// [`Verdict::Gated`] or [`Verdict::Busy`].
    pub fn decide(
        &self,
        req: &RequestView,
        fresh: bool,
        views: &[EndpointView],
        rng: &mut (impl Rng + ?Sized),
    ) -> Result<Decision, Verdict> {
        let gated = self.gated(req, fresh, views);
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
            Some(room) if !room.is_free(chosen) => Err(Verdict::Busy(chosen)),
            _ => Ok(decision),
        }
    }

    /// Endpoints whose caches have no room for a fresh request.
    fn gated(&self, req: &RequestView, fresh: bool, views: &[EndpointView]) -> SmallVec<[EndpointId; 16]> {
        let Some(gate) = self.gate.filter(|_| fresh) else {
            return SmallVec::new();
        };
        let pace = |view: &EndpointView| self.scheduler.prefill_s_per_token(self.now, view.id);
        let tokens_per_s: f64 = views.iter().map(|view| pace(view).recip()).sum();
        if gate.is_spare(self.now, tokens_per_s) {
            return SmallVec::new();
        }
        let output_tokens = self
            .scheduler
            .expected_output_tokens(req.model, req.max_output_tokens);
        let full = |view: &&EndpointView| {
            let missing = req.prompt_tokens.saturating_sub(view.match_tokens);
            let new_tokens = u64::from(missing) + u64::from(output_tokens);
            !gate.admits(view.id, new_tokens, view.capacity_tokens)
        };
        views.iter().filter(full).map(|view| view.id).collect()
    }
}
