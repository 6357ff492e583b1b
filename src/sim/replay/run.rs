//! The discrete-event loop: arrivals, engine steps and changes of the fleet in order of time.

use super::fleet::{Change, ChangeKind, Fleet, FleetSpec, NEVER, true_constants};
use super::workload::{Turn, Workload};
use crate::overload::queue::{Limit, Verdict};
use crate::overload::turn::{Conditions, Room};
use crate::overload::working_set::{Stay, Visit, WorkingSet};
use crate::prefix::{BlockHash, EndpointId, Provisional};
use crate::scheduling::{Decision, Dispatch, EndpointView, Policy, RequestView, Scheduler, StreamRate};
use crate::scheduling::{DecisionKind, PREFIX_KEY_BLOCKS, index_margin};
use crate::sim::engine::{EngineEvent, FinishReason, Finished, RequestId, SimRequest, SubmitError};
use crate::time::Mono;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waiting::Waiting;

pub use waiting::{Held, Overload};

mod waiting;

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Position of its session in the workload.
    pub session: u32,
    /// Whose it is.
    pub tenant: u64,
    /// Its number in the session, from 0.
    pub turn: u32,
    /// When it was sent, in seconds.
    pub arrived_s: f64,
    /// Time from its arrival to its first token, in seconds.
    pub ttft_s: f64,
    /// Time per output token after the first, in seconds; 0 for answers of one token.
    pub tpot_s: f64,
    /// When its last token came, in seconds.
    pub ended_s: f64,
    pub prompt_tokens: u32,
    /// Prompt tokens that the engine had in its cache.
    pub cached_tokens: u32,
    pub output_tokens: u32,
    pub preemptions: u32,
    /// Position of the endpoint that served it.
    pub endpoint: usize,
    pub kind: DecisionKind,
    /// Time to the first token that the policy predicted, if it does.
    pub predicted_ttft_s: Option<f64>,
}

/// A finished replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Requests in order of their end.
    pub records: Vec<Record>,
    /// Requests that no endpoint could take: longer than its KV cache, or nobody in rotation.
    pub refused: u64,
    /// Requests that a restart cut off.
    pub lost: u64,
    /// When the last session began, in seconds.
    pub last_start_s: f64,
    /// What queue and gate did.
    pub held: Held,
}

/// Replays the workload through one policy. Same arguments, same outcome.
pub fn run(workload: &Workload, fleet: &FleetSpec, policy: Policy, seed: u64) -> Outcome {
    run_with(
        workload,
        fleet,
        policy,
        Overload::default(),
        seed,
        &AtomicU64::new(0),
    )
}

/// As [`run`], with a queue and a gate in front of the policy. `ended` counts the requests that have ended so far.
pub fn run_with(
    workload: &Workload,
    fleet: &FleetSpec,
    policy: Policy,
    overload: Overload,
    seed: u64,
    ended: &AtomicU64,
) -> Outcome {
    let margin = index_margin(overload.working_set.is_some());
    let mut replay = Replay::new(workload, fleet, margin, policy, seed);
    if fleet.told {
        for pod in &replay.fleet.pods {
            replay
                .scheduler
                .assume(pod.id, true_constants(&pod.engine.spec().timing));
        }
    }
    replay.gate = overload.working_set.map(WorkingSet::new);
    replay.waiting = overload.queue.map(|queue| Box::new(Waiting::new(queue)));
    while replay.step() {
        ended.fetch_add(std::mem::take(&mut replay.just_ended), Ordering::Relaxed);
    }
    replay.outcome
}

/// A session whose next turn is due.
type Arrival = Reverse<(Mono, u32)>;

struct Replay<'a> {
    workload: &'a Workload,
    fleet: Fleet,
    scheduler: Scheduler,
    rng: Pcg64Mcg,
    arrivals: BinaryHeap<Arrival>,
    /// Position of each session's next turn.
    next_turn: Vec<u32>,
    /// Latest first.
    changes: Vec<Change>,
    /// By request id; `None` once it has ended.
    live: Vec<Option<Live>>,
    keys: Vec<BlockHash>,
    events: Vec<EngineEvent>,
    outcome: Outcome,
    just_ended: u64,
    gate: Option<WorkingSet>,
    waiting: Option<Box<Waiting>>,
}

/// A turn to be sent.
#[derive(Clone, Copy, Debug)]
struct Request {
    session: u32,
    turn: u32,
    arrived_at: Mono,
    /// A restart cut off an earlier try.
    retried: bool,
}

