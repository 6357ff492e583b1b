//! Reload, drain, shutdown and upgrade, with requests in flight.

use super::support::{Client, Gateway, Script, Setup, Step, Upstream, chat, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

const CHAT: &str = "/v1/chat/completions";

/// Clients that ask one after another until told to stop: half of them on a connection that they keep, half on a new
/// one each time. Every answer must be well.
pub(super) struct Load {
    go_on: Arc<AtomicBool>,
    clients: Vec<JoinHandle<usize>>,
}

impl Load {
    pub(super) fn on(gateway: &Gateway, body: &str) -> Self {
        let go_on = Arc::new(AtomicBool::new(true));
        let clients = (0..4).map(|n| {
            let (to, body, go_on) = (gateway.data, body.to_owned(), go_on.clone());
            tokio::spawn(async move {
                let mut client = Client::connect(to).await;
                let mut answers = 0;
                while go_on.load(Ordering::Relaxed) {
                    client.post(CHAT, &body).await;
                    let response = client.response().await;
                    assert_eq!((response.status, response.complete), (200, true), "{response:?}");
                    answers += 1;
                    if n % 2 == 0 || response.header("connection") == Some("close") {
                        client = Client::connect(to).await;
                    }
                }
                answers
            })
        });
        Self {
            clients: clients.collect(),
            go_on,
        }
    }

    /// Ends the load; returns how many requests were answered.
    pub(super) async fn stop(self) -> usize {
        self.go_on.store(false, Ordering::Relaxed);
        let mut answers = 0;
        for client in self.clients {
            answers += client.await.expect("every request was answered well");
        }
        answers
    }
}

/// Writes a new configuration for a running gateway and has it read.
async fn reload(gateway: &Gateway, setup: &Setup, outcome: &str) {
    let label = format!("outcome=\"{outcome}\"");
    let before = gateway.metrics().await.sum("homing_config_reloads_total", &label);
    std::fs::write(&gateway.config, setup.yaml(gateway.data, gateway.admin)).unwrap();
    gateway.signal("HUP");
    eventually("the reload is counted", async || {
        gateway.metrics().await.sum("homing_config_reloads_total", &label) > before
    })
    .await;
}

#[tokio::test]
async fn reloads_under_load_lose_nothing() {
    reload_under_load(8).await;
}

#[tokio::test]
#[ignore = "long"]
async fn fifty_reloads_under_load_lose_nothing() {
    reload_under_load(50).await;
}

async fn reload_under_load(times: usize) {
    let (first, second, third) = (
        Upstream::echo().await,
        Upstream::echo().await,
        Upstream::echo().await,
    );
    let two = Setup::of([first.address, second.address]).top("response_headers: always");
    let three = Setup::of([first.address, second.address, third.address]).top("response_headers: always");
    let gateway = two.clone().start().await;
    for name in ["e0", "e1"] {
        gateway.endpoint_is(name, "ready").await;
    }
    let warm = chat(&"a prefix to be kept ".repeat(100), false);
    let mut client = gateway.client().await;
    client.post(CHAT, &warm).await;
    let home = client
        .response()
        .await
        .header("x-homing-endpoint")
        .unwrap()
        .to_owned();
    let load = Load::on(&gateway, &chat("load", false));
    for round in 0..times {
        let next = if round % 2 == 0 { &three } else { &two };
        let next = next.clone().pool(&format!("retries: {}", round % 3));
        reload(&gateway, &next, "success").await;
        let endpoints: serde_json::Value =
            serde_json::from_slice(&gateway.admin("GET", "/endpoints").await).unwrap();
        assert_eq!(
            endpoints.as_array().unwrap().len(),
            if round % 2 == 0 { 3 } else { 2 }
        );
        let mut client = gateway.client().await;
        client.post(CHAT, &warm).await;
        let response = client.response().await;
        assert_eq!(response.header("x-homing-endpoint"), Some(home.as_str()));
        assert_eq!(
            response.header("x-homing-decision"),
            Some("warm"),
            "round {round}"
        );
    }
    assert!(load.stop().await > times);
    gateway.at_rest().await;
    assert_eq!(gateway.metrics().await.sum("homing_errors_total", ""), 0.0);
}

#[tokio::test]
async fn a_faulty_file_changes_nothing() {
    let upstream = Upstream::echo().await;
    let setup = Setup::of([upstream.address]);
    let gateway = setup.clone().start().await;
    reload(&gateway, &setup.clone().top("thraeds: 2"), "failure").await;
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("homing_config_last_reload_successful", ""), 0.0);
    assert!(
        gateway.log().contains("did you mean `threads`?"),
        "{}",
        gateway.log()
    );
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", false)).await;
    assert_eq!(client.response().await.status, 200);
    reload(&gateway, &setup.top("shutdown: { grace: 3s }"), "success").await;
    assert_eq!(
        gateway
            .metrics()
            .await
            .sum("homing_config_last_reload_successful", ""),
        1.0
    );
    assert!(
        gateway.log().contains("`shutdown` was changed"),
        "{}",
        gateway.log()
    );
}

