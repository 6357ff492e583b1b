//! Queue and gate in front of a replay's policy: the gateway's own code, in virtual time.

use super::super::fleet::NEVER;
use super::{Replay, Request, visit};
use crate::overload::queue::{Arrival, Entered, FlowId, Limit, Offers, Queue, QueueSettings, Verdict};
use crate::overload::turn::{Fullness, Room};
use crate::overload::working_set::{Stay, Visit, WorkingSetSettings};
use crate::prefix::EndpointId;
use crate::time::Mono;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// How often the queue is looked at when nothing else happens.
const TICK: Duration = Duration::from_millis(250);

/// What stands before the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overload {
    pub queue: Option<QueueSettings>,
    /// Needs the queue: that is where it lets requests wait.
    pub working_set: Option<WorkingSetSettings>,
}

/// What queue and gate did in a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// Requests that waited.
    pub requests: u64,
    /// When the first of them came, in seconds.
    pub first_s: Option<f64>,
    /// Requests that a full queue turned away.
    pub refused: u64,
    /// Longest wait in the queue, in seconds.
    pub longest_s: f64,
    /// When the gate last held a request back, in seconds; 0 when it never did.
    pub gate_last_closed_s: f64,
    /// Requests that went although one of their tenant's that arrived earlier by more than the bound had not been
    /// offered its turn within the last tick. Any number but 0 is a fault of the queue.
    pub unfair: u64,
}

/// The queue with its audit.
pub(super) struct Waiting {
    queue: Queue<Ticket>,
    last_pump: Mono,
    audit: Audit,
}

/// A waiting request, and whether it would be new to the working set.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    request: Request,
    number: u64,
    /// The conversation that it continues.
    announced: Option<Stay>,
}

/// Watches the order from outside, by arrival times alone.
#[derive(Default)]
struct Audit {
    arrivals: u64,
    /// Tenant, arrival, number and freshness of those who wait.
    waiting: BTreeSet<(u64, Mono, u64, bool)>,
    /// When those who wait were offered their turn last, by number.
    offered: HashMap<u64, Mono>,
}

impl Waiting {
    pub fn new(settings: QueueSettings) -> Self {
        Self {
            queue: Queue::new(settings),
            last_pump: Mono::ZERO,
            audit: Audit::default(),
        }
    }
}

impl Audit {
    /// Whether somebody was passed who should have gone before the request.
    fn is_unfair(&self, now: Mono, went: (u64, Mono, u64, bool), overtake: Duration, gated: bool) -> bool {
        let (tenant, arrived, _, fresh) = went;
        let earlier = self
            .waiting
            .range((tenant, Mono::ZERO, 0, false)..(tenant, arrived, 0, false));
        let due = earlier.take_while(|(_, at, _, _)| *at + overtake < arrived);
        let just_offered = |number| self.offered.get(number).is_some_and(|at| *at + TICK >= now);
        let mut passed = due.filter(|(_, _, number, _)| !just_offered(number));
        // The gate holds back those who would be new, and nobody else.
        passed.any(|(_, _, _, is_fresh)| !(gated && *is_fresh && !fresh))
    }
}

