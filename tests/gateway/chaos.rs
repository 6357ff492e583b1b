//! Servers that are killed, one after another, under constant load: no request that has not seen a byte of its response
//! may fail for it.
//!
//! `HOMING_CHAOS_SECONDS` sets how long the long form runs.

use super::support::{Client, Gateway, Setup, eventually, free_address};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::json;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Time between two requests.
const EVERY: Duration = Duration::from_millis(40);
/// Time between two kills.
const KILL_EVERY: Duration = Duration::from_secs(2);
/// How long a killed server stays away.
const AWAY: Duration = Duration::from_millis(1200);

/// A simulated model server in a process of its own.
struct Sim {
    address: SocketAddr,
    process: Child,
}

impl Sim {
    fn start(address: SocketAddr) -> Self {
        let process = Command::new(env!("CARGO_BIN_EXE_homing"))
            .args(["sim", "--speed", "4", "--listen", &address.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the simulated server starts");
        Self { address, process }
    }

    /// SIGKILL: no connection is closed by the server itself.
    fn kill(&mut self) {
        self.process.kill().expect("a running process");
        self.process.wait().expect("a child");
    }

    async fn listens(&self) {
        eventually("the server listens", async || {
            TcpStream::connect(self.address).await.is_ok()
        })
        .await;
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How one request went.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Well,
    /// Its stream broke after the first byte: the client saw that.
    Cut,
    /// An error instead of a response.
    Failed(u16),
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    end: End,
    first_byte: Duration,
}

async fn request(to: SocketAddr, n: usize) -> Seen {
    let mut rng = Pcg64Mcg::seed_from_u64(n as u64);
    let prefix = rng.random_range(0..12);
    let prompt = format!("{prefix} {} {n}", "what all of these have in common ".repeat(40));
    let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 24, "stream": n.is_multiple_of(2) });
    let started = Instant::now();
    let mut client = Client::connect(to).await;
    client.post("/v1/completions", body.to_string()).await;
    let Some(mut response) = client.head().await else {
        return Seen {
            end: End::Failed(0),
            first_byte: started.elapsed(),
        };
    };
    let first_byte = started.elapsed();
    client.body(&mut response).await;
    let end = match (response.status, response.complete) {
        (200, true) => End::Well,
        (200, false) => End::Cut,
        (status, _) => End::Failed(status),
    };
    Seen { end, first_byte }
}

/// One request every [`EVERY`] until `until`, whatever becomes of those before.
async fn load(to: SocketAddr, until: Instant, first: usize) -> Vec<Seen> {
    let started = Instant::now();
    let mut requests = Vec::new();
    for n in 0.. {
        let at = started + EVERY * n;
        if at >= until {
            break;
        }
        tokio::time::sleep_until(at.into()).await;
        requests.push(tokio::spawn(request(to, first + n as usize)));
    }
    let mut seen = Vec::new();
    for request in requests {
        seen.push(request.await.expect("the client does not fail"));
    }
    seen
}

fn worst(seen: &[Seen]) -> Duration {
    seen.iter().map(|seen| seen.first_byte).max().unwrap_or_default()
}

fn median(seen: &[Seen]) -> Duration {
    let mut times: Vec<_> = seen.iter().map(|seen| seen.first_byte).collect();
    times.sort();
    times[times.len() / 2]
}

async fn killing(sims: &mut [Sim], until: Instant) -> usize {
    let mut kills = 0;
    while Instant::now() + KILL_EVERY < until {
        let turn = Instant::now();
        let sim = &mut sims[kills % 3];
        sim.kill();
        tokio::time::sleep(AWAY).await;
        *sim = Sim::start(sim.address);
        sim.listens().await;
        kills += 1;
        tokio::time::sleep_until((turn + KILL_EVERY).into()).await;
    }
    kills
}

async fn gateway_before(sims: &[Sim]) -> Gateway {
    let pool = "health: { interval: 200ms, timeout: 500ms }\nslow_start: 1s\nretry_budget: { ratio: 1 }";
    let gateway = Setup::of(sims.iter().map(|sim| sim.address))
        .pool(pool)
        .start()
        .await;
    for name in ["e0", "e1", "e2"] {
        gateway.endpoint_is(name, "ready").await;
    }
    gateway
}

async fn servers_are_killed(quiet: Duration, wild: Duration) {
    let mut sims: Vec<Sim> = (0..3).map(|_| Sim::start(free_address())).collect();
    for sim in &sims {
        sim.listens().await;
    }
    let gateway = Arc::new(gateway_before(&sims).await);
    let calm = load(gateway.data, Instant::now() + quiet, 0).await;
    assert!(calm.iter().all(|seen| seen.end == End::Well), "before any kill");

    let until = Instant::now() + wild;
    let loaded = tokio::spawn(load(gateway.data, until, calm.len()));
    let kills = killing(&mut sims, until).await;
    let seen = loaded.await.expect("the load ends");
    let cut = seen.iter().filter(|seen| seen.end == End::Cut).count();
    let failed: Vec<_> = seen
        .iter()
        .filter(|seen| matches!(seen.end, End::Failed(_)))
        .collect();
    let retries = gateway.metrics().await.sum("homing_retries_total", "");
    println!(
        "{kills} kills, {} requests: {} failed before a response byte, {cut} streams cut, {retries} retries; \
         first byte: median {} ms before, {} ms under kills; worst {} ms before, {} ms under kills",
        seen.len(),
        failed.len(),
        median(&calm).as_millis(),
        median(&seen).as_millis(),
        worst(&calm).as_millis(),
        worst(&seen).as_millis(),
    );
    assert!(kills >= 3 && retries > 0.0, "nothing was killed in earnest");
    assert!(failed.is_empty(), "{failed:?}");
    gateway.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_costs_no_request_that_waits_for_its_first_byte() {
    servers_are_killed(Duration::from_secs(1), Duration::from_secs(9)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn for_a_minute() {
    let seconds = std::env::var("HOMING_CHAOS_SECONDS").map_or(60, |text| text.parse().unwrap());
    servers_are_killed(Duration::from_secs(15), Duration::from_secs(seconds)).await;
}
