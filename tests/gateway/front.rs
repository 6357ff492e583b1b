//! The data port's front: keys, browsers, paths, headers and bodies that only pass through, the list of models.

use super::support::{Client, Gateway, Script, Setup, Upstream, chat, eventually};

const CHAT: &str = "/v1/chat/completions";
/// `printf %s sk-client | sha256sum`
const CLIENT_KEY_SHA256: &str = "9317152c7ce9662afd2deb4078472692a4d84040d09f9c3d2b2d3688f057c7de";

async fn echo(top: &str, pool: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::echo().await;
    let gateway = Setup::of([upstream.address]).top(top).pool(pool).start().await;
    (upstream, gateway)
}

#[tokio::test]
async fn keys_let_clients_in_and_go_no_further() {
    let upstream = Upstream::echo().await;
    let top = format!("auth: {{ keys: [{CLIENT_KEY_SHA256}] }}\naccess_log: {{ to: stderr }}");
    let setup = Setup::of([upstream.address])
        .top(&top)
        .pool("api_key: engine-key");
    let gateway = setup.start().await;
    let mut client = gateway.client().await;
    for headers in [
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: Bearer engine-key\r\n",
    ] {
        client.post_with(CHAT, headers, chat("x", false)).await;
        client.response().await.assert_error(401, "unauthorized");
        client = gateway.client().await;
    }
    for headers in ["authorization: Bearer sk-client\r\n", "x-api-key: sk-client\r\n"] {
        client.post_with(CHAT, headers, chat("x", false)).await;
        let response = client.response().await;
        assert_eq!(response.status, 200);
        assert!(!response.head.contains("engine-key"));
        upstream.see(|state| {
            let last = state.requests.last().unwrap();
            assert_eq!(last.headers("authorization"), ["Bearer engine-key"]);
            assert!(!last.head.contains("sk-client"));
        });
    }
    assert_eq!(upstream.executions(), 2);
    let log = gateway.log();
    assert!(!log.contains("sk-client") && !log.contains("engine-key"), "{log}");
}

#[tokio::test]
async fn without_keys_the_client_s_own_passes() {
    let (upstream, gateway) = echo("", "").await;
    let mut client = gateway.client().await;
    client
        .post_with(CHAT, "authorization: Bearer sk-any\r\n", chat("x", false))
        .await;
    assert_eq!(client.response().await.status, 200);
    upstream.see(|state| assert_eq!(state.requests[0].headers("authorization"), ["Bearer sk-any"]));
}

const PREFLIGHT: &str = "origin: https://chat.example\r\naccess-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n";

#[tokio::test]
async fn preflights_are_answered_when_configured_even_with_keys() {
    let top = format!(
        "cors: {{ allow_origins: ['https://chat.example'] }}\nauth: {{ keys: [{CLIENT_KEY_SHA256}] }}"
    );
    let (upstream, gateway) = echo(&top, "").await;
    let mut client = gateway.client().await;
    client.request("OPTIONS", CHAT, PREFLIGHT).await;
    let response = client.response().await;
    assert_eq!(response.status, 204);
    assert_eq!(
        response.header("access-control-allow-origin"),
        Some("https://chat.example")
    );
    assert_eq!(response.header("access-control-allow-methods"), Some("POST"));
    assert_eq!(
        response.header("access-control-allow-headers"),
        Some("content-type")
    );
    client
        .request("OPTIONS", CHAT, &PREFLIGHT.replace("chat.", "evil."))
        .await;
    assert_eq!(
        client.response().await.header("access-control-allow-origin"),
        None
    );
    let key = "origin: https://chat.example\r\nauthorization: Bearer sk-client\r\n";
    client.post_with(CHAT, key, chat("x", false)).await;
    let response = client.response().await;
    assert_eq!(
        response.header("access-control-allow-origin"),
        Some("https://chat.example")
    );
    // Also an error must be readable for the page.
    client
        .post_with(CHAT, "origin: https://chat.example\r\n", chat("x", false))
        .await;
    let response = client.response().await;
    response.assert_error(401, "unauthorized");
    assert_eq!(
        response.header("access-control-allow-origin"),
        Some("https://chat.example")
    );
    assert_eq!(upstream.executions(), 1);
    eventually("both requests are counted, and no preflight", async || {
        let metrics = gateway.metrics().await;
        metrics.sum("homing_decisions_total", "") == 1.0
            && metrics.sum("homing_requests_total", "path_kind=\"chat\"") == 2.0
    })
    .await;
}

