//! Requests that wait in the router until an endpoint has room: the queue of [`overload`](crate::overload) with the
//! pool's own picks behind it.

mod told;

pub use told::{Expected, Turned, TurnedAway, WhoWaits, Why};

use super::gate::Staying;
use super::pick::{Held, Terms};
use super::plan::Plan;
use super::prompt::Prompt;
use super::{Pool, State};
use crate::overload::queue::{
    Arrival, Entered, FlowId, Limit, Offers, Queue, QueueSettings, Standing, Ticket, Verdict,
};
use crate::overload::turn::Room;
use crate::prefix::EndpointId;
use crate::telemetry::QueueMetrics;
use crate::time::Mono;
use http::HeaderName;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// How often the queue is looked at when nothing else happens.
pub const TICK: Duration = Duration::from_millis(250);

/// Between whom the queue is shared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sharing {
    /// Request header that names the tenant; `None`: the API key does.
    pub tenant_header: Option<HeaderName>,
    /// Request header that may say `high` or `low`.
    pub priority_header: Option<HeaderName>,
    /// Shares by the hash (XXH3) of the tenant's name; 1 for others.
    pub weights: HashMap<u64, f64>,
}

/// What a pool's configuration says of waiting.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingSettings {
    pub queue: QueueSettings,
    pub sharing: Sharing,
    /// Longest wait.
    pub timeout: Duration,
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    pub flow: FlowId,
    /// Share against other flows.
    pub weight: f64,
    /// Bytes of the request's body.
    pub bytes: u64,
}

/// The end of a wait.
pub type Turn = Result<Plan, TurnedAway>;

/// What became of a request that came.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
pub enum Admission {
    /// It was placed at once; without an attempt when no endpoint is ready.
    Placed(Plan),
    Waits(Waiting),
    Refused(TurnedAway),
}

/// A place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub struct Waiting {
    pool: Arc<Pool>,
    room: Arc<WaitingRoom>,
    ticket: Ticket,
    turn: oneshot::Receiver<Turn>,
}

/// One pool's queue, and that of the pools that take its place: what waits outlives a change of the rules.
pub struct WaitingRoom {
    metrics: QueueMetrics,
    /// Those who wait, readable without the lock: at normal load nobody takes it.
    len: AtomicUsize,
    /// A tenant floods: then nobody goes past the queue.
    is_flooded: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    queue: Queue<Waiter>,
    last_tick: Mono,
    /// Newest time told, for those who leave without knowing it.
    now: Mono,
    /// Endpoints that took requests when the newest request came.
    endpoints: u32,
}

/// What waits.
#[derive(Debug)]
struct Waiter {
    /// `None` while it is offered its turn.
    prompt: Option<Prompt>,
    turn: Option<oneshot::Sender<Turn>>,
    request_id: Box<str>,
    /// Why it was not placed when it was offered its turn last; `None` before the first offer.
    held: Option<Verdict>,
    /// The conversation that it continues counts as in use while it waits.
    _announced: Option<Staying>,
}

/// The queue at one moment, for metrics and admin pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueSample {
    pub requests: usize,
    pub bytes: u64,
    /// Those of them that would begin a conversation.
    pub fresh: usize,
    /// How long the request waits that waits longest.
    pub oldest: Duration,
    /// When what waits now will have left.
    pub drained_in: Duration,
}

impl WaitingRoom {
    /// An empty queue by the rules of `settings`.
    pub fn new(settings: Option<&WaitingSettings>, metrics: QueueMetrics) -> Self {
        Self {
            inner: Mutex::new(Inner {
                queue: Queue::new(rules(settings)),
                last_tick: Mono::ZERO,
                now: Mono::ZERO,
                endpoints: 1,
            }),
            len: AtomicUsize::new(0),
            is_flooded: AtomicBool::new(false),
            metrics,
        }
    }

    /// Whether a request may go straight out: nobody waits, and no tenant floods.
    fn is_passable(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0 && !self.is_flooded.load(Ordering::Relaxed)
    }

    /// Goes by other rules from now on. Who waits keeps place and patience.
    pub(super) fn follow(&self, settings: Option<&WaitingSettings>) {
        self.inner.lock().queue.follow(rules(settings));
    }

    /// Handles of its metric series.
    pub const fn metrics(&self) -> &QueueMetrics {
        &self.metrics
    }

    fn publish(&self, inner: &Inner) {
        self.len.store(inner.queue.len(), Ordering::Relaxed);
        self.is_flooded.store(inner.queue.is_flooded(), Ordering::Relaxed);
    }

    fn leave(&self, ticket: Ticket) {
        let mut inner = self.inner.lock();
        let now = inner.now;
        let waiter = inner.queue.leave(now, ticket);
        self.publish(&inner);
        if waiter.is_some() {
            self.metrics.left.inc();
        }
    }
}

impl Inner {
    fn retry_after(&self) -> Duration {
        seconds(self.queue.drained_in_s(self.endpoints))
    }
}

