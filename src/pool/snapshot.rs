//! What was observed of a pool's endpoints, as one immutable value per moment.

use super::endpoint::Endpoint;
use crate::datalayer::vllm::EngineMetrics;
use crate::prefix::EndpointId;
use crate::scheduling::{AdapterStanding, Scraped};
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
    /// Requests picked for the endpoint before that scrape.
    pub picked_at_sample: u64,
    /// Requests that were picked between the sample and the scrape before it.
    pub just_came: u64,
    /// Requests that had ended when the sample was taken.
    pub ended_at_sample: u64,
}

/// An engine that shows no queue admits this many more requests without one.
const ADMITTED_WITHOUT_QUEUE: f64 = 16.0;

impl Entry {
    /// The scraped gauges, unless they are older than `stale_after`, the queue corrected by [`Self::queue`].
    pub fn gauges(&self, now: Mono, stale_after: Duration) -> Scraped {
        if !self.is_fresh(now, stale_after) {
            return Scraped::default();
        }
        Scraped {
            waiting: self.engine.waiting.map(|waiting| self.queue(waiting)),
            running: self.engine.running,
            kv_usage: self.engine.kv_usage,
        }
    }

    fn is_fresh(&self, now: Mono, stale_after: Duration) -> bool {
        self.sampled_at.is_some_and(|at| now.since(at) <= stale_after)
    }

    /// How the engine stands to the LoRA adapter `model`, unless its newest scrape is older than `stale_after`.
    pub fn adapter(&self, model: &str, now: Mono, stale_after: Duration) -> Option<AdapterStanding> {
        let lora = self.engine.lora.as_ref()?;
        self.is_fresh(now, stale_after).then(|| lora.standing(model))
    }

    /// Whether the engine, asked after the newest pick, had nobody waiting: then nothing is left to prefill for long,
    /// whatever the estimates say.
    pub fn is_idle(&self, now: Mono, stale_after: Duration) -> bool {
        let asked_last = self.endpoint.load.sample().picked == self.picked_at_sample;
        asked_last && self.is_fresh(now, stale_after) && self.engine.waiting == Some(0.0)
    }

    /// The engine's queue as it is now, as far as one gauge and the gateway's own picks tell.
    ///
    /// What came between the last two samples is no queue yet: an engine admits requests at the end of a step, so
    /// each of them waits for a moment. What has ended since the sample let as many in. And what was sent since the
    /// scrape is in no gauge: where that is much, it counts, or a whole burst would follow the gauge that looked best.
    fn queue(&self, waiting: f64) -> f64 {
        let load = self.endpoint.load.sample();
        let ended_since = load.ended().saturating_sub(self.ended_at_sample);
        let sent_since = load
            .picked
            .saturating_sub(self.picked_at_sample)
            .min(load.inflight.into());
        let left = self.just_came.saturating_add(ended_since) as f64;
        (waiting - left).max(0.0) + (sent_since as f64 - ADMITTED_WITHOUT_QUEUE).max(0.0)
    }
}

/// All endpoints of a pool at one moment; a decision reads exactly one.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub entries: Box<[Entry]>,
    /// Where the endpoint of each id stands in `entries`.
    places: Box<[Option<u16>]>,
}

impl Snapshot {
    /// A snapshot of these endpoints, whose ids differ.
    pub fn new(entries: Box<[Entry]>) -> Self {
        let id = |entry: &Entry| usize::from(entry.endpoint.id.0);
        let ids = entries.iter().map(id).max().map_or(0, |highest| highest + 1);
        let mut places = vec![None; ids];
        for (place, entry) in (0..).zip(&entries) {
            places[id(entry)] = Some(place);
        }
        Self {
            entries,
            places: places.into(),
        }
    }

    /// One more than the highest id.
    pub fn ids(&self) -> usize {
        self.places.len()
    }

