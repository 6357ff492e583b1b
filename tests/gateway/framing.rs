//! Requests that could be read in two ways, that are too large, or that do not come to an end: each gets its answer,
//! and nothing of them reaches an endpoint.

use super::support::h2c::H2c;
use super::support::{Gateway, Received, Script, Setup, Step, Upstream, chat, eventually};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

async fn gateway(top: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::echo().await;
    let gateway = Setup::of([upstream.address]).top(top).start().await;
    (upstream, gateway)
}

/// A request whose head ends with `framing`, followed by `rest`.
fn raw(framing: &str, rest: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{framing}\r\n{rest}")
}

#[tokio::test]
async fn ambiguous_framing_is_refused_and_the_connection_closed() {
    let (upstream, gateway) = gateway("").await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let after = |body: &str| format!("{body}{smuggled}");
    let chunked = after("0\r\n\r\n");
    let heads = [
        (
            "content-length: 4\r\ntransfer-encoding: chunked\r\n",
            chunked.clone(),
        ),
        (
            "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
            chunked.clone(),
        ),
        ("content-length: 2\r\ncontent-length: 3\r\n", after("{}")),
        ("content-length: 2\r\ncontent-length: 2\r\n", after("{}")),
        ("content-length: 2, 2\r\n", after("{}")),
        ("content-length: +2\r\n", after("{}")),
        ("content-length: -2\r\n", after("{}")),
        ("content-length: 0x2\r\n", after("{}")),
        ("content-length: 99999999999999999999999\r\n", after("{}")),
        ("content-length : 2\r\n", after("{}")),
        ("transfer-encoding: chunked, identity\r\n", chunked.clone()),
        ("transfer-encoding: identity, chunked\r\n", chunked.clone()),
        ("transfer-encoding: gzip, chunked\r\n", chunked.clone()),
        (
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            chunked.clone(),
        ),
        ("transfer-encoding: identity\r\n", chunked.clone()),
        ("transfer-encoding : chunked\r\n", chunked.clone()),
        ("transfer-encoding:\u{b}chunked\r\n", chunked.clone()),
        ("x: 1\r\n transfer-encoding: chunked\r\n", chunked.clone()),
        ("content-length: 2\r\n 3\r\n", after("{}")),
        ("content-length: 2\r\nx\r\n", after("{}")),
        ("x y: 1\r\ncontent-length: 2\r\n", after("{}")),
        ("host: y\r\ncontent-length: 2\r\n", after("{}")),
    ];
    for (head, rest) in heads {
        let mut client = gateway.client().await;
        client.send(raw(head, &rest).as_bytes()).await;
        client.response().await.assert_error(400, "bad-request");
        assert!(client.closed().await, "after {head:?} the connection says more");
    }
    assert_eq!(upstream.executions(), 0);
    assert!(upstream.see(|state| state.fragments.is_empty()));
}

#[tokio::test]
async fn broken_chunks_are_refused_and_the_connection_closed() {
    let (upstream, gateway) = gateway("").await;
    let bodies = [
        "zz\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        "2\r\n{}XX0\r\n\r\n",
        "2\r\n{}}\r\n0\r\n\r\n",
    ];
    for body in bodies {
        let mut client = gateway.client().await;
        client
            .send(raw("transfer-encoding: chunked\r\n", body).as_bytes())
            .await;
        client.response().await.assert_error(400, "bad-request");
        assert!(client.closed().await, "after {body:?} the connection says more");
    }
    assert_eq!(upstream.executions(), 0);
    gateway.at_rest().await;
}

#[tokio::test]
async fn a_body_of_the_limit_passes_and_one_byte_more_is_413() {
    let (upstream, gateway) = gateway("limits: { request_body: 64KiB }").await;
    let body = |size: usize| {
        let empty = chat("", false).len();
        chat(&"x".repeat(size - empty), false)
    };
    for chunked in [false, true] {
        for (size, status) in [(65_535, 200), (65_536, 200), (65_537, 413)] {
            let mut client = gateway.client().await;
            let body = body(size);
            if chunked {
                client.post_chunked(CHAT, body.as_bytes(), 4096).await;
            } else {
                client.post(CHAT, &body).await;
            }
            let response = client.response().await;
            assert_eq!(response.status, status, "{size} bytes");
            if status == 413 {
                response.assert_error(413, "body-too-large");
            }
        }
    }
    assert_eq!(upstream.executions(), 4);
    // Counted when the request ends, which the client does not wait for.
    eventually("both refusals are counted", async || {
        gateway
            .metrics()
            .await
            .sum("homing_errors_total", "body-too-large")
            == 2.0
    })
    .await;
}

