//! The choice: one look at the index and the load, one decision, one reservation.

use super::gate::Gate;
use super::keys::{BlockKeys, Keys};
use super::load::Reservation;
use super::plan::{Attempt, Plan};
use super::prompt::Prompt;
use super::slow_start::SlowStart;
use super::snapshot::{Entry, Snapshot, State};
use super::{Picker, Pool};
use crate::overload::queue::{Limit, Verdict};
use crate::overload::turn::{Conditions, Fullness, Room};
use crate::prefix::{EndpointId, MAX_ENDPOINTS, Provisional};
use crate::scheduling::{Decision, EndpointView, RequestView, Scheduler, Scored};
use crate::time::Mono;
use parking_lot::MutexGuard;
use rand_pcg::Pcg64Mcg;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// What one endpoint holds of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Match {
    /// Tokens that the engine can reuse.
    pub tokens: u32,
    /// Bytes of chunks, partial tails included.
    bytes: u64,
}

/// On which terms a prompt is placed, or has to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// How full an endpoint may be that takes it.
    pub limit: Limit,
    /// It is its turn in the queue: the endpoint that is chosen must be free. Otherwise any free one will do.
    pub turn: bool,
    /// Others wait already: only what its wait depends on is asked.
    pub ask_only: bool,
    /// How long it has waited so far.
    pub waited: Duration,
}

