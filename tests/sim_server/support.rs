//! Starting servers, and talking to them.

use homing::sim::engine::{FleetPreset, TimingModel};
use homing::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::net::TcpListener;

/// A running server and a client for it.
pub struct Pod {
    pub server: SimServer,
    pub client: reqwest::Client,
}

/// An instant server with blocks of 128 tokens, called `tiny` as in the captures.
pub fn tiny() -> SimOptions {
    SimOptions {
        models: vec!["tiny".into()],
        ..SimOptions::new(FleetPreset::Instant, 128)
    }
}

/// Steps of 5 ms, so that an output of many tokens takes a while.
pub fn slow() -> SimOptions {
    let mut options = tiny();
    options.engine.timing = TimingModel {
        step_overhead: 5e-3,
        ..TimingModel::INSTANT
    };
    options
}

impl Pod {
    pub async fn start(options: SimOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            server: SimServer::start(listener, options).unwrap(),
            client: reqwest::Client::new(),
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.addr())
    }

    pub async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.client.post(self.url(path)).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.unwrap()
    }

    pub async fn complete(&self, prompt: impl Into<Value>, max_tokens: u32) -> Value {
        self.post(
            "/v1/completions",
            json!({"prompt": prompt.into(), "max_tokens": max_tokens}),
        )
        .await
    }

    pub async fn text(&self, path: &str) -> String {
        self.client
            .get(self.url(path))
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    }

    /// Samples of `/metrics` by name and labels.
    pub async fn metrics(&self) -> BTreeMap<String, f64> {
        let page = self.text("/metrics").await;
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| line.rsplit_once(' ').unwrap())
            .map(|(k, v)| (k.to_owned(), v.parse().unwrap()))
            .collect()
    }

    /// A `vllm:` sample with no labels but engine and model.
    pub async fn metric(&self, name: &str) -> f64 {
        self.metrics().await[&format!("vllm:{name}{{engine=\"0\",model_name=\"tiny\"}}")]
    }

    /// Waits until as many requests are in flight.
    pub async fn until_in_flight(&self, wanted: usize) {
        let reached = async {
            while self.server.in_flight() != wanted {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), reached)
            .await
            .unwrap_or_else(|_| panic!("{} in flight, expected {wanted}", self.server.in_flight()));
    }
}

/// (event name, data) of each server-sent event.
pub fn events(body: &str) -> Vec<(Option<String>, String)> {
    body.split_terminator("\n\n")
        .map(|event| {
            let name = event
                .lines()
                .find_map(|line| line.strip_prefix("event: "))
                .map(str::to_owned);
            (
                name,
                event
                    .lines()
                    .find_map(|line| line.strip_prefix("data: "))
                    .unwrap()
                    .to_owned(),
            )
        })
        .collect()
}