#[tokio::test]
async fn large_heads_are_431() {
    let (upstream, gateway) = gateway("limits: { request_headers: 4KiB }").await;
    let mut client = gateway.client().await;
    let many: String = (0..100)
        .map(|n| format!("x-{n}: {}\r\n", "v".repeat(50)))
        .collect();
    client.post_with(CHAT, &many, "{}").await;
    client.response().await.assert_error(431, "headers-too-large");
    // More than Pingora would parse, in size and in number.
    let huge = format!("x: {}\r\n", "v".repeat(2 << 20));
    let numerous: String = (0..400).map(|n| format!("x-{n}: 1\r\n")).collect();
    for headers in [huge, numerous] {
        let mut client = gateway.client().await;
        let _ = client.try_send(raw(&headers, "").as_bytes()).await;
        client.response().await.assert_error(431, "headers-too-large");
    }
    assert_eq!(upstream.executions(), 0);
}

#[tokio::test]
async fn slow_heads_and_slow_bodies_are_408() {
    let (upstream, gateway) = gateway("limits: { headers_timeout: 300ms, body_timeout: 300ms }").await;
    let mut slow_head = gateway.client().await;
    slow_head.send(b"POST /v1/chat").await;
    slow_head.response().await.assert_error(408, "bad-request");
    assert!(slow_head.closed().await);

    let mut slow_body = gateway.client().await;
    slow_body
        .send(raw("content-length: 100\r\n", "{").as_bytes())
        .await;
    slow_body.response().await.assert_error(408, "bad-request");
    assert!(slow_body.closed().await);

    // A connection that never says anything is closed without a word.
    assert!(gateway.client().await.closed().await);
    assert_eq!(upstream.executions(), 0);
    gateway.at_rest().await;
}

#[tokio::test]
async fn an_unfinished_body_reaches_no_endpoint() {
    let (upstream, gateway) = gateway("").await;
    for framing in ["content-length: 1000\r\n", "transfer-encoding: chunked\r\n"] {
        let mut client = gateway.client().await;
        client.send(raw(framing, "5\r\n{\"mod").as_bytes()).await;
        drop(client);
    }
    eventually("the gateway saw both leave", async || {
        let metrics = gateway.metrics().await;
        metrics.sum("homing_requests_total", "code=\"499\"") == 2.0
    })
    .await;
    assert_eq!(upstream.executions(), 0);
    gateway.at_rest().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let (upstream, gateway) = gateway("").await;
    let mut client = gateway.client().await;
    let bodies = ["{\"n\":1}", "{\"n\":22}", "{\"n\":333}"];
    let all: String = bodies
        .iter()
        .map(|body| raw(&format!("content-length: {}\r\n", body.len()), body))
        .collect();
    client.send(all.as_bytes()).await;
    for body in bodies {
        assert_eq!(client.response().await.json()["received_bytes"], body.len());
    }
    assert_eq!(upstream.executions(), 3);
}

#[tokio::test]
async fn http_1_0_probes_without_a_host_are_answered() {
    let (_upstream, gateway) = gateway("").await;
    let mut client = gateway.client().await;
    client.send(b"GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn http_1_0_clients_get_no_chunks_and_the_end_of_the_connection() {
    let stream = |_: &Received, _| Script::stream(3, Duration::from_millis(2));
    let until_close = |_: &Received, _| {
        Script::default()
            .write(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"object\":\"chat.completion\"}",
            )
            .then(Step::Close)
    };
    let with_length = |_: &Received, _| Script::json("{\"object\":\"chat.completion\"}");
    for (upstream, end) in [
        (Upstream::start(stream).await, "data: [DONE]\n\n"),
        (Upstream::start(until_close).await, "completion\"}"),
        (Upstream::start(with_length).await, "completion\"}"),
    ] {
        let gateway = Setup::of([upstream.address]).start().await;
        let body = chat("x", true);
        for head in [
            format!("POST {CHAT} HTTP/1.0\r\n"),
            format!("POST {CHAT} HTTP/1.0\r\nconnection: keep-alive\r\n"),
            format!("POST {CHAT} HTTP/1.0\r\nexpect: 100-continue\r\n"),
        ] {
            let mut client = gateway.client().await;
            let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            client.send(request.as_bytes()).await;
            let response = client.response().await;
            assert_eq!(response.status, 200);
            assert_eq!(response.header("transfer-encoding"), None);
            assert_eq!(response.header("connection"), Some("close"));
            assert!(response.text().ends_with(end), "{response:?}");
            assert!(response.text().starts_with(['d', '{']), "{response:?}");
            assert!(client.closed().await);
        }
    }
}

#[tokio::test]
async fn tunnels_are_refused_in_the_api_s_shape() {
    let (upstream, gateway) = gateway("").await;
    let mut client = gateway.client().await;
    client
        .send(b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\n\r\n")
        .await;
    client.response().await.assert_error(400, "bad-request");
    assert!(client.closed().await);
    let mut client = H2c::connect(gateway.data).await;
    let answer = client.connect_to("example.org:443").await;
    answer.expect("an answer").assert_error(400, "bad-request");
    assert_eq!(upstream.executions(), 0);
}
