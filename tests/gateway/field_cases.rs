//! What broke other gateways, told by their users: each test is a kind of it. Cases that other parts of these tests
//! cover in passing stand there: framing, endings, bodies, front, floods, kv_events.

use super::support::upstream::engine_metrics;
use super::support::{Client, Gateway, Script, Setup, Step, Upstream, chat, eventually};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Where a request went, why, and how much of its prompt was known there: `x-homing-prefix-match` in blocks.
#[derive(Debug)]
struct Placed {
    endpoint: String,
    decision: String,
    matched: u64,
    blocks: u64,
}

struct Fleet {
    servers: Vec<Upstream>,
    gateway: Gateway,
}

impl Fleet {
    /// Two servers that echo, and a gateway that says what it does.
    async fn start() -> Self {
        let servers = vec![Upstream::echo().await, Upstream::echo().await];
        let gateway = Setup::of(servers.iter().map(|server| server.address))
            .top("response_headers: always")
            .start()
            .await;
        for name in ["e0", "e1"] {
            gateway.endpoint_is(name, "ready").await;
        }
        Self { servers, gateway }
    }

    /// Sends a body, which must arrive byte for byte and be answered well.
    async fn place(&self, path: &str, body: &str) -> Placed {
        let mut client = self.gateway.client().await;
        client.post(path, body).await;
        let response = client.response().await;
        assert_eq!(
            response.status,
            200,
            "{}: {response:?}",
            &body[..body.len().min(90)]
        );
        let header = |name| response.header(name).expect("the gateway says it").to_owned();
        let endpoint = header("x-homing-endpoint");
        let at = usize::from(endpoint == "e1");
        let arrived = self.servers[at].see(|state| state.requests.last().unwrap().body.clone());
        assert!(
            arrived == body.as_bytes(),
            "the body was changed: {}",
            &body[..body.len().min(90)]
        );
        let (matched, blocks) = header("x-homing-prefix-match")
            .split_once('/')
            .map(|(matched, blocks)| (matched.parse().unwrap(), blocks.parse().unwrap()))
            .expect("matched/blocks");
        Placed {
            endpoint,
            decision: header("x-homing-decision"),
            matched,
            blocks,
        }
    }

    /// The same body twice must come home, and `other` must not be taken for it.
    async fn comes_home(&self, path: &str, body: &Value, other: &Value) {
        let (body, other) = (body.to_string(), other.to_string());
        let first = self.place(path, &body).await;
        assert_eq!(first.decision, "cold", "{body:.90}: {first:?}");
        let again = self.place(path, &body).await;
        assert_eq!(
            (again.decision.as_str(), &again.endpoint),
            ("warm", &first.endpoint),
            "{body:.90}"
        );
        let stranger = self.place(path, &other).await;
        assert_eq!(
            (stranger.decision.as_str(), stranger.matched),
            ("cold", 0),
            "{other:.90}"
        );
    }
}

/// Text of some thousand characters that shares no beginning with that of another name.
fn text(name: &str) -> String {
    format!("{name} ").repeat(4000 / (name.len() + 1))
}

/// An array of prompts, even of a single one, failed in a router that expected a text.
#[tokio::test]
async fn prompts_in_arrays_come_home() {
    let fleet = Fleet::start().await;
    let body = |prompt: Value| json!({ "model": "m", "prompt": prompt, "max_tokens": 4 });
    let one = |name: &str| body(json!([text(name)]));
    fleet.comes_home(COMPLETIONS, &one("alpha"), &one("beta")).await;
    let two = |name: &str| body(json!([text(name), "and another"]));
    fleet.comes_home(COMPLETIONS, &two("gamma"), &two("delta")).await;
    // As it was reported: too short for a KV block, so no endpoint holds anything of it.
    let short = body(json!(["hello world"])).to_string();
    for _ in 0..2 {
        assert_eq!(fleet.place(COMPLETIONS, &short).await.blocks, 0);
    }
    fleet.gateway.at_rest().await;
}

