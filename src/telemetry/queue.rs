//! Metric families of the pools' queues.

use super::metrics::{Families, SECOND_BUCKETS};
use super::names;
use crate::pool::waiting::{QueueSample, Turned};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The families.
#[derive(Clone)]
pub(super) struct QueueFamilies {
    requests: IntGaugeVec,
    bytes: IntGaugeVec,
    fresh: IntGaugeVec,
    oldest: GaugeVec,
    drain: GaugeVec,
    held: IntCounterVec,
    refused: IntCounterVec,
    left: IntCounterVec,
    wait: HistogramVec,
}

impl QueueFamilies {
    pub fn new(build: &Families) -> prometheus::Result<Self> {
        let pool = ["pool"];
        Ok(Self {
            requests: build.int_gauges(
                names::QUEUE_REQUESTS,
                "Requests that wait in the router because every endpoint has enough to prefill.",
                &pool,
            )?,
            bytes: build.int_gauges(
                names::QUEUE_BYTES,
                "Bytes of the bodies of waiting requests.",
                &pool,
            )?,
            fresh: build.int_gauges(
                names::QUEUE_FRESH,
                "Waiting requests that would begin a conversation.",
                &pool,
            )?,
            oldest: build.gauges(
                names::QUEUE_OLDEST,
                "How long the request waits that waits longest.",
                &pool,
            )?,
            drain: build.gauges(
                names::QUEUE_DRAIN,
                "When what waits now will have left the queue, by the rate at which it drains.",
                &pool,
            )?,
            held: build.counters(
                names::QUEUE_HELD,
                "Requests that had to wait in the router.",
                &pool,
            )?,
            refused: build.counters(
                names::QUEUE_REFUSED,
                "Requests that the queue turned away, by reason (full, gave-way, timed-out, no-room).",
                &["pool", "reason"],
            )?,
            left: build.counters(
                names::QUEUE_LEFT,
                "Requests whose client left while they waited.",
                &pool,
            )?,
            wait: build.histograms(
                names::QUEUE_WAIT,
                "Time in the router's queue, of requests that waited and were placed.",
                &pool,
                SECOND_BUCKETS,
            )?,
        })
    }

    /// The handles of one pool.
    pub fn of(&self, pool: &str) -> QueueMetrics {
        let refused = Turned::ALL.map(|why| self.refused.with_label_values(&[pool, why.as_str()]));
        QueueMetrics {
            requests: self.requests.with_label_values(&[pool]),
            bytes: self.bytes.with_label_values(&[pool]),
            fresh: self.fresh.with_label_values(&[pool]),
            oldest: self.oldest.with_label_values(&[pool]),
            drain: self.drain.with_label_values(&[pool]),
            held: self.held.with_label_values(&[pool]),
            refused,
            left: self.left.with_label_values(&[pool]),
            wait: self.wait.with_label_values(&[pool]),
        }
    }
}

/// One pool's handles.
#[derive(Debug)]
pub struct QueueMetrics {
    requests: IntGauge,
    bytes: IntGauge,
    fresh: IntGauge,
    oldest: Gauge,
    drain: Gauge,
    /// Requests that had to wait.
    pub held: IntCounter,
    refused: [IntCounter; Turned::ALL.len()],
    /// Requests whose client left.
    pub left: IntCounter,
    wait: Histogram,
}

impl QueueMetrics {
    /// Counts a request that was turned away.
    pub fn count_refused(&self, why: Turned) {
        self.refused[why as usize].inc();
    }

    /// Requests turned away since start, by reason.
    pub fn refused_counts(&self) -> BTreeMap<String, u64> {
        let counts = Turned::ALL.iter().zip(&self.refused);
        counts
            .map(|(why, count)| (why.as_str().to_owned(), count.get()))
            .collect()
    }

    /// Counts a request that was placed after this time.
    pub fn waited(&self, wait: Duration) {
        self.wait.observe(wait.as_secs_f64());
    }

    /// Sets the gauges.
    pub fn show(&self, sample: &QueueSample) {
        self.requests.set(sample.requests as i64);
        self.bytes.set(sample.bytes as i64);
        self.fresh.set(sample.fresh as i64);
        self.oldest.set(sample.oldest.as_secs_f64());
        self.drain.set(sample.drained_in.as_secs_f64());
    }
}
