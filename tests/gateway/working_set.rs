//! The working-set gate: conversations that have begun go on, new ones wait for room and not for ever.

use super::overload::{self, executed, finish, slow_server};
use crate::support::{Client, Gateway, Setup, Upstream, chat, eventually};
use serde_json::Value;

const CHAT: &str = "/v1/chat/completions";

/// A KV cache that has room for one conversation of 2,000 tokens, and none for two.
async fn gateway(server: &Upstream, working_set: &str) -> Gateway {
    let pool = format!(
        "prefix_cache: {{ capacity: 4000 }}\n\
         overload: {{ queue: {{ hold_above: 60s }}, working_set: {{ enabled: true, fraction: 0.8, spare: 0, {working_set} }} }}"
    );
    let gateway = Setup::of([server.address]).pool(&pool).start().await;
    gateway.endpoint_is("e0", "ready").await;
    gateway
}

/// Sends a prompt of about 2,000 tokens of the conversation `session`; `name` is how it begins.
async fn send(gateway: &Gateway, session: &str, name: &str) -> Client {
    overload::send(gateway, name, &format!("x-session-id: {session}\r\n")).await
}

/// Shows the gate that tokens are computed anew which were known a moment ago, and leaves one request of conversation
/// `a` in flight.
async fn make_full(gateway: &Gateway, server: &Upstream) -> Client {
    for (n, name) in ["one", "two"].into_iter().enumerate() {
        let client = send(gateway, "a", name).await;
        executed(server, n + 1).await;
        assert_eq!(finish(server, client).await.status, 200);
    }
    let third = send(gateway, "a", "two").await;
    executed(server, 3).await;
    third
}

async fn fresh_wait(gateway: &Gateway, count: usize) {
    eventually(&format!("{count} conversations wait"), async || {
        gateway.metrics().await.sum("homing_queue_fresh_requests", "") == count as f64
    })
    .await;
}

async fn admin(gateway: &Gateway, path: &str) -> Value {
    let mut client = Client::connect(gateway.admin).await;
    client.request("GET", path, "").await;
    client.response().await.json()
}

#[tokio::test]
async fn conversations_go_on_and_new_ones_wait_for_room() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s").await;
    let third = make_full(&gateway, &server).await;
    let new = send(&gateway, "b", "new").await;
    fresh_wait(&gateway, 1).await;
    let fourth = send(&gateway, "a", "two").await;
    executed(&server, 4).await;

    let queue = admin(&gateway, "/queue").await;
    assert_eq!(queue.as_array().unwrap().len(), 1, "{queue}");
    assert_eq!(queue[0]["why"], "working-set-full");
    assert!(queue[0]["request_id"].as_str().is_some_and(|id| !id.is_empty()));
    let stats = admin(&gateway, "/stats").await;
    let pool = &stats["pools"][0];
    assert_eq!(pool["queue"]["fresh_requests"], 1);
    assert_eq!(pool["working_set"]["closing"], true);
    assert_eq!(pool["endpoints"][0]["working_set_limit_tokens"], 3200);
    let mut client = Client::connect(gateway.admin).await;
    let body = chat(&format!("other {}", "lorem ipsum ".repeat(700)), true);
    client.post("/explain", body).await;
    let explained = client.response().await.json();
    assert_eq!(explained["working_set"]["kind"], "fresh", "{explained}");
    assert_eq!(explained["working_set"]["endpoints"][0]["has_room"], false);
    assert_eq!(explained["queue"]["why"], "working-set-full");
    let metrics = gateway.metrics().await;
    assert!(metrics.sum("homing_working_set_tokens", "state=\"in-use\"") > 1_000.0);
    assert!(metrics.sum("homing_working_set_regret_ratio", "") > 0.2);

    for client in [third, fourth] {
        assert_eq!(finish(&server, client).await.status, 200);
    }
    executed(&server, 5).await;
    assert_eq!(finish(&server, new).await.status, 200);
    gateway.at_rest().await;
    let metrics = gateway.metrics().await;
    let admitted = |kind: &str| metrics.sum("homing_working_set_admitted_total", &format!("kind=\"{kind}\""));
    assert_eq!(
        (admitted("continued"), admitted("open"), admitted("fits")),
        (3.0, 1.0, 1.0)
    );
    assert_eq!(metrics.sum("homing_working_set_tokens", "state=\"in-use\""), 0.0);
    assert_eq!(metrics.sum("homing_queue_requests", ""), 0.0);
}

#[tokio::test]
async fn the_wait_for_room_ends_with_429() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 300ms").await;
    let _third = make_full(&gateway, &server).await;
    let mut new = send(&gateway, "b", "new").await;
    new.response().await.assert_error(429, "overloaded");
    let metrics = gateway.metrics().await;
    assert_eq!(
        metrics.sum("homing_queue_refused_total", "reason=\"no-room\""),
        1.0
    );
    assert_eq!(metrics.sum("homing_queue_fresh_requests", ""), 0.0);
}

#[tokio::test]
async fn a_conversation_without_a_name_is_known_by_its_blocks() {
    let server = slow_server().await;
    let gateway = gateway(&server, "session_headers: [], timeout: 60s").await;
    let long = |words: usize| chat(&format!("story {}", "lorem ipsum ".repeat(words)), true);
    for (n, words) in [600, 700].into_iter().enumerate() {
        let mut client = gateway.client().await;
        client.post(CHAT, long(words)).await;
        executed(&server, n + 1).await;
        assert_eq!(finish(&server, client).await.status, 200);
    }
    let metrics = gateway.metrics().await;
    let admitted = |kind: &str| metrics.sum("homing_working_set_admitted_total", &format!("kind=\"{kind}\""));
    assert_eq!((admitted("open"), admitted("continued")), (1.0, 1.0));
    assert_eq!(metrics.sum("homing_working_set_conversations", ""), 1.0);
}

#[tokio::test]
async fn a_conversation_whose_context_is_gone_waits_until_another_ends() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s").await;
    let third = make_full(&gateway, &server).await;
    assert_eq!(finish(&server, third).await.status, 200);
    let other = send(&gateway, "b", "other").await;
    executed(&server, 4).await;
    // Its session goes on, with nothing of what was cached.
    let back = send(&gateway, "a", "three").await;
    eventually("it waits for room", async || {
        let queue = admin(&gateway, "/queue").await;
        queue[0]["why"] == "working-set-full"
    })
    .await;
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("homing_queue_fresh_requests", ""), 0.0);
    assert_eq!(finish(&server, other).await.status, 200);
    executed(&server, 5).await;
    assert_eq!(finish(&server, back).await.status, 200);
    let metrics = gateway.metrics().await;
    let admitted = |kind: &str| metrics.sum("homing_working_set_admitted_total", &format!("kind=\"{kind}\""));
    assert_eq!((admitted("returned"), admitted("fits")), (1.0, 1.0));
}

#[tokio::test]
async fn a_conversation_whose_context_is_gone_does_not_wait_for_long() {
    let server = slow_server().await;
    let gateway = gateway(&server, "return_wait: 300ms").await;
    let third = make_full(&gateway, &server).await;
    assert_eq!(finish(&server, third).await.status, 200);
    let other = send(&gateway, "b", "other").await;
    executed(&server, 4).await;
    let back = send(&gateway, "a", "three").await;
    executed(&server, 5).await;
    for client in [other, back] {
        assert_eq!(finish(&server, client).await.status, 200);
    }
    assert_eq!(gateway.metrics().await.sum("homing_queue_held_total", ""), 1.0);
}
