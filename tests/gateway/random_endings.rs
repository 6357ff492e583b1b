//! Thousands of requests, each ended in a random way: afterwards every counter is exactly 0, at no moment was one
//! negative, and every request was counted once.
//!
//! `HOMING_SEED` replays a run; the seed is printed when it fails.

use super::support::{Client, Gateway, Received, Script, Setup, Step, Upstream, chat};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const CLIENTS: u64 = 24;

/// How a request ends; the server reads its part from the header `x-ending`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ending {
    Json,
    Stream,
    ClientLeavesBeforeHead,
    ClientLeavesMidStream,
    ClientResetsMidStream,
    ClientLeavesMidUpload,
    ResetBeforeHead,
    ResetMidStream,
    ResetMidBody,
    TimeOut,
    Silence,
    ClientError,
    ServerError,
    Busy,
    Aborted,
    TooLarge,
    BadChunk,
}

pub(super) const ENDINGS: [Ending; 17] = [
    Ending::Json,
    Ending::Stream,
    Ending::ClientLeavesBeforeHead,
    Ending::ClientLeavesMidStream,
    Ending::ClientResetsMidStream,
    Ending::ClientLeavesMidUpload,
    Ending::ResetBeforeHead,
    Ending::ResetMidStream,
    Ending::ResetMidBody,
    Ending::TimeOut,
    Ending::Silence,
    Ending::ClientError,
    Ending::ServerError,
    Ending::Busy,
    Ending::Aborted,
    Ending::TooLarge,
    Ending::BadChunk,
];