/// The queue's rules; without any, whoever still waits goes at the next look.
fn rules(settings: Option<&WaitingSettings>) -> QueueSettings {
    settings.map_or(
        QueueSettings {
            hold_above_s: f64::INFINITY,
            hold_flood_above_s: f64::INFINITY,
            flood_kv_share: f64::INFINITY,
            ..QueueSettings::default()
        },
        |settings| settings.queue,
    )
}

/// A bounded duration: an estimate may be anything.
fn seconds(seconds: f64) -> Duration {
    const LONGEST_S: f64 = 3600.0;
    Duration::from_secs_f64(if seconds.is_finite() {
        seconds.clamp(0.0, LONGEST_S)
    } else {
        LONGEST_S
    })
}

impl Waiting {
    /// Its turn, or the end of its patience. Cancel-safe.
    pub async fn turn(&mut self) -> Turn {
        // The sender goes only with its answer, or with the whole pool.
        (&mut self.turn).await.unwrap_or(Err(TurnedAway {
            why: Turned::TimedOut,
            retry_after: Duration::from_secs(1),
            any_ready: false,
        }))
    }

    /// Ends the waits that are over and looks after the queue, when nobody has ticked for a [`TICK`].
    pub fn tick(&self, now: Mono) {
        self.pool.newest().tick(&self.room, now);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.room.leave(self.ticket);
    }
}

impl Pool {
    /// Places `prompt`, or lets it wait while every endpoint has enough to prefill.
    pub fn admit(self: &Arc<Self>, prompt: Prompt, claim: Claim, request_id: &str, now: Mono) -> Admission {
        let Some(settings) = &self.settings.waiting else {
            return Admission::Placed(self.place(prompt, now));
        };
        let terms = Terms {
            limit: settings.queue.limit(Standing::Even),
            turn: false,
            ask_only: !self.waiting.is_passable(),
            waited: Duration::ZERO,
        };
        match self.place_on(prompt, terms, now) {
            Ok(plan) => Admission::Placed(plan),
            Err((prompt, held)) => {
                let arrival = self.arrival(settings, claim, &held, now);
                self.queue_up(prompt, arrival, request_id, &held, now)
            }
        }
    }

    fn queue_up(
        self: &Arc<Self>,
        prompt: Prompt,
        arrival: Arrival,
        request_id: &str,
        held: &Held,
        now: Mono,
    ) -> Admission {
        let room = &self.waiting;
        let (sender, receiver) = oneshot::channel();
        let gate = self.gate_for(&prompt);
        let waiter = Waiter {
            _announced: gate
                .and_then(|gate| gate.announce(now, &prompt.visit(held.best_match_tokens, Duration::ZERO))),
            prompt: Some(prompt),
            turn: Some(sender),
            request_id: request_id.into(),
            held: None,
        };
        let mut inner = room.inner.lock();
        inner.now = inner.now.max(now);
        inner.endpoints = held.endpoints;
        let entered = inner.queue.enter(now, arrival, waiter);
        let admission = match entered {
            Entered::Waits { ticket, gave_way } => {
                let waits = Admission::Waits(Waiting {
                    pool: self.clone(),
                    room: room.clone(),
                    ticket,
                    turn: receiver,
                });
                room.metrics.held.inc();
                self.turn_away(room, &inner, gave_way, Turned::GaveWay);
                waits
            }
            Entered::Full(_) => Admission::Refused(self.turned_away(room, &inner, Turned::Full)),
        };
        self.pump_locked(room, &mut inner, now);
        drop(inner);
        admission
    }

    /// Something freed: whose turn it is goes. Costs nothing while nobody waits.
    pub fn freed(self: &Arc<Self>, now: Mono) {
        let newest = self.newest();
        let room = &newest.waiting;
        if room.len.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Who holds the lock is looking at the endpoints, or has just done so: what it missed is seen within a `TICK`.
        if let Some(mut inner) = room.inner.try_lock() {
            newest.pump_locked(room, &mut inner, now);
        }
    }

    fn tick(self: &Arc<Self>, room: &WaitingRoom, now: Mono) {
        let mut inner = room.inner.lock();
        if inner.last_tick + TICK > now {
            return;
        }
        inner.last_tick = now;
        let expired = inner.queue.expire(now).into_iter();
        let (gated, late) = expired.partition(|waiter| waiter.held == Some(Verdict::Gated));
        self.turn_away(room, &inner, late, Turned::TimedOut);
        self.turn_away(room, &inner, gated, Turned::NoRoom);
        self.pump_locked(room, &mut inner, now);
    }

    fn pump_locked(self: &Arc<Self>, room: &WaitingRoom, inner: &mut Inner, now: Mono) {
        inner.now = inner.now.max(now);
        let mut offers = Pump {
            pool: self,
            now,
            room: self.room(now),
            metrics: &room.metrics,
        };
        inner.queue.pump(now, &mut offers);
        room.publish(inner);
    }

    fn turn_away(&self, room: &WaitingRoom, inner: &Inner, waiters: Vec<Waiter>, why: Turned) {
        for mut waiter in waiters {
            let away = self.turned_away(room, inner, why);
            if let Some(turn) = waiter.turn.take() {
                // The client may have left in the same moment.
                let _ = turn.send(Err(away));
            }
        }
    }

