//! A pool that goes by its traffic learns from what the engines say and report.

use crate::kv_events::{ask, ask_for};
use crate::support::{Script, Setup, Upstream};
use homing::sim::engine::FleetPreset;
use homing::sim::server::{SimOptions, SimServer};
use serde_json::json;
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

/// What an engine generates is in its cache, and the next turn of the conversation begins with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_turn_of_a_conversation_matches_through_the_answer() {
    const BLOCK_TOKENS: u64 = 16;
    let mut sims = Vec::new();
    for _ in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        sims.push(
            SimServer::start(
                listener,
                SimOptions::new(FleetPreset::Instant, BLOCK_TOKENS as u32),
            )
            .unwrap(),
        );
    }
    let gateway = Setup::of(sims.iter().map(SimServer::addr)).start().await;
    gateway.endpoint_is("e0", "ready").await;
    let mut messages = vec![json!({"role": "system", "content": "Answer at length."})];
    let mut known = 0;
    for turn in 0..5 {
        messages.push(json!({"role": "user", "content": format!("What is {turn}?")}));
        // Long enough for a few chunks of the index.
        let body = json!({"model": "sim", "messages": messages, "max_tokens": 400});
        let (predicted, reported, answer) = ask_for(&gateway, "/v1/chat/completions", &body).await;
        let usage = &answer["usage"];
        assert!(
            reported.abs_diff(predicted) <= 160,
            "turn {turn}: {predicted} predicted, {reported} reported"
        );
        assert!(
            predicted + 160 >= known,
            "turn {turn}: {predicted} of {known} tokens predicted"
        );
        known = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
        messages.push(answer["choices"][0]["message"].clone());
    }
    assert!(known > 1_500, "{known}");
}