#[tokio::test]
async fn preflights_pass_when_not_configured() {
    let (upstream, gateway) = echo("", "").await;
    let mut client = gateway.client().await;
    client.request("OPTIONS", CHAT, PREFLIGHT).await;
    assert_eq!(client.response().await.status, 200);
    upstream.see(|state| assert_eq!(state.requests[0].method(), "OPTIONS"));
    assert_eq!(
        gateway
            .metrics()
            .await
            .sum("homing_requests_total", "path_kind=\"chat\""),
        0.0
    );
}

#[tokio::test]
async fn paths_pass_byte_for_byte() {
    let (upstream, gateway) = echo("", "").await;
    let paths = [
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/v1/models",
        "/v1/chat/completions?x=1&y=a%20b+c",
        "/v1/%63hat/completions",
        "/v1/chat/../completions",
        "/%2e%2e/%2F?%00",
        "/v1/caf\u{e9}",
        "/a;b=c,d:e@f!$'()*",
    ];
    for (n, path) in paths.into_iter().enumerate() {
        let mut client = gateway.client().await;
        let body = chat("x", false);
        client.post_with(path, "authorization: Bearer k\r\n", &body).await;
        assert_eq!(client.response().await.status, 200, "{path}");
        upstream.see(|state| {
            let request = &state.requests[n];
            assert_eq!(request.path(), path);
            assert_eq!(request.body, body.as_bytes());
            assert_eq!(request.headers("authorization"), ["Bearer k"]);
        });
    }
    let kinds = gateway.metrics().await;
    assert_eq!(
        kinds.sum("homing_requests_total", "path_kind=\"chat\""),
        2.0,
        "final slash, query"
    );
}

#[tokio::test]
async fn a_target_with_a_host_goes_on_as_a_path() {
    let (upstream, gateway) = echo("", "").await;
    for (target, path) in [
        ("http://h.example/v1/chat%2F?x=1&y", "/v1/chat%2F?x=1&y"),
        ("http://h.example//a", "//a"),
        ("http://h.example?x=1", "/?x=1"),
        ("http://h.example", "/"),
    ] {
        let mut client = gateway.client().await;
        let head = format!("GET {target} HTTP/1.1\r\nhost: h.example\r\n\r\n");
        client.send(head.as_bytes()).await;
        assert_eq!(client.response().await.status, 200, "{target}");
        upstream.see(|state| {
            let request = state.requests.last().unwrap();
            assert_eq!(request.path(), path);
            assert_eq!(request.headers("host"), [upstream.address.to_string()]);
        });
    }
}

#[tokio::test]
async fn hop_by_hop_headers_stay_on_their_hop() {
    let upstream = Upstream::start(|_, _| {
        let headers = "connection: x-own\r\nx-own: 1\r\nkeep-alive: timeout=5\r\nx-kept: 2\r\n";
        Script::answer(200, headers, "{}")
    })
    .await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    let headers = "connection: x-mine, keep-alive\r\nx-mine: 1\r\nkeep-alive: 1\r\nte: trailers\r\nproxy-connection: keep-alive\r\n\
                   upgrade: h2c\r\nx-kept: 1\r\nx-kept: 2\r\n";
    client.post_with(CHAT, headers, chat("x", false)).await;
    let response = client.response().await;
    assert_eq!(
        (response.header("x-own"), response.header("x-kept")),
        (None, Some("2")),
        "{response:?}"
    );
    upstream.see(|state| {
        let request = &state.requests[0];
        for name in ["x-mine", "keep-alive", "te", "proxy-connection", "upgrade"] {
            assert!(request.headers(name).is_empty(), "{name}: {}", request.head);
        }
        assert_eq!(request.headers("x-kept"), ["1", "2"]);
        assert_eq!(request.headers("host"), [upstream.address.to_string()]);
    });
}

