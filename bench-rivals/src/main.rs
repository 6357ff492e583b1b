//! The prefix index beside smg's `kv-index` and Dynamo's `dynamo-kv-router`, interleaved in one run.
//!
//! `cargo run --release --manifest-path bench-rivals/Cargo.toml [ROUNDS]`. What is measured: `README.md`.

mod chains;
mod heap;
mod indexes;
mod latency;

#[path = "../../src"]
mod homing {
    pub mod prefix;
}
use homing::prefix;

use chains::{Chain, Shape};
use indexes::{Dynamo, Homing, Index, KvIndex};
use latency::Percentiles;
use std::time::Instant;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

const SHAPES: [Shape; 2] = [
    Shape {
        chains: 20_000,
        blocks: 64,
    },
    Shape {
        chains: 4_000,
        blocks: 512,
    },
];

/// What one index did in one round.
struct Round {
    stored_per_s: f64,
    bytes_per_block: f64,
    alone: Percentiles,
    beside_writer: Percentiles,
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(5, |rounds| rounds.parse().expect("a number of rounds"));
    println!(
        "| index | store, M blocks/s | find p50 / p99, us | beside a writer p50 / p99, us | bytes per block-owner |"
    );
    for shape in SHAPES {
        let (chains, others) = (shape.make(0), shape.make(shape.chains as u64));
        println!(
            "| **{} chains of {} blocks** | | | | |",
            shape.chains, shape.blocks
        );
        let mut found: [Vec<Round>; 3] = Default::default();
        for number in 0..rounds {
            // Nobody always follows the same neighbour.
            for at in (0..3).map(|at| (at + number) % 3) {
                found[at].push(match at {
                    0 => round::<Homing>(&chains, &others),
                    1 => round::<KvIndex>(&chains, &others),
                    _ => round::<Dynamo>(&chains, &others),
                });
            }
        }
        for (name, rounds) in [Homing::NAME, KvIndex::NAME, Dynamo::NAME].iter().zip(&found) {
            report(name, rounds);
        }
    }
}

fn round<I: Index>(chains: &[Chain], others: &[Chain]) -> Round {
    let blocks = chains.iter().map(|chain| chain.blocks.len()).sum::<usize>();
    let wanted: Vec<_> = chains.iter().map(I::wanted).collect();
    let block_owners = chains::block_owners(chains);
    let (index, seconds, bytes) = filled::<I>(chains, block_owners);
    for (chain, wanted) in chains.iter().zip(&wanted).step_by(97) {
        assert_eq!(
            index.find(wanted),
            chain.blocks.len(),
            "{} knows what it was told",
            I::NAME
        );
    }
    let alone = latency::of(&index, &wanted);
    drop(index);
    let (index, ..) = filled::<I>(chains, block_owners + chains::block_owners(others));
    let beside_writer = latency::beside_writer(&index, &wanted, others);
    Round {
        stored_per_s: blocks as f64 / seconds,
        bytes_per_block: bytes as f64 / block_owners as f64,
        alone,
        beside_writer,
    }
}

/// An index with room for `block_owners` that holds `chains`, the seconds that storing them took, and its bytes.
fn filled<I: Index>(chains: &[Chain], block_owners: usize) -> (I, f64, usize) {
    let before = heap::bytes();
    let prepared: Vec<_> = chains.iter().map(I::prepare).collect();
    let mut index = I::new(block_owners);
    let begun = Instant::now();
    // What was prepared is used up, so that none of it is left to be counted below.
    prepared.into_iter().for_each(|chain| index.store(chain));
    index.drain();
    let seconds = begun.elapsed().as_secs_f64();
    (index, seconds, heap::bytes() - before)
}

fn report(name: &str, rounds: &[Round]) {
    let of = |value: &dyn Fn(&Round) -> f64| {
        let mut values: Vec<_> = rounds.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        (values[values.len() / 2], values[0], values[values.len() - 1])
    };
    let (stored, least, most) = of(&|round| round.stored_per_s / 1e6);
    let median = |value: &dyn Fn(&Round) -> f64| of(value).0;
    println!(
        "| {name} | {stored:.1} ({least:.1}–{most:.1}) | {:.2} / {:.2} | {:.2} / {:.2} | {:.0} |",
        median(&|round| round.alone.p50_us),
        median(&|round| round.alone.p99_us),
        median(&|round| round.beside_writer.p50_us),
        median(&|round| round.beside_writer.p99_us),
        median(&|round| round.bytes_per_block),
    );
}
