//! Waiting for a turn: order, fair shares, patience, leaving, and what the gateway says of it.

use crate::support::metrics::Samples;
use crate::support::{Client, Gateway, Response, Script, Setup, Step, Upstream, chat, eventually};
use homing::sim::engine::FleetPreset;
use homing::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

const CHAT: &str = "/v1/chat/completions";

/// A server that begins each answer when the test says so, and an engine that shows a queue: what is sent to it is
/// not done before its first byte.
pub(super) async fn slow_server() -> Upstream {
    let server = Upstream::start(|_, _| {
        let answer = Script::stream(2, Duration::ZERO);
        Script(std::iter::once(Step::Await).chain(answer.0).collect())
    })
    .await;
    server.set_metrics(
        "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1.0\n\
         vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1.0\n",
    );
    server
}

pub(super) async fn gateway(server: &Upstream, queue: &str) -> Gateway {
    let queue = format!("overload: {{ queue: {{ hold_above: 1ms, {queue} }} }}");
    let gateway = Setup::of([server.address]).pool(&queue).start().await;
    gateway.endpoint_is("e0", "ready").await;
    gateway
}

/// Sends a prompt of about 2,000 tokens; `name` is how it begins.
pub(super) async fn send(gateway: &Gateway, name: &str, headers: &str) -> Client {
    let mut client = gateway.client().await;
    let body = chat(&format!("{name} {}", "lorem ipsum ".repeat(700)), true);
    client.post_with(CHAT, headers, body).await;
    client
}

pub(super) async fn waiting(gateway: &Gateway, count: usize) {
    eventually(&format!("{count} requests wait"), async || {
        gateway.metrics().await.sum("homing_queue_requests", "") == count as f64
    })
    .await;
}

pub(super) async fn executed(server: &Upstream, count: usize) {
    eventually(&format!("{count} requests came"), async || {
        server.executions() == count
    })
    .await;
}

/// How the requests began that the server has had, in their order.
pub(super) fn names(server: &Upstream) -> Vec<String> {
    server.see(|state| {
        let name = |body: &[u8]| {
            let body: Value = serde_json::from_slice(body).unwrap();
            let text = body["messages"][0]["content"].as_str().unwrap().to_owned();
            text.split(' ').next().unwrap().to_owned()
        };
        state.requests.iter().map(|request| name(&request.body)).collect()
    })
}

/// Lets the server begin one answer after the other until `count` requests have come in all.
pub(super) async fn drain(server: &Upstream, count: usize) {
    eventually("all requests came", async || {
        server.release();
        server.executions() == count
    })
    .await;
}

pub(super) async fn finish(server: &Upstream, mut client: Client) -> Response {
    let answer = client.response();
    tokio::pin!(answer);
    loop {
        server.release();
        if let Ok(response) = tokio::time::timeout(Duration::from_millis(5), &mut answer).await {
            return response;
        }
    }
}

#[tokio::test]
async fn requests_wait_in_the_gateway_and_go_in_turn() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s").await;
    let first = send(&gateway, "first", "").await;
    executed(&server, 1).await;
    let second = send(&gateway, "second", "").await;
    waiting(&gateway, 1).await;
    let third = send(&gateway, "third", "").await;
    waiting(&gateway, 2).await;
    assert_eq!(
        server.executions(),
        1,
        "nothing is sent on while the endpoint has enough to do"
    );
    drain(&server, 3).await;
    assert_eq!(names(&server), ["first", "second", "third"]);
    for client in [first, second, third] {
        let response = finish(&server, client).await;
        assert!(response.status == 200 && response.complete, "{response:?}");
    }
    gateway.at_rest().await;
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("homing_queue_requests", ""), 0.0);
    assert_eq!(metrics.sum("homing_queue_bytes", ""), 0.0);
    assert_eq!(metrics.sum("homing_queue_held_total", ""), 2.0);
    assert_eq!(metrics.sum("homing_queue_wait_seconds_count", ""), 2.0);
    assert_eq!(metrics.sum("homing_requests_total", "code=\"200\""), 3.0);
}