/// Prompts of token ids were refused; a gateway that hashes text alone sends them anywhere.
#[tokio::test]
async fn prompts_of_token_ids_come_home() {
    let fleet = Fleet::start().await;
    let ids = |first: u64| (first..first + 4096).collect::<Vec<_>>();
    let body = |prompt: Value| json!({ "model": "m", "prompt": prompt });
    fleet
        .comes_home(COMPLETIONS, &body(json!(ids(1))), &body(json!(ids(100_000))))
        .await;
    let nested = |first: u64| body(json!([ids(first), [9, 8, 7]]));
    fleet
        .comes_home(COMPLETIONS, &nested(200_000), &nested(300_000))
        .await;
    // With another last element, all is shared but the last block.
    let mut other = ids(1);
    *other.last_mut().unwrap() = 77;
    let placed = fleet.place(COMPLETIONS, &body(json!(other)).to_string()).await;
    assert_eq!(placed.decision, "warm", "{placed:?}");
    assert!(
        placed.matched < placed.blocks && placed.blocks - placed.matched <= 8,
        "{placed:?}"
    );
    // What no tokenizer has is for the engine to judge.
    for odd in [
        "[4294967296,1,2]",
        "[-1,2]",
        "[1.5]",
        "[[]]",
        "[[1],[-2]]",
        "[1,\"two\"]",
        "[null]",
    ] {
        fleet.place(COMPLETIONS, &format!("{{\"prompt\":{odd}}}")).await;
    }
    fleet.gateway.at_rest().await;
}

/// Content as an array of parts crashed one router; another dropped the text, so that all such requests looked alike.
#[tokio::test]
async fn chats_with_content_in_parts_come_home() {
    let fleet = Fleet::start().await;
    let chat_of =
        |content: Value| json!({ "model": "m", "messages": [{ "role": "user", "content": content }] });
    let parts = |name: &str| chat_of(json!([{ "type": "text", "text": text(name) }]));
    fleet.comes_home(CHAT, &parts("alpha"), &parts("beta")).await;
    let plain = |name: &str| chat_of(json!(text(name)));
    fleet.comes_home(CHAT, &plain("gamma"), &plain("delta")).await;
    // Odd parts beside a text that counts.
    let oddities = [
        json!({}),
        json!({ "text": null }),
        json!({ "type": "text", "text": null }),
        json!({ "type": "image_url", "image_url": { "url": "http://images.example/1.png" } }),
        json!(null),
        json!(7),
        json!("bare"),
    ];
    for (n, odd) in oddities.iter().enumerate() {
        let with =
            |name: &str| chat_of(json!([odd, { "type": "text", "text": text(&format!("{name}{n}")) }]));
        let body = with("epsilon").to_string();
        let first = fleet.place(CHAT, &body).await;
        let again = fleet.place(CHAT, &body).await;
        assert_eq!(first.endpoint, again.endpoint, "{odd}");
    }
    fleet.place(CHAT, &chat_of(json!([])).to_string()).await;
    fleet.gateway.at_rest().await;
}

/// A turn without content (null, or no such key), as tools leave it, crashed a conversion: the turns around it count.
#[tokio::test]
async fn turns_without_content_count_as_nothing_and_break_nothing() {
    let fleet = Fleet::start().await;
    for turn in [
        json!({ "role": "assistant", "content": null, "tool_calls": [] }),
        json!({ "role": "assistant", "tool_calls": [{ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } }] }),
        json!({ "role": "assistant" }),
        json!({}),
        json!(null),
    ] {
        let body = |name: &str| {
            let system =
                json!({ "role": "system", "content": text(&format!("{name}{}", turn.to_string().len())) });
            json!({ "model": "m", "messages": [system, turn, { "role": "user", "content": "go on" }] })
        };
        let (one, other) = (body("alpha").to_string(), body("beta").to_string());
        let first = fleet.place(CHAT, &one).await;
        let again = fleet.place(CHAT, &one).await;
        assert_eq!(first.endpoint, again.endpoint, "{turn}");
        assert_eq!(fleet.place(CHAT, &other).await.matched, 0, "{turn}");
    }
}

