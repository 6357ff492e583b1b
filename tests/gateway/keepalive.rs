//! Kept connections to endpoints: how long they are kept, and what happens when one dies under a request.

use super::support::{Script, Setup, Upstream, chat, free_address};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Sender;

const CHAT: &str = "/v1/chat/completions";
const ANSWER: &str = r#"{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"fine"}}]}"#;

/// The wait between two requests hunts for the moment of the engine's close, so that about half of the rounds find the
/// connection open and half find it closed, or just being closed.
#[tokio::test]
async fn two_hundred_rounds_around_the_engine_s_idle_close_cost_nobody_a_request() {
    let upstream = Upstream::start(|_, _| Script::json(ANSWER)).await;
    upstream.close_idle_after(Duration::from_millis(20));
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    let step = Duration::from_micros(200);
    let (mut wait, mut last, mut reused) = (Duration::from_millis(19), None, 0);
    for round in 0..200 {
        client.post(CHAT, chat("x", false)).await;
        assert_eq!(client.response().await.text(), ANSWER, "round {round}");
        let connection = upstream.see(|state| state.requests.last().map(|last| last.connection));
        if last == connection {
            reused += 1;
            wait += step;
        } else {
            wait = wait.saturating_sub(step);
        }
        last = connection;
        tokio::time::sleep(wait).await;
    }
    assert_eq!(upstream.executions(), 200, "no request was executed twice");
    assert!(
        (20..180).contains(&reused),
        "{reused} of 200 rounds found the connection open"
    );
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("homing_errors_total", ""), 0.0);
    assert_eq!(
        metrics.sum("homing_retries_total", ""),
        0.0,
        "not a retry that is counted"
    );
    gateway.endpoint_is("e0", "ready").await;
}

#[tokio::test]
async fn a_kept_connection_that_dies_is_replaced_once() {
    // The 2nd request dies on the connection of the 1st, and is repeated on one of its own. The 4th dies on the connection
    // of the 3rd, and its repetition dies too: that is told.
    let upstream = Upstream::start(|_, n| match n {
        1 | 4 | 5 => Script::reset(),
        _ => Script::json(ANSWER),
    })
    .await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    for _ in 0..3 {
        client.post(CHAT, chat("x", false)).await;
        assert_eq!(client.response().await.text(), ANSWER);
    }
    assert_eq!(upstream.executions(), 4);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("homing_errors_total", ""), 0.0);
    client.post(CHAT, chat("x", false)).await;
    client.response().await.assert_error(502, "upstream-reset");
    let connections = upstream.see(|state| {
        let each = state.requests.iter().map(|request| request.connection);
        each.collect::<Vec<_>>()
    });
    assert_eq!(connections.len(), 6, "no third try");
    let same = |a: usize, b: usize| connections[a] == connections[b];
    assert!(same(0, 1) && same(3, 4), "kept: {connections:?}");
    assert!(!same(1, 2) && !same(4, 5), "fresh: {connections:?}");
    gateway.at_rest().await;
}

/// uvicorn closes after 5 s: the gateway must be first.
#[tokio::test]
async fn an_idle_connection_is_given_up_after_four_seconds() {
    let listener = TcpListener::bind(free_address()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, mut kept) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_all(stream, sender.clone()));
        }
    });
    let gateway = Setup::of([address]).start().await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", false)).await;
    assert_eq!(client.response().await.text(), ANSWER);
    let kept: Duration = kept.recv().await.unwrap();
    assert!((3.9..4.9).contains(&kept.as_secs_f64()), "{kept:?}");
}

/// Answers until the gateway closes; tells how long after a POST that was.
async fn answer_all(mut stream: TcpStream, kept: Sender<Duration>) -> Option<()> {
    let mut request = Vec::new();
    let mut answered = None;
    while let Ok(1..) = stream.read_buf(&mut request).await {
        let is_post = request.starts_with(b"POST");
        if !request.ends_with(if is_post { &b"}"[..] } else { b"\r\n\r\n" }) {
            continue;
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{ANSWER}",
            ANSWER.len()
        );
        stream.write_all(answer.as_bytes()).await.ok()?;
        answered = is_post.then(Instant::now);
        request.clear();
    }
    kept.send(answered?.elapsed()).await.ok()
}
