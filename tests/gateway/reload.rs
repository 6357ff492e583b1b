//! A change of the configuration, an upgrade or a shutdown in the worst moment: while requests wait for their turn,
//! while their endpoints fail, while the file is being written.

use super::overload::{drain, executed, finish, gateway, names, send, slow_server, waiting};
use super::support::{Client, Gateway, Script, Setup, Step, Upstream, chat, eventually};

const CHAT: &str = "/v1/chat/completions";

/// Has a new configuration read by a running gateway.
async fn reload(gateway: &Gateway, yaml: &str) {
    let successes = async || {
        let metrics = gateway.metrics().await;
        metrics.sum("homing_config_reloads_total", "outcome=\"success\"")
    };
    let before = successes().await;
    std::fs::write(&gateway.config, yaml).unwrap();
    gateway.signal("HUP");
    eventually("the reload is done", async || successes().await > before).await;
}

fn queue(server: &Upstream, queue: &str) -> Setup {
    Setup::of([server.address]).pool(&format!("overload: {{ queue: {{ hold_above: 1ms, {queue} }} }}"))
}

/// One request at the engine and two behind it.
async fn three(gateway: &Gateway, server: &Upstream) -> Vec<Client> {
    let mut clients = vec![send(gateway, "first", "").await];
    executed(server, 1).await;
    for (n, name) in ["second", "third"].into_iter().enumerate() {
        clients.push(send(gateway, name, "").await);
        waiting(gateway, n + 1).await;
    }
    clients
}

async fn all_finish(server: &Upstream, clients: Vec<Client>) {
    for client in clients {
        let response = finish(server, client).await;
        assert!(response.status == 200 && response.complete, "{response:?}");
    }
}

#[tokio::test]
async fn who_waits_keeps_place_when_the_rules_of_the_queue_change() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s").await;
    let mut clients = three(&gateway, &server).await;
    let other = queue(&server, "timeout: 50s, max_requests: 3");
    reload(&gateway, &other.yaml(gateway.data, gateway.admin)).await;
    waiting(&gateway, 2).await;
    // Who comes after the change stands behind those who came before it.
    clients.push(send(&gateway, "fourth", "").await);
    waiting(&gateway, 3).await;
    send(&gateway, "fifth", "")
        .await
        .response()
        .await
        .assert_error(429, "overloaded");
    drain(&server, 4).await;
    assert_eq!(names(&server), ["first", "second", "third", "fourth"]);
    all_finish(&server, clients).await;
    gateway.at_rest().await;
}

#[tokio::test]
async fn who_waits_goes_at_once_when_the_queue_is_switched_off() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s").await;
    let clients = three(&gateway, &server).await;
    let off = queue(&server, "enabled: false");
    reload(&gateway, &off.yaml(gateway.data, gateway.admin)).await;
    executed(&server, 3).await;
    waiting(&gateway, 0).await;
    all_finish(&server, clients).await;
    gateway.at_rest().await;
}

#[tokio::test]
async fn who_waits_in_a_pool_that_is_removed_is_still_served_by_it() {
    let server = slow_server().await;
    let gateway = gateway(&server, "timeout: 60s").await;
    let clients = three(&gateway, &server).await;
    let elsewhere = Upstream::echo().await;
    let yaml = Setup::of([elsewhere.address]).yaml(gateway.data, gateway.admin);
    for name in ["second-pool", "third-pool"] {
        // Twice, so that what the removed endpoint held of the index is another's by now.
        reload(&gateway, &yaml.replace("name: default", &format!("name: {name}"))).await;
        gateway.endpoint_is("e0", "ready").await;
    }
    let mut newcomer = gateway.client().await;
    newcomer.post(CHAT, chat("x", false)).await;
    assert_eq!(newcomer.response().await.status, 200);
    assert_eq!(elsewhere.executions(), 1);
    all_finish(&server, clients).await;
    assert_eq!(names(&server), ["first", "second", "third"]);
    let blocks = gateway.endpoint("e0").await["index_blocks"].as_u64().unwrap();
    assert!(
        blocks <= 1,
        "{blocks} blocks are credited to an endpoint that never got them"
    );
}

#[tokio::test]
async fn a_failure_after_a_reload_is_repeated_on_what_is_there_now() {
    let failing = Upstream::start(|_, _| Script::default().then(Step::Await).then(Step::Reset)).await;
    let removed = Upstream::echo().await;
    let other = Upstream::echo().await;
    let both = Setup::of([failing.address, removed.address]).pool("scheduling: { preset: round-robin }");
    let gateway = both.start().await;
    for name in ["e0", "e1"] {
        gateway.endpoint_is(name, "ready").await;
    }
    let mut clients = Vec::new();
    while failing.executions() == 0 {
        let mut client = gateway.client().await;
        client.post(CHAT, chat("x", false)).await;
        clients.push(client);
        eventually("it arrived", async || {
            failing.executions() + removed.executions() == clients.len()
        })
        .await;
    }
    let after = Setup::default()
        .endpoint(&format!("{{ name: e0, url: 'http://{}' }}", failing.address))
        .endpoint(&format!("{{ name: new, url: 'http://{}' }}", other.address))
        .pool("scheduling: { preset: least-request }\nejection: { consecutive_failures: 1 }");
    reload(&gateway, &after.yaml(gateway.data, gateway.admin)).await;
    gateway.endpoint_is("new", "ready").await;
    failing.release();
    let response = clients.pop().unwrap().response().await;
    assert_eq!(response.status, 200, "{response:?}");
    // What a request that was placed before the reload tells of its endpoint counts after it.
    gateway.endpoint_is("e0", "ejected").await;
    gateway.at_rest().await;
}