/// A line break inside a key, as shells leave it, made an internal error of a client's mistake: the engine says what it
/// thinks of it, and nothing of it enters the index.
#[tokio::test]
async fn malformed_json_is_the_engine_s_to_refuse_and_enters_no_index() {
    let answer = r#"{"error":{"message":"bad json","type":"BadRequestError","code":400}}"#;
    let server =
        Upstream::start(move |_, _| Script::answer(400, "content-type: application/json\r\n", answer)).await;
    let gateway = Setup::of([server.address]).start().await;
    let long = text("alpha");
    let bodies = [
        format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"conten\nt\":\"{long}\"}}]}}"),
        format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{long}"),
        format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{long}\n\"}}]}}"),
        format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{long}\"}}]}} trailing"),
        "{\"model\":".to_owned(),
        chat(&long, false),
    ];
    for body in bodies {
        for _ in 0..2 {
            let mut client = gateway.client().await;
            client.post(CHAT, &body).await;
            let response = client.response().await;
            assert_eq!(
                (response.status, response.text().as_str()),
                (400, answer),
                "{body:.60}"
            );
        }
        assert_eq!(gateway.endpoint("e0").await["index_blocks"], 0, "{body:.60}");
    }
    gateway.at_rest().await;
}

/// Images in base64 met a hidden limit of a megabyte or two; the refusal was a 404, or a 413 that no log told of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_images_pass_up_to_a_limit_that_is_told() {
    let server = Upstream::echo().await;
    let image = |size: usize| {
        let body = |data: &str| {
            let url = format!("data:image/png;base64,{data}");
            json!({ "model": "m", "messages": [{ "role": "user", "content": [
                { "type": "image_url", "image_url": { "url": url } },
                { "type": "text", "text": "What is this?" },
            ] }] })
            .to_string()
        };
        let empty = body("").len();
        body(&"A".repeat(size - empty))
    };
    // Twelve mebibytes are within the limit that holds when none is given.
    let gateway = Setup::of([server.address]).start().await;
    let mut client = gateway.client().await;
    let body = image(12 << 20);
    client.post(CHAT, &body).await;
    assert_eq!(client.response().await.json()["received_bytes"], body.len());
    assert!(server.see(|state| state.requests.last().unwrap().body == body.as_bytes()));

    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let top = format!(
        "limits: {{ request_body: 3MiB }}\naccess_log: {{ to: '{}' }}",
        log.display()
    );
    let gateway = Setup::of([server.address]).top(&top).start().await;
    for (size, status) in [((3 << 20) - 1, 200), (3 << 20, 200), ((3 << 20) + 1, 413)] {
        let mut client = gateway.client().await;
        client.post(CHAT, image(size)).await;
        let response = client.response().await;
        match status {
            200 => assert_eq!(response.json()["received_bytes"], size),
            _ => response.assert_error(413, "body-too-large"),
        }
    }
    assert_eq!(server.executions(), 3);
    eventually("the refusal is counted", async || {
        gateway
            .metrics()
            .await
            .sum("homing_errors_total", "body-too-large")
            == 1.0
    })
    .await;
    eventually("the refusal is logged", async || {
        let lines = std::fs::read_to_string(&log).unwrap_or_default();
        lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .any(|line| line["status"] == 413 && line["error"] == "body-too-large")
    })
    .await;
}

/// A megabyte of gzip that stands for a gibibyte: it passes as it came, and nobody unpacks it into memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gzip_bomb_passes_and_memory_stays_flat() {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let piece = vec![b' '; 1 << 20];
    encoder.write_all(b"{\"prompt\":\"").unwrap();
    for _ in 0..1024 {
        encoder.write_all(&piece).unwrap();
    }
    encoder.write_all(b"\"}").unwrap();
    let bomb = encoder.finish().unwrap();
    let server = Upstream::echo().await;
    let gateway = Setup::of([server.address]).start().await;
    let before = gateway.memory_kib("VmHWM");
    for _ in 0..4 {
        let mut client = gateway.client().await;
        client
            .post_with(COMPLETIONS, "content-encoding: gzip\r\n", &bomb)
            .await;
        assert_eq!(client.response().await.json()["received_bytes"], bomb.len());
    }
    let grown = gateway.memory_kib("VmHWM") - before;
    assert!(grown < 64 << 10, "{grown} KiB more for {} bytes", bomb.len());
    server.see(|state| assert!(state.requests.iter().all(|request| request.body == bomb)));
}

