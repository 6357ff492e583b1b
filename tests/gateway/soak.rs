//! Mixed load for a long time: what the process holds must not grow. `loadtest/soak` runs it.

use super::random_endings::{ENDINGS, behave, run};
use super::support::{Client, Gateway, Setup, Upstream, chat};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const CHAT: &str = "/v1/chat/completions";
const CLIENTS: u64 = 16;
/// Share of the run after which nothing may grow any more.
const WARM_UP: f64 = 0.25;

/// What the process holds at one moment.
#[derive(Clone, Copy, Debug)]
struct Held {
    at: Duration,
    rss_kib: u64,
    files: usize,
}

struct Soak {
    gateway: Gateway,
    go_on: AtomicBool,
    requests: AtomicU64,
    reloads: AtomicU64,
    setups: [Setup; 2],
}

impl Soak {
    /// Requests that end in every way there is.
    async fn endings(self: Arc<Self>, seed: u64) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        while self.go_on.load(Ordering::Relaxed) {
            let ending = ENDINGS[rng.random_range(0..ENDINGS.len())];
            let prompt = format!(
                "{} {}",
                "word ".repeat(rng.random_range(1..400)),
                rng.random_range(0..1000)
            );
            run(&self.gateway, ending, &prompt).await;
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Large bodies on a kept connection.
    async fn large_bodies(self: Arc<Self>, seed: u64) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut client = self.gateway.client().await;
        while self.go_on.load(Ordering::Relaxed) {
            let body = chat(&"x".repeat(rng.random_range(10_000..60_000)), false);
            client.post_with(CHAT, "x-ending: Json\r\n", body).await;
            let response = client.response().await;
            assert_eq!(response.status, 200, "{response:?}");
            if response.header("connection") == Some("close") {
                client = Client::connect(self.gateway.data).await;
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Another configuration every few seconds.
    async fn reloads(self: Arc<Self>) {
        let mut turn = 0;
        while self.go_on.load(Ordering::Relaxed) {
            turn += 1;
            let yaml = self.setups[turn % 2].yaml(self.gateway.data, self.gateway.admin);
            std::fs::write(&self.gateway.config, yaml).expect("a writable file");
            self.gateway.signal("HUP");
            self.reloads.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }
}

async fn watch(soak: &Soak, length: Duration) -> Vec<Held> {
    let started = Instant::now();
    let mut held = Vec::new();
    while started.elapsed() < length {
        held.push(Held {
            at: started.elapsed(),
            rss_kib: soak.gateway.memory_kib("VmRSS"),
            files: soak.gateway.open_files(),
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    held
}

/// Medians over the third after the warm-up and over the last one.
fn first_and_last<T: Copy + Ord>(values: &[T]) -> (T, T) {
    let median = |part: &[T]| {
        let mut part = part.to_vec();
        part.sort();
        part[part.len() / 2]
    };
    let third = values.len() / 3;
    (median(&values[..third]), median(&values[values.len() - third..]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn nothing_grows() {
    let seconds: u64 = std::env::var("HOMING_SOAK_SECONDS").map_or(600, |text| text.parse().unwrap());
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Upstream::start_forgetful(behave).await);
    }
    let setup = |count: usize| {
        Setup::of(servers.iter().take(count).map(|server| server.address))
            .top("limits: { request_body: 64KiB }")
            .pool(
                "timeouts: { first_byte: 1s, idle: 1s }\nretries: 1\nretry_budget: { ratio: 10 }\n\
                 ejection: { consecutive_failures: 0, failure_ratio: 1, min_requests: 4000000 }",
            )
    };
    let setups = [setup(3), setup(2)];
    let soak = Arc::new(Soak {
        gateway: setups[0].clone().start().await,
        go_on: AtomicBool::new(true),
        requests: AtomicU64::new(0),
        reloads: AtomicU64::new(0),
        setups,
    });
    let mut load = JoinSet::new();
    for client in 0..CLIENTS {
        load.spawn(soak.clone().endings(client));
    }
    for client in 0..2 {
        load.spawn(soak.clone().large_bodies(client));
    }
    load.spawn(soak.clone().reloads());
    let held = watch(&soak, Duration::from_secs(seconds)).await;
    soak.go_on.store(false, Ordering::Relaxed);
    while let Some(ended) = load.join_next().await {
        ended.expect("every answer is as it must be");
    }
    soak.gateway.at_rest().await;
    report(&soak, &held);
}

fn report(soak: &Soak, held: &[Held]) {
    for moment in held.iter().step_by((held.len() / 20).max(1)) {
        println!(
            "{:>4} s  RSS {:>7} KiB  {:>4} open files",
            moment.at.as_secs(),
            moment.rss_kib,
            moment.files
        );
    }
    let warm = &held[(held.len() as f64 * WARM_UP) as usize..];
    let rss = first_and_last(&warm.iter().map(|held| held.rss_kib).collect::<Vec<_>>());
    let files = first_and_last(&warm.iter().map(|held| held.files).collect::<Vec<_>>());
    println!(
        "{} requests, {} reloads; after the warm-up: RSS {} -> {} KiB, open files {} -> {}",
        soak.requests.load(Ordering::Relaxed),
        soak.reloads.load(Ordering::Relaxed),
        rss.0,
        rss.1,
        files.0,
        files.1
    );
    assert!(
        rss.1 as f64 <= rss.0 as f64 * 1.05,
        "the memory grows: {rss:?} KiB"
    );
    assert!(
        files.1 as f64 <= files.0 as f64 * 1.1 + 10.0,
        "open files grow: {files:?}"
    );
}