/// A request on its way.
struct Live {
    session: u32,
    turn: u32,
    arrived_at: Mono,
    stay: Option<Stay>,
    pod: usize,
    kind: DecisionKind,
    dispatch: Dispatch,
    stored: Option<Provisional>,
    pending_tokens: u64,
    active_tokens: u64,
    /// Load of the endpoint when the first token came: (context tokens, requests).
    at_first: (f64, f64),
    retried: bool,
}

impl<'a> Replay<'a> {
    fn new(workload: &'a Workload, spec: &FleetSpec, index_margin: f64, policy: Policy, seed: u64) -> Self {
        let start = |(id, session): (usize, &super::workload::Session)| {
            Reverse((Mono::from_secs_f64(session.start_s), id as u32))
        };
        let mut changes = spec.changes.clone();
        changes.sort_by(|a, b| b.at_s.total_cmp(&a.at_s));
        let last_start_s = workload
            .sessions
            .iter()
            .map(|session| session.start_s)
            .fold(0.0, f64::max);
        Self {
            arrivals: workload.sessions.iter().enumerate().map(start).collect(),
            next_turn: vec![0; workload.sessions.len()],
            workload,
            fleet: Fleet::new(spec, index_margin),
            scheduler: Scheduler::new(policy),
            rng: Pcg64Mcg::seed_from_u64(seed),
            changes,
            live: Vec::with_capacity(workload.requests()),
            keys: Vec::new(),
            events: Vec::new(),
            outcome: Outcome {
                last_start_s,
                ..Outcome::default()
            },
            just_ended: 0,
            gate: None,
            waiting: None,
        }
    }

    /// Lets the next thing happen; `false` when nothing is left.
    fn step(&mut self) -> bool {
        let arrival = self.arrivals.peek().map_or(NEVER, |Reverse((at, _))| *at);
        let change = self
            .changes
            .last()
            .map_or(NEVER, |change| Mono::from_secs_f64(change.at_s));
        let (pod, engine) = self.fleet.next_event();
        let tick = self.next_tick();
        if tick < arrival.min(change).min(engine) {
            self.pump(tick);
        } else if change <= arrival && change <= engine && change < NEVER {
            self.change(change);
        } else if engine <= arrival && engine < NEVER {
            self.advance(pod, engine);
        } else if let Some(Reverse((now, session))) = self.arrivals.pop() {
            let turn = self.next_turn[session as usize];
            self.next_turn[session as usize] += 1;
            let request = Request {
                session,
                turn,
                arrived_at: now,
                retried: false,
            };
            self.arrive(now, request);
        } else {
            return false;
        }
        true
    }

    fn change(&mut self, now: Mono) {
        let Some(Change { endpoint, kind, .. }) = self.changes.pop() else {
            return;
        };
        if endpoint >= self.fleet.pods.len() {
            return;
        }
        match kind {
            ChangeKind::Join => self.fleet.pods[endpoint].in_rotation = true,
            ChangeKind::Leave => self.fleet.pods[endpoint].in_rotation = false,
            ChangeKind::Restart => self.restart(now, endpoint),
        }
    }

    /// Requests without a token yet are sent elsewhere; the others are lost, and their sessions go on.
    fn restart(&mut self, now: Mono, pod: usize) {
        self.fleet.restart(pod, now);
        let cut: Vec<Live> = self
            .live
            .iter_mut()
            .filter_map(|live| live.take_if(|live| live.pod == pod))
            .collect();
        for live in cut {
            if live.stored.is_some() {
                let request = Request {
                    session: live.session,
                    turn: live.turn,
                    arrived_at: live.arrived_at,
                    retried: true,
                };
                self.send(now, request);
            } else {
                self.outcome.lost += 1;
                self.schedule_next(now, live.session);
            }
        }
    }

    /// Sends a request that does not wait, whatever queue and gate say.
    fn send(&mut self, now: Mono, request: Request) {
        // Without conditions nothing is a reason to wait.
        let _ = self.place(now, request, None, false);
    }