#[tokio::test]
async fn endpoints_are_told_of_clients_as_configured() {
    let sent = "x-forwarded-for: 1.2.3.4\r\nx-forwarded-proto: gopher\r\nvia: 1.0 before\r\n";
    for (top, who, proto, via) in [
        ("", "1.2.3.4", "gopher", vec!["1.0 before"]),
        (
            "forwarded: { for: append, proto: true, via: true }",
            "1.2.3.4, 127.0.0.1",
            "http",
            vec!["1.0 before", "1.1 homing"],
        ),
        (
            "forwarded: { for: replace }",
            "127.0.0.1",
            "gopher",
            vec!["1.0 before"],
        ),
    ] {
        let (upstream, gateway) = echo(top, "").await;
        let mut client = gateway.client().await;
        client.post_with(CHAT, sent, chat("x", false)).await;
        let response = client.response().await;
        assert_eq!(response.header("via").is_some(), via.len() == 2);
        upstream.see(|state| {
            let request = &state.requests[0];
            assert_eq!(request.headers("x-forwarded-for"), [who]);
            assert_eq!(request.headers("x-forwarded-proto"), [proto]);
            assert_eq!(request.headers("via"), via);
        });
    }
}

#[tokio::test]
async fn head_has_no_body_and_leaves_the_connection_in_step() {
    let upstream = Upstream::start(|request, _| match request.method() {
        "HEAD" => Script::default().write("HTTP/1.1 405 X\r\ncontent-length: 30\r\n\r\n"),
        _ => Script::json("{}"),
    })
    .await;
    let gateway = Setup::of([upstream.address]).start().await;
    let mut client = gateway.client().await;
    client.request("HEAD", "/health2", "").await;
    assert_eq!(client.head().await.unwrap().status, 405);
    client.post(CHAT, chat("x", false)).await;
    assert_eq!(client.response().await.text(), "{}");
}

