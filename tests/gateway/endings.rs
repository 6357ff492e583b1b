//! How exchanges with endpoints can end, and what the client, the other endpoints and the counters see of it.

use super::support::upstream::engine_metrics;
use super::support::{Gateway, Script, Setup, Step, Upstream, chat, eventually};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const ANSWER: &str = r#"{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"fine"}}]}"#;

/// A server that answers every request well.
async fn good() -> Upstream {
    Upstream::start(|request, _| match request.head.contains("expect-stream") {
        true => Script::stream(3, Duration::ZERO),
        false => Script::json(ANSWER),
    })
    .await
}

async fn retries(gateway: &Gateway) -> f64 {
    gateway.metrics().await.sum("homing_retries_total", "")
}

/// Sends requests until the faulty server got one, and asserts that each was answered well.
async fn assert_hidden(gateway: &Gateway, faulty: &Upstream) {
    for n in 0..20 {
        let mut client = gateway.client().await;
        client.post(CHAT, chat(&format!("prompt {n}"), false)).await;
        let response = client.response().await;
        assert_eq!((response.status, response.text().as_str()), (200, ANSWER));
        if faulty.executions() > 0 {
            break;
        }
    }
    assert!(faulty.executions() > 0, "the faulty server was never tried");
    gateway.at_rest().await;
}

