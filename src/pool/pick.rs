//! The choice: one look at the index and the load, one decision, one reservation.

use super::keys::{BlockKeys, Keys};
use super::load::Reservation;
use super::plan::{Attempt, Plan};
use super::prompt::Prompt;
use super::slow_start::SlowStart;
use super::snapshot::{Entry, Snapshot, State};
use super::{Picker, Pool};
use crate::prefix::{EndpointId, MAX_ENDPOINTS, Provisional};
use crate::scheduling::{Decision, EndpointView, RequestView, Scored};
use crate::time::Mono;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::Arc;

/// What one endpoint holds of a prompt.
#[derive(Clone, Copy, Debug, Default)]
struct Match {
    /// Tokens that the engine can reuse.
    tokens: u32,
    /// Bytes of chunks, partial tails included.
    bytes: u64,
}

thread_local! {
    /// Matched keys by endpoint id: a lookup writes into it, nothing is allocated per request.
    static MATCHED: RefCell<Vec<u32>> = RefCell::new(vec![0; MAX_ENDPOINTS]);
}

impl Pool {
    /// Decides where `prompt` goes and reserves a place there, visible to the next decision at once.
    ///
    /// The plan has no attempt when no endpoint can take it.
    pub fn place(self: &Arc<Self>, prompt: Prompt, now: Mono) -> Plan {
        let snapshot = self.snapshot.load_full();
        let mut picker = self.picker.lock();
        picker.prefill_due.release(now);
        let decision = self.decide(&snapshot, &prompt, &mut picker, now);
        let attempt = decision.chosen().and_then(|chosen| {
            let entry = snapshot.by_id(chosen.id)?;
            Some(self.reserve(&mut picker, entry, &prompt, &decision, chosen, now))
        });
        drop(picker);
        self.retry_budget.request(now);
        let tried = attempt.iter().map(|attempt| attempt.endpoint.id).collect();
        Plan {
            pool: self.clone(),
            prompt,
            decision,
            snapshot,
            tried,
            attempt,
        }
    }

    /// The decision that `prompt` would get now; changes nothing.
    pub fn explain(&self, prompt: &Prompt, now: Mono) -> (Decision, Arc<Snapshot>) {
        let snapshot = self.snapshot.load_full();
        let mut picker = self.picker.lock();
        // Explaining must not change what the next request gets, not even a random draw.
        let before = picker.rng.clone();
        let decision = self.decide(&snapshot, prompt, &mut picker, now);
        picker.rng = before;
        drop(picker);
        (decision, snapshot)
    }

    /// The next-best endpoint of a decision whose first choices failed.
    pub(super) fn pick_next(&self, plan: &Plan, now: Mono) -> Option<Attempt> {
        let snapshot = self.snapshot.load();
        let mut picker = self.picker.lock();
        let (next, entry) = plan.decision.ranked.iter().find_map(|scored| {
            let entry = snapshot.by_id(scored.id)?;
            let open = !plan.tried.contains(&scored.id) && unavailable(entry).is_none();
            open.then_some((scored, entry))
        })?;
        Some(self.reserve(&mut picker, entry, &plan.prompt, &plan.decision, next, now))
    }

