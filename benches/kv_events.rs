//! Decoding and applying an engine's KV events on one core, in blocks per second. Printed first: the whole way from
//! messages to the prefix index while another thread looks prompts up in it, and what that does to the lookups.
//!
//! `cargo bench --bench kv_events`

use divan::{Bencher, black_box, counter::ItemsCount};
use homing::kv_events::codec::decode;
use homing::kv_events::ownership::{BlockSink, Limits, Ownership};
use homing::kv_events::sink::IndexSink;
use homing::prefix::{BlockHash, EndpointId, PrefixIndex, block_hash};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn main() {
    // `cargo test --benches` and list modes only want to see that it runs.
    if std::env::args().any(|arg| arg == "--bench") {
        [16, 128].into_iter().for_each(print_beside_lookups);
    }
    divan::main();
}

const BLOCKS: u64 = 20_000;
const BLOCKS_PER_PROMPT: u64 = 50;

/// Counts only: what the index does with a block is measured with the index.
#[derive(Default)]
struct Count(u64);

impl BlockSink for Count {
    fn insert(&mut self, _: u64) {
        self.0 += 1;
    }

    fn remove(&mut self, _: u64) {
        self.0 -= 1;
    }

    fn clear(&mut self) {
        self.0 = 0;
    }
}

fn name(block: u64) -> u64 {
    block.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Messages as vLLM 0.32 publishes them: a prompt's blocks in one event, each removal in its own.
fn messages(block_size: u64, event: impl Fn(std::ops::Range<u64>, u64) -> Vec<Value>) -> Vec<Vec<u8>> {
    let prompts = (0..BLOCKS).step_by(BLOCKS_PER_PROMPT as usize);
    let batch = |first| json!([1.7e9, event(first..first + BLOCKS_PER_PROMPT, block_size), 0]);
    prompts
        .map(|first| rmp_serde::to_vec(&batch(first)).expect("a JSON value"))
        .collect()
}

fn stored(blocks: std::ops::Range<u64>, block_size: u64) -> Vec<Value> {
    let tokens: Vec<u64> = (blocks.start * block_size..blocks.end * block_size)
        .map(|t| t % 150_000)
        .collect();
    vec![json!({
        "type": "BlockStored", "block_hashes": blocks.clone().map(name).collect::<Vec<_>>(),
        "parent_block_hash": null, "token_ids": tokens, "block_size": block_size, "lora_id": null, "medium": "GPU",
        "lora_name": null, "extra_keys": vec![Value::Null; blocks.count()], "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    })]
}

fn removed(blocks: std::ops::Range<u64>, _: u64) -> Vec<Value> {
    let event = |block| json!({"type": "BlockRemoved", "block_hashes": [name(block)], "medium": "GPU", "group_idx": 0});
    blocks.rev().map(event).collect()
}

fn apply(ownership: &mut Ownership, messages: &[Vec<u8>], sink: &mut impl BlockSink) {
    for message in messages {
        for event in decode(black_box(message)).expect("well-formed").events {
            ownership.apply(&event, sink);
        }
        sink.flush();
    }
}

#[divan::bench(args = [16, 64, 128])]
fn store(bencher: Bencher, block_size: u64) {
    let messages = messages(block_size, stored);
    bencher
        .counter(ItemsCount::new(BLOCKS))
        .with_inputs(|| Ownership::new(Limits::default()))
        .bench_local_values(|mut ownership| {
            let mut sink = Count::default();
            apply(&mut ownership, &messages, &mut sink);
            sink.0
        });
}

/// A full cache at work: everything is stored and evicted again.
#[divan::bench(args = [16, 128])]
fn store_and_remove(bencher: Bencher, block_size: u64) {
    let (stores, removes) = (messages(block_size, stored), messages(block_size, removed));
    let (mut ownership, mut sink) = (Ownership::new(Limits::default()), Count::default());
    bencher.counter(ItemsCount::new(2 * BLOCKS)).bench_local(|| {
        apply(&mut ownership, &stores, &mut sink);
        apply(&mut ownership, &removes, &mut sink);
    });
}

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(400);
const OWNERS: usize = 8;
const CHAIN: usize = 64;

/// CPU time of this thread so far: other processes on the machine do not count.
fn cpu_time() -> Duration {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = spent.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("Linux tells how long a thread ran"))
}

/// An index at work: eight endpoints hold the prompts that are looked up, and many others.
struct Index {
    index: Arc<PrefixIndex>,
    ids: Vec<EndpointId>,
    prompts: Vec<Vec<BlockHash>>,
}

impl Index {
    fn new() -> Self {
        let index = Arc::new(PrefixIndex::new(256 << 20));
        let ids: Vec<_> = (0..OWNERS).filter_map(|_| index.register(1 << 18)).collect();
        let chain = |name: u64| {
            let next = |&parent: &u64| Some(block_hash(parent, &name.to_le_bytes()));
            std::iter::successors(Some(block_hash(name, b"")), next)
                .take(CHAIN)
                .collect::<Vec<_>>()
        };
        let prompts: Vec<_> = (0..1024).map(chain).collect();
        for path in &prompts {
            ids.iter().for_each(|&id| index.insert(id, path));
        }
        Self { index, ids, prompts }
    }

    /// CPU nanoseconds per lookup.
    fn look_up(&self) -> f64 {
        let (begun, started) = (Instant::now(), cpu_time());
        let mut out = [0; OWNERS];
        let mut lookups = 0_u32;
        while begun.elapsed() < ROUND {
            for path in &self.prompts {
                self.index.matches(black_box(path), &mut out);
            }
            lookups += self.prompts.len() as u32;
        }
        (cpu_time() - started).as_nanos() as f64 / f64::from(lookups)
    }

    /// Stores and evicts blocks of the first endpoint until `done`; millions of blocks per CPU second.
    fn apply(&self, rounds: &[Vec<Vec<u8>>; 2], done: impl Fn() -> bool) -> f64 {
        let mut sink = IndexSink::new(Arc::clone(&self.index), self.ids[0]);
        let mut ownership = Ownership::new(Limits::default());
        let started = cpu_time();
        let mut blocks = 0;
        while !done() {
            rounds
                .iter()
                .for_each(|messages| apply(&mut ownership, messages, &mut sink));
            blocks += 2 * BLOCKS;
        }
        blocks as f64 / (cpu_time() - started).as_secs_f64() / 1e6
    }
}

/// Rounds alone and together take turns, so that a busy machine disturbs both alike; medians.
fn print_beside_lookups(block_size: u64) {
    let work = Index::new();
    let rounds = [messages(block_size, stored), messages(block_size, removed)];
    let mut seen = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        seen[0].push(work.look_up());
        let begun = Instant::now();
        seen[1].push(work.apply(&rounds, || begun.elapsed() >= ROUND));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| work.apply(&rounds, || done.load(Ordering::Relaxed)));
            seen[2].push(work.look_up());
            done.store(true, Ordering::Relaxed);
            seen[3].push(writer.join().expect("the writer ends"));
        });
    }
    let [lookup, rate, lookup_beside, rate_beside] = seen.map(|mut of| {
        of.sort_by(f64::total_cmp);
        of[ROUNDS / 2]
    });
    println!(
        "blocks of {block_size} tokens, stored and removed: {rate:.1} M blocks/s, {rate_beside:.1} beside lookups; \
         a lookup of {CHAIN} blocks: {lookup:.0} ns, {lookup_beside:.0} beside events ({:+.0} %)",
        (lookup_beside / lookup - 1.0) * 100.0
    );
}
