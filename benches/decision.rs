//! The whole decision as a request gets it: parse, hash, look up, score, pick, reserve, confirm. Printed first: how long
//! the slowest take, which a median hides.
//!
//! `cargo bench --bench decision`

use bytes::Bytes;
use divan::Bencher;
use futures_util::FutureExt;
use homing::config::Config;
use homing::lifecycle::server;
use homing::openai::PathKind;
use homing::pool::Plan;
use homing::pool::health::Thresholds;
use homing::proxy::Gateway;
use http::HeaderMap;
use std::fmt::Write as _;
use std::time::Instant;

/// As in the gateway.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PRESETS: [&str; 2] = ["optimized-baseline", "least-cost"];
/// Bytes of the prompt, endpoints to choose from.
const CELLS: [(usize, usize); 3] = [(4 << 10, 8), (128 << 10, 64), (4 << 10, 512)];

fn main() {
    // `cargo test --benches` and list modes only want to see that it runs.
    if std::env::args().any(|arg| arg == "--bench") {
        for preset in PRESETS {
            CELLS
                .iter()
                .for_each(|&(bytes, endpoints)| print_percentiles(bytes, endpoints, preset));
        }
    }
    divan::main();
}

/// A gateway whose `endpoints` are all ready; nothing listens anywhere.
fn gateway(endpoints: usize, preset: &str) -> Gateway {
    let mut text = format!(
        "access_log: {{ to: off }}\npools:\n  - scheduling: {{ preset: {preset} }}\n    endpoints:\n"
    );
    for i in 0..endpoints {
        let _ = writeln!(
            text,
            "      - {{ name: pod-{i}, url: \"http://127.0.0.1:{}\" }}",
            10_000 + i
        );
    }
    let gateway = server::gateway(&Config::parse(&text, "bench").unwrap()).unwrap();
    let thresholds = Thresholds {
        unhealthy_after: 1,
        healthy_after: 1,
    };
    for pool in gateway.pools.load().iter() {
        for at in 0..endpoints {
            pool.update(at, |status| {
                status.health_checked(gateway.now(), Ok(()), thresholds)
            });
        }
    }
    gateway
}

/// A completion request with a prompt of `bytes`, the first half of which all requests of a group share.
fn body(bytes: usize, group: usize, unique: usize) -> Bytes {
    let words = |seed: usize, bytes: usize| -> String {
        let mut text = String::with_capacity(bytes + 16);
        let mut n = seed;
        while text.len() < bytes {
            n = n
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let _ = write!(text, "word{} ", n >> 48);
        }
        text.truncate(bytes);
        text
    };
    let prompt = words(group, bytes / 2) + &words(1_000_000 + unique, bytes / 2);
    serde_json::json!({ "model": "m", "prompt": prompt, "max_tokens": 64 })
        .to_string()
        .into()
}

/// Decides on one prompt after the other; each may find what others of its group left.
struct Decisions {
    gateway: Gateway,
    bodies: Vec<Bytes>,
    headers: HeaderMap,
    next: usize,
}

impl Decisions {
    fn new(bytes: usize, endpoints: usize, preset: &str) -> Self {
        Self {
            gateway: gateway(endpoints, preset),
            bodies: (0..256).map(|i| body(bytes, i % 16, i)).collect(),
            headers: HeaderMap::new(),
            next: 0,
        }
    }

    fn decide(&mut self) -> Plan {
        self.next = (self.next + 1) % self.bodies.len();
        // Without a tokenizer there is nothing to wait for.
        let inspected = self
            .gateway
            .inspect(PathKind::Completions, &self.bodies[self.next], &self.headers)
            .now_or_never();
        let Some(Ok(inspected)) = inspected else {
            unreachable!("one pool serves every model");
        };
        let mut plan = inspected.pool.place(inspected.prompt, self.gateway.now());
        plan.confirm();
        plan
    }
}

/// The clock's own cost, about 20 ns, is included.
fn print_percentiles(bytes: usize, endpoints: usize, preset: &str) {
    let mut decisions = Decisions::new(bytes, endpoints, preset);
    let mut sample = || {
        let begun = Instant::now();
        let plan = decisions.decide();
        let elapsed = begun.elapsed();
        drop(plan);
        elapsed
    };
    (0..1000).for_each(|_| {
        sample();
    });
    let mut samples: Vec<_> = (0..20_000).map(|_| sample()).collect();
    samples.sort_unstable();
    let us = |share: f64| samples[(samples.len() as f64 * share) as usize].as_nanos() as f64 / 1e3;
    println!(
        "{preset}, {} KiB, {endpoints} endpoints: p50 {:.1} us, p90 {:.1}, p99 {:.1}, p99.9 {:.1}",
        bytes >> 10,
        us(0.5),
        us(0.9),
        us(0.99),
        us(0.999)
    );
}

#[divan::bench(args = PRESETS)]
fn prompt_4_kib_8_endpoints(bencher: Bencher, preset: &str) {
    let mut decisions = Decisions::new(4 << 10, 8, preset);
    bencher.bench_local(|| decisions.decide());
}

#[divan::bench(args = PRESETS)]
fn prompt_128_kib_64_endpoints(bencher: Bencher, preset: &str) {
    let mut decisions = Decisions::new(128 << 10, 64, preset);
    bencher.bench_local(|| decisions.decide());
}

#[divan::bench(args = PRESETS)]
fn prompt_4_kib_512_endpoints(bencher: Bencher, preset: &str) {
    let mut decisions = Decisions::new(4 << 10, 512, preset);
    bencher.bench_local(|| decisions.decide());
}
