//! The router's queue: who goes next when an endpoint frees, and who may wait at all.
//!
//! Inside one flow (a tenant at a priority) the order is `arrival + W min(1, own miss / (3 mean misses))`: short misses
//! first, and nobody is overtaken by a request that arrived more than W later. A request whose endpoint is busy is passed
//! over. Between flows it is start-time fair queueing (Goyal, Vin and Cheng 1996) over work in tokens: a flow's share
//! is its weight's, whatever the others send. While one floods and another is there too, the flood fills endpoints
//! less, see [`shares`]: what has been sent can no longer be overtaken. The queue is bounded in requests, bytes and
//! time; when it is full, the flow that holds the most for its weight gives way.

mod flow;
mod outlook;
mod room;
mod rules;
mod shares;

use super::drain::Drain;
use crate::prefix::EndpointId;
use crate::time::Mono;
use flow::{Flow, Waiting};
use shares::Shares;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

pub use outlook::Outlook;
pub use rules::{Limit, QueueSettings, Standing};

/// Flows told apart at a time; those beyond share one. A client can send any key, and memory is bounded.
const MAX_FLOWS: usize = 4096;

/// The flow that serves all beyond [`MAX_FLOWS`].
const OTHERS: FlowId = FlowId(u64::MAX);

/// Arrivals that the mean miss is taken over.
const MISS_MEMORY: u64 = 200;

/// How long a request that waits for one busy endpoint is taken to prefer it, before all are looked at again.
const RECONSIDER: Duration = Duration::from_millis(250);

/// Names a flow: a hash of tenant and priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// A request as the queue sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    pub flow: FlowId,
    /// Share of the flow against others; above 0.
    pub weight: f64,
    pub arrived: Mono,
    /// Until when it may wait.
    pub deadline: Mono,
    /// Prefill that it needs on the endpoint that holds the most of it, in seconds.
    pub miss_s: f64,
    /// What it costs the fleet, in tokens: what is missing and what is to be generated.
    pub work: f64,
    /// Bytes of its body.
    pub bytes: u64,
    /// It would add a conversation to the working set: once one of these is held back by the gate, no later one goes.
    pub fresh: bool,
}

/// What became of a request that was offered its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is on its way and leaves the queue.
    Placed,
    /// The endpoint that it is best served by is busy: others may go first.
    Busy(EndpointId),
    /// The working set has no room for it: no other fresh request goes before it.
    Gated,
    /// No endpoint takes anything now within the limit.
    Stop,
}

/// The endpoints, as a queue sees them that offers turns.
pub trait Offers<T> {
    /// Whether the endpoint takes anything now.
    fn is_free(&self, endpoint: EndpointId, limit: &Limit) -> bool;

    /// Puts the request on its way if it can go now.
    fn offer(&mut self, arrival: &Arrival, payload: &mut T, limit: &Limit) -> Verdict;
}

/// Names a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    flow: FlowId,
    place: Place,
}

/// Order in a flow: the key, then the number of arrival.
type Place = (Mono, u64);

/// What entering did.
#[derive(Debug)]
pub enum Entered<T> {
    /// It waits; those in `gave_way` wait no more, for want of room.
    Waits { ticket: Ticket, gave_way: Vec<T> },
    /// There is no room, and its own flow holds the most: the request comes back.
    Full(T),
}

/// Requests that wait, each with what the caller keeps of it.
#[derive(Debug)]
pub struct Queue<T> {
    settings: QueueSettings,
    flows: HashMap<FlowId, Flow<T>>,
    /// Start tag of the request that was placed last: where a flow that comes anew begins.
    virtual_time: f64,
    len: usize,
    bytes: u64,
    arrivals: u64,
    drain: Drain,
    shares: Shares,
    /// What a flow has had lately, for its weight, that floods.
    flood_from: Option<f64>,
    /// Mean miss of those who came last, in seconds.
    mean_miss_s: f64,
    /// Waiting requests that are fresh, and how fast such ones leave: the gate, not the prefill, sets their pace.
    fresh: usize,
    fresh_drain: Drain,
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new(settings: QueueSettings) -> Self {
        Self {
            settings,
            flows: HashMap::new(),
            virtual_time: 0.0,
            len: 0,
            bytes: 0,
            arrivals: 0,
            drain: Drain::default(),
            shares: Shares::default(),
            flood_from: None,
            mean_miss_s: 0.0,
            fresh: 0,
            fresh_drain: Drain::default(),
        }
    }

    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// Goes by other rules from now on. Who waits keeps the place that the old rules gave.
    pub fn follow(&mut self, settings: QueueSettings) {
        self.settings = settings;
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the waiting bodies.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Those of them that would add a conversation to the working set.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// Everything that waits, flow by flow, in each flow's order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arrival, &T)> {
        self.flows.values().flat_map(Flow::iter)
    }