#[tokio::test]
async fn an_endpoint_renamed_or_moved_to_another_pool_serves_on() {
    let (first, second) = (slow_server().await, Upstream::echo().await);
    let gateway = Setup::of([first.address, second.address])
        .pool("scheduling: { preset: round-robin }")
        .start()
        .await;
    for name in ["e0", "e1"] {
        gateway.endpoint_is(name, "ready").await;
    }
    let mut clients = Vec::new();
    while first.executions() == 0 {
        let before = first.executions() + second.executions();
        clients.push(send(&gateway, "before", "").await);
        eventually("it arrived", async || {
            first.executions() + second.executions() > before
        })
        .await;
    }
    let moved = Setup::default()
        .endpoint(&format!("{{ name: renamed, url: 'http://{}' }}", second.address))
        .yaml(gateway.data, gateway.admin)
        + &format!(
            "  - name: other\n    models: [other]\n    endpoints: [{{ name: e0, url: 'http://{}' }}]\n",
            first.address
        );
    reload(&gateway, &moved).await;
    gateway.endpoint_is("renamed", "ready").await;
    gateway.endpoint_is("e0", "ready").await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", false)).await;
    assert_eq!(client.response().await.status, 200);
    let executed = first.executions();
    let mut other = gateway.client().await;
    other
        .post(CHAT, chat("x", false).replace("\"m\"", "\"other\""))
        .await;
    eventually("it went to the moved endpoint", async || {
        first.executions() > executed
    })
    .await;
    clients.push(other);
    all_finish(&first, clients).await;
    gateway.at_rest().await;
}

#[tokio::test]
async fn many_reloads_at_once_end_with_the_last_file() {
    let upstream = Upstream::echo().await;
    let setup = |bytes: usize| {
        Setup::of([upstream.address]).top(&format!(
            "limits: {{ request_body: {bytes}B }}\nreload_on_change: true"
        ))
    };
    let gateway = setup(1000).start().await;
    gateway.endpoint_is("e0", "ready").await;
    for bytes in 1001..1040 {
        let yaml = setup(bytes).yaml(gateway.data, gateway.admin);
        // As editors do it: for a moment the file is a part of itself.
        std::fs::write(&gateway.config, &yaml[..yaml.len() / 2]).unwrap();
        gateway.signal("HUP");
        std::fs::write(&gateway.config, &yaml).unwrap();
        gateway.signal("HUP");
    }
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", false)).await;
    assert_eq!(client.response().await.status, 200);
    eventually("the last limit is in use", async || {
        let empty = chat("", false).len();
        let status = async |size: usize| {
            let mut client = gateway.client().await;
            client.post(CHAT, chat(&"x".repeat(size - empty), false)).await;
            client.response().await.status
        };
        status(1039).await == 200 && status(1040).await == 413
    })
    .await;
}

#[tokio::test]
async fn sigterm_lets_those_who_wait_have_their_turn() {
    let server = slow_server().await;
    let mut gateway = gateway(&server, "timeout: 60s").await;
    let clients = three(&gateway, &server).await;
    gateway.signal("TERM");
    eventually("new connections are refused", async || {
        Client::try_connect(gateway.data).await.is_none()
    })
    .await;
    all_finish(&server, clients).await;
    assert_eq!(names(&server), ["first", "second", "third"]);
    assert_eq!(gateway.exit().await.code(), Some(0));
}

#[tokio::test]
async fn who_still_waits_at_the_end_of_the_grace_period_is_told() {
    let server = slow_server().await;
    let mut gateway = queue(&server, "timeout: 60s")
        .top("shutdown: { grace: 500ms }")
        .start()
        .await;
    let mut clients = three(&gateway, &server).await.into_iter();
    let _at_the_engine = clients.next();
    gateway.signal("TERM");
    for mut client in clients {
        client.response().await.assert_error(503, "draining");
    }
    assert_eq!(gateway.exit().await.code(), Some(0));
    assert_eq!(server.executions(), 1);
}

#[tokio::test]
async fn an_upgrade_lets_those_who_wait_have_their_turn_in_the_old_process() {
    let server = slow_server().await;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("upgrade.sock");
    let setup = queue(&server, "timeout: 60s").top(&format!("upgrade_socket: '{}'", socket.display()));
    let mut old = setup.clone().start().await;
    old.endpoint_is("e0", "ready").await;
    let clients = three(&old, &server).await;
    let new = setup.arg("--upgrade").ports_of(&old).spawn();
    eventually("the new process waits for the listeners", async || {
        socket.exists()
    })
    .await;
    old.signal("QUIT");
    new.ready().await;
    all_finish(&server, clients).await;
    assert_eq!(old.exit().await.code(), Some(0));
    assert_eq!(names(&server), ["first", "second", "third"]);
    let newcomer = send(&new, "fourth", "").await;
    all_finish(&server, vec![newcomer]).await;
    new.at_rest().await;
}
