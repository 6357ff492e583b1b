//! Endpoints that come and go: by a real DNS server, and by a file.

use super::life::Load;
use super::support::certs::Authority;
use super::support::dns::Dns;
use super::support::{Gateway, Setup, Upstream, chat, eventually, free_address};
use std::net::SocketAddr;
use std::path::Path;

const CHAT: &str = "/v1/chat/completions";

/// Names of the endpoints, in the gateway's order.
async fn names(gateway: &Gateway) -> Vec<String> {
    let endpoints: Vec<serde_json::Value> =
        serde_json::from_slice(&gateway.admin("GET", "/endpoints").await).unwrap();
    let name = |endpoint: &serde_json::Value| endpoint["name"].as_str().unwrap().to_owned();
    endpoints.iter().map(name).collect()
}

async fn names_are(gateway: &Gateway, expected: &[&str]) {
    eventually(&format!("the endpoints are {expected:?}"), async || {
        names(gateway).await == expected
    })
    .await;
}

/// Asks with a prompt of many blocks; returns the endpoint and whether it was warm.
async fn ask(gateway: &Gateway) -> (String, bool) {
    let mut client = gateway.client().await;
    client
        .post(CHAT, chat(&"the same words again and ".repeat(200), false))
        .await;
    let response = client.response().await;
    assert_eq!(response.status, 200, "{response:?}");
    let header = |name| response.header(name).unwrap_or_default().to_owned();
    (header("x-homing-endpoint"), header("x-homing-decision") == "warm")
}

fn by_dns(dns: &Dns, yaml: &str) -> Setup {
    Setup::default()
        .top(&format!("dns: {{ servers: ['{}'] }}", dns.address))
        .top("response_headers: always")
        .pool(&format!("discovery: {{ dns: {yaml} }}"))
        .pool("slow_start: 0s")
}

/// Servers on the same port of several addresses, in the order of their names.
async fn on_one_port<const N: usize>() -> [Upstream; N] {
    let port = free_address().port();
    let mut addresses: Vec<SocketAddr> = (0..N)
        .map(|_| SocketAddr::new(free_address().ip(), port))
        .collect();
    addresses.sort_by_key(SocketAddr::to_string);
    let mut servers = Vec::new();
    for address in addresses {
        let echo = |request: &super::support::Received, _: usize| super::support::Script::echo(request);
        servers.push(Upstream::start_at(address, echo).await);
    }
    servers
        .try_into()
        .unwrap_or_else(|_| unreachable!("as many as asked for"))
}