/// A prompt that has to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub verdict: Verdict,
    /// Prefill that it needs where most of it is cached, in seconds.
    pub miss_s: f64,
    /// Tokens to prefill and to generate.
    pub work_tokens: f64,
    /// Those of them to generate.
    pub output_tokens: u32,
    /// Tokens that the pool prefills per second, as far as is known.
    pub tokens_per_s: f64,
    /// Endpoints that take requests.
    pub endpoints: u32,
    /// It would add a conversation to the working set.
    pub fresh: bool,
    /// Prompt tokens on the endpoint that holds the most of them.
    pub best_match_tokens: u32,
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
        let matches = self.look_up(&snapshot, &prompt);
        let decision = self.decide(&snapshot, &prompt, &matches, &mut picker, now);
        self.carry_out(snapshot, picker, prompt, decision, None, now)
    }

    /// As [`Pool::place`], unless `terms` make the prompt wait: then it comes back, with what its wait depends on.
    #[expect(
        clippy::result_large_err,
        reason = "the prompt comes back; nothing went wrong"
    )]
    pub(super) fn place_on(
        self: &Arc<Self>,
        prompt: Prompt,
        terms: Terms,
        now: Mono,
    ) -> Result<Plan, (Prompt, Held)> {
        let snapshot = self.snapshot.load_full();
        let mut picker = self.picker.lock();
        picker.prefill_due.release(now);
        let matches = self.look_up(&snapshot, &prompt);
        let room = self.room_of(&snapshot, &picker, now);
        let free = !room.is_empty() && room.is_any_free(&terms.limit);
        let none_ready = snapshot.ready().next().is_none();
        if !(free || none_ready) || terms.ask_only {
            let held = self.assess(&snapshot, &prompt, &matches, &picker, Verdict::Stop, now);
            return Err((prompt, held));
        }
        let room = Some((&room, &terms.limit)).filter(|_| terms.turn);
        let mut best_match_tokens = 0;
        let choose = |scheduler: &Scheduler, request: &RequestView, views: &[EndpointView], rng: &mut _| {
            best_match_tokens = views.iter().map(|view| view.match_tokens).max().unwrap_or(0);
            let gate = self.gate_for(&prompt).map(|gate| gate.lock(now));
            let set = gate.as_ref().map(|inner| &inner.set);
            let conditions = Conditions {
                now,
                scheduler,
                room,
                gate: set,
            };
            conditions.decide(
                request,
                &prompt.visit(best_match_tokens, terms.waited),
                views,
                rng,
            )
        };
        match self.decide_by(&snapshot, &prompt, &matches, &mut picker, now, choose) {
            Ok(decision) => {
                let gate = self.gate_for(&prompt).cloned();
                let gate = gate.map(|gate| (gate, best_match_tokens, terms.waited));
                Ok(self.carry_out(snapshot, picker, prompt, decision, gate, now))
            }
            Err(verdict) => {
                let held = self.assess(&snapshot, &prompt, &matches, &picker, verdict, now);
                Err((prompt, held))
            }
        }
    }

    /// What the wait of `prompt` would depend on.
    pub(super) fn wait_of(&self, prompt: &Prompt, now: Mono) -> Held {
        let snapshot = self.snapshot.load();
        let matches = self.look_up(&snapshot, prompt);
        self.assess(
            &snapshot,
            prompt,
            &matches,
            &self.picker.lock(),
            Verdict::Stop,
            now,
        )
    }

    /// What a wait depends on: the prompt's miss where most of it is cached, and the fleet's pace.
    pub(super) fn assess(
        &self,
        snapshot: &Snapshot,
        prompt: &Prompt,
        matches: &[Match],
        picker: &Picker,
        verdict: Verdict,
        now: Mono,
    ) -> Held {
        let matched = matches.iter().map(|found| found.tokens);
        let best_match_tokens = matched.max().unwrap_or(0);
        let missing_tokens = prompt.tokens.saturating_sub(best_match_tokens);
        let is_fresh = |gate: &Arc<Gate>| {
            gate.lock(now)
                .set
                .is_fresh(now, &prompt.visit(best_match_tokens, Duration::ZERO))
        };
        let pace = |entry: &Entry| picker.scheduler.prefill_s_per_token(now, entry.endpoint.id);
        let rates = snapshot
            .ready()
            .map(|entry| 1.0 / pace(entry).max(f64::MIN_POSITIVE));
        let (endpoints, tokens_per_s) =
            rates.fold((0_u32, 0.0), |(count, sum), rate| (count + 1, sum + rate));
        let output_tokens = picker
            .scheduler
            .expected_output_tokens(&prompt.model, prompt.max_output_tokens);
        Held {
            verdict,
            miss_s: f64::from(missing_tokens) * f64::from(endpoints) / tokens_per_s.max(1.0),
            work_tokens: f64::from(missing_tokens) + f64::from(output_tokens),
            output_tokens,
            tokens_per_s,
            endpoints,
            fresh: self.gate_for(prompt).is_some_and(is_fresh),
            best_match_tokens,
        }
    }

    /// How full the endpoints are that may be sent something from the queue.
    pub(super) fn room(&self, now: Mono) -> Room {
        let snapshot = self.snapshot.load();
        let mut picker = self.picker.lock();
        picker.prefill_due.release(now);
        self.room_of(&snapshot, &picker, now)
    }

    fn room_of(&self, snapshot: &Snapshot, picker: &Picker, now: Mono) -> Room {
        let open = snapshot
            .entries
            .iter()
            .filter(|entry| unavailable(entry).is_none());
        let stale_after = self.settings.stale_after;
        Room::new(open.map(|entry| {
            let pending_tokens = if entry.is_idle(now, stale_after) {
                0
            } else {
                entry.endpoint.load.sample().pending_prefill_tokens
            };
            let kv_share = entry.gauges(now, stale_after).kv_usage;
            Fullness::new(
                now,
                &picker.scheduler,
                entry.endpoint.id,
                pending_tokens,
                kv_share,
            )
        }))
    }

    fn carry_out(
        self: &Arc<Self>,
        snapshot: Arc<Snapshot>,
        mut picker: MutexGuard<Picker>,
        prompt: Prompt,
        decision: Decision,
        gate: Option<(Arc<Gate>, u32, Duration)>,
        now: Mono,
    ) -> Plan {
        let attempt = decision.chosen().and_then(|chosen| {
            let entry = snapshot.by_id(chosen.id)?;
            Some(self.reserve(&mut picker, entry, &prompt, &decision, chosen, now))
        });
        let staying = attempt
            .as_ref()
            .zip(gate)
            .and_then(|(attempt, (gate, best_match_tokens, waited))| {
                let visit = prompt.visit(best_match_tokens, waited);
                gate.dispatched(now, &visit, attempt.endpoint.id, attempt.match_tokens)
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
            staying,
        }
    }

    /// The decision that `prompt` would get now; changes nothing.
    pub fn explain(&self, prompt: &Prompt, now: Mono) -> (Decision, Arc<Snapshot>) {
        let snapshot = self.snapshot.load_full();
        let mut picker = self.picker.lock();
        // Explaining must not change what the next request gets, not even a random draw.
        let before = picker.rng.clone();
        let matches = self.look_up(&snapshot, prompt);
        let decision = self.decide(&snapshot, prompt, &matches, &mut picker, now);
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

    fn decide(
        &self,
        snapshot: &Snapshot,
        prompt: &Prompt,
        matches: &[Match],
        picker: &mut Picker,
        now: Mono,
    ) -> Decision {
        let choose = |scheduler: &Scheduler, request: &RequestView, views: &[EndpointView], rng: &mut _| {
            Ok::<_, Infallible>(scheduler.evaluate(now, request, views, rng))
        };
        let Ok(decision) = self.decide_by(snapshot, prompt, matches, picker, now, choose);
        decision
    }

    /// Lets `choose` decide among the endpoints that take requests.
    fn decide_by<E>(
        &self,
        snapshot: &Snapshot,
        prompt: &Prompt,
        matches: &[Match],
        picker: &mut Picker,
        now: Mono,
        choose: impl FnOnce(&Scheduler, &RequestView, &[EndpointView], &mut Pcg64Mcg) -> Result<Decision, E>,
    ) -> Result<Decision, E> {
        let mut filtered: SmallVec<[(EndpointId, &'static str); 16]> = SmallVec::new();
        let mut views = SmallVec::<[EndpointView<'_>; 16]>::with_capacity(snapshot.entries.len());
        let slow_start = SlowStart::of(snapshot, now, self.settings.slow_start);
        for (entry, found) in snapshot.entries.iter().zip(matches) {
            match unavailable(entry).or_else(|| slow_start.unavailable(entry, now)) {
                Some(reason) => filtered.push((entry.endpoint.id, reason)),
                None => views.push(self.view(entry, prompt, *found, now)),
            }
        }
        if views.is_empty() {
            // Better a burst for those that just joined than no answer.
            for (entry, found) in snapshot.entries.iter().zip(matches) {
                if unavailable(entry).is_none() {
                    filtered.retain(|(id, _)| *id != entry.endpoint.id);
                    views.push(self.view(entry, prompt, *found, now));
                }
            }
        }
        let request = request_view(prompt);
        let mut decision = choose(&picker.scheduler, &request, &views, &mut picker.rng)?;
        decision.filtered.extend(filtered);
        Ok(decision)
    }

    /// What each endpoint of the snapshot holds of the prompt, in the snapshot's order.
    pub(super) fn look_up(&self, snapshot: &Snapshot, prompt: &Prompt) -> SmallVec<[Match; 16]> {
        match &prompt.stopwatch {
            None => self.matches(snapshot, prompt),
            Some(stopwatch) => stopwatch.time(|| self.matches(snapshot, prompt)),
        }
    }

    fn matches(&self, snapshot: &Snapshot, prompt: &Prompt) -> SmallVec<[Match; 16]> {
        let mut matches: SmallVec<[Match; 16]> =
            SmallVec::from_elem(Match::default(), snapshot.entries.len());
        MATCHED.with_borrow_mut(|matched| {
            // Few ids are matched faster than all that there may be.
            let matched = &mut matched[..snapshot.ids()];
            match &prompt.keys {
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
            }
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
            adapter: entry.adapter(&prompt.model, now, self.settings.stale_after),
            inflight: load.inflight,
            pending_prefill_tokens: load.pending_prefill_tokens,
            active_tokens: load.active_tokens,
            cached_tokens: self.cached_tokens(entry),
            capacity_tokens: self.capacity_tokens(entry),
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
        let request = request_view(prompt);
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
        if !prompt.stream {
            // Rules that predict nothing still have a pace.
            let predicted_s = dispatch.predicted_first_byte_s.unwrap_or_else(|| {
                let ahead_tokens = view.pending_prefill_tokens as f64 + f64::from(uncached);
                picker.scheduler.prefill_s_per_token(now, endpoint.id) * ahead_tokens
            });
            picker.prefill_due.expect(now, predicted_s, reservation.pending());
        }
        let mut provisional = SmallVec::<[Provisional; 1]>::new();
        if prompt.fills_cache && !endpoint.is_retired() {
            let chains = prompt.chains(block_tokens).into_iter();
            provisional.extend(chains.map(|chain| self.index.store(endpoint.id, chain)));
        }
        if let Some(stored) = provisional.first() {
            endpoint.trust.sent(now, stored.position());
        }
        Attempt {
            block_tokens,
            match_tokens: to.match_tokens,
            active_before: view.active_tokens,
            endpoint,
            dispatch,
            reservation,
            last_use: provisional.first().and_then(Provisional::last_use),
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

fn request_view(prompt: &Prompt) -> RequestView<'_> {
    RequestView {
        model: &prompt.model,
        prompt_tokens: prompt.tokens,
        keyed: prompt.keys.is_some(),
        max_output_tokens: prompt.max_output_tokens,
        // Only the consistent-hash rule of the replay places by it.
        prefix_key: None,
        session: prompt.session,
        exclude: &[],
    }
}
