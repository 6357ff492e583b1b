//! Runs an engine in real time: one timer task, and a lock that nobody holds for long.

use crate::sim::engine::{Engine, EngineCounters, EngineEvent, EngineSpec, Finished, RequestId, SimRequest};
use crate::time::Mono;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Receives the block events of an engine, for publication to subscribers.
pub trait BlockEventSink: Send + Sync {
    /// `events` are [`EngineEvent::BlocksStored`], [`EngineEvent::BlockRemoved`] and
    /// [`EngineEvent::Cleared`] only, in order, from one or more steps. Called under the engine's lock:
    /// hand them over and return.
    fn publish(&self, events: &[EngineEvent]);
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Finished(Finished),
    /// The server went down in orderly fashion: the output ends early with `finish_reason: "abort"`.
    Aborted,
}

/// What the HTTP side sees of one request in the engine.
#[derive(Default)]
pub(super) struct Progress {
    generated: AtomicU32,
    outcome: OnceLock<Outcome>,
    waker: AtomicWaker,
    /// Wake for every token, not only at the end.
    wants_tokens: bool,
}

impl Progress {
    pub(super) fn new(wants_tokens: bool) -> Self {
        Self {
            wants_tokens,
            ..Self::default()
        }
    }

    /// Output tokens so far.
    pub(super) fn generated(&self) -> u32 {
        self.generated.load(Ordering::Acquire)
    }

    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Wakes `waker` at the next change; look again after registering.
    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    fn token(&self, generated: u32) {
        self.generated.store(generated, Ordering::Release);
        if self.wants_tokens {
            self.waker.wake();
        }
    }

    fn end(&self, outcome: Outcome) {
        // The first outcome stands; the driver forgets a request when it gives one.
        let _ = self.outcome.set(outcome);
        self.waker.wake();
    }
}

/// Bounds on what may be in the engine at a time; beyond them requests are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueLimits {
    /// Requests in flight, running or waiting (`--max-num-queued-reqs`).
    pub requests: Option<u32>,
    /// Prompt tokens of requests without a first token (`--max-num-queued-tokens`).
    pub tokens: Option<u64>,
}

/// Why the engine took no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("too many requests in flight")]
    Requests,
    #[error("too many prompt tokens before their first token")]
    Tokens,
    #[error("the engine is shut down")]
    Down,
    #[error(transparent)]
    Submit(#[from] crate::sim::engine::SubmitError),
}

struct Live {
    progress: Arc<Progress>,
    /// Prompt tokens until the first token, then 0.
    prefill_tokens: u64,
}

struct State {
    engine: Engine,
    live: HashMap<RequestId, Live>,
    prefill_tokens: u64,
    next_id: u64,
    events: Vec<EngineEvent>,
    down: bool,
}

pub(super) struct Driver {
    state: Mutex<State>,
    limits: QueueLimits,
    sink: Option<Arc<dyn BlockEventSink>>,
    started: Instant,
    speed: f64,
    /// When the timer will look next, nanoseconds of engine time.
    armed: AtomicU64,
    rearm: Notify,
    pub(super) rejected_requests: AtomicU64,
    pub(super) rejected_tokens: AtomicU64,
    sleeping: AtomicBool,
    paused: AtomicBool,
}

impl Driver {
    pub(super) fn new(
        spec: EngineSpec,
        speed: f64,
        limits: QueueLimits,
        sink: Option<Arc<dyn BlockEventSink>>,
    ) -> Self {
        let spec = EngineSpec {
            token_events: true,
            block_events: sink.is_some(),
            ..spec
        };
        Self {
            state: Mutex::new(State {
                engine: Engine::new(spec),
                live: HashMap::new(),
                prefill_tokens: 0,
                next_id: 0,
                events: Vec::new(),
                down: false,
            }),
            limits,
            sink,
            started: Instant::now(),
            speed: if speed > 0.0 { speed } else { 1.0 },
            armed: AtomicU64::new(u64::MAX),
            rearm: Notify::new(),
            rejected_requests: AtomicU64::new(0),
            rejected_tokens: AtomicU64::new(0),
            sleeping: AtomicBool::new(false),
            paused: AtomicBool::new(false),
        }
    }

    fn now(&self) -> Mono {
        Mono::from_secs_f64(self.started.elapsed().as_secs_f64() * self.speed)
    }

    /// The wall-clock deadline of an engine time.
    fn deadline(&self, at: Mono) -> tokio::time::Instant {
        let elapsed = Duration::from_secs_f64(at.as_secs_f64() / self.speed);
        tokio::time::Instant::from_std(self.started + elapsed)
    }

    /// Whether block events, and so the tokens in [`SimRequest::content`], are wanted.
    pub(super) fn publishes_blocks(&self) -> bool {
        self.sink.is_some()
    }

    /// Puts all requests, or none, into the engine, so that they can share its next step.
    pub(super) fn submit(
        &self,
        requests: Vec<SimRequest>,
        wants_tokens: bool,
    ) -> Result<Vec<(RequestId, Arc<Progress>)>, Refused> {
        let mut state = self.state.lock();
        self.advance(&mut state);
        self.check_limits(&state, requests.len())?;
        let now = self.now();
        let mut submitted = Vec::with_capacity(requests.len());
        for request in requests {
            match state.submit(now, request, wants_tokens) {
                Ok(done) => submitted.push(done),
                Err(refused) => {
                    submitted.iter().for_each(|(id, _)| state.abort(*id));
                    return Err(refused.into());
                }
            }
        }
        self.advance(&mut state);
        if let Some(at) = state.engine.next_event_at()
            && at.as_nanos() < self.armed.load(Ordering::Acquire)
        {
            self.rearm.notify_one();
        }
        Ok(submitted)
    }

