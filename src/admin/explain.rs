//! `POST /explain`: the decision that a request would get, without a side effect.

use super::routes::{error, json_answer, parameter};
use crate::openai::PathKind;
use crate::pool::waiting::Claim;
use crate::pool::{Pool, Prompt};
use crate::proxy::{Gateway, queue};
use crate::telemetry::decisions::decision_json;
use http::request::Parts;
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use serde_json::{Value, json};

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
    let mut value = decision_json(&decision, &snapshot, prompt.shape(), usize::MAX);
    if let Some(room) = &pool.waiting {
        let claim = queue::claim(room.sharing(), &head.headers, body.len());
        value.insert("queue".into(), wait_json(&pool, &prompt, claim, gateway));
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
            "why": "every endpoint has enough to prefill, or others wait already",
            "ahead_of_it": outlook.ahead,
            "expected_wait_s": (outlook.wait_s * 1e3).round() / 1e3,
        }),
    }
}
