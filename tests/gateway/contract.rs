//! What clients and operators may hold on to: headers, errors, admin paths.

use super::support::{Client, Gateway, Response, Script, Setup, Upstream, chat, eventually};
use serde_json::Value;
use std::net::SocketAddr;

const CHAT: &str = "/v1/chat/completions";
const LOAD_REPORT: &str =
    r#"JSON {"named_metrics": {"num_requests_waiting": 7.0, "kv_cache_usage_perc": 0.25}}"#;

/// A model server that reports its load to whoever asks, as vLLM does.
async fn reporting() -> Upstream {
    Upstream::start(|request, _| {
        if request.headers("endpoint-load-metrics-format").is_empty() {
            return Script::answer(200, "content-type: application/json\r\n", "{}");
        }
        let headers = format!("content-type: application/json\r\nendpoint-load-metrics: {LOAD_REPORT}\r\n");
        Script::answer(200, &headers, "{}")
    })
    .await
}

async fn ask(client: &mut Client, headers: &str) -> Response {
    client.post_with(CHAT, headers, chat("hello", false)).await;
    client.response().await
}

async fn explain(gateway: &Gateway, body: &str) -> Value {
    let mut admin = Client::connect(gateway.admin).await;
    admin.post(&format!("/explain?path={CHAT}"), body).await;
    admin.response().await.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_ids_are_kept_or_made_and_go_both_ways() {
    let upstream = Upstream::echo().await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    let given = ask(&mut client, "x-request-id: mine-1\r\n").await;
    assert_eq!(given.header("x-request-id"), Some("mine-1"));
    let made = ask(&mut client, "")
        .await
        .header("x-request-id")
        .unwrap()
        .to_owned();
    assert!(made.len() >= 16, "{made}");
    let seen = upstream.see(|s| {
        s.requests
            .iter()
            .map(|r| r.headers("x-request-id").join(","))
            .collect::<Vec<_>>()
    });
    assert_eq!(seen, ["mine-1".to_owned(), made]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_choice_is_explained_to_those_who_ask() {
    let upstream = Upstream::echo().await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    let silent = ask(&mut client, "").await;
    assert_eq!(silent.header("x-homing-endpoint"), None);
    let told = ask(&mut client, "x-homing-explain: 1\r\n").await;
    assert_eq!(told.header("x-homing-endpoint"), Some("e0"));
    assert_eq!(told.header("x-homing-attempts"), Some("1"));
    assert!(
        matches!(told.header("x-homing-decision"), Some("warm" | "cold")),
        "{told:?}"
    );
    assert!(told.header("x-homing-prefix-match").unwrap().contains('/'));
    let leaked = upstream.see(|s| {
        s.requests
            .iter()
            .any(|r| !r.headers("x-homing-explain").is_empty())
    });
    assert!(!leaked, "the gateway's own header went upstream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_reports_are_used_and_shown_only_to_those_who_asked() {
    let upstream = reporting().await;
    // Scraped once, soon after the start, and then never again: what is seen later came with a
    // response. That one scrape may end after the first response, so each look comes with a new one.
    let gateway = Setup::of([upstream.address])
        .pool("metrics: { interval: 1h, stale_after: 2h }")
        .start()
        .await;
    let mut client = gateway.client().await;
    assert_eq!(ask(&mut client, "").await.header("endpoint-load-metrics"), None);
    let asked = ask(&mut client, "endpoint-load-metrics-format: json\r\n").await;
    assert_eq!(asked.header("endpoint-load-metrics"), Some(LOAD_REPORT));
    eventually("the report is taken", async || {
        ask(&mut gateway.client().await, "").await;
        let endpoint = gateway.endpoint("e0").await;
        endpoint["waiting"] == 7.0 && endpoint["kv_usage"] == 0.25
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_no_pool_serves_is_404_in_the_apis_shape() {
    let upstream = Upstream::echo().await;
    let gateway = Setup::of([upstream.address])
        .pool("models: [only-this]")
        .start()
        .await;
    let mut client = gateway.client().await;
    client.post(CHAT, r#"{"model":"another","messages":[]}"#).await;
    let refused = client.response().await;
    refused.assert_error(404, "not-found");
    assert!(refused.text().contains("another"), "{}", refused.text());
    let mut client = gateway.client().await;
    client.post(CHAT, r#"{"model":"only-this","messages":[]}"#).await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(upstream.executions(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_no_json_are_forwarded_and_routed_by_load() {
    let upstream = Upstream::echo().await;
    let gateway = Setup::of([upstream.address])
        .top("response_headers: always")
        .start()
        .await;
    let mut client = gateway.client().await;
    for body in [
        "",
        "not json",
        "[1,2]",
        "{\"model\":\"m\",\"prompt\":\"cut o",
        "{\"a\nb\":1}",
        "\u{feff}{}",
    ] {
        client.post(CHAT, body).await;
        let response = client.response().await;
        assert_eq!(
            (response.status, response.header("x-homing-decision")),
            (200, Some("unkeyed")),
            "{body:?}"
        );
    }
    assert_eq!(
        gateway.endpoint("e0").await["index_blocks"],
        0,
        "none of them may enter the index"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_what_would_happen_and_changes_nothing() {
    let upstreams = [Upstream::echo().await, Upstream::echo().await];
    let gateway = Setup::of(upstreams.iter().map(|u| u.address)).start().await;
    for endpoint in ["e0", "e1"] {
        gateway.endpoint_is(endpoint, "ready").await;
    }
    let body = chat(&"a long prompt to come home with ".repeat(100), false);
    let cold = explain(&gateway, &body).await;
    assert_eq!(
        (&cold["kind"], cold["candidates"].as_array().unwrap().len()),
        (&Value::from("cold"), 2)
    );
    assert_eq!(
        explain(&gateway, &body).await["kind"],
        "cold",
        "asking twice must not make it warm"
    );
    let mut client = gateway.client().await;
    client.post_with(CHAT, "x-homing-explain: 1\r\n", &body).await;
    let response = client.response().await;
    let home = response.header("x-homing-endpoint").unwrap().to_owned();
    let warm = explain(&gateway, &body).await;
    assert_eq!(
        (&warm["kind"], &warm["chosen"]),
        (&Value::from("warm"), &Value::from(home))
    );
    assert_eq!(upstreams.iter().map(Upstream::executions).sum::<usize>(), 1);
    eventually("the request itself is a decision, and nothing else", async || {
        let decisions = gateway.admin("GET", "/decisions?limit=10").await;
        let decisions: Value = serde_json::from_slice(&decisions).unwrap();
        // The same blocks everywhere: those of the engine.
        let matched = format!("0/{}", decisions[0]["blocks"]);
        let told = decisions[0]["blocks"] == cold["blocks"]
            && response.header("x-homing-prefix-match") == Some(&matched);
        decisions.as_array().unwrap().len() == 1 && told
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_endpoint_gets_nothing_until_it_is_undrained() {
    let upstreams = [Upstream::echo().await, Upstream::echo().await];
    let gateway = Setup::of(upstreams.iter().map(|u| u.address)).start().await;
    for endpoint in ["e0", "e1"] {
        gateway.endpoint_is(endpoint, "ready").await;
    }
    gateway.admin("POST", "/endpoints/default/e0/drain").await;
    gateway.endpoint_is("e0", "draining").await;
    let mut client = gateway.client().await;
    for _ in 0..10 {
        assert_eq!(ask(&mut client, "").await.status, 200);
    }
    assert_eq!((upstreams[0].executions(), upstreams[1].executions()), (0, 10));
    gateway.admin("POST", "/endpoints/default/e1/drain").await;
    gateway.endpoint_is("e1", "draining").await;
    let refused = ask(&mut client, "").await;
    refused.assert_error(503, "no-endpoint");
    assert_eq!(refused.header("retry-after"), Some("1"));
    gateway.admin("POST", "/endpoints/default/e0/undrain").await;
    gateway.endpoint_is("e0", "ready").await;
    let mut client = gateway.client().await;
    assert_eq!(ask(&mut client, "").await.status, 200);
    assert_eq!(upstreams[0].executions(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_refuses_connections_costs_no_client_an_error() {
    let alive = Upstream::echo().await;
    let dead: SocketAddr = super::support::free_address();
    // No health check comes in between: the gateway finds out by the requests themselves.
    let once_ready = Upstream::echo().await;
    let gateway = Setup::of([once_ready.address, alive.address])
        .top("response_headers: always")
        .pool("health: { interval: 1h }")
        .start()
        .await;
    for endpoint in ["e0", "e1"] {
        gateway.endpoint_is(endpoint, "ready").await;
    }
    drop(once_ready);
    let mut client = gateway.client().await;
    let mut most_attempts = 0;
    for n in 0..20 {
        client
            .post(CHAT, chat(&format!("prompt number {n} of its own {dead}"), false))
            .await;
        let response = client.response().await;
        assert_eq!(
            (response.status, response.header("x-homing-endpoint")),
            (200, Some("e1")),
            "{response:?}"
        );
        most_attempts = most_attempts.max(response.header("x-homing-attempts").unwrap().parse().unwrap());
    }
    assert_eq!(
        most_attempts, 2,
        "at least one of them met the dead endpoint first"
    );
    gateway.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_a_stream_end_and_exits_with_0() {
    let upstream = Upstream::start(|_, _| {
        Script::chunked("text/event-stream")
            .event("{\"n\":1}")
            .then(super::support::Step::Await)
            .event("[DONE]")
            .last_chunk()
    })
    .await;
    let mut gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("hello", true)).await;
    let mut response = client.head().await.unwrap();
    client.body_until(&mut response, "\"n\":1").await;
    gateway.signal("TERM");
    eventually("the gateway says that it drains", async || {
        let ready = gateway.try_admin("GET", "/readyz").await;
        ready.is_some_and(|(status, body)| {
            status == 503 && String::from_utf8_lossy(&body).contains("draining")
        })
    })
    .await;
    upstream.release();
    client.body(&mut response).await;
    assert!(response.text().contains("[DONE]"), "{}", response.text());
    assert_eq!(gateway.exit().await.code(), Some(0));
}
