//! `POST /explain`: the decision that a request would get, without a side effect.

use super::routes::{error, json_answer, parameter};
use crate::openai::PathKind;
use crate::overload::working_set::Kind;
use crate::pool::gate::GateOutlook;
use crate::pool::waiting::Claim;
use crate::pool::{Pool, Prompt};
use crate::proxy::{Gateway, queue};
use crate::telemetry::decisions::decision_json;
use http::request::Parts;
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use serde_json::{Value, json};

/// Waiting requests that are listed per pool when the reader names no limit.
const DEFAULT_LIMIT: usize = 100;

/// The path that is assumed when the request names none.
const DEFAULT_PATH: &str = "/v1/chat/completions";

/// Answers with the decision that `body` would get.
pub async fn explain(gateway: &Gateway, head: &Parts, body: &Bytes) -> Response<Full<Bytes>> {
    let path = parameter(head, "path")
        .unwrap_or(DEFAULT_PATH)
        .replace("%2F", "/")
        .replace("%2f", "/");
    let kind = PathKind::of(&path);
    let inspected = match gateway.inspect(kind, body, &head.headers).await {
        Ok(inspected) => inspected,
        Err(refusal) => {
            return error(
                refusal.reason.status(),
                refusal.detail.as_deref().unwrap_or("refused"),
            );
        }
    };
    let (pool, prompt) = (inspected.pool, inspected.prompt);
    let (decision, snapshot) = pool.explain(&prompt, gateway.now());
    let shape = prompt.shape(pool.chosen_block_tokens(&decision, &snapshot));
    let mut value = decision_json(&decision, &snapshot, shape, usize::MAX);
    if let Some(waiting) = &pool.settings.waiting {
        let claim = queue::claim(&waiting.sharing, &head.headers, body.len());
        value.insert("queue".into(), wait_json(&pool, &prompt, claim, gateway));
    }
    if let Some(outlook) = pool.gate_outlook(&prompt, gateway.now()) {
        value.insert("working_set".into(), working_set_json(&outlook));
    }
    value.insert("pool".into(), json!(&*pool.name));
    value.insert("model".into(), json!(&*prompt.model));
    value.insert("path_kind".into(), json!(kind.as_str()));
    json_answer(&Value::Object(value))
}

/// Whether the request would have to wait for its turn, and how long.
fn wait_json(pool: &Pool, prompt: &Prompt, claim: Claim, gateway: &Gateway) -> Value {
    match pool.outlook(prompt, claim, gateway.now()) {
        None => json!({ "waits": false }),
        Some(outlook) => json!({
            "waits": true,
            "why": outlook.why.as_str(),
            "ahead_of_it": outlook.queue.ahead,
            "expected_wait_s": rounded(outlook.queue.wait_s),
        }),
    }
}

/// What the request is to the working set, and where there would be room for it.
fn working_set_json(outlook: &GateOutlook) -> Value {
    let endpoint = |(name, tokens, limit, admits): &(Box<str>, u64, Option<u64>, bool)| json!({ "endpoint": name, "tokens": tokens, "limit_tokens": limit, "has_room": admits });
    json!({
        "kind": match outlook.kind {
            Kind::Continued => "continued",
            Kind::Returning => "returning",
            Kind::Known => "known",
            Kind::Fresh => "fresh",
        },
        "regret": rounded(outlook.regret),
        "closing": outlook.is_closing,
        "endpoints": outlook.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// `GET /queue`: who waits, since when and why, those who came first first.
pub fn queue(gateway: &Gateway, head: &Parts) -> Response<Full<Bytes>> {
    let limit = parameter(head, "limit").and_then(|limit| limit.parse().ok());
    let pools = gateway.pools.load();
    let now = gateway.now();
    let waiting = pools.iter().flat_map(|pool| {
        pool.who_waits(now, limit.unwrap_or(DEFAULT_LIMIT))
            .into_iter()
            .map(|one| {
                json!({
                    "pool": &*pool.name,
                    "request_id": one.request_id,
                    "model": one.model,
                    "waited_s": rounded(one.waited.as_secs_f64()),
                    "gives_up_in_s": rounded(one.gives_up_in.as_secs_f64()),
                    "why": one.why.as_str(),
                    "for_endpoint": one.endpoint.as_deref(),
                })
            })
    });
    json_answer(&Value::Array(waiting.collect()))
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