#[tokio::test]
async fn failures_before_the_response_are_repeated_elsewhere() {
    let partial_json = || {
        Script::default().write(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{{\"cho",
            ANSWER.len()
        ))
    };
    let abort = ANSWER.replace("stop", "abort");
    let faults: Vec<(&str, Script)> = vec![
        ("reset", Script::reset()),
        ("close", Script::close()),
        (
            "garbage",
            Script::default()
                .write("\0\u{1}garbage\r\n\r\n")
                .then(Step::Close),
        ),
        (
            "half a head",
            Script::default()
                .write("HTTP/1.1 200 OK\r\ncontent-ty")
                .then(Step::Close),
        ),
        ("hang", Script::hang()),
        (
            "a head in drips",
            Script::default().write("HTTP/1.1 200 OK\r\n").then(Step::Hang),
        ),
        ("502", Script::answer(502, "", "bad")),
        ("503", Script::answer(503, "", "busy")),
        ("half a body", partial_json().then(Step::Reset)),
        ("a body that stops", partial_json().then(Step::Hang)),
        ("an aborted answer", Script::json(&abort)),
        ("an aborted answer in drips", Script::json(&abort).trickled()),
    ];
    for (what, script) in faults {
        let faulty = Upstream::start(move |_, _| script.clone()).await;
        let other = good().await;
        let setup = Setup::of([faulty.address, other.address])
            .pool("timeouts: { first_byte: 500ms, idle: 500ms }\nscheduling: { preset: random }");
        let gateway = setup.start().await;
        println!("{what}");
        assert_hidden(&gateway, &faulty).await;
        assert_eq!(retries(&gateway).await, 1.0, "{what}");
    }
}

#[tokio::test]
async fn a_lone_endpoint_s_failure_is_told() {
    for (script, status, reason) in [
        (Script::reset(), 502, "upstream-reset"),
        (Script::hang(), 504, "upstream-timeout"),
    ] {
        let upstream = Upstream::start(move |_, _| script.clone()).await;
        let setup = Setup::of([upstream.address]).pool("timeouts: { first_byte: 300ms }");
        let gateway = setup.start().await;
        let mut client = gateway.client().await;
        client.post(CHAT, chat("x", false)).await;
        let response = client.response().await;
        response.assert_error(status, reason);
        assert_eq!(response.header("connection"), Some("close"));
        assert!(client.closed().await);
        gateway.at_rest().await;
    }
}

#[tokio::test]
async fn a_refused_connection_is_told_and_repeated() {
    let gone = Upstream::echo().await;
    let setup = Setup::of([gone.address]).pool("health: { interval: 10s, unhealthy_after: 9 }");
    let gateway = setup.start().await;
    drop(gone);
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", false)).await;
    client.response().await.assert_error(502, "connect-failed");
}

#[tokio::test]
async fn a_broken_stream_is_cut_and_not_repeated() {
    let begun = || Script::chunked("text/event-stream").event("{\"n\":1}");
    for (what, script) in [
        ("reset", begun().then(Step::Reset)),
        ("missing last chunk", begun().then(Step::Close)),
        ("garbage", begun().write("zz\r\n").then(Step::Hang)),
        ("silence", begun().then(Step::Hang)),
    ] {
        let faulty = Upstream::start(move |_, _| script.clone()).await;
        let setup = Setup::of([faulty.address]).pool("timeouts: { idle: 500ms }");
        let gateway = setup.start().await;
        let mut client = gateway.client().await;
        client.post(CHAT, chat("x", true)).await;
        let response = client.response().await;
        assert_eq!(response.status, 200);
        assert_eq!(response.text(), "data: {\"n\":1}\n\n", "{what}");
        assert!(
            !response.complete,
            "{what}: the client cannot tell that the stream broke"
        );
        gateway.at_rest().await;
        assert_eq!(faulty.executions(), 1, "{what}");
    }
}

#[tokio::test]
async fn a_broken_stream_ends_with_an_error_event_when_configured() {
    for begun in ["data: {\"n\":1}\n\n", "data: {\"n\":1}\n\ndata: {\"n\":"] {
        let faulty = Upstream::start(move |_, _| {
            Script::chunked("text/event-stream")
                .chunk(begun)
                .then(Step::Reset)
        })
        .await;
        let gateway = Setup::of([faulty.address])
            .pool("stream_errors: event")
            .start()
            .await;
        let mut client = gateway.client().await;
        client.post(CHAT, chat("x", true)).await;
        let response = client.response().await;
        assert!(response.complete);
        let text = response.text();
        let rest = text.strip_prefix(begun).expect("what came before");
        let event = rest.trim_start_matches('\n').strip_prefix("data: ");
        let error = event.and_then(|event| event.strip_suffix("\n\n"));
        let error: serde_json::Value = serde_json::from_str(error.expect("one more event")).unwrap();
        assert_eq!(error["error"]["code"], 502);
        assert!(rest.starts_with("\n\n"), "a line of its own, whatever was begun");
        gateway.at_rest().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_engine_s_work_within_a_second() {
    let silent = || Script::hang();
    let streaming = || {
        Script::chunked("text/event-stream")
            .event("{\"n\":1}")
            .then(Step::Hang)
    };
    for (script, stream) in [(silent(), false), (silent(), true), (streaming(), true)] {
        let upstream = Upstream::start(move |_, _| script.clone()).await;
        let gateway = Setup::of([upstream.address]).start().await;
        for reset in [false, true] {
            let mut client = gateway.client().await;
            client.post(CHAT, chat("x", stream)).await;
            let before = upstream.see(|state| state.gone.len());
            upstream
                .wait("the request arrived", |state| state.requests.len() > before)
                .await;
            let left = Instant::now();
            match reset {
                true => client.reset(),
                false => drop(client),
            }
            upstream
                .wait("the engine's connection closed", |state| {
                    state.gone.len() > before
                })
                .await;
            let closed = upstream.see(|state| state.gone[before]);
            assert!(closed - left < Duration::from_secs(1));
        }
        gateway.at_rest().await;
        let aborted = gateway.metrics().await;
        assert_eq!(aborted.sum("homing_errors_total", ""), 0.0);
    }
}

#[tokio::test]
async fn every_event_passes_before_the_next_is_written() {
    let upstream = Upstream::start(|_, _| {
        let script = Script::chunked("text/event-stream");
        let script = (0..5).fold(script, |script, n| {
            script.event(&format!("e{n}")).then(Step::Await)
        });
        script.last_chunk()
    })
    .await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", true)).await;
    let mut response = client.head().await.unwrap();
    for n in 0..5 {
        client.body_until(&mut response, &format!("data: e{n}\n\n")).await;
        upstream.release();
    }
    client.body(&mut response).await;
    assert!(response.complete);
}

#[tokio::test]
async fn answers_in_single_bytes_arrive_whole() {
    let upstream = Upstream::start(|_, n| match n {
        0 => Script::json(ANSWER).trickled(),
        _ => Script::stream(4, Duration::ZERO).trickled(),
    })
    .await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", false)).await;
    assert_eq!(client.response().await.text(), ANSWER);
    client.post(CHAT, chat("x", true)).await;
    let response = client.response().await;
    assert!(response.complete && response.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn errors_of_clients_pass_unchanged_and_eject_nobody() {
    let error = r#"{"object":"error","message":"too long"}"#;
    let upstream = Upstream::start(move |request, _| match request.path() {
        "/v1/completions" => {
            Script::answer(429, "content-type: application/json\r\nretry-after: 7\r\n", error)
        }
        _ => Script::answer(400, "content-type: application/json\r\nx-engine: a\r\n", error),
    })
    .await;
    let other = Upstream::start(|_, _| Script::answer(400, "x-engine: a\r\n", error_body())).await;
    fn error_body() -> &'static str {
        r#"{"object":"error","message":"too long"}"#
    }
    let gateway = Setup::of([upstream.address, other.address]).start().await;
    let mut client = gateway.client().await;
    for n in 0..100 {
        client.post(CHAT, chat(&n.to_string(), false)).await;
        let response = client.response().await;
        assert_eq!((response.status, response.header("x-engine")), (400, Some("a")));
        assert_eq!(response.text(), error);
    }
    for name in ["e0", "e1"] {
        assert_eq!(gateway.endpoint(name).await["state"], "ready");
    }
    assert_eq!(
        upstream.executions() + other.executions(),
        100,
        "nothing was repeated"
    );

    let alone = Setup::of([upstream.address]).start().await;
    let mut client = alone.client().await;
    client.post("/v1/completions", r#"{"prompt":"x"}"#).await;
    let response = client.response().await;
    assert_eq!(
        (response.status, response.header("retry-after")),
        (429, Some("7"))
    );
    assert_eq!(
        (response.text().as_str(), response.header("x-homing-error")),
        (error, None)
    );
}

#[tokio::test]
async fn an_endpoint_that_fails_is_set_aside_tried_and_taken_back() {
    let faulty = Upstream::start(|_, n| match n {
        0..6 => Script::answer(500, "", "broken"),
        _ => Script::json(ANSWER),
    })
    .await;
    let other = good().await;
    let setup = Setup::of([faulty.address, other.address]).pool(
        "ejection: { consecutive_failures: 3, first_time: 300ms }\nscheduling: { preset: round-robin }",
    );
    let gateway = setup.start().await;
    let mut client = gateway.client().await;
    while faulty.executions() < 3 {
        client.post(CHAT, chat("x", false)).await;
        client.response().await;
    }
    gateway.endpoint_is("e0", "ejected").await;
    // Tried again after the time out, it fails, each time out longer than the last, until it is well.
    eventually("the endpoint is taken back", async || {
        client.post(CHAT, chat("x", false)).await;
        client.response().await;
        let endpoint = gateway.endpoint("e0").await;
        endpoint["state"] == "ready" && endpoint["reason"] == "" && faulty.executions() > 6
    })
    .await;
    gateway.at_rest().await;
}

#[tokio::test]
async fn at_most_half_of_a_pool_is_set_aside() {
    let mut broken = Vec::new();
    for _ in 0..4 {
        broken.push(Upstream::start(|_, _| Script::answer(500, "", "broken")).await);
    }
    let setup = Setup::of(broken.iter().map(|upstream| upstream.address))
        .pool("ejection: { consecutive_failures: 2, first_time: 60s }\nscheduling: { preset: round-robin }");
    let gateway = setup.start().await;
    let mut client = gateway.client().await;
    for _ in 0..40 {
        client.post(CHAT, chat("x", false)).await;
        assert_eq!(client.response().await.status, 500);
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("homing_endpoint_state", "state=\"ejected\""), 2.0);
    assert_eq!(metrics.sum("homing_endpoint_state", "state=\"ready\""), 2.0);
}

#[tokio::test]
async fn an_engine_that_shuts_down_is_left_at_once() {
    let error = r#"{"error":{"message":"cannot schedule new futures after shutdown","type":"Internal Server Error","param":null,"code":500}}"#;
    let json = "content-type: application/json\r\n";
    let leaving = Upstream::start(move |_, _| Script::answer(500, json, error)).await;
    let other = good().await;
    let setup = Setup::of([leaving.address, other.address]).pool("scheduling: { preset: random }");
    let gateway = setup.start().await;
    assert_hidden(&gateway, &leaving).await;
    assert_eq!(gateway.endpoint("e0").await["state"], "ejected");
    assert_eq!(
        gateway.endpoint("e0").await["reason"],
        "the engine is shutting down"
    );
}

#[tokio::test]
async fn a_full_engine_is_passed_over_and_not_set_aside() {
    let busy = r#"{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}"#;
    let full =
        Upstream::start(move |_, _| Script::answer(503, "content-type: application/json\r\n", busy)).await;
    let other = good().await;
    let setup = Setup::of([full.address, other.address])
        .pool("ejection: { consecutive_failures: 2 }\nscheduling: { preset: round-robin }");
    let gateway = setup.start().await;
    let mut client = gateway.client().await;
    while full.executions() < 6 {
        client.post(CHAT, chat("x", false)).await;
        assert_eq!(client.response().await.text(), ANSWER);
    }
    assert_eq!(gateway.endpoint("e0").await["state"], "ready");
}

#[tokio::test]
async fn errors_inside_a_stream_count_against_the_endpoint() {
    let died = || {
        Script::chunked("text/event-stream")
            .event(r#"{"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","code":500}}"#)
            .event("[DONE]")
            .last_chunk()
    };
    let faulty = Upstream::start(move |_, _| died()).await;
    let other = Upstream::start(|_, _| Script::stream(2, Duration::ZERO)).await;
    let setup = Setup::of([faulty.address, other.address])
        .pool("ejection: { consecutive_failures: 2 }\nscheduling: { preset: round-robin }");
    let gateway = setup.start().await;
    let mut client = gateway.client().await;
    for _ in 0..6 {
        client.post(CHAT, chat("x", true)).await;
        let response = client.response().await;
        assert!(response.complete && response.status == 200);
    }
    assert_eq!(faulty.executions(), 2, "passed on to its clients, then set aside");
    assert_eq!(gateway.endpoint("e0").await["state"], "ejected");
}

#[tokio::test]
async fn an_engine_that_hangs_behind_a_green_health_check_is_set_aside() {
    let hung = Upstream::start(|_, _| Script::hang()).await;
    let other = good().await;
    let setup = Setup::of([hung.address, other.address])
        .pool("ejection: { hung_after: 500ms }\nscheduling: { preset: round-robin }");
    let gateway = setup.start().await;
    let mut waiting = gateway.client().await;
    while hung.executions() == 0 {
        waiting.post(CHAT, chat("x", true)).await;
        let answered = tokio::time::timeout(Duration::from_millis(200), waiting.response()).await;
        assert!(answered.is_ok() || hung.executions() == 1);
    }
    gateway.endpoint_is("e0", "ejected").await;
    // Others are not hurt, and the endpoint takes nothing more.
    for _ in 0..10 {
        let mut client = gateway.client().await;
        client.post(CHAT, chat("x", false)).await;
        assert_eq!(client.response().await.text(), ANSWER);
    }
    assert_eq!(hung.executions(), 1);
}

#[tokio::test]
async fn a_sleeping_engine_gets_nothing() {
    let asleep = good().await;
    let other = good().await;
    let sleep = "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"} 0.0\n";
    asleep.set_metrics(engine_metrics(0, 0) + sleep);
    let gateway = Setup::of([asleep.address, other.address]).start().await;
    gateway.endpoint_is("e0", "unready").await;
    let mut client = gateway.client().await;
    for n in 0..10 {
        client.post(CHAT, chat(&n.to_string(), false)).await;
        assert_eq!(client.response().await.status, 200);
    }
    assert_eq!((asleep.executions(), other.executions()), (0, 10));
    asleep.set_metrics(engine_metrics(0, 0));
    gateway.endpoint_is("e0", "ready").await;
}

#[tokio::test]
async fn with_all_endpoints_out_the_answer_is_503_at_once() {
    let upstream = good().await;
    let gateway = Setup::of([upstream.address]).start().await;
    upstream.set_health(503);
    gateway.endpoint_is("e0", "unready").await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", false)).await;
    client.response().await.assert_error(503, "no-endpoint");
    upstream.set_health(200);
    gateway.endpoint_is("e0", "ready").await;
    client.post(CHAT, chat("x", false)).await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn full_endpoints_are_told_as_overload() {
    let upstream = Upstream::start(|_, _| Script::hang()).await;
    let setup = Setup::default().endpoint(&format!(
        "{{ name: e0, url: 'http://{}', max_inflight: 1 }}",
        upstream.address
    ));
    let gateway = setup
        .pool("overload: { queue: { enabled: false } }")
        .start()
        .await;
    let mut first = gateway.client().await;
    first.post(CHAT, chat("x", true)).await;
    upstream
        .wait("the first request", |state| state.requests.len() == 1)
        .await;
    let mut second = gateway.client().await;
    second.post(CHAT, chat("y", true)).await;
    second.response().await.assert_error(503, "overloaded");
}

#[tokio::test]
async fn the_retry_budget_bounds_repeats() {
    let faulty = Upstream::start(|_, _| Script::answer(502, "", "")).await;
    let other = Upstream::start(|_, _| Script::answer(502, "", "")).await;
    let setup = Setup::of([faulty.address, other.address]).pool(
        "retry_budget: { ratio: 0.1, min_per_second: 0 }\nejection: { consecutive_failures: 0, failure_ratio: 1, min_requests: 100000 }",
    );
    let gateway = setup.start().await;
    let mut client = gateway.client().await;
    for n in 0..50 {
        client.post(CHAT, chat(&n.to_string(), false)).await;
        assert_eq!(client.response().await.status, 502);
    }
    let all = faulty.executions() + other.executions();
    assert!((50..=55).contains(&all), "{all} executions of 50 requests");
}

#[tokio::test]
async fn a_burst_between_two_scrapes_is_spread() {
    let mut upstreams = Vec::new();
    for _ in 0..4 {
        upstreams.push(
            Upstream::start(|_, _| {
                Script::default()
                    .then(Step::Await)
                    .write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            })
            .await,
        );
    }
    let setup = Setup::of(upstreams.iter().map(|upstream| upstream.address))
        .pool("metrics: { interval: 5s, stale_after: 20s }");
    let gateway = setup.start().await;
    let mut clients = Vec::new();
    for n in 0..64 {
        let mut client = gateway.client().await;
        client
            .post(CHAT, chat(&format!("{n} {}", "word ".repeat(200)), false))
            .await;
        clients.push(client);
    }
    eventually("all requests are at the engines", async || {
        upstreams.iter().map(Upstream::executions).sum::<usize>() == 64
    })
    .await;
    for upstream in &upstreams {
        assert!(upstream.executions() <= 64 / 4 + 2, "{}", upstream.executions());
        upstream.release();
    }
    for mut client in clients {
        assert_eq!(client.response().await.status, 200);
    }
    gateway.at_rest().await;
}

#[tokio::test]
async fn a_restarted_engine_s_prefixes_are_forgotten_at_once() {
    let (first, second) = (good().await, good().await);
    for upstream in [&first, &second] {
        upstream.set_metrics(engine_metrics(1000, 1000));
    }
    let setup = Setup::of([first.address, second.address]).top("response_headers: always");
    let gateway = setup.start().await;
    let mut client = gateway.client().await;
    let prompt = chat(&"the same long prefix ".repeat(100), false);
    let mut ask = async || {
        client.post(CHAT, &prompt).await;
        let response = client.response().await;
        let decision = response.header("x-homing-decision").unwrap().to_owned();
        (response.header("x-homing-endpoint").unwrap().to_owned(), decision)
    };
    let (home, decision) = ask().await;
    assert_eq!(decision, "cold");
    assert_eq!(ask().await, (home.clone(), "warm".to_owned()));
    let restarted = if home == "e0" { &first } else { &second };
    restarted.set_metrics(engine_metrics(0, 0));
    eventually("the index is empty", async || {
        gateway.endpoint(&home).await["index_blocks"] == 0
    })
    .await;
    assert_eq!(ask().await.1, "cold");
}
