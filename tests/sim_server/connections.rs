//! What happens to requests when connections or the server go away.

use super::support::{Pod, events, slow, tiny};
use homing::sim::server::SimOptions;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a completion request on a connection of its own.
async fn send_raw(pod: &Pod, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(pod.server.addr()).await.unwrap();
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    socket
}

fn long(stream: bool) -> Value {
    json!({"prompt": "x", "max_tokens": 60_000, "stream": stream})
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_seat() {
    let mut options = slow();
    options.engine.max_num_seqs = 1;
    let pod = Pod::start(options).await;
    for stream in [false, true] {
        let running = send_raw(&pod, &long(stream)).await;
        pod.until_in_flight(1).await;
        let queued = send_raw(&pod, &long(stream)).await;
        pod.until_in_flight(2).await;
        drop(queued);
        pod.until_in_flight(1).await;
        drop(running);
        pod.until_in_flight(0).await;
        // The seat and the blocks are free again: this one runs at once.
        pod.complete("y", 1).await;
        assert_eq!(pod.metric("num_requests_running").await, 0.0);
        assert_eq!(pod.metric("kv_cache_usage_perc").await, 0.0);
    }
    let aborted = "vllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"tiny\"}";
    assert_eq!(pod.metrics().await[aborted], 0.0);
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_stream_frees_its_seat() {
    let pod = Pod::start(slow()).await;
    let mut socket = send_raw(&pod, &long(true)).await;
    let mut head = [0; 400];
    socket.read_exact(&mut head).await.unwrap();
    assert!(String::from_utf8_lossy(&head).contains("data: {"));
    drop(socket);
    pod.until_in_flight(0).await;
}

#[tokio::test]
async fn half_a_close_is_a_close() {
    let pod = Pod::start(slow()).await;
    let mut socket = send_raw(&pod, &long(false)).await;
    pod.until_in_flight(1).await;
    socket.shutdown().await.unwrap();
    pod.until_in_flight(0).await;
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let pod = Pod::start(SimOptions {
        keep_alive: Duration::from_millis(50),
        ..tiny()
    })
    .await;
    let mut socket = send_raw(&pod, &json!({"prompt": "x", "max_tokens": 1})).await;
    let mut answer = String::new();
    let read = socket.read_to_string(&mut answer);
    tokio::time::timeout(Duration::from_secs(10), read)
        .await
        .expect("closed by the server")
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn keep_alive_pipelining_and_chunked_bodies_work() {
    let pod = Pod::start(tiny()).await;
    let mut socket = TcpStream::connect(pod.server.addr()).await.unwrap();
    let body = r#"{"prompt":"x","max_tokens":1}"#;
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{body}\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(chunked.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answer}");
}

#[tokio::test]
async fn shutdown_ends_requests_as_aborted() {
    let pod = Pod::start(slow()).await;
    let whole = tokio::spawn(
        pod.client
            .post(pod.url("/v1/completions"))
            .json(&long(false))
            .send(),
    );
    let stream = tokio::spawn(
        pod.client
            .post(pod.url("/v1/completions"))
            .json(&long(true))
            .send(),
    );
    pod.until_in_flight(2).await;
    let stream = stream.await.unwrap().unwrap();
    let shutdown = tokio::spawn(pod.server.shutdown());
    let whole = whole.await.unwrap().unwrap();
    assert_eq!(whole.status(), 200);
    let whole: Value = whole.json().await.unwrap();
    assert_eq!(whole["choices"][0]["finish_reason"], "abort");
    let text = stream.text().await.unwrap();
    let events = events(&text);
    let last: Value = serde_json::from_str(&events[events.len() - 2].1).unwrap();
    assert_eq!(
        (
            &last["choices"][0]["finish_reason"],
            events.last().unwrap().1.as_str()
        ),
        (&json!("abort"), "[DONE]")
    );
    shutdown.await.unwrap();
}

#[tokio::test]
async fn shutdown_of_an_idle_server_waits_for_nobody() {
    let pod = Pod::start(tiny()).await;
    pod.complete("x", 1).await;
    // Well below the time that unfinished answers would get; the client's idle connection gets none.
    tokio::time::timeout(Duration::from_secs(1), pod.server.shutdown())
        .await
        .expect("no answer is under way");
}

#[tokio::test]
async fn a_draining_server_finishes_what_it_has_and_refuses_the_rest() {
    let pod = Pod::start(slow()).await;
    let url = pod.url("/v1/completions");
    let body = json!({"prompt": "x", "max_tokens": 60});
    let running = tokio::spawn(pod.client.post(&url).json(&body).send());
    pod.until_in_flight(1).await;
    let client = pod.client.clone();
    let drain = tokio::spawn(pod.server.drain(Duration::from_secs(30)));
    let refused = loop {
        let answer = client
            .post(&url)
            .json(&json!({"prompt": "x", "max_tokens": 1}))
            .send()
            .await
            .unwrap();
        if answer.status() != 200 {
            break answer;
        }
    };
    assert_eq!(refused.status(), 500);
    assert_eq!(
        refused.text().await.unwrap(),
        r#"{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}"#
    );
    let finished: Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(finished["choices"][0]["finish_reason"], "length");
    drain.await.unwrap();
}

#[tokio::test]
async fn a_sleeping_server_looks_healthy_and_hangs() {
    let pod = Pod::start(tiny()).await;
    let post = async |path: &str| {
        pod.client
            .post(pod.url(path))
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    };
    assert_eq!(post("/sleep?level=1").await, r#"{"status":"sleeping","level":1}"#);
    let hung = tokio::spawn(
        pod.client
            .post(pod.url("/v1/completions"))
            .json(&json!({"prompt": "x"}))
            .send(),
    );
    pod.until_in_flight(1).await;
    assert_eq!(
        pod.client.get(pod.url("/health")).send().await.unwrap().status(),
        200
    );
    assert_eq!(pod.text("/is_sleeping").await, r#"{"is_sleeping":true}"#);
    assert_eq!(
        (
            pod.metric("num_requests_waiting").await,
            pod.metric("num_requests_running").await
        ),
        (0.0, 0.0)
    );
    let awake = "vllm:engine_sleep_state{engine=\"0\",model_name=\"tiny\",sleep_state=\"awake\"}";
    assert_eq!(pod.metrics().await[awake], 0.0);
    assert_eq!(post("/wake_up").await, r#"{"status":"awake","tags":null}"#);
    assert_eq!(hung.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn health_can_fail_and_a_killed_server_is_gone() {
    let pod = Pod::start(tiny()).await;
    pod.server.set_healthy(false);
    assert_eq!(
        pod.client.get(pod.url("/health")).send().await.unwrap().status(),
        503
    );
    let addr = pod.server.addr();
    pod.server.kill();
    let refused = async { while TcpStream::connect(addr).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(10), refused)
        .await
        .expect("the socket closes");
}

#[tokio::test]
async fn speed_makes_time_pass_faster() {
    let mut options = slow();
    // 1,000 tokens take an hour of engine time, and 36 ms of ours.
    options.engine.timing.step_overhead = 3.6;
    options.speed = 100_000.0;
    let pod = Pod::start(options).await;
    tokio::time::timeout(Duration::from_secs(20), pod.complete("x", 1000))
        .await
        .expect("an hour has passed");
    assert_eq!(pod.server.counters().e2e_latency.sum(), 3600.0);
}