    /// Sends a request, unless a busy endpoint or the gate, if it is to be asked, makes it wait.
    fn place(
        &mut self,
        now: Mono,
        request: Request,
        room: Option<(&Room, &Limit)>,
        gated: bool,
    ) -> Result<(), Verdict> {
        let Some(turn) = self.turn(&request) else {
            return Ok(());
        };
        self.keys.clear();
        self.keys.extend(turn.blocks.iter().chain(&turn.tail));
        let req = request_view(turn);
        let mut views = Vec::with_capacity(self.fleet.pods.len());
        self.fleet.views(now, turn.prompt_tokens, &self.keys, &mut views);
        let visit = visit(turn, &views, now.since(request.arrived_at));
        let gate = self.gate.as_ref().filter(|_| gated);
        let conditions = Conditions {
            now,
            scheduler: &self.scheduler,
            room,
            gate,
        };
        let decision = conditions.decide(&req, &visit, &views, &mut self.rng)?;
        let Some(dispatch) = committed(&mut self.scheduler, now, &req, &decision, &views) else {
            drop(views);
            self.refuse(now, request.session);
            return Ok(());
        };
        let gate = self.gate.as_mut();
        let stay =
            gate.and_then(|gate| gate.dispatched(now, &visit, dispatch.endpoint, dispatch.cached_tokens()));
        let live = self.reserve(turn, dispatch, decision.kind, request, stay);
        self.submit(now, turn, live);
        Ok(())
    }

    fn turn(&self, request: &Request) -> Option<&'a Turn> {
        let turns = &self.workload.sessions[request.session as usize].turns;
        turns.get(request.turn as usize)
    }

    fn reserve(
        &mut self,
        turn: &Turn,
        dispatch: Dispatch,
        kind: DecisionKind,
        request: Request,
        stay: Option<Stay>,
    ) -> Live {
        let pod = self.fleet.pod_of(dispatch.endpoint);
        let expected_output = self.scheduler.expected_output_tokens("replay", None);
        let live = Live {
            session: request.session,
            turn: request.turn,
            arrived_at: request.arrived_at,
            stay,
            pod,
            kind,
            stored: Some(self.fleet.index.store(dispatch.endpoint, &self.keys)),
            pending_tokens: u64::from(turn.prompt_tokens - dispatch.cached_tokens().min(turn.prompt_tokens)),
            active_tokens: u64::from(turn.prompt_tokens) + u64::from(expected_output),
            at_first: (0.0, 0.0),
            dispatch,
            retried: request.retried,
        };
        let load = &mut self.fleet.pods[pod].load;
        load.inflight += 1;
        load.pending_tokens += live.pending_tokens;
        load.active_tokens += live.active_tokens;
        live
    }

    fn submit(&mut self, now: Mono, turn: &Turn, live: Live) {
        let id = RequestId(self.live.len() as u64);
        let request = SimRequest {
            id,
            block_hashes: turn.blocks.clone(),
            prompt_tokens: turn.prompt_tokens,
            output_tokens: turn.output_tokens,
            output_seed: u64::from(live.session) << 32 | u64::from(live.turn),
            finish: FinishReason::Length,
            content: None,
        };
        let (pod, session) = (live.pod, live.session);
        let submitted: Result<(), SubmitError> = self.fleet.pods[pod].engine.submit(now, request);
        if submitted.is_ok() {
            let pod = &mut self.fleet.pods[pod];
            pod.next_at = pod.engine.next_event_at().unwrap_or(NEVER);
            self.live.push(Some(live));
        } else {
            self.release_pending(&live);
            self.release_seat(&live);
            if let Some(stored) = live.stored {
                self.fleet.index.undo(&self.keys, stored);
            }
            self.live.push(None);
            self.refuse(now, session);
        }
    }

    fn refuse(&mut self, now: Mono, session: u32) {
        self.outcome.refused += 1;
        self.schedule_next(now, session);
    }

    fn schedule_next(&mut self, now: Mono, session: u32) {
        let turns = &self.workload.sessions[session as usize].turns;
        if let Some(next) = turns.get(self.next_turn[session as usize] as usize) {
            let think = Duration::from_secs_f64(next.think_s.max(0.0));
            self.arrivals.push(Reverse((now + think, session)));
        }
    }

    fn advance(&mut self, pod: usize, now: Mono) {
        let mut events = std::mem::take(&mut self.events);
        self.fleet.advance(pod, now, &mut events);
        for event in events.drain(..) {
            match event {
                EngineEvent::Token { id, at, generated: 1 } => self.first_token(at, id),
                EngineEvent::Finished(finished) => self.finished(&finished),
                _ => {}
            }
        }
        self.events = events;
        self.pump(now);
    }

    fn first_token(&mut self, now: Mono, id: RequestId) {
        let Some(mut live) = self.live[id.0 as usize].take() else {
            return;
        };
        // A preempted request is computed again, but its first token came before.
        if let Some(stored) = live.stored.take() {
            self.release_pending(&live);
            let turn = &self.workload.sessions[live.session as usize].turns[live.turn as usize];
            self.keys.clear();
            self.keys.extend(turn.blocks.iter().chain(&turn.tail));
            self.fleet.index.confirm(&self.keys, stored);
            let load = &self.fleet.pods[live.pod].load;
            live.at_first = (load.active_tokens as f64, f64::from(load.inflight));
            if !live.retried {
                self.scheduler.observe_first_byte(now, &live.dispatch);
            }
        }
        self.live[id.0 as usize] = Some(live);
    }

    fn finished(&mut self, finished: &Finished) {
        let Some(live) = self.live[finished.id.0 as usize].take() else {
            return;
        };
        let load = self.fleet.pods[live.pod].load;
        let decode_s = finished.at.since(finished.first_token_at).as_secs_f64();
        let tpot_s = decode_s / f64::from((finished.output_tokens - 1).max(1));
        if finished.output_tokens >= MIN_STREAM_TOKENS && !live.retried {
            let rate = StreamRate {
                s_per_token: tpot_s,
                active_tokens: (live.at_first.0 + load.active_tokens as f64) / 2.0,
                inflight: (live.at_first.1 + f64::from(load.inflight)) / 2.0,
            };
            self.scheduler
                .observe_stream(finished.at, live.dispatch.endpoint, &rate);
        }
        self.scheduler.observe_output("replay", finished.output_tokens);
        self.release_seat(&live);
        if let (Some(gate), Some(stay)) = (&mut self.gate, live.stay) {
            gate.ended(finished.at, stay, finished.output_tokens);
        }
        self.just_ended += 1;
        self.outcome.records.push(Record {
            session: live.session,
            tenant: self.workload.sessions[live.session as usize].tenant,
            turn: live.turn,
            arrived_s: live.arrived_at.as_secs_f64(),
            ttft_s: finished.first_token_at.since(live.arrived_at).as_secs_f64(),
            tpot_s,
            ended_s: finished.at.as_secs_f64(),
            prompt_tokens: finished.prompt_tokens,
            cached_tokens: finished.cached_tokens,
            output_tokens: finished.output_tokens,
            preemptions: finished.preemptions,
            endpoint: live.pod,
            kind: live.kind,
            predicted_ttft_s: live.dispatch.predicted_first_byte_s,
        });
        self.schedule_next(finished.at, live.session);
    }

    fn release_pending(&mut self, live: &Live) {
        self.fleet.pods[live.pod].load.pending_tokens -= live.pending_tokens;
    }

    fn release_seat(&mut self, live: &Live) {
        let load = &mut self.fleet.pods[live.pod].load;
        load.inflight -= 1;
        load.active_tokens -= live.active_tokens;
    }
}

