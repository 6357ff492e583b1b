//! The whole decision as a request gets it: parse, hash, look up, score, pick, reserve.

use bytes::Bytes;
use divan::Bencher;
use futures_util::FutureExt;
use homing::config::Config;
use homing::lifecycle::server;
use homing::openai::PathKind;
use homing::pool::health::Thresholds;
use homing::proxy::Gateway;
use http::HeaderMap;
use std::fmt::Write as _;

fn main() {
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

fn decide(bencher: Bencher, endpoints: usize, bytes: usize, preset: &str) {
    let gateway = gateway(endpoints, preset);
    let bodies: Vec<_> = (0..256).map(|i| body(bytes, i % 16, i)).collect();
    let headers = HeaderMap::new();
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % bodies.len();
        // Without a tokenizer there is nothing to wait for.
        let inspected = gateway
            .inspect(PathKind::Completions, &bodies[next], &headers)
            .now_or_never();
        let Some(Ok(inspected)) = inspected else {
            unreachable!("one pool serves every model");
        };
        let mut plan = inspected.pool.place(inspected.prompt, gateway.now());
        plan.confirm();
        plan
    });
}

#[divan::bench(args = ["optimized-baseline", "least-cost"])]
fn prompt_4_kib_8_endpoints(bencher: Bencher, preset: &str) {
    decide(bencher, 8, 4 * 1024, preset);
}

#[divan::bench(args = ["optimized-baseline", "least-cost"])]
fn prompt_128_kib_64_endpoints(bencher: Bencher, preset: &str) {
    decide(bencher, 64, 128 * 1024, preset);
}

#[divan::bench(args = ["optimized-baseline", "least-cost"])]
fn prompt_4_kib_512_endpoints(bencher: Bencher, preset: &str) {
    decide(bencher, 512, 4 * 1024, preset);
}