#[tokio::test]
async fn explain_says_who_would_wait_and_how_long() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s").await;
    assert_eq!(explain(&gateway).await["queue"], json!({ "waits": false }));
    let _first = send(&gateway, "first", "").await;
    executed(&server, 1).await;
    let _second = send(&gateway, "second", "").await;
    waiting(&gateway, 1).await;
    let explained = explain(&gateway).await;
    assert_eq!(explained["queue"]["waits"], true, "{explained}");
    assert_eq!(explained["queue"]["ahead_of_it"], 1);
    assert!(explained["queue"]["expected_wait_s"].as_f64().unwrap() > 0.0);
    assert_eq!(server.executions(), 1);
}

async fn explain(gateway: &Gateway) -> Value {
    let mut client = Client::connect(gateway.admin).await;
    client
        .post(
            "/explain",
            chat(&format!("explained {}", "lorem ipsum ".repeat(700)), true),
        )
        .await;
    client.response().await.json()
}

#[tokio::test]
async fn a_client_that_leaves_leaves_the_queue_at_once() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s").await;
    let first = send(&gateway, "first", "").await;
    executed(&server, 1).await;
    let second = send(&gateway, "second", "").await;
    let third = send(&gateway, "third", "").await;
    waiting(&gateway, 2).await;
    drop(second);
    waiting(&gateway, 1).await;
    third.reset();
    waiting(&gateway, 0).await;
    let response = finish(&server, first).await;
    assert_eq!(response.status, 200);
    gateway.at_rest().await;
    assert_eq!(names(&server), ["first"]);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("homing_queue_left_total", ""), 2.0);
    assert_eq!(metrics.sum("homing_requests_total", "code=\"499\""), 2.0);
}

#[tokio::test]
async fn patience_ends_with_429_and_a_time_to_come_back() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 300ms").await;
    let _first = send(&gateway, "first", "").await;
    executed(&server, 1).await;
    let mut second = send(&gateway, "second", "").await;
    let response = second.response().await;
    response.assert_error(429, "overloaded");
    let metrics = gateway.metrics().await;
    assert_eq!(
        metrics.sum("homing_queue_refused_total", "reason=\"timed-out\""),
        1.0
    );
    assert_eq!(metrics.sum("homing_queue_requests", ""), 0.0);
    // The connection is as good as new.
    second.post(CHAT, chat("third", true)).await;
    second.response().await.assert_error(429, "overloaded");
}

#[tokio::test]
async fn a_flood_is_its_own_tenants_problem() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s, max_requests: 3, tenant_header: x-tenant").await;
    let tenant = |name: &str| format!("x-tenant: {name}\r\n");
    let flood = tenant("flood");
    let _first = send(&gateway, "first", &flood).await;
    executed(&server, 1).await;
    let mut waits = Vec::new();
    for n in 0..3 {
        waits.push(send(&gateway, &format!("flood{n}"), &flood).await);
        waiting(&gateway, n + 1).await;
    }
    let mut beyond = send(&gateway, "beyond", &flood).await;
    beyond.response().await.assert_error(429, "overloaded");
    let _quiet = send(&gateway, "quiet", &tenant("quiet")).await;
    let mut gave_way = waits.pop().unwrap();
    gave_way.response().await.assert_error(429, "overloaded");
    waiting(&gateway, 3).await;
    drain(&server, 4).await;
    let order = names(&server);
    let turn = order.iter().position(|name| name == "quiet").unwrap();
    assert!(
        turn <= 2,
        "the quiet tenant's request is next, or the one after: {order:?}"
    );
    let metrics = gateway.metrics().await;
    let refused = |why: &str| metrics.sum("homing_queue_refused_total", &format!("reason=\"{why}\""));
    assert_eq!((refused("full"), refused("gave-way")), (1.0, 1.0));
}

#[tokio::test]
async fn a_full_endpoint_is_waited_for() {
    let server = slow_server().await;
    let endpoint = format!(
        "{{ name: e0, url: 'http://{}', max_inflight: 1 }}",
        server.address
    );
    let gateway = Setup::default().endpoint(&endpoint).start().await;
    let first = send(&gateway, "first", "").await;
    executed(&server, 1).await;
    let second = send(&gateway, "second", "").await;
    waiting(&gateway, 1).await;
    assert_eq!(finish(&server, first).await.status, 200);
    executed(&server, 2).await;
    assert_eq!(finish(&server, second).await.status, 200);
}

