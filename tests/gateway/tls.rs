//! TLS on the data port and towards endpoints, with certificates made for each test.

use super::support::certs::{Authority, Front, Pair, handshake, tunnel, yaml};
use super::support::dns::Dns;
use super::support::h2c::H2c;
use super::support::{Client, Gateway, Script, Setup, Step, Upstream, chat, eventually, free_address};
use bytes::Bytes;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio_rustls::rustls::ClientConfig;

const CHAT: &str = "/v1/chat/completions";
const NAME: &str = "gateway.test";

fn listening(at: SocketAddr, pair: &Pair) -> String {
    let (certificate, key) = (yaml(&pair.certificate), yaml(&pair.key));
    format!("tls: {{ listen: '{at}', certificate: {certificate}, key: {key} }}")
}

/// A gateway with a TLS port beside its plain one.
async fn secured(upstream: &Upstream, pair: &Pair, top: &str) -> (Gateway, SocketAddr) {
    let at = free_address();
    let setup = Setup::of([upstream.address]).top(&listening(at, pair)).top(top);
    (setup.start().await, at)
}

async fn http1(authority: &Authority, at: SocketAddr) -> Client {
    Client::connect(tunnel(authority.client(&["http/1.1"]), NAME, at).await).await
}

#[tokio::test]
async fn http1_and_http2_are_agreed_on_and_plain_text_stays_beside() {
    let authority = Authority::new("ours");
    let upstream = Upstream::echo().await;
    let pair = authority.issue(&[NAME]);
    let (gateway, at) = secured(&upstream, &pair, "forwarded: { proto: true }").await;
    let offers: [(&[&str], Option<&str>); 4] = [
        (&["h2", "http/1.1"], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ];
    for (offer, agreed) in offers {
        let found = handshake(authority.client(offer), NAME, at).await.unwrap();
        assert_eq!(found, (pair.der(), agreed.map(str::to_owned)), "{offer:?}");
    }
    for size in [10, 200_000] {
        let body = chat(&"x".repeat(size), false);
        let mut client = http1(&authority, at).await;
        client.post(CHAT, &body).await;
        assert_eq!(client.response().await.json()["received_bytes"], body.len());
        client.post_chunked(CHAT, body.as_bytes(), 1000).await;
        assert_eq!(client.response().await.json()["received_bytes"], body.len());
        let mut client = H2c::connect(tunnel(authority.client(&["h2"]), NAME, at).await).await;
        let response = client.post(CHAT, Bytes::from(body.clone()), true).await.unwrap();
        assert_eq!(response.json()["received_bytes"], body.len());
    }
    let mut client = gateway.client().await;
    client.post(CHAT, chat("plain", false)).await;
    assert_eq!(client.response().await.status, 200);
    let told = upstream.see(|state| {
        let told = state
            .requests
            .iter()
            .map(|request| request.headers("x-forwarded-proto").join(","));
        told.collect::<Vec<_>>()
    });
    let https = vec!["https".to_owned(); 6];
    assert_eq!(told, [https, vec!["http".to_owned()]].concat());
    // Plain text at the TLS port, and TLS at the plain one, get nowhere.
    let mut client = Client::connect(at).await;
    client.post(CHAT, chat("plain", false)).await;
    assert!(client.try_response().await.is_none());
    assert!(
        handshake(authority.client(&[]), NAME, gateway.data)
            .await
            .is_err()
    );
    assert_eq!(upstream.executions(), 7);
}

#[tokio::test]
async fn deadlines_limits_and_framing_hold_behind_tls() {
    let authority = Authority::new("ours");
    let upstream = Upstream::echo().await;
    let limits = "limits: { headers_timeout: 500ms, request_body: 1KiB }";
    let (_gateway, at) = secured(&upstream, &authority.issue(&[NAME]), limits).await;
    // No handshake, and half of one.
    for first in [&b""[..], &b"\x16\x03\x01\x02\x00\x01"[..]] {
        let mut client = Client::connect(at).await;
        client.send(first).await;
        assert!(client.closed().await);
    }
    let mut client = http1(&authority, at).await;
    client.send(b"POST / HTTP/1.1\r\nhost:").await;
    client.response().await.assert_error(408, "bad-request");
    let mut client = http1(&authority, at).await;
    client.post(CHAT, chat(&"x".repeat(2000), false)).await;
    client.response().await.assert_error(413, "body-too-large");
    let mut client = http1(&authority, at).await;
    let head = client.post_head(CHAT);
    let both = format!("{head}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    client.send(both.as_bytes()).await;
    client.response().await.assert_error(400, "bad-request");
    assert!(client.closed().await);
    assert_eq!(upstream.executions(), 0);
}

/// Waits until `pair` is shown at `at`.
async fn shown(config: &Arc<ClientConfig>, at: SocketAddr, pair: &Pair) {
    eventually("the new certificate is shown", async || {
        handshake(config.clone(), NAME, at).await.unwrap().0 == pair.der()
    })
    .await;
}

async fn reloads(gateway: &Gateway, outcome: &str) -> f64 {
    gateway
        .metrics()
        .await
        .sum("homing_config_reloads_total", outcome)
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_from_the_next_handshake_on() {
    let authority = Authority::new("ours");
    let upstream = Upstream::echo().await;
    let [pair, second, third] = [(); 3].map(|()| authority.issue(&[NAME]));
    let first = pair.der();
    let config = authority.client(&["http/1.1"]);
    let (gateway, at) = secured(&upstream, &pair, "").await;
    let mut client = http1(&authority, at).await;
    client.post(CHAT, chat("before", false)).await;
    assert_eq!(client.response().await.status, 200);

    // A key alone does not fit: what was shown stays.
    std::fs::copy(&second.key, &pair.key).unwrap();
    gateway.signal("HUP");
    eventually("the reload is refused", async || {
        reloads(&gateway, "failure").await == 1.0
    })
    .await;
    assert!(
        gateway.log().contains("is not that of the certificate"),
        "{}",
        gateway.log()
    );
    assert_eq!(handshake(config.clone(), NAME, at).await.unwrap().0, first);

    pair.overwrite(&second);
    gateway.signal("HUP");
    shown(&config, at, &second).await;
    client.post(CHAT, chat("after", false)).await;
    assert_eq!(client.response().await.status, 200, "the old connection goes on");

    let watching = listening(at, &pair) + "\nreload_on_change: true";
    let watching = Setup::of([upstream.address]).top(&watching);
    std::fs::write(&gateway.config, watching.yaml(gateway.data, gateway.admin)).unwrap();
    gateway.signal("HUP");
    eventually("the file is watched", async || {
        reloads(&gateway, "success").await == 2.0
    })
    .await;
    pair.overwrite(&third);
    shown(&config, at, &third).await;
}

#[tokio::test]
async fn streams_over_tls_outlive_sigterm() {
    let authority = Authority::new("ours");
    let upstream = Upstream::start(|_, _| {
        let head = Script::chunked("text/event-stream").event("1");
        head.then(Step::Await).event("2").last_chunk()
    })
    .await;
    let (mut gateway, at) = secured(&upstream, &authority.issue(&[NAME]), "").await;
    let mut client = http1(&authority, at).await;
    client.post(CHAT, chat("tell", true)).await;
    let mut stream = client.head().await.unwrap();
    client.body_until(&mut stream, "data: 1\n\n").await;
    let mut over_h2 = H2c::connect(tunnel(authority.client(&["h2"]), NAME, at).await).await;
    let body = Bytes::from(chat("tell", true));
    let second = tokio::spawn(async move { over_h2.post(CHAT, body, true).await });
    upstream
        .wait("both streams began", |state| state.requests.len() == 2)
        .await;
    gateway.signal("TERM");
    eventually("no connection is taken", async || {
        Client::try_connect(at).await.is_none()
    })
    .await;
    upstream.release();
    client.body(&mut stream).await;
    assert!(
        stream.complete && stream.text().ends_with("data: 2\n\n"),
        "{stream:?}"
    );
    assert!(second.await.unwrap().unwrap().text().ends_with("data: 2\n\n"));
    assert_eq!(gateway.exit().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_hands_the_tls_port_over() {
    let authority = Authority::new("ours");
    let upstream = Upstream::echo().await;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("upgrade.sock");
    let at = free_address();
    let setup = Setup::of([upstream.address])
        .top(&listening(at, &authority.issue(&[NAME])))
        .top(&format!("upgrade_socket: '{}'", socket.display()));
    let mut old = setup.clone().start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let (ends, counts) = (stop.clone(), done.clone());
    let through = tunnel(authority.client(&["http/1.1"]), NAME, at).await;
    let load = tokio::spawn(async move {
        while !ends.load(Ordering::Relaxed) {
            let mut client = Client::connect(through).await;
            client
                .post_with(CHAT, "connection: close\r\n", chat("load", false))
                .await;
            assert_eq!(client.response().await.status, 200);
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    let next = setup.arg("--upgrade").ports_of(&old).spawn();
    eventually("the new process waits for the listeners", async || {
        socket.exists()
    })
    .await;
    old.signal("QUIT");
    next.ready().await;
    assert_eq!(old.exit().await.code(), Some(0));
    let before = done.load(Ordering::Relaxed);
    eventually("the new process serves", async || {
        done.load(Ordering::Relaxed) > before + 5
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    load.await.unwrap();
}

/// A gateway with one endpoint at `url`.
async fn towards(dns: &Dns, url: &str, tls: &str) -> Gateway {
    Setup::default()
        .endpoint(&format!("{{ name: e, url: '{url}' }}"))
        .top(&format!("dns: {{ servers: ['{}'] }}", dns.address))
        .pool(&format!("tls: {{ {tls} }}"))
        .spawn()
}

async fn works(gateway: &Gateway) {
    gateway.ready().await;
    gateway.endpoint_is("e", "ready").await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("over TLS", false)).await;
    let response = client.response().await;
    assert_eq!(response.status, 200, "{response:?}");
    client.request("GET", "/v1/models", "").await;
    assert_eq!(client.response().await.status, 200);
    eventually("it is scraped", async || {
        gateway.metrics().await.sum("homing_scrapes_total", "success") > 0.0
    })
    .await;
}

/// Waits until the endpoint is out for a reason that holds `why`, and asserts that nothing is sent to it.
async fn refused(gateway: &Gateway, upstream: &Upstream, why: &str) {
    let before = upstream.executions();
    eventually(&format!("the endpoint is out: {why}"), async || {
        gateway
            .try_admin("GET", "/endpoints")
            .await
            .is_some_and(|(_, body)| {
                let all: Vec<Value> = serde_json::from_slice(&body).unwrap_or_default();
                all.iter().any(|endpoint| {
                    endpoint["state"] == "unready"
                        && endpoint["reason"]
                            .as_str()
                            .is_some_and(|reason| reason.contains(why))
                })
            })
    })
    .await;
    assert_eq!(upstream.executions(), before);
}

fn models() -> Script {
    Script::json(r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#)
}

async fn engine() -> Upstream {
    Upstream::start(|request, _| match request.path() {
        "/v1/models" => models(),
        _ => Script::echo(request),
    })
    .await
}

#[tokio::test]
async fn endpoints_show_a_certificate_of_their_name() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let dns = Dns::start().await;
    let upstream = engine().await;
    let front = Front::start(
        Authority::server(&ours.issue(&["engine.test"]), None),
        upstream.address,
    )
    .await;
    dns.set("engine.test.", &[front.address.ip()]).await;
    dns.set("other.test.", &[front.address.ip()]).await;
    let port = front.address.port();
    let (right, wrong) = (
        format!("https://engine.test:{port}"),
        format!("https://other.test:{port}"),
    );
    let (ca, foreign) = (yaml(&ours.file()), yaml(&theirs.file()));

    works(&towards(&dns, &right, &format!("ca: {ca}")).await).await;
    let asked = front.names.lock().unwrap().clone();
    assert!(
        asked.len() > 2 && asked.iter().all(|name| name.as_deref() == Some("engine.test")),
        "{asked:?}"
    );

    let gateway = towards(&dns, &wrong, &format!("ca: {ca}")).await;
    refused(&gateway, &upstream, "not valid for name").await;
    let gateway = towards(&dns, &right, &format!("ca: {foreign}")).await;
    refused(&gateway, &upstream, "UnknownIssuer").await;
    let gateway = towards(&dns, &right, "").await;
    refused(&gateway, &upstream, "UnknownIssuer").await;

    works(&towards(&dns, &wrong, &format!("ca: {ca}, server_name: engine.test")).await).await;
    works(
        &towards(
            &dns,
            &wrong,
            &format!("ca: {foreign}, insecure_skip_verify: true"),
        )
        .await,
    )
    .await;
}

#[tokio::test]
async fn expired_certificates_of_endpoints_are_refused() {
    let ours = Authority::new("ours");
    let dns = Dns::start().await;
    let upstream = engine().await;
    let pair = ours.issue_until(&["engine.test"], 2021);
    let front = Front::start(Authority::server(&pair, None), upstream.address).await;
    dns.set("engine.test.", &[front.address.ip()]).await;
    let url = format!("https://engine.test:{}", front.address.port());
    let gateway = towards(&dns, &url, &format!("ca: {}", yaml(&ours.file()))).await;
    refused(&gateway, &upstream, "expired").await;
}

#[tokio::test]
async fn the_certificate_of_an_ip_address_is_checked_too() {
    let ours = Authority::new("ours");
    let dns = Dns::start().await;
    let upstream = engine().await;
    let at = free_address();
    let config = Authority::server(&ours.issue(&[&at.ip().to_string()]), None);
    let tls = format!("ca: {}", yaml(&ours.file()));
    let _right = Front::start_at(at, config.clone(), upstream.address).await;
    works(&towards(&dns, &format!("https://{at}"), &tls).await).await;
    let wrong = Front::start(config, upstream.address).await;
    let gateway = towards(&dns, &format!("https://{}", wrong.address), &tls).await;
    refused(&gateway, &upstream, "not valid for name").await;
}

#[tokio::test]
async fn endpoints_may_ask_for_a_certificate_and_files_are_read_again() {
    let (ours, clients, others) = (
        Authority::new("ours"),
        Authority::new("clients"),
        Authority::new("others"),
    );
    let dns = Dns::start().await;
    let upstream = engine().await;
    let server = Authority::server(&ours.issue(&["engine.test"]), Some(&clients));
    let front = Front::start(server, upstream.address).await;
    dns.set("engine.test.", &[front.address.ip()]).await;
    let url = format!("https://engine.test:{}", front.address.port());
    let own = |pair: &Pair| {
        let (certificate, key) = (yaml(&pair.certificate), yaml(&pair.key));
        format!(
            "ca: {}, certificate: {certificate}, key: {key}",
            yaml(&ours.file())
        )
    };
    let gateway = towards(&dns, &url, &format!("ca: {}", yaml(&ours.file()))).await;
    refused(&gateway, &upstream, "health check failed").await;
    works(&towards(&dns, &url, &own(&clients.issue(&["homing"]))).await).await;

    let pair = others.issue(&["homing"]);
    let gateway = towards(&dns, &url, &own(&pair)).await;
    refused(&gateway, &upstream, "health check failed").await;
    pair.overwrite(&clients.issue(&["homing"]));
    gateway.signal("HUP");
    works(&gateway).await;
}

async fn check(config: &Path, args: &[&str]) -> Value {
    let check = tokio::process::Command::new(env!("CARGO_BIN_EXE_homing"))
        .args(["check", "--format", "json", "--config"])
        .arg(config)
        .args(args)
        .output();
    let output = check.await.unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[tokio::test]
async fn a_probe_goes_the_gateway_s_way() {
    let ours = Authority::new("ours");
    let dns = Dns::start().await;
    let upstream = engine().await;
    let front = Front::start(
        Authority::server(&ours.issue(&["engine.test"]), None),
        upstream.address,
    )
    .await;
    dns.set("engine.test.", &[front.address.ip()]).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("homing.yaml");
    let probe = async |tls: &str| {
        let url = format!("https://engine.test:{}", front.address.port());
        let setup = Setup::default()
            .endpoint(&format!("{{ name: e, url: '{url}' }}"))
            .top(&format!("dns: {{ servers: ['{}'] }}", dns.address))
            .pool(&format!("tls: {{ {tls} }}"));
        std::fs::write(&config, setup.yaml(free_address(), free_address())).unwrap();
        let said = check(&config, &["--probe"]).await;
        said["endpoints"][0]["findings"][0].clone()
    };
    let found = probe(&format!("ca: {}", yaml(&ours.file()))).await;
    assert_eq!(
        (&found["what"], &found["grade"]),
        (&"model".into(), &"good".into()),
        "{found}"
    );
    let found = probe("").await;
    assert_eq!(found["grade"], "bad");
    assert!(
        found["text"].as_str().unwrap().contains("UnknownIssuer"),
        "{found}"
    );
}

#[tokio::test]
async fn faults_of_files_are_named_before_anything_listens() {
    let ours = Authority::new("ours");
    let (good, other) = (ours.issue(&[NAME]), ours.issue(&[NAME]));
    let old = ours.issue_until(&[NAME], 2021);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("homing.yaml");
    let text = folder.path().join("text.pem");
    std::fs::write(&text, "no PEM").unwrap();
    let pair = |certificate: &Path, key: &Path| Pair {
        certificate: certificate.into(),
        key: key.into(),
    };
    let none = folder.path().join("none.pem");
    let cases = [
        (pair(&none, &good.key), "error", "tls.certificate", "No such file"),
        (pair(&good.certificate, &none), "error", "tls.key", "No such file"),
        (
            pair(&text, &good.key),
            "error",
            "tls.certificate",
            "holds no certificate",
        ),
        (
            pair(&good.certificate, &text),
            "error",
            "tls.key",
            "holds no private key",
        ),
        (
            pair(&good.certificate, &other.key),
            "error",
            "tls.key",
            "is not that of the certificate",
        ),
        (
            pair(&good.key, &good.key),
            "error",
            "tls.certificate",
            "holds no certificate",
        ),
        (old, "warning", "tls.certificate", "has expired on"),
    ];
    for (pair, severity, path, message) in cases {
        let setup = Setup::of([free_address()]).top(&listening(free_address(), &pair));
        std::fs::write(&config, setup.yaml(free_address(), free_address())).unwrap();
        let said = check(&config, &[]).await;
        let faults = said["diagnostics"].as_array().unwrap();
        let [fault] = &faults[..] else { panic!("{said}") };
        assert_eq!(
            (&fault["severity"], &fault["path"]),
            (&severity.into(), &path.into()),
            "{fault}"
        );
        assert!(fault["message"].as_str().unwrap().contains(message), "{fault}");
        assert!(fault["line"].as_u64().is_some_and(|line| line > 0), "{fault}");
    }
}
