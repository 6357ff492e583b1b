//! The newest decisions, kept for the admin pages.

use crate::pool::{PromptShape, Snapshot};
use crate::prefix::EndpointId;
use crate::scheduling::{Decision, DecisionKind, Scored};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// Decisions kept.
const KEPT: usize = 512;

/// One decision and what became of it.
#[derive(Debug)]
pub struct DecisionRecord {
    pub request_id: String,
    /// Wall-clock milliseconds since the epoch at the end of the request.
    pub at_unix_ms: u64,
    pub pool: Arc<str>,
    pub model: String,
    pub path_kind: &'static str,
    pub prompt: PromptShape,
    pub decision: Decision,
    /// Names of the candidates.
    pub snapshot: Arc<Snapshot>,
    /// The endpoint that answered, if one did.
    pub endpoint: Option<Arc<str>>,
    pub attempts: u32,
    pub status: u16,
    /// Prompt tokens believed cached on the endpoint that answered.
    pub predicted_cached_tokens: u32,
    pub reported_cached_tokens: Option<u64>,
    /// What `least-cost` predicted that to be; `None` with other rules.
    pub predicted_ttfb_ms: Option<f64>,
    pub ttfb_ms: Option<f64>,
}

/// A bounded list of [`DecisionRecord`]s, newest last.
#[derive(Debug, Default)]
pub struct RecentDecisions {
    records: Mutex<VecDeque<Arc<DecisionRecord>>>,
}

impl RecentDecisions {
    /// Keeps `record`, dropping the oldest one when full.
    pub fn push(&self, record: DecisionRecord) {
        let record = Arc::new(record);
        let mut records = self.records.lock();
        if records.len() == KEPT {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// The newest `limit` decisions as JSON, newest first, each with its best `candidates`.
    pub fn to_json(&self, limit: usize, candidates: usize) -> Value {
        let newest: Vec<_> = self.records.lock().iter().rev().take(limit).cloned().collect();
        Value::Array(newest.iter().map(|record| record.to_json(candidates)).collect())
    }
}

impl DecisionRecord {
    fn to_json(&self, candidates: usize) -> Value {
        let mut value = decision_json(&self.decision, &self.snapshot, self.prompt, candidates);
        value.insert("request_id".into(), json!(self.request_id));
        value.insert("at_unix_ms".into(), json!(self.at_unix_ms));
        value.insert("pool".into(), json!(&*self.pool));
        value.insert("model".into(), json!(self.model));
        value.insert("path_kind".into(), json!(self.path_kind));
        value.insert("endpoint".into(), json!(self.endpoint.as_deref()));
        value.insert("attempts".into(), json!(self.attempts));
        value.insert("status".into(), json!(self.status));
        value.insert(
            "predicted_cached_tokens".into(),
            json!(self.predicted_cached_tokens),
        );
        value.insert(
            "reported_cached_tokens".into(),
            json!(self.reported_cached_tokens),
        );
        value.insert("predicted_ttfb_ms".into(), json!(self.predicted_ttfb_ms));
        value.insert("ttfb_ms".into(), json!(self.ttfb_ms));
        Value::Object(value)
    }
}

/// One candidate as the admin pages show it.
#[derive(Serialize)]
struct CandidateJson<'a> {
    endpoint: &'a str,
    rank: usize,
    total: f64,
    terms: Map<String, Value>,
    matched_tokens: u32,
}

/// A decision as the admin pages show it: the choice, why, and the scores or costs of the best `limit` candidates.
pub fn decision_json(
    decision: &Decision,
    snapshot: &Snapshot,
    prompt: PromptShape,
    limit: usize,
) -> Map<String, Value> {
    let name = |id| snapshot.by_id(id).map_or("(gone)", |entry| &*entry.endpoint.name);
    let candidate = |(rank, scored): (usize, &Scored)| CandidateJson {
        endpoint: name(scored.id),
        rank: rank + 1,
        total: scored.total,
        terms: decision
            .term_names
            .iter()
            .zip(&scored.terms)
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect(),
        matched_tokens: scored.match_tokens,
    };
    let candidates = decision.ranked.iter().enumerate();
    let candidates: Vec<_> = candidates.take(limit).map(candidate).collect();
    let filtered: Vec<_> = decision
        .filtered
        .iter()
        .take(limit)
        .map(|(id, reason)| json!({ "endpoint": name(*id), "reason": reason }))
        .collect();
    let chosen = decision.chosen().map(|scored| name(scored.id));
    let mut value = Map::new();
    value.insert("policy".into(), json!(decision.policy));
    value.insert("kind".into(), json!(decision.kind.as_str()));
    value.insert("chosen".into(), json!(chosen));
    value.insert("why".into(), json!(why(decision, name)));
    value.insert("prompt_tokens".into(), json!(prompt.tokens));
    value.insert("blocks".into(), json!(prompt.blocks));
    value.insert("candidates_total".into(), json!(decision.ranked.len()));
    value.insert("lower_is_better".into(), json!(decision.lower_is_better));
    value.insert("candidates".into(), json!(candidates));
    value.insert("filtered".into(), json!(filtered));
    value
}

/// The choice in a sentence.
fn why<'a>(decision: &Decision, name: impl Fn(EndpointId) -> &'a str) -> String {
    let Some(best) = decision.chosen() else {
        return "no endpoint can take the request".into();
    };
    let measure = if decision.lower_is_better { "cost" } else { "score" };
    let best_name = name(best.id);
    let mut text = match decision.kind {
        DecisionKind::Warm => format!("{best_name} holds {} tokens of the prompt", best.match_tokens),
        DecisionKind::Cold => "no endpoint holds enough of the prompt".to_owned(),
        DecisionKind::Unkeyed => "the request carries no prompt to match".to_owned(),
    };
    text += &format!("; {best_name} has the best {measure}, {:.4}", best.total);
    if let Some(next) = decision.ranked.get(1) {
        text += &format!(", before {} with {:.4}", name(next.id), next.total);
    }
    text
}
