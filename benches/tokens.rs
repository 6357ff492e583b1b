//! Tokenization: texts and conversations, as they come for the first time and once more.
//!
//! `cargo bench --bench tokens`; with the tests' small vocabulary, so compare with itself only.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use homing::tokens::Tokenizer;
use homing::tokens::chat::ChatRequest;
use serde_json::json;
use std::path::Path;
use std::sync::LazyLock;

const MODEL: &str = "tests/fixtures/tiny-model";
const CACHE_BYTES: usize = 64 << 20;

fn main() {
    divan::main();
}

fn tokenizer(cache_bytes: usize) -> Tokenizer {
    Tokenizer::load(Path::new(MODEL), None, cache_bytes).expect("the tests' model")
}

/// `bytes` of what `word` makes of random numbers.
fn words(bytes: usize, seed: usize, word: impl Fn(usize) -> String) -> String {
    let next = |n: &usize| Some(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let (mut text, mut numbers) = (String::new(), std::iter::successors(Some(seed), next));
    while text.len() < bytes {
        text.extend(numbers.next().map(|n| word(n >> 32) + " "));
    }
    text.truncate(bytes);
    text
}

/// Words that nobody has seen: the tokenizer cannot know them from its cache of words.
fn strange_words(bytes: usize, seed: usize) -> String {
    words(bytes, seed, |n| format!("word{n}"))
}

/// Words of a plain text, in an order that nobody has seen.
fn common_words(bytes: usize, seed: usize) -> String {
    static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let words = include_str!("../docs/routing.md").split_whitespace();
        words.filter(|word| word.is_ascii()).collect()
    });
    words(bytes, seed, |n| WORDS[n % WORDS.len()].to_owned())
}

/// Encodes text after text, none of which was seen before.
fn encode_new(bencher: Bencher, bytes: usize, text: fn(usize, usize) -> String) {
    let (tokenizer, mut seed) = (tokenizer(0), 0);
    let next = || {
        seed += 1;
        text(bytes, seed)
    };
    bencher
        .with_inputs(next)
        .input_counter(BytesCount::of_str)
        .bench_local_refs(|text| tokenizer.encode(black_box(text), true).map(|ids| ids.len()));
}

/// Messages of 200 bytes each, as in a conversation.
fn chat(messages: usize) -> ChatRequest {
    let roles = ["user", "assistant"].iter().cycle().enumerate().take(messages);
    let messages: Vec<_> = roles
        .map(|(n, role)| json!({ "role": role, "content": common_words(200, n) }))
        .collect();
    let body = json!({ "model": "m", "messages": messages }).to_string();
    ChatRequest::from_body(body.as_bytes()).expect("a plain chat")
}

#[divan::bench(args = [4 << 10, 128 << 10])]
fn text_of_strange_words(bencher: Bencher, bytes: usize) {
    encode_new(bencher, bytes, strange_words);
}

#[divan::bench(args = [4 << 10, 128 << 10])]
fn text_of_common_words(bencher: Bencher, bytes: usize) {
    encode_new(bencher, bytes, common_words);
}

#[divan::bench(args = [4 << 10, 128 << 10])]
fn text_seen_before(bencher: Bencher, bytes: usize) {
    let (tokenizer, text) = (tokenizer(CACHE_BYTES), common_words(bytes, 1));
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