/// What a server does with a request.
pub(super) fn behave(request: &Received, n: usize) -> Script {
    let json = r#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    let stream = || Script::chunked("text/event-stream").event("{\"choices\":[]}");
    match request.headers("x-ending").first().copied().unwrap_or_default() {
        "Stream" => Script::stream(5, Duration::from_millis(1)),
        "ClientLeavesBeforeHead" | "TimeOut" => Script::hang(),
        "ClientLeavesMidStream" | "ClientResetsMidStream" | "Silence" => stream().then(Step::Hang),
        // Every other try, so that some are saved by the next endpoint and some are not.
        "ResetBeforeHead" if n.is_multiple_of(2) => Script::reset(),
        "Busy" if n.is_multiple_of(2) => Script::answer(503, "", "busy"),
        "Aborted" if n.is_multiple_of(2) => Script::json(&json.replace("stop", "abort")),
        "ResetMidStream" => stream().then(Step::Reset),
        "ResetMidBody" => Script::default()
            .write("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
            .then(Step::Reset),
        "ClientError" => Script::answer(400, "content-type: application/json\r\n", "{\"error\":{}}"),
        "ServerError" => Script::answer(500, "", "broken"),
        _ => Script::json(json),
    }
}

/// One request to its end.
pub(super) async fn run(gateway: &Gateway, ending: Ending, prompt: &str) {
    let mut client = gateway.client().await;
    let header = format!("x-ending: {ending:?}\r\n");
    let streams = !matches!(ending, Ending::Json | Ending::Aborted | Ending::Busy);
    let body = chat(prompt, streams);
    match ending {
        Ending::TooLarge => {
            let head = format!("{}content-length: 999999\r\n\r\n", client.post_head(CHAT));
            client.send(head.as_bytes()).await;
            return client.response().await.assert_error(413, "body-too-large");
        }
        Ending::BadChunk => {
            let request = format!(
                "{}transfer-encoding: chunked\r\n\r\nxyz\r\n",
                client.post_head(CHAT)
            );
            client.send(request.as_bytes()).await;
            return client.response().await.assert_error(400, "bad-request");
        }
        Ending::ClientLeavesMidUpload => {
            let head = format!(
                "{}content-length: 1000\r\n\r\n{{\"model\"",
                client.post_head(CHAT)
            );
            client.send(head.as_bytes()).await;
            return;
        }
        _ => client.post_with(CHAT, &header, &body).await,
    }
    match ending {
        Ending::ClientLeavesBeforeHead => {}
        Ending::ClientLeavesMidStream | Ending::ClientResetsMidStream => {
            let mut response = client.head().await.expect("a stream");
            client.body_until(&mut response, "data: ").await;
            if ending == Ending::ClientResetsMidStream {
                client.reset();
            }
        }
        _ => check(&mut client, ending).await,
    }
}

/// What the client of a request must see that runs to its end.
async fn check(client: &mut Client, ending: Ending) {
    let response = client.response().await;
    match ending {
        Ending::Json | Ending::Stream => assert!(response.status == 200 && response.complete),
        Ending::ResetMidStream | Ending::Silence => assert!(response.status == 200 && !response.complete),
        Ending::TimeOut => response.assert_error(504, "upstream-timeout"),
        Ending::ResetMidBody => response.assert_error(502, "upstream-reset"),
        Ending::ClientError => assert_eq!(response.status, 400),
        Ending::ServerError => assert_eq!(response.status, 500),
        Ending::ResetBeforeHead => assert!(matches!(response.status, 200 | 502)),
        Ending::Busy => assert!(matches!(response.status, 200 | 503)),
        Ending::Aborted => assert!(response.status == 200 && response.complete),
        other => panic!("{other:?} has no end of its own"),
    }
}

async fn requests_end_in_random_ways(count: u64) {
    let seed: u64 =
        std::env::var("HOMING_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("HOMING_SEED={seed}");
    let mut upstreams = Vec::new();
    for _ in 0..3 {
        upstreams.push(Upstream::start(behave).await);
    }
    let setup = Setup::of(upstreams.iter().map(|upstream| upstream.address))
        .top("limits: { request_body: 64KiB }")
        .pool(
            "timeouts: { first_byte: 1s, idle: 1s }\nretries: 1\nretry_budget: { ratio: 10 }\n\
             ejection: { consecutive_failures: 0, failure_ratio: 1, min_requests: 4000000 }",
        );
    let gateway = Arc::new(setup.start().await);
    let sampling = Arc::new(AtomicBool::new(true));
    let sampler = tokio::spawn(never_negative(gateway.clone(), sampling.clone()));
    let clients = (0..CLIENTS).map(|client| {
        let gateway = gateway.clone();
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ client);
        tokio::spawn(async move {
            for n in 0..count / CLIENTS {
                let ending = ENDINGS[rng.random_range(0..ENDINGS.len())];
                let prompt = "word ".repeat(rng.random_range(1..400)) + &n.to_string();
                run(&gateway, ending, &prompt).await;
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("every answer is as it must be");
    }
    gateway.at_rest().await;
    sampling.store(false, Ordering::Relaxed);
    assert!(sampler.await.expect("no sample is negative") > 0);
    let sent = (count / CLIENTS * CLIENTS) as f64;
    super::support::eventually("every request is counted", async || {
        gateway.metrics().await.sum("homing_requests_total", "") >= sent
    })
    .await;
    assert_eq!(gateway.metrics().await.sum("homing_requests_total", ""), sent);
    for name in ["e0", "e1", "e2"] {
        let endpoint = gateway.endpoint(name).await;
        for gauge in ["inflight_requests", "pending_prefill_tokens", "active_tokens"] {
            assert_eq!(endpoint[gauge], 0, "{gauge} of {name}");
        }
    }
    let (_, verbose) = gateway.try_admin("GET", "/readyz?verbose").await.unwrap();
    assert!(
        String::from_utf8(verbose)
            .unwrap()
            .contains("requests in flight and open connections: 0\n")
    );
}

/// Samples the gauges as fast as the admin port answers; returns how often.
async fn never_negative(gateway: Arc<Gateway>, go_on: Arc<AtomicBool>) -> usize {
    let mut samples = 0;
    while go_on.load(Ordering::Relaxed) {
        let metrics = gateway.metrics().await;
        for family in [
            "homing_endpoint_inflight_requests",
            "homing_endpoint_pending_prefill_tokens",
        ] {
            for value in metrics.all(family) {
                assert!(value >= 0.0, "{family} is {value}");
            }
        }
        samples += 1;
        tokio::task::yield_now().await;
    }
    samples
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand() {
    requests_end_in_random_ways(1_000).await;
}

/// The full proof: some minutes on a small machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn ten_thousand() {
    requests_end_in_random_ways(10_000).await;
}
