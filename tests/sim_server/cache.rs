//! What the prefix cache does, seen through HTTP and `/metrics`.

use super::support::{Pod, slow, tiny};
use homing::sim::server::SimOptions;
use serde_json::{Value, json};

/// A text of exactly `tokens` tokens.
async fn prompt_of(pod: &Pod, tokens: u64) -> String {
    let topic = "Write one sentence about topic number 7 in cloud computing.";
    let mut text = topic.to_owned();
    loop {
        let count = pod.post("/tokenize", json!({"prompt": text})).await["count"]
            .as_u64()
            .unwrap();
        match count.cmp(&tokens) {
            std::cmp::Ordering::Less if count + 14 < tokens => text = format!("{text} {topic}"),
            std::cmp::Ordering::Less => text.push_str(" more"),
            std::cmp::Ordering::Equal => return text,
            std::cmp::Ordering::Greater => panic!("overshot: {count} tokens"),
        }
    }
}

#[tokio::test]
async fn the_seeds_prompt_has_its_usual_length() {
    let pod = Pod::start(tiny()).await;
    let text = "Write one sentence about topic number 7 in cloud computing.";
    assert_eq!(pod.post("/tokenize", json!({"prompt": text})).await["count"], 13);
    assert_eq!(pod.complete(text, 1).await["usage"]["prompt_tokens"], 13);
}

#[tokio::test]
async fn six_sends_of_a_long_prompt_hit_five_times() {
    let pod = Pod::start(tiny()).await;
    let prompt = prompt_of(&pod, 207).await;
    let mut hits = Vec::new();
    for _ in 0..6 {
        pod.complete(prompt.as_str(), 20).await;
        hits.push(pod.metric("prefix_cache_hits_total").await);
    }
    assert_eq!(hits, [0.0, 128.0, 256.0, 384.0, 512.0, 640.0]);
    for (name, value) in [
        ("prefix_cache_queries_total", 6.0 * 207.0),
        ("prompt_tokens_total", 6.0 * 207.0),
        ("prompt_tokens_cached_total", 640.0),
        ("generation_tokens_total", 120.0),
        ("request_prefill_kv_computed_tokens_sum", 207.0 + 5.0 * 79.0),
        ("num_requests_running", 0.0),
        ("kv_cache_usage_perc", 0.0),
    ] {
        assert_eq!(pod.metric(name).await, value, "{name}");
    }
    let computed =
        "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"tiny\",source=\"local_compute\"}";
    assert_eq!(pod.metrics().await[computed], 207.0 + 5.0 * 79.0);
}

#[tokio::test]
async fn a_prompt_below_one_block_never_hits() {
    let pod = Pod::start(tiny()).await;
    let prompt = prompt_of(&pod, 127).await;
    for _ in 0..6 {
        pod.complete(prompt.as_str(), 1).await;
    }
    assert_eq!(pod.metric("prefix_cache_hits_total").await, 0.0);
    assert_eq!(pod.metric("prompt_tokens_total").await, 6.0 * 127.0);
}

#[tokio::test]
async fn a_conversation_hits_its_own_answers() {
    let pod = Pod::start(SimOptions { ..tiny() }).await;
    let mut messages = vec![json!({"role": "user", "content": prompt_of(&pod, 100).await})];
    let mut before = 0;
    for turn in 0..3 {
        let answer = pod
            .post(
                "/v1/chat/completions",
                json!({"messages": messages, "max_tokens": 150}),
            )
            .await;
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
        // All tokens of the turn before but its last one, in whole blocks.
        assert_eq!(cached, u64::saturating_sub(before, 1) / 128 * 128, "turn {turn}");
        before = answer["usage"]["total_tokens"].as_u64().unwrap();
        messages.push(answer["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": "Go on."}));
    }
}

#[tokio::test]
async fn a_completion_continues_its_prompt() {
    let pod = Pod::start(tiny()).await;
    let prompt = prompt_of(&pod, 100).await;
    let answer = pod.complete(prompt.as_str(), 200).await;
    let longer = format!("{prompt}{}", answer["choices"][0]["text"].as_str().unwrap());
    let again = pod.complete(longer.as_str(), 1).await;
    assert_eq!(again["usage"]["prompt_tokens"], 300);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 256);
}

#[tokio::test]
async fn salts_and_other_prompts_share_nothing_and_answers_repeat() {
    let pod = Pod::start(tiny()).await;
    let prompt = prompt_of(&pod, 150).await;
    let send = |salt: Value| {
        pod.post(
            "/v1/completions",
            json!({"prompt": prompt, "cache_salt": salt, "max_tokens": 4}),
        )
    };
    let cached = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    let (plain, salted, again) = (
        send(Value::Null).await,
        send("a".into()).await,
        send("a".into()).await,
    );
    assert_eq!((cached(&plain), cached(&salted), cached(&again)), (0, 0, 128));
    assert_eq!(cached(&send("b".into()).await), 0);
    assert_eq!(salted["choices"][0]["text"], again["choices"][0]["text"]);
}

