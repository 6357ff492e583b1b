//! Families on KV events, tokens and predictions: what exactness can be seen by.

use super::metrics::Families;
use super::names;
use crate::datalayer::tokenize::OUTCOMES;
use crate::kv_events::subscriber::Status;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use std::cmp::Ordering;

/// How a prediction can compare with what the engine reported.
const COMPARISONS: [&str; 3] = ["exact", "over", "under"];

/// The families.
#[derive(Clone)]
pub struct KvFamilies {
    connected: IntGaugeVec,
    last_sequence: IntGaugeVec,
    owned_blocks: IntGaugeVec,
    gaps: IntCounterVec,
    replays: IntCounterVec,
    predicted_tokens: IntCounterVec,
    reported_tokens: IntCounterVec,
    predictions: IntCounterVec,
    tokenizations: IntCounterVec,
}

impl KvFamilies {
    pub(super) fn new(build: &Families<'_>) -> prometheus::Result<Self> {
        let on_endpoint = ["pool", "endpoint"];
        Ok(Self {
            connected: build.int_gauges(
                names::KV_EVENTS_CONNECTED,
                "Data-parallel ranks of the endpoint whose KV event stream is connected.",
                &on_endpoint,
            )?,
            last_sequence: build.int_gauges(
                names::KV_EVENTS_LAST_SEQUENCE,
                "Sequence number of the newest KV event message that was applied; -1 before the first.",
                &on_endpoint,
            )?,
            owned_blocks: build.int_gauges(
                names::KV_EVENTS_OWNED_BLOCKS,
                "Blocks that the endpoint's KV events say it holds.",
                &on_endpoint,
            )?,
            gaps: build.counters(
                names::KV_EVENTS_GAPS,
                "Gaps in the KV event stream that no replay closed.",
                &on_endpoint,
            )?,
            replays: build.counters(
                names::KV_EVENTS_REPLAYS,
                "Replays of KV events asked for, by outcome.",
                &["pool", "endpoint", "outcome"],
            )?,
            predicted_tokens: build.counters(
                names::PREDICTED_CACHED_TOKENS,
                "Prompt tokens believed cached, of requests whose response told the engine's own count.",
                &on_endpoint,
            )?,
            reported_tokens: build.counters(
                names::REPORTED_CACHED_TOKENS,
                "Prompt tokens that the engine reported as cached.",
                &on_endpoint,
            )?,
            predictions: build.counters(
                names::PREDICTIONS,
                "Requests whose response told how much was cached, by how the prediction compares.",
                &["pool", "endpoint", "comparison"],
            )?,
            tokenizations: build.counters(
                names::TOKENIZATIONS,
                "Requests whose token ids were asked for; all but success are keyed by their bytes.",
                &["pool", "outcome"],
            )?,
        })
    }

    pub(super) fn endpoint(&self, pool: &str, endpoint: &str) -> KvMetrics {
        let labels = [pool, endpoint];
        let replays = |outcome| self.replays.with_label_values(&[pool, endpoint, outcome]);
        KvMetrics {
            connected: self.connected.with_label_values(&labels),
            last_sequence: self.last_sequence.with_label_values(&labels),
            owned_blocks: self.owned_blocks.with_label_values(&labels),
            gaps: self.gaps.with_label_values(&labels),
            replays: replays("success"),
            failed_replays: replays("failure"),
            predicted_tokens: self.predicted_tokens.with_label_values(&labels),
            reported_tokens: self.reported_tokens.with_label_values(&labels),
            predictions: COMPARISONS
                .map(|comparison| self.predictions.with_label_values(&[pool, endpoint, comparison])),
        }
    }

    pub(super) fn count_tokenization(&self, pool: &str, outcome: &str) {
        debug_assert!(OUTCOMES.contains(&outcome));
        self.tokenizations.with_label_values(&[pool, outcome]).inc();
    }
}

/// One endpoint's handles.
pub struct KvMetrics {
    connected: IntGauge,
    last_sequence: IntGauge,
    owned_blocks: IntGauge,
    gaps: IntCounter,
    replays: IntCounter,
    failed_replays: IntCounter,
    predicted_tokens: IntCounter,
    reported_tokens: IntCounter,
    predictions: [IntCounter; 3],
}

impl KvMetrics {
    /// Shows what the endpoint's streams are at, one status per rank.
    pub fn show(&self, ranks: &[Status]) {
        let sum = |of: fn(&Status) -> u64| ranks.iter().map(of).sum::<u64>();
        let last = ranks.iter().filter_map(|rank| rank.last_sequence).max();
        self.connected.set(sum(|rank| rank.connected.into()) as i64);
        self.last_sequence.set(last.map_or(-1, |last| last as i64));
        self.owned_blocks.set(sum(|rank| rank.owned_blocks as u64) as i64);
        raise(&self.gaps, sum(|rank| rank.stream.gaps));
        raise(&self.replays, sum(|rank| rank.replays - rank.failed_replays));
        raise(&self.failed_replays, sum(|rank| rank.failed_replays));
    }

    /// Counts a request of which the prediction and the engine's count are known, in tokens.
    pub fn count_prediction(&self, predicted: u64, reported: u64) {
        self.predicted_tokens.inc_by(predicted);
        self.reported_tokens.inc_by(reported);
        let at = match predicted.cmp(&reported) {
            Ordering::Equal => 0,
            Ordering::Greater => 1,
            Ordering::Less => 2,
        };
        self.predictions[at].inc();
    }
}

/// Brings a counter up to a total that is kept elsewhere.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