#[tokio::test]
async fn a_watched_file_is_read_when_it_changes() {
    let upstream = Upstream::echo().await;
    let setup = Setup::of([upstream.address]).top("reload_on_change: true");
    let gateway = setup.clone().start().await;
    let bounded = setup.top("limits: { request_body: 1KiB }");
    std::fs::write(&gateway.config, bounded.yaml(gateway.data, gateway.admin)).unwrap();
    eventually("the file was read", async || {
        gateway
            .metrics()
            .await
            .sum("homing_config_reloads_total", "success")
            == 1.0
    })
    .await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat(&"x".repeat(2000), false)).await;
    client.response().await.assert_error(413, "body-too-large");
}

/// A server whose streams are of two events; the second comes when the test says so.
async fn two_events() -> Upstream {
    Upstream::start(|_, _| {
        Script::chunked("text/event-stream")
            .event("1")
            .then(Step::Await)
            .event("2")
            .last_chunk()
    })
    .await
}

#[tokio::test]
async fn a_stream_outlives_the_removal_of_its_endpoint() {
    let slow = two_events().await;
    let other = Upstream::echo().await;
    let gateway = Setup::of([slow.address]).start().await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", true)).await;
    let mut response = client.head().await.unwrap();
    client.body_until(&mut response, "data: 1\n\n").await;
    reload(&gateway, &Setup::of([other.address]), "success").await;
    slow.release();
    client.body(&mut response).await;
    assert!(response.complete && response.text().ends_with("data: 2\n\n"));
    gateway.at_rest().await;
}

#[tokio::test]
async fn sigterm_lets_streams_end_and_exits_0() {
    let slow = two_events().await;
    let log = tempfile::tempdir().unwrap();
    let path = log.path().join("access.log");
    let top = format!("access_log: {{ to: '{}' }}", path.display());
    let mut gateway = Setup::of([slow.address]).top(&top).start().await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", true)).await;
    let mut response = client.head().await.unwrap();
    client.body_until(&mut response, "data: 1\n\n").await;
    gateway.signal("TERM");
    eventually("new connections are refused", async || {
        Client::try_connect(gateway.data).await.is_none()
    })
    .await;
    let (status, body) = gateway
        .try_admin("GET", "/readyz")
        .await
        .expect("the admin port serves on");
    assert_eq!(status, 503);
    assert!(String::from_utf8(body).unwrap().contains("draining"));
    slow.release();
    client.body(&mut response).await;
    assert!(response.complete);
    assert_eq!(gateway.exit().await.code(), Some(0));
    let lines = std::fs::read_to_string(path).unwrap();
    assert_eq!(lines.lines().count(), 1, "{lines}");
}

