//! What is read, hashed and stored: fixed, so that counts are the same on every run.

use crate::prefix::{BlockHash, block_hash};
use serde_json::{Value, json};

/// Prose of a given size with a line end about every 60 bytes, as prompts have.
pub fn prose(bytes: usize) -> String {
    let line = "The gateway sends a prompt to where its prefix is at home.\n";
    line.chars().cycle().take(bytes).collect()
}

pub fn completion(bytes: usize) -> Vec<u8> {
    request(json!({ "model": "m", "max_tokens": 16, "prompt": prose(bytes) }))
}

pub fn chat(messages: usize, bytes_each: usize) -> Vec<u8> {
    let roles = ["user", "assistant"].iter().cycle().take(messages);
    let messages: Vec<_> = roles
        .map(|role| json!({ "role": role, "content": prose(bytes_each) }))
        .collect();
    request(json!({ "model": "m", "stream": true, "messages": messages }))
}

fn request(body: Value) -> Vec<u8> {
    body.to_string().into_bytes()
}

/// Hashes of a chain of `len` blocks that shares none with a chain of another name.
pub fn chain(name: u64, len: usize) -> Vec<BlockHash> {
    let next = |&parent: &u64| Some(block_hash(parent, &name.to_le_bytes()));
    std::iter::successors(Some(block_hash(name, b"")), next)
        .take(len)
        .collect()
}

/// A stream as an engine writes it; the last events hold the reason of the end and the usage.
pub fn events(count: usize) -> Vec<String> {
    let head = r#"data: {"id":"cmpl-b907e882cb4bda2e","object":"text_completion","created":1795950968,"model":"m","choices":["#;
    let event = |text: &str, finish: &str| {
        format!(
            "{head}{{\"index\":0,\"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":{finish},\"stop_reason\":null,\"token_ids\":null}}]}}\n\n"
        )
    };
    let words = [" the", " gateway", "", " sends", " a", " prompt", " home"];
    let mut events: Vec<_> = words
        .iter()
        .cycle()
        .take(count - 3)
        .map(|word| event(word, "null"))
        .collect();
    events.push(event(" M", "\"length\""));
    events.push(format!(
        "{head}],\"usage\":{{\"prompt_tokens\":100,\"total_tokens\":148,\"completion_tokens\":48}}}}\n\n"
    ));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

/// A page of the size a vLLM server answers with: a captured one, filled up with the histograms trimmed from it.
pub fn exposition() -> String {
    let mut page = include_str!("../../tests/fixtures/vllm/metrics/underload_small_waiting.txt").to_owned();
    for family in 0..20 {
        for bucket in 0..25 {
            page += &format!(
                "vllm:request_histogram_{family}_bucket{{engine=\"0\",le=\"{bucket}.0\",model_name=\"tiny\"}} {bucket}.0\n"
            );
        }
    }
    page
}
