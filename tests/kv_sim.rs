//! The whole way of KV events: a simulated engine with a small cache, its publisher, the subscriber, the index.
//! At rest the prefix match must be what the engine then reports as cached.

use homing::kv_events::chain::{self, Lora, Root};
use homing::kv_events::ownership::Limits;
use homing::kv_events::sink::IndexSink;
use homing::kv_events::subscriber::{Source, Subscription};
use homing::prefix::{EndpointId, PrefixIndex};
use homing::sim::engine::FleetPreset;
use homing::sim::kv_publisher::{EventFormat, KvPublisher, KvPublisherOptions};
use homing::sim::server::{SimOptions, SimServer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

#[path = "gateway/support/prompts.rs"]
mod prompts;

use prompts::shared_prefixes;

const BLOCK_SIZE: u32 = 16;
/// Few, so that most requests evict something.
const NUM_BLOCKS: u32 = 60;

struct Engine {
    server: SimServer,
    client: reqwest::Client,
    subscription: Subscription,
    index: Arc<PrefixIndex>,
    endpoint: EndpointId,
    messages: Arc<KvPublisher>,
}

impl Engine {
    async fn start(format: EventFormat) -> Self {
        let options = KvPublisherOptions {
            replay: Some("tcp://127.0.0.1:0".to_owned()),
            format,
            ..KvPublisherOptions::new("tcp://127.0.0.1:0", BLOCK_SIZE, 0x5eed)
        };
        let publisher = Arc::new(KvPublisher::bind(options).await.unwrap());
        let defaults = SimOptions::new(FleetPreset::Instant, BLOCK_SIZE);
        let options = SimOptions {
            engine: homing::sim::engine::EngineSpec {
                num_blocks: NUM_BLOCKS,
                ..defaults.engine
            },
            max_model_len: NUM_BLOCKS * BLOCK_SIZE,
            lora_modules: vec!["adapter".to_owned()],
            block_events: Some(publisher.clone()),
            kv_event_sources: vec![publisher.source()],
            ..defaults
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = SimServer::start(listener, options).unwrap();
        let index = Arc::new(PrefixIndex::new(16 << 20));
        let endpoint = index.register(10_000).unwrap();
        let source = Source {
            events: publisher.events_address().parse().unwrap(),
            replay: publisher.replay_address().map(|address| address.parse().unwrap()),
            topic: String::new(),
        };
        let sink = IndexSink::new(Arc::clone(&index), endpoint);
        let subscription = Subscription::spawn(source, Limits::default(), sink);
        let client = reqwest::Client::new();
        Self {
            server,
            client,
            subscription,
            index,
            endpoint,
            messages: publisher,
        }
    }

    /// Sends a request and returns how many prompt tokens the engine had cached.
    async fn cached_tokens(&self, body: &Value) -> u64 {
        let url = format!("http://{}/v1/completions", self.server.addr());
        let response = self.client.post(url).json(body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let answer: Value = response.json().await.unwrap();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    }

    fn predicted_tokens(&self, root: Root<'_>, prompt: &[u32]) -> u64 {
        let usable = &prompt[..prompt.len() - 1];
        let chain: Vec<_> = chain::of_prompt(root, usable, BLOCK_SIZE).collect();
        let mut matches = [0; 8];
        self.index.matches(&chain, &mut matches);
        u64::from(matches[usize::from(self.endpoint.0)] * BLOCK_SIZE)
    }

    /// Waits until everything that was published has been applied.
    async fn caught_up(&self) {
        for _ in 0..2000 {
            let status = self.subscription.status();
            let published = self.messages.published();
            if status.last_sequence.map_or(0, |last| last + 1) == published {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("{:?}", self.subscription.status());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predictions_are_what_the_engine_reports() {
    for format in [EventFormat::Map, EventFormat::Array] {
        let engine = Engine::start(format).await;
        let mut rng = StdRng::seed_from_u64(20_261_129);
        let (mut hits, mut removed) = (0, 0);
        for _ in 0..250 {
            let prompt = shared_prefixes(&mut rng);
            let lora = if rng.random_range(0..4) == 0 {
                Lora::Name("adapter")
            } else {
                Lora::None
            };
            let salt = (rng.random_range(0..4) == 0).then_some("tenant");
            let model = if lora == Lora::None { "sim" } else { "adapter" };
            let mut body = json!({"model": model, "prompt": prompt, "max_tokens": rng.random_range(1..40)});
            if let Some(salt) = salt {
                body["cache_salt"] = json!(salt);
            }
            engine.caught_up().await;
            let predicted = engine.predicted_tokens(
                Root {
                    lora,
                    cache_salt: salt,
                },
                &prompt,
            );
            assert_eq!(predicted, engine.cached_tokens(&body).await, "{body}");
            hits += predicted;
            removed = engine.subscription.status().events.removed_blocks;
        }
        assert!(hits > 5_000 && removed > 500, "{hits} {removed}");
        let status = engine.subscription.status();
        assert_eq!((status.stream.gaps, status.stream.malformed_events), (0, 0));
        assert_eq!(
            status.events.dropped_orphan_blocks + status.events.unknown_removals,
            0
        );
    }
}