    fn check_limits(&self, state: &State, requests: usize) -> Result<(), Refused> {
        if state.down {
            return Err(Refused::Down);
        }
        if self
            .limits
            .requests
            .is_some_and(|max| state.live.len() + requests > max as usize)
        {
            self.rejected_requests.fetch_add(1, Ordering::Relaxed);
            return Err(Refused::Requests);
        }
        if self.limits.tokens.is_some_and(|max| state.prefill_tokens >= max) {
            self.rejected_tokens.fetch_add(1, Ordering::Relaxed);
            return Err(Refused::Tokens);
        }
        Ok(())
    }

    /// Gives a request up; nothing happens when it has ended.
    pub(super) fn abort(&self, id: RequestId) {
        let mut state = self.state.lock();
        state.abort(id);
        self.advance(&mut state);
    }

    /// Ends all requests with [`Outcome::Aborted`].
    pub(super) fn abort_in_flight(&self) {
        let mut state = self.state.lock();
        self.advance(&mut state);
        let ids: Vec<RequestId> = state.live.keys().copied().collect();
        for id in ids {
            if let Some(live) = state.live.get(&id) {
                live.progress.end(Outcome::Aborted);
            }
            state.abort(id);
        }
    }

    /// Takes no more requests; those in flight go on.
    pub(super) fn refuse_new(&self) {
        self.state.lock().down = true;
    }

    pub(super) fn counters(&self) -> EngineCounters {
        let mut state = self.state.lock();
        self.advance(&mut state);
        state.engine.counters().clone()
    }

    /// What `endpoint-load-metrics` reports: (requests waiting, KV cache usage), as of the last step.
    pub(super) fn load_report(&self) -> (u32, f64) {
        let state = self.state.lock();
        let counters = state.engine.counters();
        (counters.requests_waiting, counters.kv_cache_usage)
    }

    /// Requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().live.len()
    }

    pub(super) fn reset_prefix_cache(&self) -> bool {
        let mut state = self.state.lock();
        self.advance(&mut state);
        state.engine.reset_prefix_cache()
    }

    /// Sleep and pause both stop the engine; it runs when neither holds.
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        self.sleeping.store(sleeping, Ordering::Release);
        self.apply_pause();
    }

    pub(super) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
        self.apply_pause();
    }

    pub(super) fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Acquire)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    fn apply_pause(&self) {
        let mut state = self.state.lock();
        self.advance(&mut state);
        state
            .engine
            .set_paused(self.now(), self.is_sleeping() || self.is_paused());
        self.rearm.notify_one();
    }

    /// Lets time pass in the engine; runs until dropped.
    pub(super) async fn run(&self) {
        loop {
            let next = {
                let mut state = self.state.lock();
                self.advance(&mut state);
                let next = state.engine.next_event_at();
                self.armed
                    .store(next.map_or(u64::MAX, Mono::as_nanos), Ordering::Release);
                next
            };
            match next {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(self.deadline(at)) => {}
                    () = self.rearm.notified() => {}
                },
                None => self.rearm.notified().await,
            }
        }
    }

    fn advance(&self, state: &mut State) {
        let mut events = std::mem::take(&mut state.events);
        state.engine.advance(self.now(), &mut events);
        if let Some(sink) = self.sink.as_ref().filter(|_| !events.is_empty()) {
            publish_blocks(sink.as_ref(), &events);
        }
        for event in events.drain(..) {
            match event {
                EngineEvent::Token { id, generated, .. } => state.token(id, generated),
                EngineEvent::Finished(finished) => {
                    if let Some(live) = state.live.remove(&finished.id) {
                        live.progress.end(Outcome::Finished(finished));
                    }
                }
                _ => {}
            }
        }
        state.events = events;
    }
}

fn publish_blocks(sink: &dyn BlockEventSink, events: &[EngineEvent]) {
    let is_block = |event: &&EngineEvent| {
        matches!(
            event,
            EngineEvent::BlocksStored { .. } | EngineEvent::BlockRemoved { .. } | EngineEvent::Cleared
        )
    };
    let blocks: Vec<EngineEvent> = events.iter().filter(is_block).cloned().collect();
    if !blocks.is_empty() {
        sink.publish(&blocks);
    }
}

impl State {
    fn submit(
        &mut self,
        now: Mono,
        mut request: SimRequest,
        wants_tokens: bool,
    ) -> Result<(RequestId, Arc<Progress>), crate::sim::engine::SubmitError> {
        let id = RequestId(self.next_id);
        request.id = id;
        let prefill_tokens = u64::from(request.prompt_tokens);
        self.engine.submit(now, request)?;
        self.next_id += 1;
        self.prefill_tokens += prefill_tokens;
        let progress = Arc::new(Progress::new(wants_tokens));
        self.live.insert(
            id,
            Live {
                progress: progress.clone(),
                prefill_tokens,
            },
        );
        Ok((id, progress))
    }

    fn token(&mut self, id: RequestId, generated: u32) {
        if let Some(live) = self.live.get_mut(&id) {
            self.prefill_tokens -= std::mem::take(&mut live.prefill_tokens);
            live.progress.token(generated);
        }
    }

    fn abort(&mut self, id: RequestId) {
        if let Some(live) = self.live.remove(&id) {
            self.prefill_tokens -= live.prefill_tokens;
            self.engine.abort(id);
        }
    }
}
