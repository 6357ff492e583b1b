//! A pool that goes by its traffic learns from what the engines say and report.

use crate::kv_events::ask;
use crate::support::{Gateway, Script, Setup, Upstream};
use homing::sim::engine::FleetPreset;
use homing::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A pool that goes by its traffic hears that nothing is ever found, and stops believing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_reuses_nothing_is_not_believed_to() {
    let answer = json!({
        "choices": [{"index": 0, "text": "x", "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 400, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0},
        },
    });
    let engine = Upstream::start(move |_, _| Script::json(&answer.to_string())).await;
    let gateway = Setup::of([engine.address]).start().await;
    gateway.endpoint_is("e0", "ready").await;
    let body = json!({"model": "sim", "prompt": "Nothing is kept. ".repeat(100), "max_tokens": 2});
    let mut predicted = Vec::new();
    for _ in 0..6 {
        predicted.push(ask(&gateway, "/v1/completions", &body).await.0 > 0);
    }
    assert_eq!(predicted, [false, true, true, true, false, true]);
}

/// Sends a chat request with or without a stream; gives the predicted and the reported match, the answer and the
/// tokens of both.
async fn turn(gateway: &Gateway, body: &Value) -> (u64, u64, String, u64) {
    let mut client = gateway.client().await;
    client.post("/v1/chat/completions", body.to_string()).await;
    let response = client.response().await;
    assert_eq!(response.status, 200, "{}", response.text());
    gateway.at_rest().await;
    let text = response.text();
    let events: Vec<Value> = if body["stream"] == true {
        let data = text.lines().filter_map(|line| line.strip_prefix("data: {"));
        data.map(|json| serde_json::from_str(&format!("{{{json}")).unwrap())
            .collect()
    } else {
        vec![serde_json::from_str(&text).unwrap()]
    };
    let said = |event: &Value| {
        let choice = &event["choices"][0];
        let content = |of: &Value| of["content"].as_str().map(str::to_owned);
        content(&choice["delta"])
            .or(content(&choice["message"]))
            .unwrap_or_default()
    };
    let usage = &events.last().unwrap()["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap();
    let decisions: Value = serde_json::from_slice(&gateway.admin("GET", "/decisions?limit=1").await).unwrap();
    let decision = |name: &str| decisions[0][name].as_u64().unwrap();
    (
        // The length of a prompt of bytes is an estimate, and so is that of its match.
        decision("predicted_cached_tokens") * count("prompt_tokens") / decision("prompt_tokens"),
        decision("reported_cached_tokens"),
        events.iter().map(said).collect(),
        count("prompt_tokens") + count("completion_tokens"),
    )
}

/// What an engine generates is in its cache, and the next turn of the conversation begins with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_turn_of_a_conversation_matches_through_the_answer() {
    let mut sims = Vec::new();
    for _ in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        sims.push(SimServer::start(listener, SimOptions::new(FleetPreset::Instant, 16)).unwrap());
    }
    let gateway = Setup::of(sims.iter().map(SimServer::addr)).start().await;
    gateway.endpoint_is("e0", "ready").await;
    // Two chunks of the index and a block.
    let tolerance = 144;
    let mut messages = vec![json!({"role": "system", "content": "Answer at length."})];
    let mut known = 0;
    for n in 0..6 {
        messages.push(json!({"role": "user", "content": format!("What is {n}?")}));
        let stream = n % 2 == 0;
        // An answer is several times as long as the tolerance.
        let mut body = json!({"model": "sim", "messages": messages, "max_tokens": 600, "stream": stream});
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let (predicted, reported, answer, tokens) = turn(&gateway, &body).await;
        assert!(
            reported.abs_diff(predicted) <= tolerance,
            "turn {n}: {predicted} predicted, {reported} reported"
        );
        assert!(
            predicted + tolerance >= known,
            "turn {n}: {predicted} of {known} tokens predicted"
        );
        known = tokens;
        messages.push(json!({"role": "assistant", "content": answer}));
    }
    assert!(known > 3_000, "{known}");
}