/// How late the events of one stream arrive that are written 50 ms apart, the shortest delay first.
async fn event_delays() -> Vec<Duration> {
    const EVENTS: usize = 20;
    let server = Upstream::start(|_, _| {
        let script = Script::chunked("text/event-stream");
        let event = |script: Script, n: usize| {
            let pause = script.then(Step::Pause(Duration::from_millis(50)));
            pause.then(Step::Stamp).event(&n.to_string())
        };
        (0..EVENTS).fold(script, event).last_chunk()
    })
    .await;
    let gateway = Setup::of([server.address]).start().await;
    gateway.endpoint_is("e0", "ready").await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("x", true)).await;
    let mut response = client.head().await.unwrap();
    let mut arrived = Vec::new();
    for n in 0..EVENTS {
        let event = format!("data: {n}\n\n");
        client.body_until(&mut response, &event).await;
        arrived.push(Instant::now());
        assert!(
            response.text().ends_with(&event),
            "events came together: {}",
            response.text()
        );
    }
    let written = server.see(|state| state.stamps.clone());
    let mut delays: Vec<Duration> = written.iter().zip(&arrived).map(|(w, a)| *a - *w).collect();
    delays.sort();
    delays
}

/// Events that a proxy glues together broke a client, and buffering makes a stream stutter: each passes on its own, at
/// once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_pass_one_by_one_within_five_milliseconds() {
    let mut seen = Vec::new();
    // A machine that is busy with other tests delays anything for a while; buffering delays every stream.
    for _ in 0..3 {
        let delays = event_delays().await;
        let median = delays[delays.len() / 2];
        println!("median {median:?}, worst {:?}", delays[delays.len() - 1]);
        if median < Duration::from_millis(5) {
            return;
        }
        seen.push(median);
    }
    panic!("medians of {seen:?}");
}

/// A gauge under its old name, or once per process with zeros, made full engines look empty; one that is missing is not
/// known, which is not the same as 0.
#[tokio::test]
async fn kv_usage_is_read_by_any_of_its_names_and_unknown_is_not_zero() {
    let labels = "engine=\"0\",model_name=\"m\"";
    let old = format!("vllm:gpu_cache_usage_perc{{{labels}}} 0.65\n");
    let new = format!("vllm:kv_cache_usage_perc{{{labels}}} 0.65\n");
    let by_process: String = (0..8)
        .map(|pid| {
            let value = if pid == 5 { 0.65 } else { 0.0 };
            format!("vllm:kv_cache_usage_perc{{{labels},pid=\"{pid}\"}} {value}\n")
        })
        .collect();
    let missing = format!("vllm:num_requests_running{{{labels}}} 0.0\n");
    let pages = [
        (old.clone(), Some(0.65)),
        (new.clone(), Some(0.65)),
        (old + &new, Some(0.65)),
        (by_process, Some(0.65)),
        (missing, None),
    ];
    let mut servers = Vec::new();
    for (page, _) in &pages {
        let server = Upstream::echo().await;
        server.set_metrics(page.clone());
        servers.push(server);
    }
    let gateway = Setup::of(servers.iter().map(|server| server.address))
        .start()
        .await;
    for (n, (page, usage)) in pages.iter().enumerate() {
        let name = format!("e{n}");
        eventually(&format!("{page} is read"), async || {
            let endpoint = gateway.endpoint(&name).await;
            !endpoint["running"].is_null() || endpoint["kv_usage"] == 0.65
        })
        .await;
        assert_eq!(gateway.endpoint(&name).await["kv_usage"], json!(usage), "{page}");
    }
}

/// A restarted engine went on being credited with what it had lost. Whatever gives the restart away: its prefixes are
/// new ones from then on, and no rate is computed over the gap.
#[tokio::test]
async fn a_new_start_time_or_fallen_counters_empty_the_index() {
    let start = |seconds: f64| format!("process_start_time_seconds {seconds}\n");
    for after in [
        engine_metrics(0, 0) + &start(1.7e9),
        engine_metrics(1000, 1000) + &start(1.7e9 + 60.0),
        engine_metrics(5, 1000) + &start(1.7e9),
    ] {
        let servers = [Upstream::echo().await, Upstream::echo().await];
        for server in &servers {
            server.set_metrics(engine_metrics(1000, 1000) + &start(1.7e9));
        }
        let fleet = Fleet {
            gateway: Setup::of(servers.iter().map(|server| server.address))
                .top("response_headers: always")
                .start()
                .await,
            servers: servers.into(),
        };
        let body = chat(&text("alpha"), false);
        let home = fleet.place(CHAT, &body).await.endpoint;
        assert_eq!(fleet.place(CHAT, &body).await.decision, "warm");
        let at = usize::from(home == "e1");
        // The page must have been read once before it changes.
        eventually("the engine was scraped", async || {
            !fleet.gateway.endpoint(&home).await["kv_usage"].is_null()
        })
        .await;
        fleet.servers[at].set_metrics(after.clone());
        eventually("its entries are gone", async || {
            fleet.gateway.endpoint(&home).await["index_blocks"] == 0
        })
        .await;
        assert_eq!(fleet.place(CHAT, &body).await.matched, 0, "{after}");
    }
}