#[tokio::test]
async fn without_a_queue_everything_is_sent_at_once() {
    let server = slow_server().await;
    let gateway = gateway(&server, "enabled: false").await;
    let mut clients = Vec::new();
    for n in 0..5 {
        clients.push(send(&gateway, &n.to_string(), "").await);
    }
    executed(&server, 5).await;
}

/// One answer under load: whose it is, how long it took to its end, and what it was.
struct Outcome {
    is_quiet: bool,
    took: Duration,
    response: Response,
}

impl Outcome {
    fn is_served(&self) -> bool {
        self.response.status == 200
    }
}

/// Open-loop traffic of about three times what two simulated servers take, every twentieth request with a key of its own.
async fn three_times_too_much(gateway: &Gateway, requests: u32) -> Vec<Outcome> {
    let started = Instant::now();
    let one = async |n: u32| {
        // 8,000 tokens at 2.7e-5 s are 0.22 s of one server, 86 ms at two and a half times its speed: 22 a second for both.
        tokio::time::sleep_until((started + Duration::from_millis(15) * n).into()).await;
        let text = format!("{n} {}", "w ".repeat(16_000));
        let body = json!({ "model": "sim", "prompt": text, "max_tokens": 4, "stream": true });
        let is_quiet = n % 20 == 7;
        let key = if is_quiet { "quiet" } else { "flood" };
        let mut client = gateway.client().await;
        let sent = Instant::now();
        let headers = format!("authorization: Bearer {key}\r\n");
        client
            .post_with("/v1/completions", &headers, body.to_string())
            .await;
        let response = client.response().await;
        Outcome {
            is_quiet,
            took: sent.elapsed(),
            response,
        }
    };
    futures_util::future::join_all((0..requests).map(one)).await
}

/// Every request is answered, the books balance, `Retry-After` is true, and the key that sends little is served.
#[tokio::test]
async fn three_times_too_much_is_answered_to_the_last_request() {
    const REQUESTS: u32 = 500;
    let mut sims = Vec::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut options = SimOptions::new(FleetPreset::Llama31On1H100, 16);
        options.speed = 2.5;
        sims.push(SimServer::start(listener, options).unwrap());
    }
    // Nobody's patience ends on however slow a machine: what is turned away found the queue full.
    let queue =
        "overload: { queue: { max_requests: 60, timeout: 5m, hold_above: 250ms, hold_flood_above: 50ms } }";
    let gateway = Setup::of(sims.iter().map(SimServer::addr))
        .pool(queue)
        .start()
        .await;
    for pod in ["e0", "e1"] {
        gateway.endpoint_is(pod, "ready").await;
    }
    let outcomes = three_times_too_much(&gateway, REQUESTS).await;
    for Outcome { response, .. } in &outcomes {
        match response.status {
            200 => assert!(response.complete && response.text().contains("[DONE]")),
            _ => response.assert_error(429, "overloaded"),
        }
    }
    let quiet = || outcomes.iter().filter(|outcome| outcome.is_quiet);
    assert_eq!(quiet().count(), 25);
    assert!(
        quiet().all(Outcome::is_served),
        "a flood is its own tenant's problem"
    );
    retry_after_is_true(&outcomes);
    gateway.at_rest().await;
    let served = outcomes.iter().filter(|outcome| outcome.is_served()).count();
    let refused = REQUESTS as usize - served;
    the_books_balance(&gateway.metrics().await, served as f64, refused as f64);
}

