//! Metric families of the pools' working-set gates.

use super::metrics::Families;
use super::names;
use crate::overload::working_set::Held;
use crate::pool::gate::{Admitted, GateSample};
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The families.
#[derive(Clone)]
pub(super) struct WorkingSetFamilies {
    tokens: IntGaugeVec,
    limit: IntGaugeVec,
    conversations: IntGaugeVec,
    regret: GaugeVec,
    closing: IntGaugeVec,
    admitted: IntCounterVec,
}

impl WorkingSetFamilies {
    pub fn new(build: &Families) -> prometheus::Result<Self> {
        let pool = ["pool"];
        Ok(Self {
            tokens: build.int_gauges(
                names::WORKING_SET_TOKENS,
                "Tokens of conversations on the endpoint that are in use, or idle and likely to come back.",
                &["pool", "endpoint", "state"],
            )?,
            limit: build.int_gauges(
                names::WORKING_SET_LIMIT,
                "Tokens that conversations may hold on the endpoint when another one is admitted.",
                &["pool", "endpoint"],
            )?,
            conversations: build.int_gauges(
                names::WORKING_SET_CONVERSATIONS,
                "Conversations that are remembered.",
                &pool,
            )?,
            regret: build.gauges(
                names::WORKING_SET_REGRET,
                "Share of the prompt tokens computed anew that the fleet had cached a moment ago.",
                &pool,
            )?,
            closing: build.int_gauges(
                names::WORKING_SET_CLOSING,
                "1 while regret is high: then whatever is in use or likely to come back counts against a new conversation.",
                &pool,
            )?,
            admitted: build.counters(
                names::WORKING_SET_ADMITTED,
                "Requests sent on, by what they were to the working set (continued, returned, known, open, fits).",
                &["pool", "kind"],
            )?,
        })
    }

    /// The handles of one pool.
    pub fn of(&self, pool: &str) -> WorkingSetMetrics {
        WorkingSetMetrics {
            admitted: Admitted::ALL.map(|kind| self.admitted.with_label_values(&[pool, kind.as_str()])),
            conversations: self.conversations.with_label_values(&[pool]),
            regret: self.regret.with_label_values(&[pool]),
            closing: self.closing.with_label_values(&[pool]),
            families: self.clone(),
            pool: pool.into(),
        }
    }
}

/// One pool's handles.
pub struct WorkingSetMetrics {
    pool: Arc<str>,
    families: WorkingSetFamilies,
    conversations: IntGauge,
    regret: Gauge,
    closing: IntGauge,
    admitted: [IntCounter; Admitted::ALL.len()],
}

impl WorkingSetMetrics {
    /// Counts a request that was sent on.
    pub fn count_admitted(&self, kind: Admitted) {
        self.admitted[kind as usize].inc();
    }

    /// Requests sent on since start, by what they were to the working set.
    pub fn admitted_counts(&self) -> BTreeMap<String, u64> {
        let counts = Admitted::ALL.iter().zip(&self.admitted);
        counts
            .map(|(kind, count)| (kind.as_str().to_owned(), count.get()))
            .collect()
    }

    /// Sets the pool's gauges.
    pub fn show(&self, sample: &GateSample) {
        self.conversations.set(sample.conversations as i64);
        self.regret.set(sample.regret);
        self.closing.set(i64::from(sample.is_closing));
    }

    /// Sets the gauges of one endpoint; `limit_tokens` is `None` when its capacity is not known.
    pub fn show_endpoint(&self, endpoint: &str, held: &Held, limit_tokens: Option<u64>) {
        for (state, tokens) in [("in-use", held.in_use_tokens), ("idle", held.idle_tokens)] {
            let series = self
                .families
                .tokens
                .with_label_values(&[&*self.pool, endpoint, state]);
            series.set(tokens as i64);
        }
        if let Some(tokens) = limit_tokens {
            let series = self.families.limit.with_label_values(&[&*self.pool, endpoint]);
            series.set(tokens as i64);
        }
    }
}
