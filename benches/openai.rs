//! What reading a request and a response costs: `cargo bench --bench openai`.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use homing::openai::{AnswerReader, Fed, PathKind, Peek, PromptSink, UsageScanner};
use homing::prefix::{ChainHasher, Chunking};
use serde_json::json;
use xxhash_rust::xxh3::Xxh3;

fn main() {
    divan::main();
}

/// Bytes per link of the hash chain.
const LINK_BYTES: usize = 256;

/// Takes the canonical bytes and does nothing with them: the cost of reading alone.
#[derive(Default)]
struct Null(u64);

impl PromptSink for Null {
    fn write(&mut self, bytes: &[u8]) {
        self.0 += black_box(bytes).len() as u64;
    }

    fn next_prompt(&mut self) {}
}

/// Hashes the canonical bytes in links of a fixed size, each together with the hash of all before it.
struct Chain {
    link: Xxh3,
    filled: usize,
    hashes: Vec<u64>,
}

impl Chain {
    fn new() -> Self {
        Self {
            link: Xxh3::new(),
            filled: 0,
            hashes: Vec::with_capacity(1 << 14),
        }
    }
}

impl PromptSink for Chain {
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(LINK_BYTES - self.filled));
            self.link.update(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == LINK_BYTES {
                let hash = self.link.digest();
                self.hashes.push(hash);
                self.link.reset();
                self.link.update(&hash.to_le_bytes());
                self.filled = 0;
            }
        }
    }

    fn next_prompt(&mut self) {
        self.link.reset();
        self.filled = 0;
    }
}

/// Prose of a given size with a line end about every 60 bytes, as prompts have.
fn prose(bytes: usize) -> String {
    let line = "The gateway sends a prompt to where its prefix is at home.\n";
    line.chars().cycle().take(bytes).collect()
}

const BODIES: [&str; 8] = [
    "text-1k",
    "text-4k",
    "chat-4k",
    "chat-40-messages",
    "text-128k",
    "text-2m",
    "escapes-128k",
    "ids-32k",
];

fn body(name: &str) -> (PathKind, Vec<u8>) {
    let completion = |prompt: serde_json::Value| json!({"model": "m", "max_tokens": 16, "prompt": prompt});
    let chat = |messages: serde_json::Value| json!({"model": "m", "stream": true, "messages": messages});
    let (kind, value) = match name {
        "text-1k" => (PathKind::Completions, completion(json!(prose(1 << 10)))),
        "text-4k" => (PathKind::Completions, completion(json!(prose(4 << 10)))),
        "chat-4k" => (
            PathKind::Chat,
            chat(json!([{"role": "user", "content": prose(4 << 10)}])),
        ),
        "chat-40-messages" => {
            let roles = ["user", "assistant"].iter().cycle().take(40);
            let messages = roles.map(|role| json!({"role": role, "content": prose(200)}));
            (PathKind::Chat, chat(messages.collect()))
        }
        "text-128k" => (PathKind::Completions, completion(json!(prose(128 << 10)))),
        "text-2m" => (PathKind::Completions, completion(json!(prose(2 << 20)))),
        "escapes-128k" => (
            PathKind::Completions,
            completion(json!("\"\n\\x".repeat((128 << 10) / 7))),
        ),
        _ => (
            PathKind::Completions,
            completion((0..32_768).map(|id| id * 4 % 151_936).collect()),
        ),
    };
    (kind, value.to_string().into_bytes())
}

#[divan::bench(args = BODIES)]
fn peek(bencher: Bencher, name: &str) {
    let (_, body) = body(name);
    bencher
        .counter(BytesCount::of_slice(&body))
        .bench(|| Peek::parse(black_box(&body)).is_ok());
}

fn feed<S: PromptSink>(kind: PathKind, body: &[u8], sink: &mut S) -> Option<Fed> {
    Peek::parse(black_box(body))
        .ok()
        .map(|peek| peek.feed(kind, sink))
}

#[divan::bench(args = BODIES)]
fn peek_and_feed_nothing(bencher: Bencher, name: &str) {
    let (kind, body) = body(name);
    bencher
        .counter(BytesCount::of_slice(&body))
        .bench(|| feed(kind, &body, &mut Null::default()));
}

#[divan::bench(args = BODIES)]
fn peek_and_feed_chain(bencher: Bencher, name: &str) {
    let (kind, body) = body(name);
    bencher
        .counter(BytesCount::of_slice(&body))
        .with_inputs(Chain::new)
        .bench_refs(|chain| {
            feed(kind, &body, chain);
            chain.hashes.len()
        });
}

/// 50 events, one per chunk, as an engine writes them; the last ones hold the reason of the end and the usage.
fn events() -> Vec<String> {
    let head = r#"data: {"id":"cmpl-b907e882cb4bda2e","object":"text_completion","created":1795950968,"model":"m","choices":["#;
    let event = |text: &str, finish: &str| {
        format!(
            "{head}{{\"index\":0,\"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":{finish},\"stop_reason\":null,\"token_ids\":null}}]}}\n\n"
        )
    };
    // Every tenth word ends a line.
    let text = |n| if n % 10 == 9 { "\\n" } else { " word" };
    let mut events: Vec<_> = (0..47).map(|n| event(text(n), "null")).collect();
    events.push(event(".", "\"length\""));
    events.push(format!(
        "{head}],\"usage\":{{\"prompt_tokens\":100,\"total_tokens\":148,\"completion_tokens\":48}}}}\n\n"
    ));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

#[divan::bench]
fn sse_50_events(bencher: Bencher) {
    let events = events();
    bencher.counter(ItemsCount::new(events.len())).bench(|| {
        let mut scanner = UsageScanner::new(true);
        events
            .iter()
            .for_each(|event| scanner.push(black_box(event.as_bytes())));
        scanner.finish()
    });
}

/// The same events, and the keys of their text.
#[divan::bench]
fn sse_50_events_answer(bencher: Bencher) {
    let events = events();
    let chunking = Chunking {
        chunk_bytes: LINK_BYTES,
        max_blocks: 1 << 10,
    };
    bencher.counter(ItemsCount::new(events.len())).bench(|| {
        let mut reader = AnswerReader::new(PathKind::Completions, true);
        let mut chain = ChainHasher::new(0, chunking);
        events
            .iter()
            .for_each(|event| reader.push(black_box(event.as_bytes()), &mut chain));
        reader.finish(&mut chain).then(|| chain.finish())
    });
}