    /// The entry of the endpoint named `name`.
    pub fn by_name(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| &*entry.endpoint.name == name)
    }

    /// The entry of the endpoint with this id in the prefix index.
    pub fn by_id(&self, id: EndpointId) -> Option<&Entry> {
        let place = self.places.get(usize::from(id.0)).copied().flatten()?;
        self.entries.get(usize::from(place))
    }

    /// Endpoints that take requests.
    pub fn ready(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.state == State::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datalayer::vllm::LoraRequests;
    use crate::pool::Identity;
    use crate::pool::load::Reservation;
    use crate::pool::status::{self, Status};
    use crate::telemetry::Metrics;

    fn endpoint(id: u16) -> Arc<Endpoint> {
        let metrics = Metrics::new().unwrap();
        let url = "http://127.0.0.1:1".parse().unwrap();
        let of = Identity {
            pool: "p".into(),
            name: "e",
            url: &url,
            max_inflight: None,
            labels: Default::default(),
            events: Vec::new(),
        };
        Arc::new(Endpoint::new(of, EndpointId(id), metrics.endpoint("p", "e")))
    }

    /// An endpoint that was sampled twice, with so many requests sent before, between and after the samples.
    fn entry_after(scrape: EngineMetrics, sent: [usize; 3]) -> (Entry, Vec<Reservation>) {
        let (status, reservations) = status_after(&scrape, sent);
        (status::snapshot(&[status]).entries[0].clone(), reservations)
    }

    fn status_after(scrape: &EngineMetrics, sent: [usize; 3]) -> (Status, Vec<Reservation>) {
        let endpoint = endpoint(0);
        let mut status = Status::new(endpoint.clone());
        let mut reservations = Vec::new();
        for (round, count) in sent.into_iter().enumerate() {
            reservations.extend((0..count).map(|_| Reservation::take(&endpoint.load, 10, 10)));
            if round < 2 {
                status.scraped(Mono::ZERO, endpoint.load.sample().picked, scrape.clone());
            }
        }
        (status, reservations)
    }

    fn waiting(entry: &Entry) -> Option<f64> {
        entry.gauges(Mono::ZERO, Duration::from_secs(1)).waiting
    }

    #[test]
    fn entries_are_found_by_id() {
        let statuses = [7, 2].map(|id| Status::new(endpoint(id)));
        let snapshot = status::snapshot(&statuses);
        assert_eq!(snapshot.ids(), 8);
        for id in 0..10 {
            let found = snapshot.by_id(EndpointId(id)).map(|entry| entry.endpoint.id.0);
            assert_eq!(found, [2, 7].contains(&id).then_some(id));
        }
        assert_eq!(Snapshot::default().ids(), 0);
        assert!(Snapshot::default().by_id(EndpointId(0)).is_none());
    }

    #[test]
    fn what_just_came_is_no_queue_yet() {
        let scrape = EngineMetrics {
            waiting: Some(3.0),
            ..EngineMetrics::default()
        };
        assert_eq!(waiting(&entry_after(scrape.clone(), [9, 0, 0]).0), Some(3.0));
        assert_eq!(waiting(&entry_after(scrape.clone(), [0, 2, 0]).0), Some(1.0));
        assert_eq!(waiting(&entry_after(scrape, [0, 5, 0]).0), Some(0.0));
    }

    #[test]
    fn a_burst_since_the_sample_counts_as_long_as_it_is_there() {
        let scrape = EngineMetrics {
            waiting: Some(3.0),
            ..EngineMetrics::default()
        };
        let (entry, mut sent) = entry_after(scrape, [0, 0, 20]);
        assert_eq!(waiting(&entry), Some(7.0));
        sent.truncate(18);
        // 18 and 2 of the 3: the two that ended let two in.
        assert_eq!(waiting(&entry), Some(3.0));
        sent.truncate(10);
        assert_eq!(waiting(&entry), Some(0.0));
    }

    #[test]
    fn a_queue_moves_up_with_each_request_that_ends() {
        let scrape = EngineMetrics {
            waiting: Some(3.0),
            ..EngineMetrics::default()
        };
        let (entry, mut sent) = entry_after(scrape, [9, 0, 0]);
        for left in [3.0, 2.0, 1.0, 0.0, 0.0] {
            assert_eq!(waiting(&entry), Some(left));
            sent.pop();
        }
    }

    #[test]
    fn a_report_with_a_response_tells_of_what_came_since_the_scrape_as_well() {
        let scrape = EngineMetrics {
            waiting: Some(0.0),
            ..EngineMetrics::default()
        };
        let report = Scraped {
            waiting: Some(7.0),
            ..Scraped::default()
        };
        let (mut status, _sent) = status_after(&scrape, [9, 2, 5]);
        status.load_reported(Mono::ZERO, report);
        assert_eq!(waiting(&status::snapshot(&[status]).entries[0]), Some(2.0));
    }

    #[test]
    fn unknown_and_stale_stay_unknown() {
        let (entry, _sent) = entry_after(EngineMetrics::default(), [0, 0, 40]);
        assert_eq!(waiting(&entry), None);
        let scrape = EngineMetrics {
            waiting: Some(0.0),
            kv_usage: Some(0.5),
            lora: Some(LoraRequests::default()),
            ..EngineMetrics::default()
        };
        let (entry, _sent) = entry_after(scrape, [0, 0, 1]);
        let adapter = |now, stale_after| entry.adapter("a", now, stale_after);
        assert!(adapter(Mono::ZERO, Duration::from_secs(1)).is_some());
        let late = Mono::from_secs_f64(1.5);
        assert_eq!(entry.gauges(late, Duration::from_secs(1)), Scraped::default());
        assert_eq!(adapter(late, Duration::from_secs(1)), None);
    }
}
