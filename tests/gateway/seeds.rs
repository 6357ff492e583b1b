//! The two promises over real sockets: a known prompt is pulled home, newcomers spread.

use crate::support::{Client, Gateway, Setup};
use homing::sim::engine::FleetPreset;
use homing::sim::server::{SimOptions, SimServer};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::TcpListener;

/// Tokens per KV block, as in the experiments that are repeated here.
const BLOCK_TOKENS: u32 = 128;
const PODS: usize = 3;
const NEWCOMERS: usize = 30;

struct Fleet {
    sims: Vec<SimServer>,
    gateway: Gateway,
}

impl Fleet {
    async fn start(settings: &str) -> Self {
        let mut sims = Vec::new();
        for _ in 0..PODS {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let options = SimOptions::new(FleetPreset::Llama31On1H100, BLOCK_TOKENS);
            sims.push(SimServer::start(listener, options).unwrap());
        }
        let setup = Setup::of(sims.iter().map(SimServer::addr))
            .top("response_headers: always")
            .pool(settings);
        let gateway = setup.start().await;
        for pod in ["e0", "e1", "e2"] {
            gateway.endpoint_is(pod, "ready").await;
        }
        Self { sims, gateway }
    }

    /// Sends a prompt and says who served it and how many of its blocks the gateway believed cached there.
    async fn complete(&self, prompt: &str) -> (String, String) {
        let mut client = self.gateway.client().await;
        complete(
            &mut client,
            json!({ "model": "sim", "prompt": prompt, "max_tokens": 4 }),
        )
        .await
    }

    /// Streams that begin 5 ms after each other: while some begin, others end.
    async fn streams_in_a_row(&self, prompts: &[String]) -> BTreeMap<String, usize> {
        let stream = async |(at, prompt): (usize, &String)| {
            tokio::time::sleep(Duration::from_millis(5 * at as u64)).await;
            let mut client = self.gateway.client().await;
            let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 4, "stream": true });
            complete(&mut client, body).await
        };
        count(futures_util::future::join_all(prompts.iter().enumerate().map(stream)).await)
    }

    async fn at_once(&self, prompts: &[String]) -> BTreeMap<String, usize> {
        let served = futures_util::future::join_all(prompts.iter().map(|prompt| self.complete(prompt))).await;
        count(served)
    }

    async fn in_turn(&self, prompts: &[String]) -> BTreeMap<String, usize> {
        let mut served = Vec::new();
        for prompt in prompts {
            served.push(self.complete(prompt).await);
        }
        count(served)
    }

    /// Prefix cache hits of each pod, in tokens.
    fn hits(&self) -> Vec<u64> {
        self.sims
            .iter()
            .map(|sim| sim.counters().prefix_cache_hits)
            .collect()
    }
}

async fn complete(client: &mut Client, body: serde_json::Value) -> (String, String) {
    client.post("/v1/completions", body.to_string()).await;
    let response = client.response().await;
    assert_eq!(response.status, 200, "{}", response.text());
    let header = |name| response.header(name).unwrap().to_owned();
    (header("x-homing-endpoint"), header("x-homing-prefix-match"))
}

fn count(served: Vec<(String, String)>) -> BTreeMap<String, usize> {
    served.into_iter().fold(BTreeMap::new(), |mut counts, (pod, _)| {
        *counts.entry(pod).or_default() += 1;
        counts
    })
}

fn newcomers(first: usize) -> Vec<String> {
    let prompt = |n| format!("Write one sentence about topic number {n} in cloud computing.");
    (first..first + NEWCOMERS).map(prompt).collect()
}

fn assert_even(preset: &str, counts: &BTreeMap<String, usize>) {
    let even = counts.len() == PODS && counts.values().all(|&n| n == NEWCOMERS / PODS);
    assert!(even, "{preset}: {counts:?}");
}

/// A prompt of one whole block and part of a second.
fn prompt_of_207_tokens() -> String {
    format!("Notes:{}", " and".repeat(205))
}

async fn experiment_a(fleet: &Fleet) {
    let prompt = prompt_of_207_tokens();
    let (home, first_match) = fleet.complete(&prompt).await;
    assert!(first_match.starts_with("0/"), "{first_match}");
    let at = fleet
        .sims
        .iter()
        .position(|sim| sim.counters().prompt_tokens > 0)
        .unwrap();
    assert_eq!(fleet.sims[at].counters().prompt_tokens, 207);
    for repeat in 1..6 {
        let (pod, _) = fleet.complete(&prompt).await;
        assert_eq!(pod, home, "repeat {repeat}");
        let hits = fleet.hits();
        // As measured on a real vLLM: 0, 128, 256, ... 640 on one pod, 0 elsewhere.
        assert_eq!(hits[at], u64::from(repeat * BLOCK_TOKENS));
        assert_eq!(hits.iter().sum::<u64>(), hits[at], "{hits:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_prompt_is_pulled_home_and_newcomers_still_spread() {
    let fleet = Fleet::start("").await;
    experiment_a(&fleet).await;
    assert_even("default", &fleet.at_once(&newcomers(0)).await);
    assert_even("default", &fleet.in_turn(&newcomers(NEWCOMERS)).await);
    fleet.gateway.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_shorter_than_one_block_hits_nothing() {
    let fleet = Fleet::start("").await;
    for _ in 0..6 {
        fleet
            .complete("Say hello to everybody who is not here yet.")
            .await;
    }
    assert_eq!(fleet.hits(), [0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomers_spread_with_metrics_that_are_five_seconds_old() {
    for preset in ["least-cost", "optimized-baseline"] {
        let settings =
            format!("metrics: {{ interval: 5s, stale_after: 10s }}\nscheduling: {{ preset: {preset} }}");
        let fleet = Fleet::start(&settings).await;
        // Again and again: what a response of one burst tells of its endpoint is old news in the next.
        for round in 0..8 {
            let first = 2 * round * NEWCOMERS;
            assert_even(preset, &fleet.streams_in_a_row(&newcomers(first)).await);
            assert_even(preset, &fleet.at_once(&newcomers(first + NEWCOMERS)).await);
        }
        assert_even(preset, &fleet.in_turn(&newcomers(16 * NEWCOMERS)).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_preset_answers_and_the_even_ones_spread() {
    for preset in [
        "least-cost",
        "sticky",
        "round-robin",
        "random",
        "least-request",
        "optimized-baseline",
    ] {
        let fleet = Fleet::start(&format!("scheduling: {{ preset: {preset} }}")).await;
        let counts = fleet.at_once(&newcomers(0)).await;
        assert_eq!(counts.values().sum::<usize>(), NEWCOMERS, "{preset}");
        if preset != "random" && preset != "sticky" {
            assert_even(preset, &counts);
        }
    }
}
