//! Hashing and the prefix index: throughput by divan, then what a median hides, printed first: lookup
//! latencies with and without a writer at full speed, and memory per block.
//!
//! `cargo bench --bench prefix`

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use homing::prefix::{BlockHash, ChainHasher, Chunking, EndpointId, PrefixIndex, block_hash, seed};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const OWNERS: usize = 8;
const CHAIN: usize = 64;

fn main() {
    // `cargo test --benches` and list modes only want to see that it runs.
    if std::env::args().any(|arg| arg == "--bench") {
        print_lookup_latency();
        print_memory_per_block();
    }
    divan::main();
}

fn chain(name: u64, len: usize) -> Vec<BlockHash> {
    let next = |&parent: &u64| Some(block_hash(parent, &name.to_le_bytes()));
    std::iter::successors(Some(block_hash(name, b"")), next)
        .take(len)
        .collect()
}

fn index_with(owners: usize, capacity_blocks: usize, memory_bytes: usize) -> (PrefixIndex, Vec<EndpointId>) {
    let index = PrefixIndex::new(memory_bytes);
    let ids = (0..owners)
        .filter_map(|_| index.register(capacity_blocks))
        .collect();
    (index, ids)
}

#[divan::bench(args = [4 << 10, 128 << 10])]
fn hash(bencher: Bencher, bytes: usize) {
    let prompt: Vec<u8> = (0..bytes).map(|byte| (byte * 31 % 251) as u8).collect();
    let chunking = Chunking {
        chunk_bytes: 256,
        max_blocks: 4096,
    };
    let root = seed("model", None, "bench");
    let mut buffer = Vec::new();
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        let mut hasher = ChainHasher::reusing(root, chunking, std::mem::take(&mut buffer));
        hasher.write(black_box(&prompt));
        buffer = hasher.finish().into_buffer();
    });
}

#[divan::bench(args = [64, 512])]
fn lookup_of_8_owners(bencher: Bencher, len: usize) {
    let (index, ids) = index_with(OWNERS, 1 << 20, 256 << 20);
    let path = chain(1, len);
    ids.iter().for_each(|&id| index.insert(id, &path));
    let mut out = [0; OWNERS];
    bencher
        .counter(ItemsCount::new(len))
        .bench_local(|| index.matches(black_box(&path), &mut out));
}

/// Chains spread over 1 M block-owners: nearly every line comes from memory.
#[divan::bench(args = [1, 8])]
fn lookup_cold(bencher: Bencher, owners: usize) {
    let (index, ids) = index_with(OWNERS, 1 << 20, 256 << 20);
    let chains: Vec<_> = (0..16_384 / owners as u64)
        .map(|name| chain(name, CHAIN))
        .collect();
    for path in &chains {
        ids[..owners].iter().for_each(|&id| index.insert(id, path));
    }
    let mut out = [0; OWNERS];
    let mut next = chains.iter().cycle();
    bencher
        .counter(ItemsCount::new(CHAIN))
        .bench_local(|| next.next().map(|path| index.matches(path, &mut out)));
}

#[divan::bench]
fn lookup_of_unknown(bencher: Bencher) {
    let (index, ids) = index_with(OWNERS, 1 << 20, 256 << 20);
    (0..16_384).for_each(|name| index.insert(ids[0], &chain(name, CHAIN)));
    let chains: Vec<_> = (20_000..30_000).map(|name| chain(name, CHAIN)).collect();
    let mut out = [0; OWNERS];
    let mut next = chains.iter().cycle();
    bencher.bench_local(|| next.next().map(|path| index.matches(path, &mut out)));
}

/// Index sizes: one that stays in a core's cache, and one whose lines come from memory.
const SMALL_AND_LARGE: [usize; 2] = [16 << 10, 8 << 20];

/// An index that `blocks` blocks of one endpoint would fill, and an endless source of chains new to it.
fn index_for(blocks: usize) -> (PrefixIndex, EndpointId, impl FnMut() -> Vec<BlockHash>) {
    let (index, ids) = index_with(1, blocks, blocks * 24 + (1 << 20));
    let mut names = 0..;
    (index, ids[0], move || chain(names.next().unwrap_or(0), CHAIN))
}

#[divan::bench(args = SMALL_AND_LARGE, sample_count = 2000, sample_size = 1)]
fn store_new(bencher: Bencher, blocks: usize) {
    let (index, id, mut next) = index_for(blocks);
    bencher
        .counter(ItemsCount::new(CHAIN))
        .with_inputs(|| {
            if index.blocks(id) + CHAIN > blocks {
                index.clear(id);
            }
            next()
        })
        .bench_local_refs(|path| index.store(id, path));
}

#[divan::bench(args = SMALL_AND_LARGE, sample_count = 2000, sample_size = 1)]
fn store_known(bencher: Bencher, blocks: usize) {
    let (index, id, mut next) = index_for(blocks);
    let chains: Vec<_> = (0..blocks / CHAIN / 2).map(|_| next()).collect();
    chains.iter().for_each(|path| index.insert(id, path));
    let mut again = chains.iter().cycle();
    bencher
        .counter(ItemsCount::new(CHAIN))
        .bench_local(|| again.next().map(|path| index.store(id, path)));
}

/// Every block stored pushes another one out.
#[divan::bench(args = SMALL_AND_LARGE, sample_count = 2000, sample_size = 1)]
fn store_evicting(bencher: Bencher, blocks: usize) {
    let (index, id, mut next) = index_for(blocks);
    for _ in 0..blocks / CHAIN {
        index.insert(id, &next());
    }
    bencher
        .counter(ItemsCount::new(CHAIN))
        .with_inputs(next)
        .bench_local_refs(|path| index.store(id, path));
}

