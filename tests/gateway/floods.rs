//! More of everything than fits: thousands of slow streams, and bodies at the limit from everybody at once.

use super::support::{Gateway, Script, Setup, Step, Upstream, chat, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const CHAT: &str = "/v1/chat/completions";

/// Asks the admin port until told to stop; returns how long each answer took.
async fn ask_admin(gateway: Arc<Gateway>, go_on: Arc<AtomicBool>) -> Vec<Duration> {
    let mut times = Vec::new();
    while go_on.load(Ordering::Relaxed) {
        for path in ["/livez", "/endpoints", "/metrics"] {
            let started = Instant::now();
            gateway.admin("GET", path).await;
            times.push(started.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    times.sort();
    times
}

/// A streaming request to its end; the time between the moments of its events must have no part in it.
async fn stream_of(gateway: Arc<Gateway>, n: usize, events: usize) {
    let mut client = gateway.client().await;
    client.post(CHAT, chat(&format!("stream number {n}"), true)).await;
    let response = client.response().await;
    assert!(response.status == 200 && response.complete, "{response:?}");
    assert_eq!(response.text().matches("data: ").count(), events + 1);
}

async fn slow_streams(count: usize, events: usize) {
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(Upstream::start(move |_, _| Script::stream(events, Duration::from_secs(1))).await);
    }
    // Nobody is to wait for a turn: it is the streams that are counted.
    let setup = Setup::of(servers.iter().map(|server| server.address))
        .pool("overload: { queue: { enabled: false } }\ntimeouts: { connect: 10s }");
    let gateway = Arc::new(setup.start().await);
    for n in 0..50 {
        stream_of_warm_up(&gateway, n).await;
    }
    let before = gateway.memory_kib("VmRSS");
    let go_on = Arc::new(AtomicBool::new(true));
    let admin = tokio::spawn(ask_admin(gateway.clone(), go_on.clone()));
    let started = Instant::now();
    let mut streams = JoinSet::new();
    for n in 0..count {
        streams.spawn(stream_of(gateway.clone(), n, events));
    }
    eventually("all streams run", async || {
        gateway
            .metrics()
            .await
            .sum("homing_endpoint_inflight_requests", "")
            == count as f64
    })
    .await;
    let all_run = started.elapsed();
    let during = gateway.memory_kib("VmRSS");
    while let Some(stream) = streams.join_next().await {
        stream.expect("every stream ends well");
    }
    go_on.store(false, Ordering::Relaxed);
    let admin = admin.await.expect("the admin port answers");
    let at = |share: f64| admin[((admin.len() - 1) as f64 * share) as usize];
    println!(
        "{count} streams of {events} s, all ended well after {:.1?} (all ran after {all_run:.1?}); \
         RSS {before} -> {during} KiB, {:.1} KiB per stream, peak {} KiB; \
         admin answers: median {:.1?}, 99 % {:.1?}, worst {:.1?} of {}",
        started.elapsed(),
        (during.saturating_sub(before)) as f64 / count as f64,
        gateway.memory_kib("VmHWM"),
        at(0.5),
        at(0.99),
        at(1.0),
        admin.len(),
    );
    gateway.at_rest().await;
    assert!(
        during.saturating_sub(before) < 256 * count as u64,
        "more than 256 KiB per stream"
    );
    assert!(
        at(0.5) < Duration::from_millis(100),
        "the admin port takes {:?}",
        at(0.5)
    );
}

/// What a process allocates once must not be counted per stream.
async fn stream_of_warm_up(gateway: &Gateway, n: usize) {
    let mut client = gateway.client().await;
    client.post(CHAT, chat(&format!("warm up {n}"), true)).await;
    let mut response = client.head().await.expect("a stream");
    client.body_until(&mut response, "data: ").await;
}

/// At a thousand streams and more, a router of Python fell over: streams broke and its own pages hung.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_slow_streams_all_end_and_cost_little() {
    slow_streams(300, 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn two_thousand_slow_streams_for_a_minute() {
    slow_streams(2_000, 60).await;
}

/// What became of a body that was sent while another task read the answer, as real clients do.
async fn send_body(gateway: Arc<Gateway>, body: Arc<str>, chunked: bool) -> u16 {
    let client = gateway.client().await;
    let head = client.post_head(CHAT);
    let (mut answers, mut requests) = client.split();
    let writer = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        let framing = match chunked {
            true => "transfer-encoding: chunked\r\n\r\n".to_owned(),
            false => format!("content-length: {}\r\n\r\n", body.len()),
        };
        // The gateway closes early on those whom it refuses.
        let _ = requests.write_all((head + &framing).as_bytes()).await;
        for piece in body.as_bytes().chunks(1 << 16) {
            let size = format!("{:x}\r\n", piece.len());
            let parts: [&[u8]; 3] = match chunked {
                true => [size.as_bytes(), piece, b"\r\n"],
                false => [b"", piece, b""],
            };
            if requests.write_all(&parts.concat()).await.is_err() {
                return;
            }
        }
        if chunked {
            let _ = requests.write_all(b"0\r\n\r\n").await;
        }
        // Kept open until the answer is read.
        std::future::pending::<()>().await;
    });
    let response = answers.response().await;
    writer.abort();
    match response.status {
        200 => assert!(response.complete),
        status => response.assert_error(status, "overloaded"),
    }
    response.status
}

async fn body_flood(clients: usize, body_bytes: usize, budget_bytes: usize) {
    let server = Upstream::start(|_, _| {
        Script::default()
            .then(Step::Await)
            .write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    })
    .await;
    let limits = format!(
        "limits: {{ request_body: {body_bytes}B, buffered_bodies: {budget_bytes}B, body_timeout: 60s }}"
    );
    let setup = Setup::of([server.address]).pool("timeouts: { connect: 10s }");
    let gateway = Arc::new(setup.top(&limits).start().await);
    let empty = chat("", false).len();
    let body: Arc<str> = chat(&"x".repeat(body_bytes - empty), false).into();
    for chunked in [false, true] {
        let before = gateway.memory_kib("VmRSS");
        let done = Arc::new(AtomicBool::new(false));
        let sampler = tokio::spawn({
            let done = done.clone();
            let (mut most, gateway) = (0, gateway.clone());
            async move {
                while !done.load(Ordering::Relaxed) {
                    most = most.max(gateway.memory_kib("VmRSS"));
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                most
            }
        });
        let mut floods = JoinSet::new();
        for _ in 0..clients {
            floods.spawn(send_body(gateway.clone(), body.clone(), chunked));
        }
        let (mut served, mut refused) = (0, 0);
        while served + refused < clients {
            tokio::select! {
                Some(status) = floods.join_next() => match status.expect("every client gets its answer") {
                    200 => served += 1,
                    429 | 503 => refused += 1,
                    other => panic!("status {other}"),
                },
                // Nothing else is left to do than to let the engine answer.
                () = tokio::time::sleep(Duration::from_millis(300)) => server.release(),
            }
        }
        done.store(true, Ordering::Relaxed);
        let most = sampler.await.expect("the sampler runs");
        println!(
            "{clients} bodies of {} KiB at once ({}), budget {} KiB: {served} served, {refused} refused; \
             RSS {before} KiB before, at most {most} KiB",
            body_bytes >> 10,
            if chunked { "chunked" } else { "with their length" },
            budget_bytes >> 10,
        );
        assert!(served > 0 && refused > 0, "{served} served, {refused} refused");
        let growth_bytes = most.saturating_sub(before) << 10;
        // A body that grows as it comes is copied; a connection has its buffers.
        let bound_bytes = 2 * budget_bytes + clients * (256 << 10);
        assert!(
            growth_bytes < bound_bytes as u64,
            "{growth_bytes} bytes more, of a budget of {budget_bytes}"
        );
        gateway.at_rest().await;
    }
    // The budget is whole again: as many fit as before.
    let status = send_body(gateway.clone(), body, false);
    tokio::pin!(status);
    let status = loop {
        tokio::select! {
            status = &mut status => break status,
            () = tokio::time::sleep(Duration::from_millis(50)) => server.release(),
        }
    };
    assert_eq!(status, 200);
}

/// Bodies at the limit from two hundred clients at once are more than the gateway may hold: it holds what it may, and
/// tells the others when to come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_beyond_the_budget_are_refused_and_memory_stays_within_it() {
    body_flood(200, 1 << 20, 32 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn two_hundred_bodies_of_32_mib_at_once() {
    body_flood(200, 32 << 20, 256 << 20).await;
}
