//! The wall clock steps by an hour, forwards and back: time-outs, ages and health go by the monotonic clock and see
//! nothing of it.
//!
//! Needs libfaketime (Debian's package `faketime`); the rest of the tests does without it.

use super::support::{Gateway, Setup, Upstream, chat, eventually};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const HOUR: i64 = 3600;

/// Where Debian, Ubuntu and Fedora put it.
fn library() -> &'static str {
    [
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
        "/usr/lib64/faketime/libfaketimeMT.so.1",
    ]
    .into_iter()
    .find(|path| Path::new(path).is_file())
    .expect("libfaketime is installed")
}

/// Decision and wall-clock time of the newest request, by the gateway's own account.
async fn newest(gateway: &Gateway, prompt: &str) -> (String, i64) {
    let mut client = gateway.client().await;
    client.post(CHAT, prompt).await;
    let response = client.response().await;
    assert_eq!(response.status, 200);
    let id = response.header("x-request-id").unwrap().to_owned();
    let mut at = 0;
    eventually("the decision is kept", async || {
        let newest: Value =
            serde_json::from_slice(&gateway.admin("GET", "/decisions?limit=1").await).unwrap();
        at = newest[0]["at_unix_ms"].as_i64().unwrap_or_default();
        newest[0]["request_id"] == id
    })
    .await;
    (
        response.header("x-homing-decision").unwrap().to_owned(),
        at / 1000,
    )
}

/// Everything that the gateway says of its endpoints for a while: nothing may have a negative age or change its state.
async fn nothing_happens(gateway: &Gateway, time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        let metrics = gateway.metrics().await;
        assert_eq!(metrics.sum("homing_endpoint_state", "state=\"ready\""), 2.0);
        let endpoints: Vec<Value> =
            serde_json::from_slice(&gateway.admin("GET", "/endpoints").await).unwrap();
        for endpoint in endpoints {
            assert_eq!(endpoint["state"], "ready", "{endpoint}");
            assert!(
                !endpoint["kv_usage"].is_null(),
                "the metrics count as too old: {endpoint}"
            );
            let negative = |(_, value): (&String, &Value)| value.as_f64().is_some_and(|value| value < 0.0);
            assert!(!endpoint.as_object().unwrap().iter().any(negative), "{endpoint}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
#[ignore = "needs libfaketime"]
async fn a_step_of_the_wall_clock_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let offset = folder.path().join("offset");
    std::fs::write(&offset, "+0\n").unwrap();
    let servers = [Upstream::echo().await, Upstream::echo().await];
    let gateway = Setup::of(servers.iter().map(|server| server.address))
        .top("response_headers: always")
        .pool("metrics: { interval: 50ms, stale_after: 1s }")
        .env("LD_PRELOAD", library())
        .env("FAKETIME_TIMESTAMP_FILE", offset.to_str().unwrap())
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .start()
        .await;
    for name in ["e0", "e1"] {
        gateway.endpoint_is(name, "ready").await;
        eventually("it was scraped", async || {
            !gateway.endpoint(name).await["kv_usage"].is_null()
        })
        .await;
    }
    let prompt = chat(&"a prefix to be kept ".repeat(100), false);
    let (decision, started_at) = newest(&gateway, &prompt).await;
    assert_eq!(decision, "cold");
    for step in [HOUR, -HOUR, 0] {
        std::fs::write(&offset, format!("{step:+}\n")).unwrap();
        let (decision, at) = newest(&gateway, &prompt).await;
        let stepped = at - started_at - step;
        assert!(
            (0..60).contains(&stepped),
            "the clock did not step by {step} s but by {}",
            at - started_at
        );
        assert_eq!(decision, "warm", "after {step} s");
        nothing_happens(&gateway, Duration::from_secs(2)).await;
    }
    assert_eq!(gateway.metrics().await.sum("homing_errors_total", ""), 0.0);
    gateway.at_rest().await;
}
