//! Tokenization: texts and conversations, as they come for the first time and once more.
//!
//! `cargo bench --bench tokens`; with the tests' small vocabulary, so compare with itself only.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use homing::tokens::Tokenizer;
use homing::tokens::chat::ChatRequest;
use serde_json::json;
use std::path::Path;

const MODEL: &str = "tests/fixtures/tiny-model";
const CACHE_BYTES: usize = 64 << 20;

fn main() {
    divan::main();
}

fn tokenizer(cache_bytes: usize) -> Tokenizer {
    Tokenizer::load(Path::new(MODEL), None, cache_bytes).expect("the tests' model")
}

/// Words that repeat only after a long while, as much as `bytes`.
fn prose(bytes: usize, seed: usize) -> String {
    let word = |n: &usize| Some(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let words = std::iter::successors(Some(seed), word).map(|n| format!("word{} ", n >> 48));
    let mut text: String = words.take(bytes / 5).collect();
    text.truncate(bytes);
    text
}

/// Messages of 200 bytes each, as in a conversation.
fn chat(messages: usize) -> ChatRequest {
    let roles = ["user", "assistant"].iter().cycle().enumerate().take(messages);
    let messages: Vec<_> = roles
        .map(|(n, role)| json!({ "role": role, "content": prose(200, n) }))
        .collect();
    let body = json!({ "model": "m", "messages": messages }).to_string();
    ChatRequest::from_body(body.as_bytes()).expect("a plain chat")
}

#[divan::bench(args = [4 << 10, 128 << 10])]
fn text_never_seen(bencher: Bencher, bytes: usize) {
    let (tokenizer, text) = (tokenizer(0), prose(bytes, 1));
    bencher
        .counter(BytesCount::of_str(&text))
        .bench(|| tokenizer.encode(black_box(&text), true).map(|ids| ids.len()));
}

#[divan::bench(args = [4 << 10, 128 << 10])]
fn text_seen_before(bencher: Bencher, bytes: usize) {
    let (tokenizer, text) = (tokenizer(CACHE_BYTES), prose(bytes, 1));
    bencher
        .counter(BytesCount::of_str(&text))
        .bench(|| tokenizer.encode(black_box(&text), true).map(|ids| ids.len()));
}

/// Template and ids of a chat whose texts were seen before.
#[divan::bench(args = [4, 40])]
fn chat_of(bencher: Bencher, messages: usize) {
    let (tokenizer, request) = (tokenizer(CACHE_BYTES), chat(messages));
    bencher.bench(|| {
        tokenizer
            .encode_chat(black_box(&request), jiff::civil::DateTime::MIN)
            .map(|ids| ids.len())
    });
}
