//! What goes out together and what goes out at once: a request's head with its body, a burst of events, a lone event.
//!
//! Sockets are corked on the way. One that stays so keeps what is written for 200 ms, every time: so one exchange of
//! several that takes less than 150 ms shows, on a busy machine too, that none does.

use super::support::h2c::H2c;
use super::support::{Gateway, Script, Setup, Step, Upstream, chat, free_address};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedSender;

const CHAT: &str = "/v1/chat/completions";
const ANSWER: &str = r#"{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"fine"}}]}"#;
/// Clearly less than what the kernel keeps a corked socket's data for.
const PROMPT: Duration = Duration::from_millis(150);

/// Runs `exchange` a few times, the first one unmeasured, and asserts that the socket kept none of them.
async fn assert_prompt(what: &str, mut exchange: impl AsyncFnMut()) {
    exchange().await;
    let mut times = Vec::new();
    for _ in 0..7 {
        let started = Instant::now();
        exchange().await;
        times.push(started.elapsed());
    }
    assert!(times.iter().any(|&time| time < PROMPT), "{what}: {times:?}");
}

async fn well_answered(gateway: &Gateway) -> impl AsyncFnMut(String) {
    let mut client = gateway.client().await;
    async move |body: String| {
        client.post(CHAT, body).await;
        assert_eq!(client.response().await.text(), ANSWER);
    }
}

#[tokio::test]
async fn a_request_arrives_by_one_read() {
    let listener = TcpListener::bind(free_address()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, mut reads) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(count_reads(stream, sender.clone()));
        }
    });
    let gateway = Setup::of([address]).start().await;
    let mut post = well_answered(&gateway).await;
    for bytes in [1, 1_000, 4_000, 16_000] {
        for _ in 0..10 {
            post(chat(&"x".repeat(bytes), false)).await;
            assert_eq!(reads.recv().await, Some(1), "{bytes} bytes");
        }
    }
}

/// Answers until the gateway closes; tells by how many reads each POST came.
async fn count_reads(mut stream: TcpStream, reads: UnboundedSender<usize>) -> Option<()> {
    let mut request = Vec::with_capacity(128 * 1024);
    let mut count = 0;
    while let Ok(1..) = stream.read_buf(&mut request).await {
        let is_post = request.starts_with(b"POST");
        count += usize::from(is_post);
        if !request.ends_with(if is_post { &b"}"[..] } else { b"\r\n\r\n" }) {
            continue;
        }
        let length = ANSWER.len();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{ANSWER}");
        stream.write_all(answer.as_bytes()).await.ok()?;
        if is_post {
            reads.send(count).ok()?;
        }
        count = 0;
        request.clear();
    }
    Some(())
}

#[tokio::test]
async fn no_request_waits_in_a_socket() {
    let upstream = Upstream::start(|_, _| Script::json(ANSWER)).await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut post = well_answered(&gateway).await;
    for bytes in [1, 1_000, 65_000, 66_000, 200_000] {
        let body = chat(&"x".repeat(bytes), false);
        assert_prompt(&format!("{bytes} bytes"), async || post(body.clone()).await).await;
    }
    let mut client = gateway.client().await;
    for (what, method) in [("no body", "GET"), ("an empty body", "POST")] {
        assert_prompt(what, async || {
            client.request(method, "/v1/other", "content-length: 0\r\n").await;
            assert_eq!(client.response().await.text(), ANSWER);
        })
        .await;
    }
    let body = chat("x", false);
    assert_prompt("chunks", async || {
        client.post_chunked(CHAT, body.as_bytes(), 7).await;
        assert_eq!(client.response().await.text(), ANSWER);
    })
    .await;
    let mut h2c = H2c::connect(gateway.data).await;
    let body = Bytes::from(body);
    assert_prompt("HTTP/2", async || {
        let response = h2c.post(CHAT, body.clone(), true).await.unwrap();
        assert_eq!(response.text(), ANSWER);
    })
    .await;
    gateway.at_rest().await;
}