/// Threads at once: the writers of different endpoints share nothing but lines of the table.
const THREADS: [usize; 2] = [1, 2];

#[divan::bench(threads = THREADS)]
fn lookup_by_threads(bencher: Bencher) {
    let (index, ids) = index_with(OWNERS, 1 << 20, 256 << 20);
    let path = chain(1, CHAIN);
    ids.iter().for_each(|&id| index.insert(id, &path));
    bencher.counter(ItemsCount::new(CHAIN)).bench(|| {
        let mut out = [0; OWNERS];
        index.matches(black_box(&path), &mut out)
    });
}

/// Each thread fills an endpoint of its own, and pushes out what it stored before.
#[divan::bench(threads = THREADS, sample_count = 2000, sample_size = 1)]
fn store_by_threads(bencher: Bencher) {
    thread_local!(static ENDPOINT: Cell<Option<EndpointId>> = const { Cell::new(None) });
    let index = PrefixIndex::new(256 << 20);
    let names = AtomicU64::new(0);
    let endpoint = || ENDPOINT.get().or_else(|| index.register(16 << 10));
    bencher
        .counter(ItemsCount::new(CHAIN))
        .with_inputs(|| {
            ENDPOINT.set(endpoint());
            chain(names.fetch_add(1, Ordering::Relaxed), CHAIN)
        })
        .bench_refs(|path| ENDPOINT.get().map(|id| index.store(id, path)));
}

/// Prompts of which the first half is one of 64, each on one of 8 endpoints; as many as one full index holds.
fn shared_prefix_mix(len: usize) -> (PrefixIndex, Vec<EndpointId>, Vec<Vec<BlockHash>>) {
    const BLOCKS: usize = 512 << 10;
    let (index, ids) = index_with(OWNERS, BLOCKS / OWNERS, BLOCKS * 24 + (1 << 20));
    let prompt = |name: u64| {
        let mut path = chain(name % 64, len / 2);
        let follow = |&parent: &u64| Some(block_hash(parent, &name.to_le_bytes()));
        path.extend(std::iter::successors(path.last().and_then(follow), follow).take(len - len / 2));
        path
    };
    let prompts: Vec<_> = (0..(2 * BLOCKS / len) as u64).map(prompt).collect();
    for (name, path) in prompts.iter().enumerate() {
        index.insert(ids[name / 64 % OWNERS], path);
    }
    (index, ids, prompts)
}

#[divan::bench(args = [64, 512])]
fn lookup_in_mix(bencher: Bencher, len: usize) {
    let (index, _, prompts) = shared_prefix_mix(len);
    let (mut out, mut at) = ([0; OWNERS], 0);
    bencher.counter(ItemsCount::new(len)).bench_local(|| {
        at = (at + 7919) % prompts.len();
        index.matches(&prompts[at], &mut out)
    });
}

#[divan::bench(args = [64, 512])]
fn store_in_mix(bencher: Bencher, len: usize) {
    let (index, ids, prompts) = shared_prefix_mix(len);
    let mut at = 0;
    bencher.counter(ItemsCount::new(len)).bench_local(|| {
        at = (at + 1) % prompts.len();
        index.store(ids[at / 64 % OWNERS], &prompts[at])
    });
}

fn print_lookup_latency() {
    let (index, ids) = index_with(OWNERS, 1 << 20, 256 << 20);
    let path = chain(1, CHAIN);
    ids.iter().for_each(|&id| index.insert(id, &path));
    println!("lookup, {CHAIN} blocks, {OWNERS} owners:");
    println!("  alone            {}", percentiles(&index, &path));
    let writer_id = ids[0];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let others: Vec<_> = (2..4096).map(|name| chain(name, CHAIN)).collect();
            let begun = Instant::now();
            let mut stored = 0;
            for other in others.iter().cycle() {
                drop(index.store(writer_id, other));
                stored += other.len();
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
            stored as f64 / begun.elapsed().as_secs_f64() / 1e6
        });
        let latency = percentiles(&index, &path);
        done.store(true, Ordering::Relaxed);
        let rate = writer.join().unwrap_or(0.0);
        println!("  beside a writer  {latency} (writer: {rate:.0} M blocks/s)");
    });
}

/// The clock's own cost, about 20 ns, is included.
fn percentiles(index: &PrefixIndex, path: &[BlockHash]) -> String {
    let mut out = [0; OWNERS];
    let mut samples: Vec<Duration> = (0..1_000_000)
        .map(|_| {
            let begun = Instant::now();
            index.matches(black_box(path), &mut out);
            begun.elapsed()
        })
        .collect();
    samples.sort_unstable();
    let at = |share: f64| samples[(samples.len() as f64 * share) as usize].as_nanos();
    format!("p50 {} ns, p99 {} ns, p99.9 {} ns", at(0.5), at(0.99), at(0.999))
}

fn print_memory_per_block() {
    // 10 M block-owners over 8 endpoints, with as many touches again, so that the rings hold vacancies too.
    let per_endpoint = 1_250_000;
    let (index, ids) = index_with(OWNERS, per_endpoint, 10_000_000 * 20);
    for (name, &id) in ids.iter().enumerate() {
        for round in 0..3 {
            for part in 0..per_endpoint as u64 / 64 {
                let path = chain(name as u64 * per_endpoint as u64 + part, CHAIN);
                if round == 0 || part % 2 == 0 {
                    index.insert(id, &path);
                }
            }
        }
    }
    let (blocks, bytes) = (index.total_blocks(), index.bytes());
    println!(
        "memory: {blocks} block-owners in {bytes} bytes, {:.1} bytes each",
        bytes as f64 / blocks as f64
    );
}