#[tokio::test]
async fn addresses_come_and_go_under_load() {
    let [first, second, third] = on_one_port().await;
    let [a, b, c] = [&first, &second, &third].map(|server| server.address);
    let dns = Dns::start().await;
    dns.set("vllm.test.", &[a.ip(), b.ip()]).await;
    let port = a.port();
    let yaml = format!("{{ name: vllm.test, port: {port}, interval: 50ms }}");
    let gateway = by_dns(&dns, &yaml).start().await;
    let [a, b, c] = [a, b, c].map(|address| address.to_string());
    names_are(&gateway, &[&a, &b]).await;
    for name in [&a, &b] {
        gateway.endpoint_is(name, "ready").await;
    }
    let (home, _) = ask(&gateway).await;
    assert_eq!(ask(&gateway).await, (home.clone(), true));
    let load = Load::on(&gateway, &chat("load", false));
    let other = if home == a { &second } else { &first };
    let other_name = other.address.to_string();
    let stays = home.parse::<SocketAddr>().unwrap().ip();

    // One comes: the ones that were there keep what is known of them.
    dns.set("vllm.test.", &[stays, other.address.ip(), third.address.ip()])
        .await;
    names_are(&gateway, &[&a, &b, &c]).await;
    assert_eq!(ask(&gateway).await, (home.clone(), true));
    assert_eq!(gateway.endpoint(&home).await["state"], "ready");
    gateway.endpoint_is(&c, "ready").await;
    let of_other = format!("endpoint=\"{other_name}\"");
    assert!(gateway.metrics().await.sum("homing_requests_total", &of_other) > 0.0);

    // One goes, and its series with it.
    dns.set("vllm.test.", &[stays, third.address.ip()]).await;
    eventually("it is gone", async || {
        !names(&gateway).await.contains(&other_name)
    })
    .await;
    assert_eq!(ask(&gateway).await, (home.clone(), true));
    let served = other.executions();
    assert_eq!(ask(&gateway).await, (home.clone(), true));
    assert!(load.stop().await > 0);
    gateway.at_rest().await;
    assert_eq!(other.executions(), served);
    let page = String::from_utf8(gateway.admin("GET", "/metrics").await).unwrap();
    let left: Vec<_> = page.lines().filter(|line| line.contains(&of_other)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(gateway.metrics().await.sum("homing_errors_total", ""), 0.0);

    // An empty answer is no reason to serve nobody.
    dns.set("vllm.test.", &[]).await;
    eventually("lookups fail", async || {
        let metrics = gateway.metrics().await;
        metrics.sum("homing_discovery_lookups_total", "outcome=\"failure\"") > 2.0
    })
    .await;
    assert_eq!(ask(&gateway).await, (home, true));
}

#[tokio::test]
async fn srv_records_name_hosts_and_ports() {
    let (first, second) = (Upstream::echo().await, Upstream::echo().await);
    let dns = Dns::start().await;
    dns.set("vllm-0.test.", &[first.address.ip()]).await;
    dns.set("vllm-1.test.", &[second.address.ip()]).await;
    let service = "_http._tcp.vllm.test.";
    dns.add_service(service, 0, 50, first.address.port(), "vllm-0.test.")
        .await;
    let yaml = format!("{{ name: {service}, interval: 50ms }}");
    let gateway = by_dns(&dns, &yaml).start().await;
    let first_name = format!("vllm-0.test:{}", first.address.port());
    let second_name = format!("vllm-1.test:{}", second.address.port());
    assert_eq!(ask(&gateway).await.0, first_name);
    // Priority and weight are not heeded, and a host without an address is no endpoint.
    dns.add_service(service, 10, 0, second.address.port(), "vllm-1.test.")
        .await;
    dns.add_service(service, 0, 0, 9, "nobody.test.").await;
    names_are(&gateway, &[&first_name, &second_name]).await;
    assert_eq!(ask(&gateway).await, (first_name, true));
    gateway.endpoint_is(&second_name, "ready").await;
}

#[tokio::test]
async fn a_gateway_that_finds_nobody_waits_for_somebody() {
    let upstream = Upstream::echo().await;
    let dns = Dns::start().await;
    let port = upstream.address.port();
    let yaml = format!("{{ name: late.test, port: {port}, interval: 50ms }}");
    let gateway = by_dns(&dns, &yaml).spawn();
    eventually("it says why it is not ready", async || {
        let answer = gateway.try_admin("GET", "/readyz").await;
        answer.is_some_and(|(status, body)| {
            status == 503 && String::from_utf8_lossy(&body).contains("pool default: no endpoint is ready")
        })
    })
    .await;
    eventually("it says what it lacks", async || {
        gateway.log().contains("`late.test` (A and AAAA)")
    })
    .await;
    dns.set("late.test.", &[upstream.address.ip()]).await;
    gateway.ready().await;
    assert_eq!(ask(&gateway).await.0, upstream.address.to_string());
}

#[tokio::test]
async fn a_file_of_endpoints_is_followed_and_its_last_good_version_kept() {
    let (listed, first, second) = (
        Upstream::echo().await,
        Upstream::echo().await,
        Upstream::echo().await,
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoints.yaml");
    let write = |text: &str| replace(&path, text);
    let item = |name: &str, at: &Upstream| format!("  - {{ name: {name}, url: 'http://{}' }}\n", at.address);
    write(&format!("endpoints:\n{}", item("first", &first)));
    let gateway = Setup::of([listed.address])
        .top("response_headers: always")
        .pool(&format!("discovery: {{ file: '{}' }}", path.display()))
        .start()
        .await;
    assert_eq!(names(&gateway).await, ["e0", "first"]);
    let both = format!("endpoints:\n{}{}", item("first", &first), item("second", &second));
    write(&both);
    names_are(&gateway, &["e0", "first", "second"]).await;
    gateway.endpoint_is("second", "ready").await;

    write("endpoints:\n  - { nmae: first, url: 'http://10.0.0.1:8000' }\n");
    eventually("the fault is told", async || {
        gateway.log().contains("did you mean `name`?")
    })
    .await;
    assert!(gateway.log().contains("endpoints.yaml:2:7"), "{}", gateway.log());
    assert_eq!(names(&gateway).await, ["e0", "first", "second"]);

    write("endpoints: []\n");
    names_are(&gateway, &["e0"]).await;
    assert_eq!(ask(&gateway).await.0, "e0");
}

#[tokio::test]
async fn endpoints_that_come_need_no_file_that_was_read_before() {
    let [first, second] = on_one_port().await;
    let authority = Authority::new("test");
    let dns = Dns::start().await;
    dns.set("vllm.test.", &[first.address.ip()]).await;
    let yaml = format!(
        "{{ name: vllm.test, port: {}, interval: 50ms }}",
        first.address.port()
    );
    let gateway = by_dns(&dns, &yaml)
        .pool(&format!("tls: {{ ca: '{}' }}", authority.file().display()))
        .start()
        .await;
    let [first, second] = [first.address, second.address];
    names_are(&gateway, &[&first.to_string()]).await;
    std::fs::remove_file(authority.file()).unwrap();
    dns.set("vllm.test.", &[first.ip(), second.ip()]).await;
    names_are(&gateway, &[&first.to_string(), &second.to_string()]).await;
    assert!(!gateway.log().contains("cannot be used"), "{}", gateway.log());
}

/// Puts a new version in the old one's place at once, as careful writers do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}
