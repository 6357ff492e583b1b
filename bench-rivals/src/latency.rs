//! How long a find takes, one by one.

use crate::chains::Chain;
use crate::indexes::{Index, Writer};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

const SAMPLES: usize = 200_000;

pub struct Percentiles {
    pub p50_us: f64,
    pub p99_us: f64,
}

/// The clock's own cost, about 20 ns, is included.
pub fn of<I: Index>(index: &I, wanted: &[I::Wanted]) -> Percentiles {
    let mut nanos: Vec<u64> = Vec::with_capacity(SAMPLES);
    let mut at = 0;
    for _ in 0..SAMPLES {
        // A stride that is prime to the number of chains visits all, in no order that caches like.
        at = (at + 7919) % wanted.len();
        let begun = Instant::now();
        black_box(index.find(black_box(&wanted[at])));
        nanos.push(begun.elapsed().as_nanos() as u64);
    }
    nanos.sort_unstable();
    let us = |share: f64| nanos[(SAMPLES as f64 * share) as usize] as f64 / 1e3;
    Percentiles {
        p50_us: us(0.5),
        p99_us: us(0.99),
    }
}

/// The same while a thread stores `others` again and again.
pub fn beside_writer<I: Index>(index: &I, wanted: &[I::Wanted], others: &[Chain]) -> Percentiles {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = index.writer();
            for chain in others.iter().cycle() {
                writer.store(chain);
                if done.load(Relaxed) {
                    break;
                }
            }
        });
        let found = of(index, wanted);
        done.store(true, Relaxed);
        found
    })
}