#[tokio::test]
async fn a_reset_cache_is_empty_and_one_in_use_stays() {
    let pod = Pod::start(tiny()).await;
    let ids: Vec<u32> = (300..700).collect();
    let cached = |answer: Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    pod.complete(ids.clone(), 1).await;
    assert_eq!(cached(pod.complete(ids.clone(), 1).await), 384);
    let reset = pod
        .client
        .post(pod.url("/reset_prefix_cache"))
        .send()
        .await
        .unwrap();
    assert_eq!(
        (reset.status().as_u16(), reset.text().await.unwrap().as_str()),
        (200, "")
    );
    assert_eq!(cached(pod.complete(ids, 1).await), 0);
}

#[tokio::test]
async fn rendered_ids_are_the_prompts_ids() {
    let pod = Pod::start(tiny()).await;
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello"}]);
    let body = json!({"messages": messages, "max_tokens": 1, "return_token_ids": true});
    let rendered = pod.post("/v1/chat/completions/render", body.clone()).await["token_ids"].clone();
    assert_eq!(
        pod.post("/v1/chat/completions", body.clone()).await["prompt_token_ids"],
        rendered
    );
    assert_eq!(pod.post("/tokenize", body).await["tokens"], rendered);
    // A prompt of ids is taken as it is.
    let text = "Say hello";
    let ids = pod.post("/tokenize", json!({"prompt": text})).await["tokens"].clone();
    let (by_ids, by_text) = (pod.complete(ids, 8).await, pod.complete(text, 8).await);
    assert_eq!(by_ids["choices"][0]["text"], by_text["choices"][0]["text"]);
    let generated = by_text["choices"][0]["text"].as_str().unwrap();
    let ids = pod.post("/tokenize", json!({"prompt": generated})).await["tokens"].clone();
    assert_eq!(
        pod.post("/detokenize", json!({"tokens": ids})).await["prompt"],
        generated
    );
}

#[tokio::test]
async fn several_prompts_and_choices_make_as_many_answers() {
    let pod = Pod::start(tiny()).await;
    let body = json!({"prompt": ["one prompt", "another prompt"], "n": 2, "max_tokens": 6});
    let answer = pod.post("/v1/completions", body).await;
    let texts: Vec<_> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["text"].to_string())
        .collect();
    let distinct: std::collections::BTreeSet<_> = texts.iter().collect();
    assert_eq!((texts.len(), distinct.len()), (4, 4));
    let usage = &answer["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(5), &json!(24))
    );
}

#[tokio::test]
async fn metrics_stand_still_within_a_step() {
    let mut options = slow();
    options.engine.timing.step_overhead = 3600.0;
    let pod = Pod::start(options).await;
    let waiting = tokio::spawn(
        pod.client
            .post(pod.url("/v1/completions"))
            .json(&json!({"prompt": "x"}))
            .send(),
    );
    pod.until_in_flight(1).await;
    assert_eq!(
        pod.metric("num_requests_running").await + pod.metric("num_requests_waiting").await,
        0.0
    );
    waiting.abort();
}

/// As captured under load: 143 blocks in use of 256 gave 0.5607843137254902, which is 143/255.
#[tokio::test]
async fn usage_is_told_of_all_blocks_but_the_one_kept_back() {
    let pod = Pod::start(slow()).await;
    let request = pod.client.post(pod.url("/v1/completions"));
    let prompt: Vec<u32> = (300..600).collect();
    let running = tokio::spawn(
        request
            .json(&json!({"prompt": prompt, "max_tokens": 60_000}))
            .send(),
    );
    let mut usage = 0.0;
    while usage == 0.0 {
        usage = pod.metric("kv_cache_usage_perc").await;
    }
    let page = pod.text("/metrics").await;
    let blocks = page
        .split("num_gpu_blocks=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let blocks = blocks.parse::<f64>().unwrap();
    // 300 tokens are two whole blocks of 128 and part of a third; a fourth comes when 84 more are there.
    assert_eq!(usage, 3.0 / (blocks - 1.0));
    running.abort();
}

/// Captured with blocks of 32: where 100 tokens were cached, two choices on a prompt that goes on from there hit 288
/// tokens, 96 the first and 192 the second, which shares the first one's step.
#[tokio::test]
async fn choices_of_one_prompt_share_its_blocks_in_their_first_step() {
    let mut options = tiny();
    options.engine.block_size = 32;
    let pod = Pod::start(options).await;
    let ids: Vec<u32> = (300..500).collect();
    pod.complete(&ids[..100], 1).await;
    assert_eq!(pod.metric("prefix_cache_hits_total").await, 0.0);
    pod.post(
        "/v1/completions",
        json!({"prompt": ids, "n": 2, "max_tokens": 30}),
    )
    .await;
    assert_eq!(pod.metric("prefix_cache_hits_total").await, 288.0);
}