#[tokio::test]
async fn no_repeated_request_waits_in_a_socket() {
    // Every other request is refused or breaks, and is repeated: elsewhere, or on a connection of its own.
    for (what, script) in [
        ("refused", Script::answer(503, "", "busy")),
        ("broken", Script::reset()),
        ("early", Script::answer(503, "", "early").then(Step::Close)),
    ] {
        let faulty = Upstream::start(move |_, _| script.clone()).await;
        let good = Upstream::start(|_, _| Script::json(ANSWER)).await;
        let setup = Setup::of([faulty.address, good.address]).pool("scheduling: { preset: random }");
        let gateway = setup.start().await;
        let mut post = well_answered(&gateway).await;
        assert_prompt(what, async || post(chat("x", false)).await).await;
        gateway.at_rest().await;
    }
    let upstream = Upstream::start(|_, n| match n % 2 {
        0 => Script::json(ANSWER).then(Step::Close),
        _ => Script::json(ANSWER),
    })
    .await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut post = well_answered(&gateway).await;
    assert_prompt("stale", async || post(chat("x", false)).await).await;
}

/// An answer that comes before the request was sent, as on a connection that the engine is about to close.
#[tokio::test]
async fn an_early_answer_leaves_the_connection_usable() {
    let upstream = Upstream::start(|_, _| Script::json(ANSWER).write("HTTP/1.1 100 Continue\r\n\r\n")).await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut post = well_answered(&gateway).await;
    assert_prompt("early 100", async || post(chat("x", false)).await).await;
}

/// However many events come at once: all of them arrive before anything else happens.
#[tokio::test]
async fn a_burst_is_passed_on_whole_and_at_once() {
    let upstream = Upstream::start(|request, _| {
        let text = String::from_utf8_lossy(&request.body);
        let events: usize = text
            .split("burst ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let mut burst = Vec::new();
        for step in (1..=events)
            .fold(Script::chunked("text/event-stream"), |script, n| {
                script.event(&format!("{n}"))
            })
            .0
        {
            if let Step::Write(bytes) = step {
                burst.extend(bytes);
            }
        }
        let all = Script::default().write(burst).then(Step::Await);
        all.event("[DONE]").last_chunk()
    })
    .await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    for events in (1..=13).chain([64, 400]) {
        let what = format!("{events} events");
        let mut times = Vec::new();
        for _ in 0..5 {
            let started = Instant::now();
            client.post(CHAT, chat(&format!("burst {events} "), true)).await;
            let mut response = client.head().await.unwrap();
            client
                .body_until(&mut response, &format!("data: {events}\n\n"))
                .await;
            times.push(started.elapsed());
            upstream.release();
            client.body(&mut response).await;
            assert!(response.complete, "{what}");
            let all: String = (1..=events).map(|n| format!("data: {n}\n\n")).collect();
            assert_eq!(response.text(), all + "data: [DONE]\n\n");
        }
        assert!(times.iter().any(|&time| time < PROMPT), "{what}: {times:?}");
    }
    gateway.at_rest().await;
}

#[tokio::test]
async fn what_came_before_a_burst_broke_off_is_passed_on() {
    for events in [3, 4, 8, 30] {
        let upstream = Upstream::start(move |_, _| {
            let head = Script::chunked("text/event-stream");
            (0..events)
                .fold(head, |script, n| script.event(&n.to_string()))
                .then(Step::Close)
        })
        .await;
        let gateway = Setup::of([upstream.address]).start().await;
        let mut client = gateway.client().await;
        client.post(CHAT, chat("x", true)).await;
        let response = client.response().await;
        let all: String = (0..events).map(|n| format!("data: {n}\n\n")).collect();
        assert_eq!(response.text(), all);
        assert!(!response.complete, "the client cannot tell that it broke");
        gateway.at_rest().await;
    }
}

#[tokio::test]
async fn a_burst_is_few_frames_over_http2() {
    const EVENTS: usize = 200;
    let upstream = Upstream::start(|_, _| {
        let head = Script::chunked("text/event-stream");
        let events = (0..EVENTS).fold(head, |script, n| script.event(&n.to_string()));
        let burst = events.0.into_iter().filter_map(|step| match step {
            Step::Write(bytes) => Some(bytes),
            _ => None,
        });
        Script::default()
            .write(burst.collect::<Vec<_>>().concat())
            .last_chunk()
    })
    .await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = H2c::connect(gateway.data).await;
    let frames = client
        .post_for_frames(CHAT, chat("x", true).into())
        .await
        .unwrap();
    let all: String = (0..EVENTS).map(|n| format!("data: {n}\n\n")).collect();
    assert_eq!(String::from_utf8(frames.concat()).unwrap(), all);
    // Pingora has up to four at a time ready.
    assert!(frames.len() < EVENTS / 2, "{} frames", frames.len());
    gateway.at_rest().await;
}
