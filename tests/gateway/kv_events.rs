//! Exact ownership: what the gateway predicts is what the engines then report as cached.

use crate::support::prompts::shared_prefixes;
use crate::support::{Client, Gateway, Setup, eventually};
use homing::sim::engine::{BlockContent, EngineEvent, EngineSpec, FleetPreset};
use homing::sim::kv_publisher::{KvPublisher, KvPublisherOptions};
use homing::sim::server::{BlockEventSink, SimOptions, SimServer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;
use zeromq::{Socket, SocketRecv, SocketSend};

const BLOCK_SIZE: u32 = 16;
/// Few, so that most requests evict something.
const NUM_BLOCKS: u32 = 60;

/// A simulated engine and its publisher.
struct Engine {
    server: SimServer,
    publisher: Arc<KvPublisher>,
}

impl Engine {
    async fn start(block_size: u32, replay: bool, seed: u64) -> Self {
        Self::at("127.0.0.1:0", "tcp://127.0.0.1:0", block_size, replay, seed).await
    }

    async fn at(http: &str, events: &str, block_size: u32, replay: bool, seed: u64) -> Self {
        let options = KvPublisherOptions {
            replay: replay.then(|| "tcp://127.0.0.1:0".to_owned()),
            ..KvPublisherOptions::new(events, block_size, seed)
        };
        let publisher = Arc::new(KvPublisher::bind(options).await.unwrap());
        let defaults = SimOptions::new(FleetPreset::Instant, block_size);
        let num_blocks = NUM_BLOCKS * BLOCK_SIZE / block_size;
        let options = SimOptions {
            engine: EngineSpec {
                num_blocks,
                ..defaults.engine
            },
            max_model_len: NUM_BLOCKS * BLOCK_SIZE,
            lora_modules: vec!["adapter".to_owned()],
            block_events: Some(publisher.clone()),
            kv_event_sources: vec![publisher.source()],
            ..defaults
        };
        let server = SimServer::start(TcpListener::bind(http).await.unwrap(), options).unwrap();
        Self { server, publisher }
    }

    /// The endpoint as it stands in a configuration.
    fn yaml(&self, name: &str) -> String {
        let (url, events) = (self.server.addr(), self.publisher.events_address());
        let replay = self.publisher.replay_address();
        let replay = replay.map_or(String::new(), |address| format!(", kv_replay: '{address}'"));
        format!("{{ name: {name}, url: 'http://{url}', kv_events: '{events}'{replay} }}")
    }

    async fn post(&self, path: &str, body: &Value) -> u16 {
        post(self.server.addr(), path, body).await.0
    }
}

async fn post(to: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let mut client = Client::connect(to).await;
    client.post(path, body.to_string()).await;
    let response = client.response().await;
    let json = serde_json::from_slice(&response.body).unwrap_or(Value::Null);
    (response.status, json)
}

const EXACT: &str = "prefix_cache: { source: kv-events }\nmetrics: { interval: 20ms }";

fn setup(engines: &[Engine], settings: &str) -> Setup {
    let endpoints = engines.iter().enumerate();
    let setup = endpoints.fold(Setup::default(), |setup, (n, engine)| {
        setup.endpoint(&engine.yaml(&format!("e{n}")))
    });
    setup.top("response_headers: always").pool(settings)
}

async fn started(engines: &[Engine], settings: &str) -> Gateway {
    let gateway = setup(engines, settings).start().await;
    ready(&gateway, engines.len()).await;
    gateway
}

async fn ready(gateway: &Gateway, engines: usize) {
    eventually("block sizes, adapters and event streams are known", async || {
        let mut known = true;
        for n in 0..engines {
            let endpoint = gateway.endpoint(&format!("e{n}")).await;
            known &= endpoint["state"] == "ready"
                && endpoint["kv_events"][0]["connected"] == true
                && endpoint["adapters"] == json!(["adapter"])
                && !endpoint["capacity_tokens"].is_null();
        }
        known
    })
    .await;
}

/// Waits until the gateway has applied everything that was published.
async fn caught_up(gateway: &Gateway, engines: &[Engine]) {
    eventually("all events are applied", async || {
        let mut caught_up = true;
        for (n, engine) in engines.iter().enumerate() {
            let endpoint = gateway.endpoint(&format!("e{n}")).await;
            let last = endpoint["kv_events"][0]["last_sequence"].as_u64();
            caught_up &= last.map_or(0, |last| last + 1) == engine.publisher.published();
        }
        caught_up
    })
    .await;
}

async fn explain(gateway: &Gateway, body: &Value) -> Value {
    post(gateway.admin, "/explain?path=/v1/completions", body).await.1
}

/// Sends a request and returns the predicted and the reported match in tokens.
pub async fn ask(gateway: &Gateway, path: &str, body: &Value) -> (u64, u64) {
    let (predicted, reported, _) = ask_for(gateway, path, body).await;
    (predicted, reported)
}

/// As [`ask`], and the answer.
async fn ask_for(gateway: &Gateway, path: &str, body: &Value) -> (u64, u64, Value) {
    let (status, answer) = post(gateway.data, path, body).await;
    assert_eq!(status, 200, "{answer}");
    gateway.at_rest().await;
    let decisions: Value = serde_json::from_slice(&gateway.admin("GET", "/decisions?limit=1").await).unwrap();
    let predicted = decisions[0]["predicted_cached_tokens"].as_u64().unwrap();
    let reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(decisions[0]["reported_cached_tokens"].as_u64(), reported);
    (predicted, reported.unwrap(), answer)
}

fn completion(rng: &mut StdRng) -> Value {
    let mut body = json!({
        "model": if rng.random_range(0..4) == 0 { "adapter" } else { "sim" },
        "prompt": shared_prefixes(rng),
        "max_tokens": rng.random_range(1..40),
    });
    if rng.random_range(0..4) == 0 {
        body["cache_salt"] = json!("tenant");
    }
    body
}

/// A few words of a text, and others after them.
fn words(rng: &mut StdRng, text: u32) -> String {
    let shared = (0..rng.random_range(0..120_u32)).map(|at| (text, at));
    let own = (0..rng.random_range(1..20_u32)).map(|at| (100 + text * rng.random_range(1..9_u32), at));
    let word = |(text, at)| format!("word{} ", text * 1000 + at);
    shared
        .chain(own)
        .collect::<Vec<_>>()
        .into_iter()
        .map(word)
        .collect()
}

/// Requests of every kind whose token ids are known, and the conversations that they go on with.
struct Requests {
    rng: StdRng,
    conversations: [Vec<Value>; 3],
}

impl Requests {
    fn new(seed: u64) -> Self {
        let system = |n: usize| vec![json!({"role": "system", "content": "Be brief. ".repeat(4 + 20 * n)})];
        Self {
            rng: StdRng::seed_from_u64(seed),
            conversations: [0, 1, 2].map(system),
        }
    }

    /// Path and body, and the conversation that waits for an answer.
    fn next(&mut self) -> (&'static str, Value, Option<usize>) {
        let rng = &mut self.rng;
        let text = rng.random_range(0..5);
        let (path, mut body, conversation) = match rng.random_range(0..5) {
            0 => return ("/v1/completions", completion(rng), None),
            1 => ("/v1/completions", json!({"prompt": words(rng, text)}), None),
            2 => {
                let at = rng.random_range(0..self.conversations.len());
                let messages = &mut self.conversations[at];
                if messages.len() > 6 {
                    messages.truncate(1);
                }
                messages
                    .push(json!({"role": "user", "content": format!("And {}?", rng.random_range(0..90))}));
                ("/v1/chat/completions", json!({"messages": messages}), Some(at))
            }
            kind => {
                let mut messages = vec![json!({"role": "user", "content": words(rng, text)})];
                if rng.random_bool(0.7) {
                    messages.insert(0, self.conversations[text as usize % 3][0].clone());
                }
                let mut body = json!({"messages": messages});
                if kind == 4 {
                    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
                    body["tools"] = ["weather", "price", "route"][..rng.random_range(1..=3)]
                        .iter()
                        .map(|name| tool(name))
                        .collect();
                }
                ("/v1/chat/completions", body, None)
            }
        };
        body["model"] = json!(if conversation.is_none() && rng.random_bool(0.2) {
            "adapter"
        } else {
            "sim"
        });
        body["max_tokens"] = json!(rng.random_range(1..40));
        (path, body, conversation)
    }

    fn heard(&mut self, conversation: usize, answer: &Value) {
        let said = &answer["choices"][0]["message"]["content"];
        self.conversations[conversation].push(json!({"role": "assistant", "content": said}));
    }
}

/// Completions of texts and token ids, chats with system messages and tools, growing conversations, adapters and salts,
/// on engines of different block sizes that evict all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predictions_of_five_hundred_prompts_are_what_the_engines_report() {
    let engines = [
        Engine::start(BLOCK_SIZE, true, 1).await,
        Engine::start(BLOCK_SIZE, false, 2).await,
        Engine::start(2 * BLOCK_SIZE, true, 3).await,
    ];
    let gateway = started(&engines, &format!("{EXACT}\ntokenizer: {{ engine: true }}")).await;
    let mut requests = Requests::new(20_261_130);
    let (mut right, mut hits) = (0, 0);
    for _ in 0..500 {
        caught_up(&gateway, &engines).await;
        let (path, body, conversation) = requests.next();
        let (predicted, reported, answer) = ask_for(&gateway, path, &body).await;
        if let Some(conversation) = conversation {
            requests.heard(conversation, &answer);
        }
        right += u32::from(predicted == reported);
        hits += reported;
    }
    assert!(right >= 495, "{right} of 500 were right");
    assert!(hits > 5_000, "the engines reused only {hits} tokens");
    let mut removed = 0;
    for n in 0..engines.len() {
        let events = gateway.endpoint(&format!("e{n}")).await["kv_events"][0].clone();
        assert_eq!(
            (&events["gaps"], &events["malformed_messages"]),
            (&json!(0), &json!(0))
        );
        removed += events["removed_blocks"].as_u64().unwrap();
    }
    assert!(removed > 300, "only {removed} blocks were evicted");
    let samples = gateway.metrics().await;
    assert_eq!(
        samples.sum("homing_predictions_total", "comparison=\"exact\""),
        f64::from(right)
    );
    assert_eq!(
        samples.sum("homing_reported_cached_tokens_total", ""),
        hits as f64
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_and_reset_of_an_engine_are_noticed() {
    let mut engines = [Engine::start(BLOCK_SIZE, false, 4).await];
    let gateway = started(&engines, EXACT).await;
    let prompt = |text: u32| json!({"model": "sim", "prompt": vec![text; 200], "max_tokens": 2});
    for text in 0..3 {
        assert_eq!(ask(&gateway, "/v1/completions", &prompt(text)).await, (0, 0));
    }
    caught_up(&gateway, &engines).await;
    assert_eq!(ask(&gateway, "/v1/completions", &prompt(1)).await, (192, 192));
    assert_eq!(engines[0].post("/reset_prefix_cache", &json!({})).await, 200);
    // Engines publish with their next step.
    assert_eq!(ask(&gateway, "/v1/completions", &prompt(3)).await, (0, 0));
    caught_up(&gateway, &engines).await;
    assert_eq!(ask(&gateway, "/v1/completions", &prompt(1)).await, (0, 0));
    caught_up(&gateway, &engines).await;
    assert_eq!(ask(&gateway, "/v1/completions", &prompt(1)).await, (192, 192));

    let (http, events) = (
        engines[0].server.addr().to_string(),
        engines[0].publisher.events_address().to_owned(),
    );
    let [old] = engines;
    old.server.kill();
    old.server.shutdown().await;
    drop(old.publisher);
    eventually("the engine is gone", async || {
        let endpoint = gateway.endpoint("e0").await;
        let error = endpoint["kv_events"][0]["error"].as_str().unwrap_or_default();
        endpoint["state"] == "unready" && error.contains("refused")
    })
    .await;
    engines = [Engine::at(&http, &events, BLOCK_SIZE, false, 5).await];
    gateway.endpoint_is("e0", "ready").await;
    eventually("nothing of the old engine is left", async || {
        let endpoint = gateway.endpoint("e0").await;
        endpoint["index_blocks"] == 0 && endpoint["kv_events"][0]["connected"] == true
    })
    .await;
    assert_eq!(ask(&gateway, "/v1/completions", &prompt(1)).await, (0, 0));
    caught_up(&gateway, &engines).await;
    assert_eq!(ask(&gateway, "/v1/completions", &prompt(1)).await, (192, 192));
}

/// Passes events on and loses some of them.
struct Lossy {
    address: String,
    passed: Arc<AtomicU64>,
}

impl Lossy {
    async fn of(publisher: &KvPublisher, lost: impl Fn(u64) -> bool + Send + 'static) -> Self {
        let mut events = zeromq::SubSocket::new();
        events.connect(publisher.events_address()).await.unwrap();
        events.subscribe("").await.unwrap();
        let mut publisher = zeromq::PubSocket::new();
        let address = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let passed = Arc::new(AtomicU64::new(0));
        let counter = passed.clone();
        tokio::spawn(async move {
            while let Ok(message) = events.recv().await {
                if !lost(counter.fetch_add(1, Ordering::SeqCst)) {
                    let _ = publisher.send(message).await;
                }
            }
        });
        Self { address, passed }
    }
}

/// One message in 25 is lost. With a replay socket nothing is missed; without one, what is forgotten is found
/// again, and what is gone is never believed to be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_events_are_replayed_or_forgotten() {
    for replay in [true, false] {
        let engine = Engine::start(BLOCK_SIZE, replay, 6).await;
        let lossy = Lossy::of(&engine.publisher, |at| at % 25 == 24).await;
        let replays = engine.publisher.replay_address();
        let replays = replays.map_or(String::new(), |address| format!(", kv_replay: '{address}'"));
        let endpoint = format!(
            "{{ name: e0, url: 'http://{}', kv_events: '{}'{replays} }}",
            engine.server.addr(),
            lossy.address
        );
        let gateway = Setup::default().endpoint(&endpoint).pool(EXACT).start().await;
        ready(&gateway, 1).await;
        let mut rng = StdRng::seed_from_u64(7);
        let (mut right, mut over) = (0, 0);
        for _ in 0..200 {
            eventually("what was not lost is applied", async || {
                let published = engine.publisher.published();
                let last = gateway.endpoint("e0").await["kv_events"][0]["last_sequence"].as_u64();
                let newest_is_lost = published > 0 && (published - 1) % 25 == 24;
                lossy.passed.load(Ordering::SeqCst) == published
                    && last.map_or(0, |last| last + 1) == published - u64::from(newest_is_lost)
            })
            .await;
            let newest_is_lost = engine.publisher.published() % 25 == 0;
            let (predicted, reported) = ask(&gateway, "/v1/completions", &completion(&mut rng)).await;
            right += u32::from(predicted == reported);
            over += u32::from(predicted > reported && !newest_is_lost);
        }
        let events = gateway.endpoint("e0").await["kv_events"][0].clone();
        assert_eq!(over, 0, "{events}");
        if replay {
            assert!(right >= 190 && events["gaps"] == 0, "{right} {events}");
        } else {
            assert!(events["gaps"].as_u64() > Some(3), "{events}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_agree_without_talking_to_each_other() {
    let engines = [
        Engine::start(BLOCK_SIZE, true, 8).await,
        Engine::start(BLOCK_SIZE, true, 9).await,
    ];
    let gateways = [started(&engines, EXACT).await, started(&engines, EXACT).await];
    let mut rng = StdRng::seed_from_u64(10);
    let mut matched = 0;
    for turn in 0..100 {
        for gateway in &gateways {
            caught_up(gateway, &engines).await;
        }
        let body = completion(&mut rng);
        let seen = [
            explain(&gateways[0], &body).await,
            explain(&gateways[1], &body).await,
        ];
        let matches = seen.each_ref().map(matches_by_endpoint);
        assert_eq!(matches[0], matches[1], "{body}");
        matched += matches[0].iter().map(|(_, tokens)| tokens).sum::<u64>();
        ask(&gateways[turn % 2], "/v1/completions", &body).await;
    }
    assert!(matched > 1_000, "{matched}");
}

/// Matched tokens of each candidate of a decision.
fn matches_by_endpoint(decision: &Value) -> Vec<(String, u64)> {
    let mut matches: Vec<_> = decision["candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|candidate| {
            let tokens = candidate["matched_tokens"].as_u64().unwrap();
            (candidate["endpoint"].as_str().unwrap().to_owned(), tokens)
        })
        .collect();
    matches.sort();
    matches
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_prompt_leaves_nothing_in_the_index() {
    let engines = [Engine::start(BLOCK_SIZE, true, 11).await];
    let gateway = started(&engines, EXACT).await;
    let refused = json!({"model": "no-such-model", "prompt": vec![7; 200], "max_tokens": 2});
    let (status, _) = post(gateway.data, "/v1/completions", &refused).await;
    assert_eq!(status, 404);
    gateway.at_rest().await;
    assert_eq!(gateway.endpoint("e0").await["index_blocks"], 0);
}

/// Texts and conversations are asked for at an engine's `/tokenize`, and then known as exactly as token ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_and_chats_are_exact_with_the_engines_tokenizer() {
    let engines = [
        Engine::start(BLOCK_SIZE, true, 12).await,
        Engine::start(BLOCK_SIZE, true, 13).await,
    ];
    let gateway = started(&engines, &format!("{EXACT}\ntokenizer: {{ engine: true }}")).await;
    let mut rng = StdRng::seed_from_u64(14);
    let tools =
        json!([{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]);
    let (mut right, mut hits) = (0, 0);
    let mut messages = vec![json!({"role": "system", "content": "Be brief. ".repeat(30)})];
    for turn in 0..60 {
        caught_up(&gateway, &engines).await;
        let words = format!(
            "Question {} about it: {}",
            turn % 7,
            "why and ".repeat(rng.random_range(0..30))
        );
        let (predicted, reported) = if turn % 3 == 0 {
            let prompt = format!("{}{words}", "Shared text. ".repeat(20));
            let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 4});
            ask(&gateway, "/v1/completions", &body).await
        } else {
            messages.truncate(if turn % 15 == 0 { 1 } else { 7 });
            messages.push(json!({"role": "user", "content": words}));
            let mut body = json!({"model": "sim", "messages": messages, "max_tokens": 4});
            if turn % 2 == 0 {
                body["tools"] = tools.clone();
            }
            ask(&gateway, "/v1/chat/completions", &body).await
        };
        right += u32::from(predicted == reported);
        hits += reported;
    }
    assert!(
        right >= 59 && hits > 2_000,
        "{right} of 60 were right, {hits} tokens hit"
    );
    let samples = gateway.metrics().await;
    assert_eq!(
        samples.sum("homing_tokenizations_total", "outcome=\"success\""),
        60.0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_says_what_each_endpoint_has() {
    let engines = [Engine::start(BLOCK_SIZE, true, 15).await];
    let gone = crate::support::free_address();
    let setup = setup(&engines, &format!("{EXACT}\ntokenizer: {{ engine: true }}"))
        .endpoint(&format!("{{ name: gone, url: 'http://{gone}' }}"));
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("homing.yaml");
    let (data, admin) = (crate::support::free_address(), crate::support::free_address());
    std::fs::write(&config, setup.yaml(data, admin)).unwrap();
    let probe = tokio::process::Command::new(env!("CARGO_BIN_EXE_homing"))
        .args(["check", "--probe", "--format", "json", "--config"])
        .arg(&config)
        .output();
    let output = probe.await.unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = |endpoint: usize, what: &str| {
        let findings = said["endpoints"][endpoint]["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["what"] == what);
        let found = found.unwrap_or_else(|| panic!("nothing on {what}: {said}"));
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (text("grade"), text("text"))
    };
    // 60 and the one that vLLM keeps back.
    assert_eq!(finding(0, "blocks"), ("good".into(), "61 of 16 tokens".into()));
    assert_eq!(finding(0, "prefix caching"), ("good".into(), "on".into()));
    assert_eq!(finding(0, "usage details").0, "good");
    let (grade, text) = finding(0, "KV events");
    assert!(grade == "good" && text.contains("last sequence"), "{text}");
    let (grade, text) = finding(0, "tokenizer");
    assert!(grade == "good" && text.contains("the engine's own"), "{text}");
    assert!(finding(0, "model").1.contains("adapters adapter"));
    assert_eq!(finding(1, "models").0, "bad");
    assert_eq!(output.status.code(), Some(1), "an endpoint does not answer");
}

/// With the model's files at hand nobody is asked; what they cannot render is keyed by its bytes and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_files_give_tokens_and_the_rest_falls_back() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-model");
    let tokenizer = homing::tokens::Tokenizer::load(model.as_ref(), None, 0).unwrap();
    let engines = [Engine::start(BLOCK_SIZE, true, 16).await];
    let gateway = started(&engines, &format!("{EXACT}\ntokenizer: {{ path: '{model}' }}")).await;
    // The longer one is tokenized off the workers.
    for text in [
        "The quick brown fox.".to_owned(),
        "Over the lazy dog. ".repeat(400),
    ] {
        let ids = tokenizer.encode(&text, true).unwrap();
        let seen = explain(&gateway, &json!({"model": "sim", "prompt": text})).await;
        assert_eq!(seen["prompt_tokens"], ids.len(), "{text:.20}");
        assert_eq!(seen["blocks"], ids.len() / BLOCK_SIZE as usize);
    }
    let image = json!({"model": "sim", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is this? ".repeat(40)},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]}]});
    let (_, seen) = post(gateway.admin, "/explain?path=/v1/chat/completions", &image).await;
    assert!(seen["blocks"].as_u64() > Some(0), "{seen}");
    let samples = gateway.metrics().await;
    let count = |outcome: &str| samples.sum("homing_tokenizations_total", &format!("outcome=\"{outcome}\""));
    assert_eq!((count("success"), count("unsupported")), (2.0, 1.0));
}

/// Data-parallel ranks publish on ports in a row, each with numbers of its own; a block is the endpoint's while any of
/// them holds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_publish_on_ports_in_a_row() {
    let engine = Engine::start(BLOCK_SIZE, false, 17).await;
    let ports = crate::support::free_ports_in_a_row(2);
    let mut ranks = Vec::new();
    for (rank, address) in ports.iter().enumerate() {
        let options = KvPublisherOptions::new(&format!("tcp://{address}"), BLOCK_SIZE, 18 + rank as u64);
        ranks.push(KvPublisher::bind(options).await.unwrap());
    }
    let endpoint = format!("{{ name: e0, url: 'http://{}' }}", engine.server.addr());
    let events = format!("kv_events: {{ endpoint: 'tcp://{}', ranks: 2 }}", ports[0]);
    let gateway = Setup::default()
        .endpoint(&endpoint)
        .pool(&format!("{EXACT}\n{events}"))
        .start()
        .await;
    eventually("both ranks are heard", async || {
        let endpoint = gateway.endpoint("e0").await;
        let connected = |rank: usize| endpoint["kv_events"][rank]["connected"] == true;
        endpoint["state"] == "ready" && connected(0) && connected(1)
    })
    .await;
    let prompt: Vec<u32> = (0..81).collect();
    let content = Arc::new(BlockContent {
        tokens: prompt.clone(),
        ..BlockContent::default()
    });
    let stored = |first: u32, count: u32| EngineEvent::BlocksStored {
        content: Some(content.clone()),
        first_block: first,
        hashes: (first..first + count).map(|block| u64::from(block) + 1).collect(),
        parent: (first > 0).then_some(u64::from(first)),
    };
    let removed = |block: u64| EngineEvent::BlockRemoved { hash: block };
    let matches = async |expected: u64| {
        eventually("the match follows the events", async || {
            let seen = explain(&gateway, &json!({"model": "sim", "prompt": prompt})).await;
            seen["candidates"][0]["matched_tokens"].as_u64() == Some(expected)
        })
        .await;
    };
    ranks[0].publish(&[stored(0, 2)]);
    matches(32).await;
    ranks[1].publish(&[stored(0, 5)]);
    matches(80).await;
    ranks[0].publish(&[removed(2), removed(1)]);
    ranks[1].publish(&[removed(5)]);
    matches(64).await;
    let samples = gateway.metrics().await;
    assert_eq!(samples.sum("homing_kv_events_connected_ranks", ""), 2.0);
    // A rank that starts anew takes with it what only it held.
    drop(ranks.pop());
    matches(0).await;
}
