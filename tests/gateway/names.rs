//! Endpoints given by host names: a real DNS server tells where they are, and changes its mind.

use super::support::dns::{Dns, TTL};
use super::support::{
    Client, Gateway, Response, Script, Setup, Step, Upstream, chat, eventually, free_address,
};
use homing::datalayer::dns::{Dns as Resolver, DnsError, Service};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

async fn gateway(dns: &Dns, host: &str, port: u16) -> Gateway {
    Setup::default()
        .endpoint(&format!("{{ name: e, url: 'http://{host}:{port}' }}"))
        .top(&format!("dns: {{ servers: ['{}'] }}", dns.address))
        .start()
        .await
}

/// A prompt that fills many blocks.
async fn ask(client: &mut Client) -> Response {
    let prompt = "the same words again and ".repeat(200);
    client
        .post_with(CHAT, "x-homing-explain: 1\r\n", chat(&prompt, false))
        .await;
    let response = client.response().await;
    assert_eq!(response.status, 200, "{response:?}");
    response
}

/// Two servers on the same port of two addresses.
async fn two() -> (Upstream, Upstream) {
    let first = Upstream::echo().await;
    let second = beside(&first).await;
    (first, second)
}

/// A server on the same port of another address.
async fn beside(first: &Upstream) -> Upstream {
    let second = SocketAddr::new(free_address().ip(), first.address.port());
    Upstream::start_at(second, |request, _| Script::echo(request)).await
}

#[tokio::test]
async fn a_name_that_moves_is_followed_and_its_old_prefixes_are_forgotten() {
    let dns = Dns::start().await;
    let (old, new) = two().await;
    dns.set("engine.test.", &[old.address.ip()]).await;
    let gateway = gateway(&dns, "engine.test", old.address.port()).await;
    let mut client = gateway.client().await;
    ask(&mut client).await;
    assert_eq!(ask(&mut client).await.header("x-homing-decision"), Some("warm"));
    assert_eq!(old.executions(), 2);

    dns.set("engine.test.", &[new.address.ip()]).await;
    new.wait("checks go to the new address", |state| state.connections > 0)
        .await;
    // The connection to the old address is still there, unused for less than its 4 s.
    let first = ask(&mut client).await;
    assert_eq!(first.header("x-homing-decision"), Some("cold"), "{first:?}");
    assert_eq!(ask(&mut client).await.header("x-homing-decision"), Some("warm"));
    assert_eq!((old.executions(), new.executions()), (2, 2));

    // Back within the life of a kept connection: the one from before the move is not taken up again.
    let kept = old.see(|state| state.requests[0].connection);
    dns.set("engine.test.", &[old.address.ip()]).await;
    eventually("the first address is used again", async || {
        ask(&mut client).await;
        old.executions() > 2
    })
    .await;
    assert_ne!(old.see(|state| state.requests[2].connection), kept);
}

#[tokio::test]
async fn a_stream_from_the_old_address_runs_to_its_end() {
    let dns = Dns::start().await;
    let old = Upstream::start(|_, _| {
        let head = Script::chunked("text/event-stream").chunk("first");
        head.then(Step::Await).chunk("last").last_chunk()
    })
    .await;
    let new = beside(&old).await;
    dns.set("engine.test.", &[old.address.ip()]).await;
    let gateway = gateway(&dns, "engine.test", old.address.port()).await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("tell", true)).await;
    old.wait("the stream began", |state| !state.requests.is_empty())
        .await;
    dns.set("engine.test.", &[new.address.ip()]).await;
    new.wait("the name has moved", |state| state.connections > 0)
        .await;
    ask(&mut gateway.client().await).await;
    assert_eq!(new.executions(), 1);
    old.release();
    let response = client.response().await;
    assert!(
        response.complete && response.text() == "firstlast",
        "{response:?}"
    );
}

#[tokio::test]
async fn a_name_that_is_lost_keeps_its_last_address() {
    let dns = Dns::start().await;
    let (old, new) = two().await;
    dns.set("engine.test.", &[old.address.ip()]).await;
    let gateway = gateway(&dns, "engine.test", old.address.port()).await;
    let mut client = gateway.client().await;
    ask(&mut client).await;
    dns.set("engine.test.", &[]).await;
    dns.asked(4).await;
    ask(&mut client).await;
    assert_eq!(old.executions(), 2);
    assert!(
        gateway.log().contains("its last address is kept"),
        "{}",
        gateway.log()
    );
    // It comes back elsewhere.
    dns.set("engine.test.", &[new.address.ip()]).await;
    new.wait("the new address is used", |state| state.connections > 0)
        .await;
    ask(&mut client).await;
    assert_eq!((old.executions(), new.executions()), (2, 1));
}