    fn decide(&self, snapshot: &Snapshot, prompt: &Prompt, picker: &mut Picker, now: Mono) -> Decision {
        let matches = self.look_up(snapshot, prompt);
        let mut filtered: SmallVec<[(EndpointId, &'static str); 16]> = SmallVec::new();
        let mut views = SmallVec::<[EndpointView<'_>; 16]>::new();
        let slow_start = SlowStart::of(snapshot, now, self.settings.slow_start);
        for (entry, found) in snapshot.entries.iter().zip(matches.iter().copied()) {
            match unavailable(entry).or_else(|| slow_start.unavailable(entry, now)) {
                Some(reason) => filtered.push((entry.endpoint.id, reason)),
                None => views.push(self.view(entry, prompt, found, now)),
            }
        }
        if views.is_empty() {
            // Better a burst for those that just joined than no answer.
            for (entry, found) in snapshot.entries.iter().zip(matches) {
                if unavailable(entry).is_none() {
                    filtered.retain(|(id, _)| *id != entry.endpoint.id);
                    views.push(self.view(entry, prompt, found, now));
                }
            }
        }
        let request = request_view(prompt, &[]);
        let mut decision = picker.scheduler.evaluate(now, &request, &views, &mut picker.rng);
        decision.filtered.extend(filtered);
        decision
    }

    /// What each endpoint of the snapshot holds of the prompt, in the snapshot's order.
    fn look_up(&self, snapshot: &Snapshot, prompt: &Prompt) -> SmallVec<[Match; 16]> {
        let mut matches: SmallVec<[Match; 16]> =
            SmallVec::from_elem(Match::default(), snapshot.entries.len());
        MATCHED.with_borrow_mut(|matched| match &prompt.keys {
            None => {}
            Some(Keys::Chunks(keys)) => {
                for chain in keys.chains() {
                    self.index.matches(keys.keys(chain), matched);
                    for (found, entry) in matches.iter_mut().zip(&snapshot.entries) {
                        let blocks = matched[usize::from(entry.endpoint.id.0)];
                        found.bytes += keys.matched_bytes(chain, blocks);
                    }
                }
                for (found, entry) in matches.iter_mut().zip(&snapshot.entries) {
                    found.tokens = prompt.reusable_tokens(found.bytes, self.block_tokens(entry));
                }
            }
            Some(Keys::Blocks(keys)) => self.look_up_blocks(snapshot, keys, matched, &mut matches),
        });
        matches
    }

    /// Each endpoint is looked up with the blocks of its own size.
    fn look_up_blocks(
        &self,
        snapshot: &Snapshot,
        keys: &BlockKeys,
        matched: &mut [u32],
        matches: &mut [Match],
    ) {
        for size in keys.block_sizes() {
            for (at, chain) in keys.chains(size).enumerate() {
                self.index.matches(chain, matched);
                for (found, entry) in matches.iter_mut().zip(&snapshot.entries) {
                    if self.block_tokens(entry) == size {
                        let blocks = matched[usize::from(entry.endpoint.id.0)];
                        found.tokens += keys.reusable_tokens(at, blocks, size);
                    }
                }
            }
        }
    }

    fn view<'a>(&self, entry: &'a Entry, prompt: &Prompt, found: Match, now: Mono) -> EndpointView<'a> {
        let load = entry.endpoint.load.sample();
        let (held, whole) = match prompt.bytes() {
            0 => (f64::from(found.tokens), f64::from(prompt.tokens)),
            bytes => (found.bytes as f64, bytes as f64),
        };
        EndpointView {
            id: entry.endpoint.id,
            name: &entry.endpoint.name,
            match_tokens: found.tokens,
            match_ratio: if whole == 0.0 { 0.0 } else { held / whole },
            scraped: entry.gauges(now, self.settings.stale_after),
            inflight: load.inflight,
            pending_prefill_tokens: load.pending_prefill_tokens,
            active_tokens: load.active_tokens,
            cached_tokens: self.cached_tokens(entry),
            capacity_tokens: self.capacity_tokens(entry),
            ready_for_s: entry
                .ready_since
                .map_or(f64::INFINITY, |since| now.since(since).as_secs_f64()),
        }
    }

    fn cached_tokens(&self, entry: &Entry) -> u64 {
        let blocks = self.index.blocks(entry.endpoint.id);
        if self.exact.is_some() {
            return blocks as u64 * u64::from(self.block_tokens(entry));
        }
        let bytes = blocks as f64 * super::CHUNK_BYTES as f64;
        (bytes / super::tokens::DEFAULT_BYTES_PER_TOKEN) as u64
    }

    fn reserve(
        &self,
        picker: &mut Picker,
        entry: &Entry,
        prompt: &Prompt,
        decision: &Decision,
        to: &Scored,
        now: Mono,
    ) -> Attempt {
        let request = request_view(prompt, &[]);
        let mut view = self.view(entry, prompt, Match::default(), now);
        view.match_tokens = to.match_tokens;
        let dispatch = picker.scheduler.commit(now, &request, decision, &view);
        let output = picker
            .scheduler
            .expected_output_tokens(&prompt.model, prompt.max_output_tokens);
        let uncached = prompt.tokens.saturating_sub(to.match_tokens);
        let context = prompt
            .tokens
            .saturating_add(if prompt.keys.is_some() { output } else { 0 });
        let endpoint = entry.endpoint.clone();
        let block_tokens = self.block_tokens(entry);
        let reservation = Reservation::take(&endpoint.load, uncached, context);
        if let Some(predicted_s) = dispatch.predicted_first_byte_s.filter(|_| !prompt.stream) {
            picker.prefill_due.expect(now, predicted_s, reservation.pending());
        }
        let mut provisional = SmallVec::<[Provisional; 1]>::new();
        if prompt.fills_cache {
            let chains = prompt.chains(block_tokens).into_iter();
            provisional.extend(chains.map(|chain| self.index.store(endpoint.id, chain)));
        }
        Attempt {
            block_tokens,
            match_tokens: to.match_tokens,
            active_before: view.active_tokens,
            endpoint,
            dispatch,
            reservation,
            provisional,
        }
    }
}

/// Why an endpoint takes no request now.
fn unavailable(entry: &Entry) -> Option<&'static str> {
    match entry.state {
        State::Ready if entry.endpoint.is_full() => Some("at max_inflight"),
        State::Ready if entry.on_trial && entry.endpoint.load.sample().inflight > 0 => Some("on trial"),
        State::Ready => None,
        state => Some(state.as_str()),
    }
}

fn request_view<'a>(prompt: &'a Prompt, exclude: &'a [EndpointId]) -> RequestView<'a> {
    RequestView {
        model: &prompt.model,
        prompt_tokens: prompt.tokens,
        keyed: prompt.keys.is_some(),
        max_output_tokens: prompt.max_output_tokens,
        // Only the consistent-hash rule of the replay places by it.
        prefix_key: None,
        session: prompt.session,
        exclude,
    }
}