/// A connection may be there before its request is. A shutdown in between was once the end of it: nothing counted
/// it, so the process exited under a client that was about to ask.
#[tokio::test]
async fn who_has_connected_is_answered_though_the_gateway_shuts_down() {
    let upstream = Upstream::echo().await;
    let mut gateway = Setup::of([upstream.address]).start().await;
    let mut new = gateway.client().await;
    let mut kept = gateway.client().await;
    kept.post(CHAT, chat("x", false)).await;
    assert_eq!(kept.response().await.status, 200);
    gateway.signal("TERM");
    eventually("new connections are refused", async || {
        Client::try_connect(gateway.data).await.is_none()
    })
    .await;
    for client in [&mut new, &mut kept] {
        client.post(CHAT, chat("y", false)).await;
        let response = client.response().await;
        assert_eq!(
            (response.status, response.header("connection")),
            (200, Some("close"))
        );
    }
    assert_eq!(gateway.exit().await.code(), Some(0));
}

#[tokio::test]
async fn the_grace_period_bounds_the_wait() {
    let stuck =
        Upstream::start(|_, _| Script::chunked("text/event-stream").event("1").then(Step::Hang)).await;
    let mut gateway = Setup::of([stuck.address])
        .top("shutdown: { grace: 300ms }")
        .start()
        .await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", true)).await;
    let mut response = client.head().await.unwrap();
    gateway.signal("TERM");
    client.body(&mut response).await;
    assert!(!response.complete);
    assert_eq!(gateway.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_drained_endpoint_gets_nothing_new() {
    let (first, second) = (Upstream::echo().await, Upstream::echo().await);
    let gateway = Setup::of([first.address, second.address]).start().await;
    gateway.admin("POST", "/endpoints/default/e0/drain").await;
    gateway.endpoint_is("e1", "ready").await;
    for n in 0..10 {
        let mut client = gateway.client().await;
        client.post(CHAT, chat(&n.to_string(), false)).await;
        assert_eq!(client.response().await.status, 200);
    }
    assert_eq!((first.executions(), second.executions()), (0, 10));
    gateway.admin("POST", "/endpoints/default/e0/undrain").await;
    gateway.endpoint_is("e0", "ready").await;
}

/// Replaces the process `times` times under load.
async fn upgrades_lose_nothing(times: usize) {
    let upstream = Upstream::start(|request, _| match request.body.starts_with(b"{\"slow\"") {
        true => Script::chunked("text/event-stream")
            .event("1")
            .then(Step::Await)
            .event("2")
            .last_chunk(),
        false => Script::echo(request),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("upgrade.sock");
    let setup = Setup::of([upstream.address]).top(&format!("upgrade_socket: '{}'", socket.display()));
    let mut gateway = setup.clone().start().await;
    let load = Load::on(&gateway, &chat("load", false));
    for _ in 0..times {
        let mut old_client = gateway.client().await;
        old_client.post(CHAT, "{\"slow\":1}").await;
        let mut stream = old_client.head().await.unwrap();
        old_client.body_until(&mut stream, "data: 1\n\n").await;
        let next = setup.clone().arg("--upgrade").ports_of(&gateway).spawn();
        eventually("the new process waits for the listeners", async || {
            socket.exists()
        })
        .await;
        gateway.signal("QUIT");
        next.ready().await;
        let mut old = std::mem::replace(&mut gateway, next);
        // The stream goes on in the old process, which ends with it.
        tokio::time::timeout(Duration::from_secs(15), async {
            eventually("the old process closes its listeners", async || {
                old.log().contains("Graceful shutdown started")
            })
            .await;
        })
        .await
        .unwrap();
        upstream.release();
        old_client.body(&mut stream).await;
        assert!(stream.complete && stream.text().ends_with("data: 2\n\n"));
        assert_eq!(old.exit().await.code(), Some(0));
    }
    assert!(load.stop().await > 10 * times);
    gateway.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_under_load_loses_nothing() {
    upgrades_lose_nothing(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn five_upgrades_under_load_lose_nothing() {
    upgrades_lose_nothing(5).await;
}