#[tokio::test]
async fn the_order_of_answers_means_nothing() {
    let dns = Dns::start().await;
    let (used, other) = two().await;
    dns.set("engine.test.", &[used.address.ip()]).await;
    let gateway = gateway(&dns, "engine.test", used.address.port()).await;
    let mut client = gateway.client().await;
    ask(&mut client).await;
    for both in [
        [other.address.ip(), used.address.ip()],
        [used.address.ip(), other.address.ip()],
    ] {
        dns.set("engine.test.", &both).await;
        dns.asked(4).await;
        assert_eq!(ask(&mut client).await.header("x-homing-decision"), Some("warm"));
    }
    assert_eq!(other.see(|state| state.connections), 0);
}

#[tokio::test]
async fn endpoints_are_reached_over_ipv6() {
    let ip = IpAddr::V6(Ipv6Addr::LOCALHOST);
    if TcpListener::bind((ip, 0)).is_err() {
        eprintln!("no IPv6 on this machine: nothing tested");
        return;
    }
    let engine = Upstream::start_at(SocketAddr::new(ip, 0), |request, _| Script::echo(request)).await;
    let port = engine.address.port();
    let dns = Dns::start().await;
    dns.set("six.test.", &[ip]).await;
    for host in ["six.test", "[::1]"] {
        let gateway = gateway(&dns, host, port).await;
        ask(&mut gateway.client().await).await;
        let hosts = engine.see(|state| state.requests.last().map(|last| last.headers("host").join(",")));
        assert_eq!(hosts, Some(format!("{host}:{port}")));
        let url = gateway.endpoint("e").await["url"].clone();
        assert_eq!(url, format!("http://{host}:{port}"));
    }
    assert_eq!(engine.executions(), 2);
}

#[tokio::test]
async fn answers_hold_for_their_time_to_live() {
    let dns = Dns::start().await;
    let resolver = Resolver::new(&[dns.address]);
    let addresses: [IpAddr; 3] = ["fd00::1", "10.0.0.2", "10.0.0.1"].map(|ip| ip.parse().unwrap());
    dns.set("engine.test.", &addresses).await;
    let found = resolver.addresses("Engine.test").await.unwrap();
    assert!(found.ttl <= Duration::from_secs(u64::from(TTL)), "{found:?}");
    assert!(found.records[..2].iter().all(IpAddr::is_ipv4), "{found:?}");
    assert_eq!(found.records.len(), 3);
    assert_eq!(found.records[2], addresses[0]);
    dns.set("engine.test.", &addresses[2..]).await;
    let found = resolver.addresses("engine.test").await.unwrap();
    assert_eq!(found.records, addresses[2..], "nothing is remembered");
    dns.set("engine.test.", &[]).await;
    assert!(matches!(
        resolver.addresses("engine.test").await,
        Err(DnsError::NoRecords)
    ));
    // Nobody listens there.
    let resolver = Resolver::new(&[free_address()]);
    assert!(matches!(
        resolver.addresses("engine.test").await,
        Err(DnsError::Failed(_))
    ));
}

#[tokio::test]
async fn services_tell_host_and_port() {
    let dns = Dns::start().await;
    let resolver = Resolver::new(&[dns.address]);
    let service = "_http._tcp.vllm.test.";
    assert!(matches!(
        resolver.services(service).await,
        Err(DnsError::NoRecords)
    ));
    dns.add_service(service, 0, 10, 8000, "pod-a.test.").await;
    dns.add_service(service, 1, 20, 8001, "Pod-B.test.").await;
    let mut found = resolver.services(service).await.unwrap();
    found.records.sort();
    let expected = |priority, weight, port, host: &str| Service {
        priority,
        weight,
        port,
        host: host.into(),
    };
    assert_eq!(
        found.records,
        [
            expected(0, 10, 8000, "pod-a.test"),
            expected(1, 20, 8001, "pod-b.test")
        ]
    );
    assert!(found.ttl <= Duration::from_secs(u64::from(TTL)));
}