    /// When the request that waits longest arrived.
    pub fn oldest(&self) -> Option<Mono> {
        self.flows.values().filter_map(Flow::oldest).min()
    }

    /// Puts a request in its place, at the cost of others when the queue is full and another flow holds more than
    /// its share.
    pub fn enter(&mut self, now: Mono, arrival: Arrival, payload: T) -> Entered<T> {
        let mut arrival = Arrival {
            weight: arrival.weight.max(f64::MIN_POSITIVE),
            ..arrival
        };
        let is_known = self.flows.contains_key(&arrival.flow) || self.shares.contains(arrival.flow);
        if !is_known && self.flows.len().max(self.shares.len()) >= MAX_FLOWS {
            arrival.flow = OTHERS;
        }
        self.shares.came(now, arrival.flow, arrival.weight);
        let Some(gave_way) = self.make_room(&arrival) else {
            return Entered::Full(payload);
        };
        self.pass(now);
        self.arrivals += 1;
        if arrival.miss_s.is_finite() {
            let weight = 1.0 / self.arrivals.min(MISS_MEMORY) as f64;
            self.mean_miss_s += weight * (arrival.miss_s - self.mean_miss_s);
        }
        let place = (self.key(&arrival), self.arrivals);
        let flow = self.flows.entry(arrival.flow).or_default();
        flow.weight = arrival.weight;
        flow.insert(
            place,
            Waiting {
                arrival,
                payload,
                prefers: None,
            },
        );
        self.len += 1;
        self.fresh += usize::from(arrival.fresh);
        self.bytes += arrival.bytes;
        let ticket = Ticket {
            flow: arrival.flow,
            place,
        };
        Entered::Waits { ticket, gave_way }
    }

    /// Takes a request out that waits no longer: its client left. `None` when it has left the queue before.
    pub fn leave(&mut self, now: Mono, ticket: Ticket) -> Option<T> {
        self.pass(now);
        let waiting = self.take(ticket)?;
        self.settle();
        Some(waiting.payload)
    }

    /// Takes out everybody whose time is over, in no order.
    pub fn expire(&mut self, now: Mono) -> Vec<T> {
        self.pass(now);
        let late = |(flow, state): (&FlowId, &Flow<T>)| {
            let tickets = state.late(now).map(|place| Ticket { flow: *flow, place });
            tickets.collect::<Vec<_>>()
        };
        let late: Vec<Ticket> = self.flows.iter().flat_map(late).collect();
        let expired = late.into_iter().filter_map(|ticket| self.take(ticket));
        let expired: Vec<T> = expired.map(|waiting| waiting.payload).collect();
        self.settle();
        expired
    }

    /// Something freed: offers the waiting requests their turn, in order; returns how many went.
    pub fn pump(&mut self, now: Mono, fleet: &mut impl Offers<T>) -> usize {
        self.pass(now);
        let before = self.len;
        let waiting = self.flows.iter().filter(|(_, flow)| !flow.is_empty());
        let mut turns: BinaryHeap<_> = waiting
            .map(|(id, flow)| Reverse(Turn::first(*id, flow, self.virtual_time)))
            .collect();
        self.shares.pass(now);
        self.flood_from = self.shares.flood_from(now);
        let (mut gated, mut floods_stopped) = (false, false);
        while let Some(Reverse(turn)) = turns.pop() {
            let standing = self.standing(now, turn.flow);
            let floods = standing == Standing::Floods;
            if floods && floods_stopped {
                continue;
            }
            let limit = self.settings.limit(standing);
            let Some((next, verdict)) = self.offer(now, &turn, gated, &limit, fleet) else {
                continue;
            };
            match verdict {
                Some(Verdict::Stop) if floods => {
                    floods_stopped = true;
                    continue;
                }
                Some(Verdict::Stop) => break,
                Some(Verdict::Gated) => gated = true,
                Some(Verdict::Placed | Verdict::Busy(_)) | None => {}
            }
            if next.looked < self.settings.look_ahead {
                turns.push(Reverse(next));
            }
        }
        self.settle();
        before - self.len
    }

