//! What was observed of a pool's endpoints, as one immutable value per moment.

use super::endpoint::Endpoint;
use crate::datalayer::vllm::EngineMetrics;
use crate::prefix::EndpointId;
use crate::scheduling::Scraped;
use crate::time::Mono;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Whether an endpoint takes new requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Takes requests.
    Ready,
    /// Not checked yet, or its health check fails.
    Unready,
    /// Set aside because requests to it failed.
    Ejected,
    /// Taken out by an operator.
    Draining,
}

impl State {
    /// All states, for gauges with one series per state.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Unready, Self::Ejected, Self::Draining];

    /// The word in admin pages and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Unready => "unready",
            Self::Ejected => "ejected",
            Self::Draining => "draining",
        }
    }
}

/// One endpoint in a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct Entry {
    pub endpoint: Arc<Endpoint>,
    pub state: State,
    /// Why the state is what it is, in words.
    pub reason: Arc<str>,
    /// It was set aside and takes one request at a time, to see whether it is well again.
    pub on_trial: bool,
    /// When it last became ready.
    pub ready_since: Option<Mono>,
    /// The newest scrape and when it was taken.
    pub engine: EngineMetrics,
    pub sampled_at: Option<Mono>,
    /// Requests picked for the endpoint before that sample.
    pub picked_at_sample: u64,
}

impl Entry {
    /// The scraped gauges, unless they are older than `stale_after`. What was sent there since the sample was
    /// taken and has not ended counts as waiting: a gauge that moves only with the next scrape would send a whole
    /// burst to the endpoint that looked idle.
    pub fn gauges(&self, now: Mono, stale_after: Duration) -> Scraped {
        match self.sampled_at {
            Some(at) if now.since(at) <= stale_after => Scraped {
                waiting: self
                    .engine
                    .waiting
                    .map(|waiting| waiting + self.sent_since_sample()),
                running: self.engine.running,
                kv_usage: self.engine.kv_usage,
            },
            _ => Scraped::default(),
        }
    }

    fn sent_since_sample(&self) -> f64 {
        let load = self.endpoint.load.sample();
        load.picked
            .saturating_sub(self.picked_at_sample)
            .min(load.inflight.into()) as f64
    }
}

/// All endpoints of a pool at one moment; a decision reads exactly one.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub entries: Box<[Entry]>,
}

impl Snapshot {
    /// The entry of the endpoint named `name`.
    pub fn by_name(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| &*entry.endpoint.name == name)
    }

    /// The entry of the endpoint with this id in the prefix index.
    pub fn by_id(&self, id: EndpointId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.endpoint.id == id)
    }

    /// Endpoints that take requests.
    pub fn ready(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.state == State::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::load::Reservation;
    use crate::pool::status::{self, Status};
    use crate::pool::{Identity, endpoint};
    use crate::telemetry::Metrics;

    fn entry_after(
        scrape: EngineMetrics,
        sent_before: usize,
        sent_after: usize,
    ) -> (Entry, Vec<Reservation>) {
        let metrics = Metrics::new().unwrap();
        let url = "http://127.0.0.1:1".parse().unwrap();
        let of = Identity {
            pool: "p".into(),
            name: "e",
            url: &url,
            max_inflight: None,
            labels: Default::default(),
        };
        let endpoint = Arc::new(endpoint::Endpoint::new(
            of,
            EndpointId(0),
            metrics.endpoint("p", "e"),
        ));
        let send = |n: usize| {
            (0..n)
                .map(|_| Reservation::take(&endpoint.load, 10, 10))
                .collect::<Vec<_>>()
        };
        let mut reservations = send(sent_before);
        let picked = endpoint.load.sample().picked;
        let mut status = Status::new(endpoint.clone());
        status.scraped(Mono::ZERO, picked, scrape);
        reservations.extend(send(sent_after));
        (status::snapshot(&[status]).entries[0].clone(), reservations)
    }

    #[test]
    fn what_was_sent_since_the_sample_counts_as_waiting() {
        let scrape = EngineMetrics {
            waiting: Some(3.0),
            ..EngineMetrics::default()
        };
        let (entry, mut reservations) = entry_after(scrape, 2, 4);
        let waiting = |entry: &Entry| entry.gauges(Mono::ZERO, Duration::from_secs(1)).waiting;
        assert_eq!(waiting(&entry), Some(7.0));
        reservations.truncate(1);
        assert_eq!(waiting(&entry), Some(4.0), "what has ended waits no more");
    }

    #[test]
    fn unknown_and_stale_stay_unknown() {
        let (entry, _sent) = entry_after(EngineMetrics::default(), 0, 4);
        assert_eq!(entry.gauges(Mono::ZERO, Duration::from_secs(1)).waiting, None);
        let scrape = EngineMetrics {
            waiting: Some(0.0),
            kv_usage: Some(0.5),
            ..EngineMetrics::default()
        };
        let (entry, _sent) = entry_after(scrape, 0, 1);
        let late = Mono::from_secs_f64(1.5);
        assert_eq!(entry.gauges(late, Duration::from_secs(1)), Scraped::default());
    }
}