fn request_view(turn: &Turn) -> RequestView<'static> {
    let first = turn.blocks.get(..PREFIX_KEY_BLOCKS.min(turn.blocks.len()));
    RequestView {
        model: "replay",
        prompt_tokens: turn.prompt_tokens,
        keyed: true,
        prefix_key: first.and_then(<[_]>::last).copied(),
        ..RequestView::default()
    }
}

/// The turn as the gate sees it.
fn visit<'a>(turn: &'a Turn, views: &[EndpointView], waited: Duration) -> Visit<'a> {
    Visit {
        session: None,
        blocks: &turn.blocks,
        prompt_tokens: turn.prompt_tokens,
        best_match_tokens: views.iter().map(|view| view.match_tokens).max().unwrap_or(0),
        waited,
    }
}

/// Shorter answers say nothing about the decode rate.
const MIN_STREAM_TOKENS: u32 = 8;

fn committed(
    scheduler: &mut Scheduler,
    now: Mono,
    req: &RequestView,
    decision: &Decision,
    views: &[EndpointView],
) -> Option<Dispatch> {
    let chosen: EndpointId = decision.chosen()?.id;
    let view = views.iter().find(|view| view.id == chosen)?;
    Some(scheduler.commit(now, req, decision, view))
}

#[cfg(test)]
mod tests;
