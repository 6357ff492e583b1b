//! Any bytes as a stream of KV event messages: a byte for the sequence number, two for the length, the payload.
#![no_main]

use homing::kv_events::ownership::{BlockSink, Limits};
use homing::kv_events::tracker::{Next, Tracker};
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;

/// How many names each block is held under.
#[derive(Default)]
struct Index(HashMap<u64, u32>);

impl BlockSink for Index {
    fn insert(&mut self, block: u64) {
        *self.0.entry(block).or_default() += 1;
    }

    fn remove(&mut self, block: u64) {
        *self.0.get_mut(&block).filter(|names| **names > 0).expect("removed without an insertion") -= 1;
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

const LIMITS: Limits = Limits { blocks: 64, orphan_tokens: 512 };

fuzz_target!(|data: &[u8]| {
    let Some((&mode, mut rest)) = data.split_first() else { return };
    let (mut tracker, mut index) = (Tracker::new(LIMITS, mode % 2 == 0), Index::default());
    while let [sequence, high, low, after @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(after.len());
        let (payload, others) = after.split_at(len);
        let sequence = u64::from(*sequence);
        if let Next::Replay { .. } = tracker.live(sequence, payload, &mut index) {
            tracker.resume(sequence, payload, &mut index);
        }
        let held: u32 = index.0.values().sum();
        assert_eq!(held as usize, tracker.ownership().owned_blocks());
        assert!(held as usize <= LIMITS.blocks);
        rest = others;
    }
    if mode % 3 == 0 {
        tracker.reset(&mut index);
        assert!(index.0.is_empty());
    }
});
