//! The things measured. Each takes how many times it is to be done.

use crate::datalayer::exposition::Samples;
use crate::openai::{PathKind, Peek, PromptSink, UsageScanner};
use crate::prefix::{BlockHash, ChainHasher, Chunking, EndpointId, PrefixIndex, seed};
use crate::prompts;
use crate::scheduling::{EndpointView, Policy, RequestView, Scheduler, Scraped};
use crate::time::Mono;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::hint::black_box;

#[path = "../../benches/support/fleet.rs"]
mod fleet;
use fleet::fleet;

pub type Case = fn(u64);

pub const ALL: &[(&str, Case)] = &[
    ("parse-1k", |times| {
        parse(times, PathKind::Completions, &prompts::completion(1 << 10))
    }),
    ("parse-128k", |times| {
        parse(times, PathKind::Completions, &prompts::completion(128 << 10))
    }),
    ("parse-chat-40", |times| {
        parse(times, PathKind::Chat, &prompts::chat(40, 200))
    }),
    ("hash-1k", |times| hash(times, 1 << 10)),
    ("hash-128k", |times| hash(times, 128 << 10)),
    ("store-4-new", |times| store(times, 4)),
    ("store-64-new", |times| store(times, 64)),
    ("store-64-known", store_known),
    ("store-64-evicting", store_evicting),
    ("confirm-64", confirm),
    ("lookup-64-by-8", |times| lookup(times, 64)),
    ("lookup-512-by-8", |times| lookup(times, 512)),
    ("lookup-unknown", lookup_unknown),
    ("schedule-8", |times| schedule(times, 8)),
    ("schedule-64", |times| schedule(times, 64)),
    ("sse-50-events", sse),
    ("scrape", scrape),
];

impl PromptSink for ChainHasher {
    fn write(&mut self, bytes: &[u8]) {
        Self::write(self, bytes);
    }

    fn next_prompt(&mut self) {
        Self::next_prompt(self);
    }
}

/// Takes the canonical bytes and does nothing with them: the cost of reading alone.
struct Null;

impl PromptSink for Null {
    fn write(&mut self, bytes: &[u8]) {
        black_box(bytes);
    }

    fn next_prompt(&mut self) {}
}

fn parse(times: u64, kind: PathKind, body: &[u8]) {
    for _ in 0..times {
        let peek = Peek::parse(black_box(body)).expect("a good body");
        black_box((peek.model().len(), peek.max_output_tokens(), peek.stream()));
        peek.feed(kind, &mut Null);
    }
}

fn hash(times: u64, bytes: usize) {
    let prompt = prompts::prose(bytes);
    let root = seed("model", None, "pool");
    let chunking = Chunking {
        chunk_bytes: 256,
        max_blocks: 4096,
    };
    for _ in 0..times {
        let mut hasher = ChainHasher::new(root, chunking);
        hasher.write(black_box(prompt.as_bytes()));
        black_box(hasher.finish());
    }
}

/// An index for `blocks` blocks of each of `owners` endpoints.
fn index(owners: usize, blocks: usize) -> (PrefixIndex, Vec<EndpointId>) {
    let index = PrefixIndex::new(owners * blocks * 24 + (1 << 20));
    let ids = (0..owners).filter_map(|_| index.register(blocks)).collect();
    (index, ids)
}

/// Chains for `times` rounds, and as many again that nobody stores, so that setting up does not depend on `times`.
fn chains(len: usize) -> Vec<Vec<BlockHash>> {
    (0..MOST_TIMES).map(|name| prompts::chain(name, len)).collect()
}

/// No case that uses up its input is asked for more.
const MOST_TIMES: u64 = 2000;

fn store(times: u64, len: usize) {
    let (index, ids) = index(1, len * MOST_TIMES as usize);
    for chain in chains(len).iter().take(times as usize) {
        drop(black_box(index.store(ids[0], chain)));
    }
}

fn store_known(times: u64) {
    let chains = chains(64);
    let (index, ids) = index(1, 64 * chains.len());
    chains.iter().for_each(|chain| index.insert(ids[0], chain));
    for chain in chains.iter().take(times as usize) {
        drop(black_box(index.store(ids[0], chain)));
    }
}

/// Every block stored pushes another one out.
fn store_evicting(times: u64) {
    let (index, ids) = index(1, 64 * 64);
    (0..64).for_each(|name| index.insert(ids[0], &prompts::chain(name + MOST_TIMES, 64)));
    for chain in chains(64).iter().take(times as usize) {
        drop(black_box(index.store(ids[0], chain)));
    }
}

fn confirm(times: u64) {
    let chains = chains(64);
    let (index, ids) = index(1, 64 * chains.len());
    let stored: Vec<_> = chains.iter().map(|chain| index.store(ids[0], chain)).collect();
    for (chain, stored) in chains.iter().zip(stored).take(times as usize) {
        index.confirm(chain, stored);
    }
}

fn lookup(times: u64, len: usize) {
    let (index, ids) = index(8, 1 << 16);
    let chain = prompts::chain(1, len);
    ids.iter().for_each(|&id| index.insert(id, &chain));
    let mut out = [0; 8];
    for _ in 0..times {
        black_box(index.matches(black_box(&chain), &mut out));
    }
}

fn lookup_unknown(times: u64) {
    let (index, ids) = index(8, 1 << 16);
    ids.iter()
        .for_each(|&id| index.insert(id, &prompts::chain(u64::from(id.0), 64)));
    let mut out = [0; 8];
    let unknown = prompts::chain(99, 64);
    for _ in 0..times {
        black_box(index.matches(black_box(&unknown), &mut out));
    }
}

fn schedule(times: u64, endpoints: u16) {
    let mut scheduler = Scheduler::new(Policy::preset("least-cost").expect("a preset"));
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let views = fleet(endpoints);
    let request = RequestView {
        model: "m",
        prompt_tokens: 1000,
        keyed: true,
        ..RequestView::default()
    };
    for number in 1..=times {
        let now = Mono::from_nanos(number * 1_000_000);
        let decision = scheduler.evaluate(now, black_box(&request), black_box(&views), &mut rng);
        if let Some(chosen) = decision.chosen() {
            let view = views[usize::from(chosen.id.0)];
            let dispatch = scheduler.commit(now, &request, &decision, &view);
            scheduler.observe_first_byte(Mono::from_nanos(now.as_nanos() + 50_000_000), &dispatch);
        }
    }
}

fn sse(times: u64) {
    let events = prompts::events(50);
    for _ in 0..times {
        let mut scanner = UsageScanner::new(true);
        events
            .iter()
            .for_each(|event| scanner.push(black_box(event.as_bytes())));
        black_box(scanner.finish());
    }
}

fn scrape(times: u64) {
    let page = prompts::exposition();
    for _ in 0..times {
        let samples = Samples::only(black_box(page.as_bytes()), |name| {
            name.starts_with(b"vllm:num_requests")
        });
        black_box(
            samples
                .map(|samples| samples.map(|sample| sample.value).sum::<f64>())
                .ok(),
        );
    }
}
