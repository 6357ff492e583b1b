//! Bodies of every size and framing reach the endpoint exactly once and byte for byte.

use super::support::{Gateway, Response, Script, Setup, Upstream, chat, h2c::H2c};
use bytes::Bytes;

/// Around Pingora's 64 KiB replay buffer, and far beyond it.
const SIZES: [usize; 6] = [1 << 10, 63 << 10, 64 << 10, 65 << 10, 1 << 20, 20 << 20];
const CHAT: &str = "/v1/chat/completions";

/// A chat request of exactly `size` bytes.
fn body_of(size: usize) -> String {
    let empty = chat("", false).len();
    chat(&"x".repeat(size - empty), false)
}

async fn gateway() -> (Upstream, Gateway) {
    let upstream = Upstream::echo().await;
    let gateway = Setup::of([upstream.address]).start().await;
    (upstream, gateway)
}

#[track_caller]
fn assert_echoed(response: &Response, upstream: &Upstream, body: &str) {
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.json()["received_bytes"], body.len());
    let same = upstream.see(|state| state.requests.last().unwrap().body == body.as_bytes());
    assert!(same, "a body of {} bytes was changed on its way", body.len());
}

#[track_caller]
fn assert_one_clean_framing(upstream: &Upstream, size: usize) {
    upstream.see(|state| {
        let last = state.requests.last().unwrap();
        assert_eq!(last.headers("content-length"), [size.to_string()]);
        assert!(last.headers("transfer-encoding").is_empty() && last.headers("expect").is_empty());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http1_with_content_length_and_in_chunks() {
    let (upstream, gateway) = gateway().await;
    let mut client = gateway.client().await;
    for (round, size) in SIZES.into_iter().enumerate() {
        let body = body_of(size);
        client.post(CHAT, &body).await;
        assert_echoed(&client.response().await, &upstream, &body);
        client.post_chunked(CHAT, body.as_bytes(), 10_000).await;
        assert_echoed(&client.response().await, &upstream, &body);
        assert_one_clean_framing(&upstream, size);
        assert_eq!(upstream.executions(), 2 * (round + 1));
    }
    gateway.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_with_and_without_a_length() {
    let (upstream, gateway) = gateway().await;
    let mut client = H2c::connect(gateway.data).await;
    for size in SIZES {
        let body = body_of(size);
        for announce in [true, false] {
            let response = client
                .post(CHAT, Bytes::from(body.clone()), announce)
                .await
                .unwrap();
            assert_echoed(&response, &upstream, &body);
            assert_one_clean_framing(&upstream, size);
        }
    }
    assert_eq!(upstream.executions(), 2 * SIZES.len());
    gateway.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_byte_chunks_with_extensions_and_trailers() {
    let (upstream, gateway) = gateway().await;
    let body = chat("tiny pieces", false);
    let mut client = gateway.client().await;
    let mut bytes = format!(
        "{}transfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n",
        client.post_head(CHAT)
    );
    for byte in body.chars() {
        bytes += &format!("1;why=because\r\n{byte}\r\n");
    }
    bytes += "0\r\nx-sum: 1\r\n\r\n";
    client.send(bytes.as_bytes()).await;
    assert_echoed(&client.response().await, &upstream, &body);
    assert_one_clean_framing(&upstream, body.len());
    // The connection is in step: the next request on it is read from its start.
    client.post(CHAT, &body).await;
    assert_echoed(&client.response().await, &upstream, &body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_100_continue_is_answered_before_the_body_is_sent() {
    let (upstream, gateway) = gateway().await;
    let body = body_of(100_000);
    let mut client = gateway.client().await;
    let head = format!(
        "{}expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        client.post_head(CHAT),
        body.len()
    );
    client.send(head.as_bytes()).await;
    assert_eq!(client.head().await.unwrap().status, 100);
    client.send(body.as_bytes()).await;
    assert_echoed(&client.response().await, &upstream, &body);
    assert_one_clean_framing(&upstream, body.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_would_be_too_large_is_not_asked_for() {
    let upstream = Upstream::echo().await;
    let setup = Setup::of([upstream.address]).top("limits: { request_body: 1KiB }");
    let gateway = setup.start().await;
    let mut client = gateway.client().await;
    let head = client.post_head(CHAT);
    let head = format!("{head}expect: 100-continue\r\ncontent-length: 2000\r\n\r\n");
    client.send(head.as_bytes()).await;
    let answer = client.head().await.unwrap();
    assert_eq!(
        (answer.status, answer.header("x-homing-error")),
        (413, Some("body-too-large"))
    );
    assert_eq!(upstream.executions(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_of_http2_leave_the_body_as_it_is() {
    let (upstream, gateway) = gateway().await;
    let mut client = H2c::connect(gateway.data).await;
    let body = body_of(70_000);
    let response = client
        .post_with_trailer(CHAT, Bytes::from(body.clone()))
        .await
        .unwrap();
    assert_echoed(&response, &upstream, &body);
    assert_one_clean_framing(&upstream, body.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_replayed_whole_to_the_next_endpoint() {
    let first = Upstream::start(|_, _| Script::reset()).await;
    let second = Upstream::start(|_, _| Script::answer(503, "", "busy")).await;
    let third = Upstream::echo().await;
    let setup = Setup::of([first.address, second.address, third.address]);
    let gateway = setup.top("response_headers: always").start().await;
    let mut client = gateway.client().await;
    for size in SIZES {
        let body = body_of(size);
        client.post(CHAT, &body).await;
        assert_echoed(&client.response().await, &third, &body);
    }
    assert_eq!(third.executions(), SIZES.len());
    gateway.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_model_name_without_end_only_the_beginning_is_kept() {
    let (upstream, gateway) = gateway().await;
    let mut client = gateway.client().await;
    let name = format!("m{}", "é".repeat(1 << 20));
    let body = chat("hello", false).replacen("\"m\"", &format!("\"{name}\""), 1);
    assert!(body.len() > name.len());
    client.post(CHAT, &body).await;
    assert_echoed(&client.response().await, &upstream, &body);
    gateway.at_rest().await;
    let kept = gateway.admin("GET", "/decisions?limit=1").await;
    let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
    let kept = kept[0]["model"].as_str().unwrap();
    assert!(name.starts_with(kept) && (200..=256).contains(&kept.len()));
}