/// A server was up and healthy before its model was: requests to it hung for minutes. It is set aside, gets one request
/// at a time to try, and comes back when it answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_model_still_loads_gets_no_more_than_trials() {
    const HANGING: usize = 5;
    let loading = Upstream::start(|_, n| match n {
        0..HANGING => Script::hang(),
        _ => Script::json("{}"),
    })
    .await;
    let other = Upstream::echo().await;
    let gateway = Setup::of([loading.address, other.address])
        .pool(
            "timeouts: { first_byte: 300ms }\nslow_start: 1s\nscheduling: { preset: round-robin }\n\
             ejection: { consecutive_failures: 2, first_time: 300ms, longest_time: 600ms }",
        )
        .start()
        .await;
    for name in ["e0", "e1"] {
        gateway.endpoint_is(name, "ready").await;
    }
    let burst = async |size: usize| {
        let before = loading.executions();
        let ask = async |n: usize| {
            let mut client = gateway.client().await;
            client.post(CHAT, chat(&n.to_string(), false)).await;
            client.response().await.status
        };
        let statuses = futures_util::future::join_all((0..size).map(ask)).await;
        assert!(
            statuses.iter().all(|status| *status == 200),
            "another server answers: {statuses:?}"
        );
        loading.executions() - before
    };
    burst(4).await;
    gateway.endpoint_is("e0", "ejected").await;
    let started = Instant::now();
    while loading.executions() < HANGING {
        assert!(started.elapsed() < Duration::from_secs(20), "it is not tried");
        let tried = burst(4).await;
        assert!(tried <= 1 || loading.executions() > HANGING, "{tried} at a time");
    }
    eventually("it is back", async || {
        burst(4).await;
        let endpoint = gateway.endpoint("e0").await;
        endpoint["state"] == "ready" && endpoint["reason"] == ""
    })
    .await;
    gateway.at_rest().await;
}

/// Preflights were answered 404, 405 or 401, and a path that a client joined badly was redirected: see `front`. Here the
/// prefix finds home by any spelling of a known path.
#[tokio::test]
async fn known_paths_are_known_with_a_final_slash_and_a_query() {
    let fleet = Fleet::start().await;
    let body = chat(&text("alpha"), false);
    let home = fleet.place(CHAT, &body).await;
    assert_eq!(home.decision, "cold");
    for path in [
        "/v1/chat/completions/",
        "/v1/chat/completions?x=1",
        "/v1/chat/completions/?x=1",
    ] {
        let placed = fleet.place(path, &body).await;
        assert_eq!(
            (placed.decision.as_str(), &placed.endpoint),
            ("warm", &home.endpoint),
            "{path}"
        );
    }
    for path in [
        "//v1/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/%63hat/completions",
    ] {
        let placed = fleet.place(path, &body).await;
        assert_eq!(placed.decision, "unkeyed", "{path}");
    }
}

/// The list of models failed while any one server was down.
#[tokio::test]
async fn the_list_of_models_needs_one_healthy_server() {
    let list = json!({ "object": "list", "data": [{ "id": "m", "object": "model" }] }).to_string();
    let up = Upstream::start(move |_, _| Script::json(&list)).await;
    let hangs = Upstream::start(|_, _| Script::hang()).await;
    let gone = Upstream::echo().await;
    let setup = Setup::of([gone.address, up.address, hangs.address]);
    let gateway = setup.start().await;
    for name in ["e0", "e1", "e2"] {
        gateway.endpoint_is(name, "ready").await;
    }
    drop(gone);
    hangs.set_health(503);
    for _ in 0..50 {
        let mut client = Client::connect(gateway.data).await;
        client.request("GET", "/v1/models", "").await;
        let response = client.response().await;
        assert_eq!(
            (response.status, &response.json()["data"][0]["id"]),
            (200, &json!("m"))
        );
    }
}