    /// How full an endpoint may be that takes a request of this flow.
    pub fn limit_of(&self, now: Mono, flow: FlowId) -> Limit {
        self.settings.limit(self.standing(now, flow))
    }

    /// Whether some flow floods, as of the last pump: then everything goes through the queue, so that each flow goes by
    /// its own limit.
    pub fn is_flooded(&self) -> bool {
        self.flood_from.is_some()
    }

    fn standing(&self, now: Mono, flow: FlowId) -> Standing {
        match self.flood_from {
            None => Standing::Even,
            Some(from) if self.shares.level(now, flow) >= from => Standing::Floods,
            Some(_) => Standing::Beside,
        }
    }

    fn work(&self) -> f64 {
        self.flows.values().map(Flow::work).sum()
    }

    fn pass(&mut self, now: Mono) {
        self.drain.pass(now, self.len > 0);
        self.fresh_drain.pass(now, self.fresh > 0);
    }

    fn key(&self, arrival: &Arrival) -> Mono {
        let long_s = (self.settings.long_miss * self.mean_miss_s).max(f64::MIN_POSITIVE);
        let share = (arrival.miss_s / long_s).clamp(0.0, 1.0);
        let share = if share.is_nan() { 0.0 } else { share };
        arrival.arrived + self.settings.overtake.mul_f64(share)
    }

    /// Offers the next request of a flow its turn, if there is anything new to offer; `None` when the flow has no
    /// further one.
    fn offer(
        &mut self,
        now: Mono,
        turn: &Turn,
        gated: bool,
        limit: &Limit,
        fleet: &mut impl Offers<T>,
    ) -> Option<(Turn, Option<Verdict>)> {
        let flow = self.flows.get_mut(&turn.flow)?;
        let (at, waiting) = flow.next_after(turn.passed)?;
        let mut next = Turn {
            passed: Some(at),
            looked: turn.looked + 1,
            ..*turn
        };
        let still_waits = |(since, endpoint): (Mono, EndpointId)| {
            now < since + RECONSIDER && !fleet.is_free(endpoint, limit)
        };
        if gated && waiting.arrival.fresh {
            // Those whom the gate holds back must not hide the others.
            next.looked = turn.looked;
            return Some((next, None));
        }
        if waiting.prefers.is_some_and(still_waits) {
            return Some((next, None));
        }
        let verdict = fleet.offer(&waiting.arrival, &mut waiting.payload, limit);
        waiting.prefers = match verdict {
            Verdict::Busy(endpoint) => Some((now, endpoint)),
            _ => None,
        };
        if verdict == Verdict::Placed {
            self.virtual_time = flow.charge(self.virtual_time, at);
            next.tag = flow.start_tag(self.virtual_time);
            next.looked = turn.looked;
            let ticket = Ticket {
                flow: turn.flow,
                place: at,
            };
            if let Some(Waiting { arrival, .. }) = self.take(ticket) {
                self.drain.placed(arrival.work);
                self.shares.went(now, arrival.flow, arrival.work);
                self.fresh_drain.placed(f64::from(u8::from(arrival.fresh)));
            }
        }
        Some((next, Some(verdict)))
    }

    fn take(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let waiting = self.flows.get_mut(&ticket.flow)?.remove(ticket.place)?;
        self.len -= 1;
        self.fresh -= usize::from(waiting.arrival.fresh);
        self.bytes -= waiting.arrival.bytes;
        Some(waiting)
    }

    /// Forgets flows that have no claim left, and everything once nobody waits: the next time of need starts even.
    fn settle(&mut self) {
        if self.len == 0 {
            self.flows.clear();
            self.virtual_time = 0.0;
        } else {
            let now = self.virtual_time;
            self.flows
                .retain(|_, flow| !flow.is_empty() || flow.is_ahead_of(now));
        }
    }
}

/// A flow's next turn in one pump.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    tag: f64,
    flow: FlowId,
    /// Place of the request that was offered last.
    passed: Option<Place>,
    looked: usize,
}

impl Turn {
    fn first<T>(id: FlowId, flow: &Flow<T>, virtual_time: f64) -> Self {
        Self {
            tag: flow.start_tag(virtual_time),
            flow: id,
            passed: None,
            looked: 0,
        }
    }
}

impl Eq for Turn {}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.tag.total_cmp(&other.tag).then(self.flow.cmp(&other.flow))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests;
