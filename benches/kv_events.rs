//! Decoding and applying an engine's KV events on one core, in blocks per second.

use divan::{Bencher, black_box, counter::ItemsCount};
use homing::kv_events::codec::decode;
use homing::kv_events::ownership::{BlockSink, Limits, Ownership};
use serde_json::{Value, json};

fn main() {
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

fn apply(ownership: &mut Ownership, messages: &[Vec<u8>], sink: &mut Count) {
    for message in messages {
        for event in decode(black_box(message)).expect("well-formed").events {
            ownership.apply(&event, sink);
        }
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