/// Bodies that a gateway might trip over: each passes unchanged, twice, and the second time to the same endpoint.
#[tokio::test]
async fn bodies_of_any_shape_pass_unchanged() {
    let (first, second) = (Upstream::echo().await, Upstream::echo().await);
    let gateway = Setup::of([first.address, second.address])
        .top("response_headers: always")
        .start()
        .await;
    let ids: Vec<String> = (0..4096).map(|id| id.to_string()).collect();
    let ids = ids.join(",");
    let gzip = {
        use std::io::Write as _;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(chat("compressed", false).as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let shapes: Vec<(&str, &str, Vec<u8>)> = vec![
        (
            "/v1/completions",
            "",
            br#"{"model":"m","prompt":["hello world"],"max_tokens":4}"#.to_vec(),
        ),
        (
            "/v1/completions",
            "",
            format!("{{\"prompt\":[{ids}]}}").into_bytes(),
        ),
        (
            "/v1/completions",
            "",
            format!("{{\"prompt\":[[{ids}],[9,8,7]]}}").into_bytes(),
        ),
        (
            "/v1/completions",
            "",
            br#"{"prompt":[4294967296,-1,1.5]}"#.to_vec(),
        ),
        ("/v1/completions", "", br#"{"prompt":[]}"#.to_vec()),
        (
            CHAT,
            "",
            br#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#.to_vec(),
        ),
        (
            CHAT,
            "",
            br#"{"messages":[{"role":"user","content":[]}]}"#.to_vec(),
        ),
        (
            CHAT,
            "",
            br#"{"messages":[{"role":"user","content":[{"text":null}]}]}"#.to_vec(),
        ),
        (
            CHAT,
            "",
            br#"{"messages":[{"role":"assistant","content":null,"tool_calls":[]}]}"#.to_vec(),
        ),
        (CHAT, "", br#"{"messages":[{"role":"assistant"}]}"#.to_vec()),
        (
            CHAT,
            "",
            b"{\"messages\":[{\"role\":\"user\",\"conten\nt\":\"x\"}]}".to_vec(),
        ),
        (CHAT, "", br#"{"model":"#.to_vec()),
        (CHAT, "", b"\xff\xfe\0\0".to_vec()),
        (CHAT, "", Vec::new()),
        (CHAT, "", b"[".repeat(10_000)),
        (CHAT, "content-encoding: gzip\r\n", gzip.clone()),
        (CHAT, "", gzip),
        (
            CHAT,
            "content-encoding: zstd\r\n",
            b"\x28\xb5\x2f\xfd\x04\x00\x01\x00\x00".to_vec(),
        ),
        (CHAT, "", b"\x28\xb5\x2f\xfd\x04\x00\x01\x00\x00".to_vec()),
    ];
    let mut client = gateway.client().await;
    for (path, headers, body) in shapes {
        client.post_with(path, headers, &body).await;
        let response = client.response().await;
        let what = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        assert_eq!(response.status, 200, "{what}");
        let upstream = if response.header("x-homing-endpoint") == Some("e0") {
            &first
        } else {
            &second
        };
        upstream.see(|state| {
            let last = state.requests.last().unwrap();
            assert_eq!(last.body, body, "{what}");
            let encoding = headers
                .trim_end()
                .rsplit(' ')
                .next()
                .filter(|word| !word.is_empty());
            assert_eq!(last.headers("content-encoding"), Vec::from_iter(encoding));
        });
    }
    gateway.at_rest().await;
}

fn models(ids: &[&str]) -> Script {
    let models: Vec<_> = ids
        .iter()
        .map(|id| serde_json::json!({ "id": id, "object": "model" }))
        .collect();
    Script::json(&serde_json::json!({ "object": "list", "data": models }).to_string())
}

async fn listed(client: &mut Client) -> Vec<String> {
    client.request("GET", "/v1/models", "").await;
    let response = client.response().await;
    assert_eq!(response.status, 200);
    let list = response.json();
    let models = list["data"].as_array().unwrap().iter();
    models
        .map(|model| model["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn the_list_of_models_is_the_union_while_one_endpoint_answers() {
    let first = Upstream::start(|_, _| models(&["base", "adapter-a"])).await;
    let second = Upstream::start(|_, _| models(&["base", "adapter-b"])).await;
    let third = Upstream::start(|_, _| Script::answer(500, "", "broken")).await;
    let setup = Setup::of([first.address, second.address, third.address]);
    let gateway = setup.start().await;
    for name in ["e0", "e1", "e2"] {
        gateway.endpoint_is(name, "ready").await;
    }
    let mut client = gateway.client().await;
    assert_eq!(listed(&mut client).await, ["base", "adapter-a", "adapter-b"]);
    drop(first);
    for _ in 0..50 {
        let models = listed(&mut client).await;
        assert!(models.contains(&"adapter-b".to_owned()), "{models:?}");
    }
}

#[tokio::test]
async fn the_admin_port_refuses_other_sites() {
    let (_upstream, gateway) = echo("", "").await;
    let ask = async |headers: &str| {
        let mut client = Client::connect(gateway.admin).await;
        let request =
            format!("POST /endpoints/default/e0/drain HTTP/1.1\r\n{headers}content-length: 0\r\n\r\n");
        client.send(request.as_bytes()).await;
        client.response().await.status
    };
    let host = format!("host: {}\r\n", gateway.admin);
    assert_eq!(ask("host: evil.example\r\n").await, 403);
    assert_eq!(ask(&format!("{host}origin: https://evil.example\r\n")).await, 403);
    assert_eq!(ask(&format!("{host}sec-fetch-site: cross-site\r\n")).await, 403);
    assert_eq!(gateway.endpoint("e0").await["state"], "ready");
    assert_eq!(ask(&host).await, 200);
    assert_eq!(gateway.endpoint("e0").await["state"], "draining");
}
