//! All subscriptions of one endpoint.

use super::ownership::Limits;
use super::sink::{IndexSink, MAX_RANKS, RankSink};
use super::subscriber::{Source, Status, Subscription};
use crate::prefix::{EndpointId, PrefixIndex};
use parking_lot::Mutex;
use std::sync::Arc;

/// The event streams of one endpoint, one per data-parallel rank.
#[derive(Debug)]
pub struct Feed {
    sources: Vec<Source>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    subscriptions: Vec<Subscription>,
    /// Restarts that the streams had noticed at the newest look of somebody else at the engine.
    restarts_seen: u64,
}

impl Feed {
    /// A feed from `sources`, at most [`MAX_RANKS`], rank 0 first; it listens from [`Feed::start`] on.
    pub fn new(mut sources: Vec<Source>) -> Self {
        sources.truncate(MAX_RANKS as usize);
        Self {
            sources,
            state: Mutex::default(),
        }
    }

    /// Starts listening on the current tokio runtime, and writes what the events tell to `index`.
    pub fn start(&self, index: &Arc<PrefixIndex>, endpoint: EndpointId) {
        let sink = IndexSink::new(Arc::clone(index), endpoint);
        let limits = Limits::default();
        let subscriptions = match &self.sources[..] {
            [source] => vec![Subscription::spawn(source.clone(), limits, sink)],
            sources => {
                let sinks = RankSink::split(sink, sources.len() as u32);
                let each = sources.iter().cloned().zip(sinks);
                each.map(|(source, sink)| Subscription::spawn(source, limits, sink))
                    .collect()
            }
        };
        self.state.lock().subscriptions = subscriptions;
    }

    /// Stops listening.
    pub fn stop(&self) {
        self.state.lock().subscriptions.clear();
    }

    /// What is known of each rank's stream.
    pub fn statuses(&self) -> Vec<Status> {
        let state = self.state.lock();
        state.subscriptions.iter().map(Subscription::status).collect()
    }

    /// Somebody looked at the engine from outside, and saw it `restarted` since the last look or not. The streams
    /// begin anew, unless they noticed the restart themselves: what they learnt since is true.
    pub fn looked_at(&self, restarted: bool) {
        let statuses = self.statuses();
        let restarts = statuses.iter().map(|rank| rank.stream.restarts).sum();
        let state = &mut *self.state.lock();
        if restarted && restarts == state.restarts_seen {
            state.subscriptions.iter().for_each(Subscription::reset);
        }
        state.restarts_seen = restarts;
    }

    /// Another server took the place of the engine: everything known of it is dropped.
    pub fn reset(&self) {
        self.state
            .lock()
            .subscriptions
            .iter()
            .for_each(Subscription::reset);
    }
}
