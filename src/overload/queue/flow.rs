//! One flow's waiting requests, in their order.

use super::{Arrival, Place};
use crate::prefix::EndpointId;
use crate::time::Mono;
use std::collections::BTreeMap;
use std::ops::Bound;

/// One waiting request.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    pub arrival: Arrival,
    pub payload: T,
    /// The busy endpoint that it preferred when it was offered its turn last, and when that was.
    pub prefers: Option<(Mono, EndpointId)>,
}

/// The requests of one tenant at one priority.
#[derive(Debug)]
pub(super) struct Flow<T> {
    pub weight: f64,
    /// Finish tag of its newest placed request: the flow's next one starts here, unless time has passed it by.
    finish: f64,
    waiting: BTreeMap<Place, Waiting<T>>,
    work: f64,
    miss_s: f64,
    bytes: u64,
}

impl<T> Default for Flow<T> {
    fn default() -> Self {
        Self {
            weight: 1.0,
            finish: 0.0,
            waiting: BTreeMap::new(),
            work: 0.0,
            miss_s: 0.0,
            bytes: 0,
        }
    }
}

impl<T> Flow<T> {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes of the waiting bodies.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Work that waits, in tokens.
    pub fn work(&self) -> f64 {
        self.work.max(0.0)
    }

    /// Prefill that waits, in seconds of one endpoint.
    pub fn miss_s(&self) -> f64 {
        self.miss_s.max(0.0)
    }

    pub fn oldest(&self) -> Option<Mono> {
        self.waiting.values().map(|waiting| waiting.arrival.arrived).min()
    }

    /// Places of those whose time is over.
    pub fn late(&self, now: Mono) -> impl Iterator<Item = Place> {
        self.waiting
            .iter()
            .filter(move |(_, waiting)| waiting.arrival.deadline <= now)
            .map(|(place, _)| *place)
    }

    /// Its requests in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arrival, &T)> {
        self.waiting
            .values()
            .map(|waiting| (&waiting.arrival, &waiting.payload))
    }

    /// Its requests, the one that would go last first.
    pub fn newest_first(&self) -> impl Iterator<Item = (&Place, &Waiting<T>)> {
        self.waiting.iter().rev()
    }

    pub fn insert(&mut self, place: Place, waiting: Waiting<T>) {
        self.work += waiting.arrival.work;
        self.miss_s += finite(waiting.arrival.miss_s);
        self.bytes += waiting.arrival.bytes;
        self.waiting.insert(place, waiting);
    }

    pub fn remove(&mut self, place: Place) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&place)?;
        self.bytes -= waiting.arrival.bytes;
        // Sums of floats keep a residue: an empty flow has no work.
        (self.work, self.miss_s) = if self.waiting.is_empty() {
            (0.0, 0.0)
        } else {
            let miss_s = self.miss_s - finite(waiting.arrival.miss_s);
            (self.work - waiting.arrival.work, miss_s)
        };
        Some(waiting)
    }

    /// The first request behind `passed`.
    pub fn next_after(&mut self, passed: Option<Place>) -> Option<(Place, &mut Waiting<T>)> {
        let behind = passed.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range_mut((behind, Bound::Unbounded)).next();
        next.map(|(place, waiting)| (*place, waiting))
    }

    /// Requests and work in front of a request with this key.
    pub fn ahead_of(&self, key: Mono) -> (usize, f64) {
        let ahead = self.waiting.range(..(key, u64::MAX));
        ahead.fold((0, 0.0), |(count, work), (_, waiting)| {
            (count + 1, work + waiting.arrival.work)
        })
    }

    /// Start tag of the flow's next request.
    pub fn start_tag(&self, virtual_time: f64) -> f64 {
        self.finish.max(virtual_time)
    }

    /// Whether the flow has had more than its share so far.
    pub fn is_ahead_of(&self, virtual_time: f64) -> bool {
        self.finish > virtual_time
    }

    /// Charges the flow for the request at `place`; returns the request's start tag.
    pub fn charge(&mut self, virtual_time: f64, place: Place) -> f64 {
        let start = self.start_tag(virtual_time);
        let work = self
            .waiting
            .get(&place)
            .map_or(0.0, |waiting| waiting.arrival.work);
        self.finish = start + work.max(1.0) / self.weight;
        start
    }
}

/// An estimate may be anything, and one that is not a number would be all that a sum ever is.
fn finite(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds } else { 0.0 }
}