impl Replay<'_> {
    /// A request comes: goes straight out while the queue is empty and some endpoint is free, else waits its turn.
    pub(super) fn arrive(&mut self, now: Mono, request: Request) {
        let Some(waiting) = &self.waiting else {
            self.send(now, request);
            return;
        };
        let queue = &waiting.queue;
        let limit = queue.limit_of(now, self.flow(&request));
        let straight = queue.is_empty() && !queue.is_flooded() && self.room(now).is_any_free(&limit);
        if straight && self.place(now, request, None, true).is_ok() {
            return;
        }
        self.enter(now, request);
        self.pump(now);
    }

    fn enter(&mut self, now: Mono, request: Request) {
        let Some((arrival, announced)) = self.arrival(now, &request) else {
            return;
        };
        let Some(waiting) = &mut self.waiting else {
            return;
        };
        let audit = &mut waiting.audit;
        audit.arrivals += 1;
        let number = audit.arrivals;
        audit
            .waiting
            .insert((arrival.flow.0, arrival.arrived, number, arrival.fresh));
        self.outcome.held.requests += 1;
        self.outcome
            .held
            .first_s
            .get_or_insert(request.arrived_at.as_secs_f64());
        let turned_away = match waiting.queue.enter(
            now,
            arrival,
            Ticket {
                request,
                number,
                announced,
            },
        ) {
            Entered::Waits { gave_way, .. } => gave_way,
            Entered::Full(ticket) => vec![ticket],
        };
        for ticket in &turned_away {
            let audit = &mut waiting.audit;
            audit.waiting.retain(|(_, _, number, _)| *number != ticket.number);
        }
        self.outcome.held.refused += turned_away.len() as u64;
        // As a client that gives up: its session goes on with the next turn.
        for ticket in turned_away {
            if let (Some(gate), Some(stay)) = (&mut self.gate, ticket.announced) {
                gate.retract(now, stay);
            }
            self.refuse(now, ticket.request.session);
        }
    }

    fn flow(&self, request: &Request) -> FlowId {
        FlowId(self.workload.sessions[request.session as usize].tenant)
    }

    fn arrival(&mut self, now: Mono, request: &Request) -> Option<(Arrival, Option<Stay>)> {
        let turn = self.turn(request)?;
        self.keys.clear();
        self.keys.extend(turn.blocks.iter().chain(&turn.tail));
        let mut views = Vec::with_capacity(self.fleet.pods.len());
        self.fleet.views(now, turn.prompt_tokens, &self.keys, &mut views);
        let visit: Visit = visit(turn, &views, Duration::ZERO);
        let missing = turn.prompt_tokens.saturating_sub(visit.best_match_tokens);
        let pace = views
            .first()
            .map_or(0.0, |view| self.scheduler.prefill_s_per_token(now, view.id));
        let output = self.scheduler.expected_output_tokens("replay", None);
        let arrival = Arrival {
            flow: self.flow(request),
            weight: 1.0,
            arrived: request.arrived_at,
            deadline: NEVER,
            miss_s: pace * f64::from(missing),
            work: f64::from(missing) + f64::from(output),
            bytes: u64::from(turn.prompt_tokens) * 4,
            fresh: self.gate.as_ref().is_some_and(|gate| gate.is_fresh(now, &visit)),
        };
        let gate = self.gate.as_mut();
        Some((arrival, gate.and_then(|gate| gate.announce(now, &visit))))
    }

    /// When the queue is to be looked at if nothing happens before.
    pub(super) fn next_tick(&self) -> Mono {
        let waiting = self.waiting.as_ref().filter(|waiting| !waiting.queue.is_empty());
        waiting.map_or(NEVER, |waiting| waiting.last_pump + TICK)
    }

    /// Offers those who wait their turn.
    pub(super) fn pump(&mut self, now: Mono) {
        let Some(mut waiting) = self.waiting.take_if(|waiting| !waiting.queue.is_empty()) else {
            return;
        };
        if let Some(gate) = &mut self.gate {
            gate.pass(now);
        }
        waiting.last_pump = now;
        let settings = *waiting.queue.settings();
        let room = self.room(now);
        let mut offers = Pump {
            now,
            settings,
            room,
            gated: false,
            audit: &mut waiting.audit,
            replay: self,
        };
        waiting.queue.pump(now, &mut offers);
        self.waiting = Some(waiting);
    }

    fn room(&self, now: Mono) -> Room {
        let pods = self.fleet.pods.iter().filter(|pod| pod.in_rotation);
        Room::new(pods.map(|pod| {
            let pending_tokens = pod.load.pending_tokens;
            Fullness::new(now, &self.scheduler, pod.id, pending_tokens, pod.kv_share())
        }))
    }
}

/// One pump: the replay's endpoints, and the audit that looks on.
struct Pump<'p, 'a> {
    now: Mono,
    settings: QueueSettings,
    room: Room,
    gated: bool,
    audit: &'p mut Audit,
    replay: &'p mut Replay<'a>,
}

impl Offers<Ticket> for Pump<'_, '_> {
    fn is_free(&self, endpoint: EndpointId, limit: &Limit) -> bool {
        self.room.is_free(endpoint, limit)
    }

    fn offer(&mut self, arrival: &Arrival, ticket: &mut Ticket, limit: &Limit) -> Verdict {
        if !self.room.is_any_free(limit) {
            return Verdict::Stop;
        }
        self.audit.offered.insert(ticket.number, self.now);
        let verdict = match self
            .replay
            .place(self.now, ticket.request, Some((&self.room, limit)), true)
        {
            Ok(()) => Verdict::Placed,
            Err(verdict) => verdict,
        };
        match verdict {
            Verdict::Placed => self.placed(arrival, ticket),
            Verdict::Gated => {
                self.gated = true;
                self.replay.outcome.held.gate_last_closed_s = self.now.as_secs_f64();
            }
            Verdict::Busy(_) | Verdict::Stop => {}
        }
        verdict
    }
}

impl Pump<'_, '_> {
    fn placed(&mut self, arrival: &Arrival, ticket: &Ticket) {
        self.room = self.replay.room(self.now);
        let went = (arrival.flow.0, arrival.arrived, ticket.number, arrival.fresh);
        self.audit.waiting.remove(&went);
        if let (Some(gate), Some(stay)) = (&mut self.replay.gate, ticket.announced) {
            gate.retract(self.now, stay);
        }
        self.audit.offered.remove(&ticket.number);
        let unfair = self
            .audit
            .is_unfair(self.now, went, self.settings.overtake, self.gated);
        let held = &mut self.replay.outcome.held;
        held.unfair += u64::from(unfair);
        held.longest_s = held.longest_s.max(self.now.since(arrival.arrived).as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