    fn turned_away(&self, room: &WaitingRoom, inner: &Inner, why: Turned) -> TurnedAway {
        room.metrics.count_refused(why);
        let snapshot = self.snapshot.load();
        TurnedAway {
            why,
            retry_after: inner.retry_after(),
            any_ready: snapshot.entries.iter().any(|entry| entry.state == State::Ready),
        }
    }

    /// The queue at this moment.
    pub fn queue_sample(&self, now: Mono) -> QueueSample {
        let inner = self.waiting.inner.lock();
        QueueSample {
            requests: inner.queue.len(),
            bytes: inner.queue.bytes(),
            fresh: inner.queue.fresh(),
            oldest: inner.queue.oldest().map_or(Duration::ZERO, |at| now.since(at)),
            drained_in: inner.retry_after(),
        }
    }

    /// How long `prompt` would wait if it came now; `None` when it would go straight out.
    pub fn outlook(&self, prompt: &Prompt, claim: Claim, now: Mono) -> Option<Expected> {
        let settings = self.settings.waiting.as_ref()?;
        let room = self.room(now);
        let gate = self.gate_outlook(prompt, now);
        let no_room = gate.is_some_and(|gate| gate.endpoints.iter().all(|(.., admits)| !admits));
        let held = self.wait_of(prompt, now);
        let inner = self.waiting.inner.lock();
        let free = room.is_any_free(&inner.queue.limit_of(now, claim.flow));
        let why = match (no_room, free) {
            (true, _) => Why::NoRoom,
            (false, false) => Why::Busy,
            (false, true) if inner.queue.is_empty() => return None,
            (false, true) => Why::Turn,
        };
        let arrival = self.arrival(settings, claim, &held, now);
        let queue = inner.queue.outlook(&arrival, held.endpoints);
        Some(Expected { queue, why })
    }

    /// Those who wait, at most `limit` of them, who came first first.
    pub fn who_waits(&self, now: Mono, limit: usize) -> Vec<WhoWaits> {
        let snapshot = self.snapshot.load();
        let inner = self.waiting.inner.lock();
        let mut waiting: Vec<_> = inner.queue.iter().collect();
        waiting.sort_by_key(|(arrival, _)| arrival.arrived);
        let one = |(arrival, waiter): &(&Arrival, &Waiter)| WhoWaits {
            request_id: waiter.request_id.clone(),
            model: waiter
                .prompt
                .as_ref()
                .map(|prompt| prompt.model.clone())
                .unwrap_or_default(),
            waited: now.since(arrival.arrived),
            gives_up_in: arrival.deadline.since(now),
            why: Why::of(waiter.held),
            endpoint: match waiter.held {
                Some(Verdict::Busy(id)) => snapshot.by_id(id).map(|entry| entry.endpoint.name.clone()),
                _ => None,
            },
        };
        waiting.iter().take(limit).map(one).collect()
    }
}

impl Pool {
    fn arrival(&self, settings: &WaitingSettings, claim: Claim, held: &Held, now: Mono) -> Arrival {
        let longest = match &self.settings.gate {
            Some(gate) if held.fresh => gate.timeout,
            _ => settings.timeout,
        };
        Arrival {
            flow: claim.flow,
            weight: claim.weight,
            arrived: now,
            deadline: now + longest,
            miss_s: held.miss_s,
            work: held.work_tokens,
            bytes: claim.bytes,
            fresh: held.fresh,
        }
    }
}

/// One pump of a pool's queue.
struct Pump<'a> {
    pool: &'a Arc<Pool>,
    now: Mono,
    room: Room,
    metrics: &'a QueueMetrics,
}

impl Offers<Waiter> for Pump<'_> {
    fn is_free(&self, endpoint: EndpointId, limit: &Limit) -> bool {
        self.room.is_free(endpoint, limit)
    }

    fn offer(&mut self, arrival: &Arrival, waiter: &mut Waiter, limit: &Limit) -> Verdict {
        if self.room.is_empty() || !self.room.is_any_free(limit) {
            return Verdict::Stop;
        }
        let Some(prompt) = waiter.prompt.take() else {
            return Verdict::Placed;
        };
        let terms = Terms {
            limit: *limit,
            turn: true,
            ask_only: false,
            waited: self.now.since(arrival.arrived),
        };
        match self.pool.place_on(prompt, terms, self.now) {
            Ok(plan) => {
                self.room = self.pool.room(self.now);
                self.metrics.waited(self.now.since(arrival.arrived));
                if let Some(turn) = waiter.turn.take()
                    && let Err(Ok(mut plan)) = turn.send(Ok(plan))
                {
                    // The client left in this moment.
                    plan.never_sent();
                }
                Verdict::Placed
            }
            Err((prompt, held)) => {
                waiter.prompt = Some(prompt);
                waiter.held = Some(held.verdict);
                held.verdict
            }
        }
    }
}

impl std::fmt::Debug for WaitingRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingRoom")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