/// The queue is full most of the time and its order that of arrival: who is served has waited for a full one to pass.
fn retry_after_is_true(outcomes: &[Outcome]) {
    let flood = || outcomes.iter().filter(|outcome| !outcome.is_quiet);
    let served = flood().filter(|outcome| outcome.is_served());
    let mut waited_s: Vec<f64> = served.map(|outcome| outcome.took.as_secs_f64()).collect();
    let promised = flood().filter(|outcome| !outcome.is_served()).map(|outcome| {
        let seconds = outcome
            .response
            .header("retry-after")
            .expect("a time to come back");
        seconds.parse::<u32>().unwrap()
    });
    let mut promised_s: Vec<f64> = promised.map(f64::from).collect();
    assert!(waited_s.len() >= 60 && promised_s.len() >= 60);
    waited_s.sort_by(f64::total_cmp);
    promised_s.sort_by(f64::total_cmp);
    // Those who came before the queue was full waited less than the others.
    let truth_s = waited_s[waited_s.len() * 2 / 3];
    let median_s = promised_s[promised_s.len() / 2];
    assert!(
        truth_s / 2.0 <= median_s && median_s <= 2.0 * truth_s + 1.0,
        "{median_s} s were promised, {truth_s} s it took"
    );
}

fn the_books_balance(metrics: &Samples, served: f64, refused: f64) {
    let count = |label: &str| metrics.sum("homing_requests_total", label);
    assert_eq!(
        (count("code=\"200\""), count("code=\"429\""), count("")),
        (served, refused, served + refused)
    );
    let queue = |name: &str, label: &str| metrics.sum(&format!("homing_queue_{name}"), label);
    assert_eq!(queue("refused_total", ""), refused);
    let at_the_door = queue("refused_total", "reason=\"full\"");
    let gave_way = queue("refused_total", "reason=\"gave-way\"");
    assert_eq!(at_the_door + gave_way, refused);
    assert_eq!(
        queue("held_total", ""),
        queue("wait_seconds_count", "") + gave_way
    );
    assert_eq!((queue("requests", ""), queue("bytes", "")), (0.0, 0.0));
    assert_eq!(queue("left_total", ""), 0.0);
}

/// Writes a new configuration for a running gateway and has it read.
async fn reload(gateway: &Gateway, setup: &Setup) {
    let success = "outcome=\"success\"";
    let before = gateway
        .metrics()
        .await
        .sum("homing_config_reloads_total", success);
    std::fs::write(&gateway.config, setup.yaml(gateway.data, gateway.admin)).unwrap();
    gateway.signal("HUP");
    eventually("the reload is counted", async || {
        gateway
            .metrics()
            .await
            .sum("homing_config_reloads_total", success)
            > before
    })
    .await;
}

#[tokio::test]
async fn who_waits_is_placed_by_the_newest_configuration() {
    let servers = [slow_server().await, slow_server().await];
    let both = Setup::of(servers.iter().map(|server| server.address));
    let queue = |rules: &str| format!("overload: {{ queue: {{ hold_above: 1ms, {rules} }} }}");
    let came = async |count: usize| {
        eventually(&format!("{count} requests came"), async || {
            servers.iter().map(Upstream::executions).sum::<usize>() == count
        })
        .await;
    };
    let gateway = gateway(&servers[0], "timeout: 60s").await;
    let mut clients = vec![send(&gateway, "first", "").await];
    came(1).await;
    clients.push(send(&gateway, "second", "").await);
    waiting(&gateway, 1).await;
    reload(&gateway, &both.clone().pool(&queue("timeout: 60s"))).await;
    came(2).await;
    assert_eq!(names(&servers[1]), ["second"], "the added endpoint is free");
    // With other rules, and without a queue at all, those who wait are still served when their turn comes.
    for (count, rules) in [(2, "max_requests: 7"), (4, "enabled: false")] {
        clients.push(send(&gateway, "waits", "").await);
        waiting(&gateway, 1).await;
        reload(&gateway, &both.clone().pool(&queue(rules))).await;
        servers[0].release();
        came(count + 1).await;
        clients.push(send(&gateway, "fills", "").await);
        if count == 2 {
            servers[1].release();
        }
        came(count + 2).await;
    }
    for mut client in clients {
        let answer = client.response();
        tokio::pin!(answer);
        let response = loop {
            servers.iter().for_each(Upstream::release);
            if let Ok(response) = tokio::time::timeout(Duration::from_millis(5), &mut answer).await {
                break response;
            }
        };
        assert_eq!(response.status, 200);
    }
    gateway.at_rest().await;
}
