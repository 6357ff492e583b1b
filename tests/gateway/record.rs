//! Live traffic as a trace that `homing replay` reads, and what least-cost says of its predictions.

use crate::support::{Gateway, Setup, eventually};
use homing::sim::engine::FleetPreset;
use homing::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use tokio::net::TcpListener;

struct Fleet {
    _sims: Vec<SimServer>,
    gateway: Gateway,
}

impl Fleet {
    async fn start(top: &str) -> Self {
        let mut sims = Vec::new();
        for _ in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let options = SimOptions::new(FleetPreset::Llama31On1H100, 16);
            sims.push(SimServer::start(listener, options).unwrap());
        }
        let setup = Setup::of(sims.iter().map(SimServer::addr)).top(top);
        let gateway = setup.start().await;
        for pod in ["e0", "e1"] {
            gateway.endpoint_is(pod, "ready").await;
        }
        Self { _sims: sims, gateway }
    }

    async fn complete(&self, prompt: &str, stream: bool) {
        let options = if stream {
            json!({ "include_usage": true })
        } else {
            Value::Null
        };
        let body = json!({
            "model": "sim", "prompt": prompt, "max_tokens": 4, "stream": stream, "stream_options": options,
        });
        let mut client = self.gateway.client().await;
        client.post("/v1/completions", body.to_string()).await;
        let response = client.response().await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
}

/// About 4,000 tokens, the same for all up to the last word.
fn long_prompt(last: usize) -> String {
    format!("{} {last}", "the secret word ".repeat(1300))
}

fn replay(trace: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_homing"))
        .args([
            "replay",
            "--policy",
            "least-cost",
            "--endpoints",
            "2",
            "--warmup",
            "0",
        ])
        .args(["--format", "json", "--trace"])
        .arg(trace)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_traffic_replays_and_holds_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let mut fleet = Fleet::start(&format!("record: '{}'", trace.display())).await;
    for n in 0..6 {
        fleet.complete(&long_prompt(n), n % 2 == 0).await;
    }
    fleet.gateway.at_rest().await;
    fleet.gateway.signal("TERM");
    assert_eq!(fleet.gateway.exit().await.code(), Some(0));
    let text = std::fs::read_to_string(&trace).unwrap();
    assert!(!text.contains("secret"));
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6);
    for line in &lines {
        assert_eq!(line["output_length"], 4);
        assert!(
            (3000..6000).contains(&line["input_length"].as_u64().unwrap()),
            "{line}"
        );
        let (ids, first) = (
            line["hash_ids"].as_array().unwrap(),
            lines[0]["hash_ids"].as_array().unwrap(),
        );
        assert!(ids.len() > 8, "{line}");
        assert_eq!(
            ids[..ids.len() - 1],
            first[..first.len() - 1],
            "all but the last word is shared"
        );
    }
    assert_ne!(
        lines[0]["hash_ids"].as_array().unwrap().last(),
        lines[1]["hash_ids"].as_array().unwrap().last()
    );
    let row = replay(&trace);
    assert_eq!(row["requests"], 6);
    // Five of six find all but the last block or two, less what the ones before them are still computing.
    let hit_rate = row["hit_rate"].as_f64().unwrap();
    assert!((0.4..0.84).contains(&hit_rate), "{hit_rate}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predictions_are_compared_and_every_term_of_the_cost_is_seen() {
    let fleet = Fleet::start("").await;
    for n in 0..4 {
        fleet.complete(&long_prompt(n), true).await;
    }
    fleet.complete(&long_prompt(9), false).await;
    fleet.gateway.at_rest().await;
    let metrics = fleet.gateway.metrics().await;
    let compared = metrics.sum("homing_time_to_first_byte_predicted_ratio_count", "");
    assert_eq!(
        compared, 4.0,
        "the first byte of a whole answer says nothing of its prefill"
    );
    for term in ["prefill", "drag"] {
        assert!(
            metrics.sum("homing_cost_seconds_total", &format!("term=\"{term}\"")) > 0.0,
            "{term}"
        );
    }
    assert!(
        metrics
            .all("homing_learnt_prefill_seconds_per_token")
            .all(|seconds| seconds > 0.0)
    );
    eventually("the decisions are kept", async || {
        let decisions = fleet.gateway.admin("GET", "/decisions?limit=1").await;
        let decisions: Value = serde_json::from_slice(&decisions).unwrap();
        let terms = &decisions[0]["candidates"][0]["terms"];
        decisions[0]["predicted_ttfb_ms"]
            .as_f64()
            .is_some_and(|ms| ms > 0.0)
            && ["wait", "prefill", "drag", "crowding", "overflow"]
                .iter()
                .all(|term| terms[term].is_f64())
    })
    .await;
}
