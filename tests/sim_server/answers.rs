//! Answers are those of a real vLLM: errors to the letter, the rest field by field.

use super::support::{Pod, events, tiny};
use homing::sim::server::{QueueLimits, SimOptions};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A server with the flags of the one that was captured.
fn captured() -> SimOptions {
    SimOptions {
        max_model_len: 4096,
        enable_prompt_tokens_details: false,
        enable_auto_tool_choice: false,
        multimodal: false,
        ..tiny()
    }
}

#[derive(Deserialize)]
struct Case {
    name: String,
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
    #[serde(default)]
    status: u16,
    #[serde(default)]
    answer: String,
    allow: Option<String>,
    #[serde(default)]
    content_type: String,
    #[serde(default)]
    shape: Value,
}

impl Case {
    fn all(file: &str) -> Vec<Self> {
        let path = format!("{}/tests/fixtures/vllm/http/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    async fn send(&self, pod: &Pod) -> reqwest::Response {
        let method: reqwest::Method = self.method.parse().unwrap();
        let mut request = pod.client.request(method.clone(), pod.url(&self.path));
        if method == reqwest::Method::POST && !self.headers.contains_key("Content-Type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.body(self.body.clone()).send().await.unwrap()
    }
}

#[tokio::test]
async fn errors_are_those_of_vllm() {
    let pod = Pod::start(captured()).await;
    for case in Case::all("answers.jsonl") {
        let answer = case.send(&pod).await;
        assert_eq!(answer.status(), case.status, "{}", case.name);
        let allow = answer
            .headers()
            .get("allow")
            .map(|v| v.to_str().unwrap().to_owned());
        assert_eq!(allow, case.allow, "{}", case.name);
        let text = answer.text().await.unwrap();
        match serde_json::from_str::<Value>(&case.answer) {
            Ok(expected) => assert_eq!(
                serde_json::from_str::<Value>(&text).unwrap(),
                expected,
                "{}",
                case.name
            ),
            Err(_) => assert_eq!(text, case.answer, "{}", case.name),
        }
    }
}

#[tokio::test]
async fn a_context_too_long_is_refused_in_vllms_words() {
    let pod = Pod::start(captured()).await;
    let expected = json!({"error": {
        "message": "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 \
            input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
            input prompt. (parameter=input_tokens, value=4097)",
        "type": "BadRequestError", "param": "input_tokens", "code": 400,
    }});
    let text = "word ".repeat(5000);
    for (path, body) in [
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 6, "stream": true}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": text}], "max_tokens": 6}),
        ),
    ] {
        let answer = pod.client.post(pod.url(path)).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), 400);
        assert_eq!(answer.json::<Value>().await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_full_server_says_so() {
    let options = SimOptions {
        queue_limits: QueueLimits {
            requests: Some(1),
            tokens: None,
        },
        ..captured()
    };
    let pod = Pod::start(options).await;
    let body = json!({"prompt": "x", "max_tokens": 1, "n": 2});
    let answer = pod
        .client
        .post(pod.url("/v1/completions"))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 503);
    let expected = r#"{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}"#;
    assert_eq!(answer.text().await.unwrap(), expected);
    let name = "vllm:admission_rejections_total{model_name=\"tiny\",reason=\"max_num_queued_reqs\"}";
    assert_eq!(pod.metrics().await[name], 1.0);
}

/// A value with kinds in the place of scalars, and the distinct kinds of a list's items.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let shape_of = |name: &str, value| match name {
                "top_logprobs" | "prompt_logprobs" => shape_by_token(value),
                _ => shape(value),
            };
            let fields = fields.iter().map(|(k, v)| (k.clone(), shape_of(k, v)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => distinct(items.iter().map(shape)),
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
    }
}

fn distinct(shapes: impl Iterator<Item = Value>) -> Value {
    let mut kept: Vec<Value> = Vec::new();
    for shape in shapes {
        if !kept.contains(&shape) {
            kept.push(shape);
        }
    }
    kept.into()
}

/// The shape of a list of maps whose keys are tokens: `*` stands for any.
fn shape_by_token(value: &Value) -> Value {
    let item = |item: &Value| match item {
        Value::Object(tokens) if !tokens.contains_key("token") => {
            json!({"*": distinct(tokens.values().map(shape))})
        }
        item => shape(item),
    };
    match value {
        Value::Array(items) => distinct(items.iter().map(item)),
        value => shape(value),
    }
}

fn stream_shape(body: &str) -> Value {
    let mut shapes: Vec<Value> = Vec::new();
    for (event, data) in events(body) {
        let data = if data == "[DONE]" {
            data.into()
        } else {
            shape(&serde_json::from_str(&data).unwrap())
        };
        let next = json!({"event": event, "data": data});
        if shapes.last() != Some(&next) {
            shapes.push(next);
        }
    }
    shapes.into()
}

#[tokio::test]
async fn answers_have_vllms_fields_in_its_order() {
    let pod = Pod::start(captured()).await;
    for case in Case::all("shapes.jsonl") {
        let answer = case.send(&pod).await;
        assert_eq!(answer.status(), 200, "{}", case.name);
        assert_eq!(
            answer.headers()["content-type"],
            case.content_type.as_str(),
            "{}",
            case.name
        );
        assert_eq!(answer.headers()["server"], "uvicorn");
        let text = answer.text().await.unwrap();
        let seen = match case.content_type.starts_with("text/event-stream") {
            true => stream_shape(&text),
            false => shape(&serde_json::from_str(&text).unwrap()),
        };
        // As text, because JSON equality ignores the order of fields.
        assert_eq!(seen.to_string(), case.shape.to_string(), "{}", case.name);
    }
}

#[tokio::test]
async fn details_of_cached_tokens_are_reported_when_on() {
    let pod = Pod::start(SimOptions {
        lora_modules: vec!["sql-lora".into()],
        ..tiny()
    })
    .await;
    let ids: Vec<u32> = (300..600).collect();
    for (model, cached) in [("tiny", 0), ("tiny", 256), ("sql-lora", 0), ("sql-lora", 256)] {
        let body = json!({"model": model, "prompt": ids, "max_tokens": 2});
        let answer = pod.post("/v1/completions", body.clone()).await;
        assert_eq!(answer["model"], model);
        let details =
            json!({"cached_tokens": cached, "created_cache_tokens": null, "multimodal_tokens": null});
        assert_eq!(answer["usage"]["prompt_tokens_details"], details);
    }
    let body =
        json!({"prompt": ids, "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}});
    let text = pod
        .client
        .post(pod.url("/v1/completions"))
        .json(&body)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let last: Value = serde_json::from_str(&events(&text).iter().rev().nth(1).unwrap().1).unwrap();
    assert_eq!(
        last["usage"],
        json!({"prompt_tokens": 300, "total_tokens": 302, "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 256}})
    );
}

#[tokio::test]
async fn aliases_and_ranks_are_listed_as_captured() {
    let pod = Pod::start(SimOptions {
        models: vec!["tiny".into(), "alias".into()],
        lora_modules: vec!["sql-lora".into()],
        kv_event_sources: vec![json!({"publisher": "zmq"})],
        ..tiny()
    })
    .await;
    let models: Value = serde_json::from_str(&pod.text("/v1/models").await).unwrap();
    let listed = models["data"].as_array().unwrap().iter();
    let listed: Vec<_> = listed.map(|m| (&m["id"], &m["root"], &m["parent"])).collect();
    let [tiny, alias, lora] = [json!("tiny"), json!("alias"), json!("sql-lora")];
    let none = Value::Null;
    assert_eq!(
        listed,
        [
            (&tiny, &tiny, &none),
            (&alias, &tiny, &none),
            (&lora, &lora, &tiny)
        ]
    );
    assert_eq!(
        pod.text("/kv_event_sources").await,
        r#"{"0":{"publisher":"zmq"}}"#
    );
}

/// Captured: of 172 prompt tokens with blocks of 32, 160 were created and 12 were input; then 160 were read.
#[tokio::test]
async fn chats_tell_what_they_left_in_the_cache() {
    let pod = Pod::start(tiny()).await;
    let messages =
        |salt: &str| json!([{"role": "user", "content": format!("{salt} {}", "word ".repeat(200))}]);
    let prompt = pod.post("/tokenize", json!({"messages": messages("a")})).await["count"].clone();
    let tail = prompt.as_u64().unwrap() - 128;
    for (created, cached) in [(128, 0), (0, 128)] {
        let body = json!({"model": "tiny", "max_tokens": 2, "messages": messages("a")});
        let usage = json!({"input_tokens": tail, "output_tokens": 2,
            "cache_creation_input_tokens": created, "cache_read_input_tokens": cached});
        assert_eq!(pod.post("/v1/messages", body).await["usage"], usage);
        let body = json!({"max_tokens": 2, "messages": messages("b")});
        let details =
            json!({"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": null});
        let usage = &pod.post("/v1/chat/completions", body).await["usage"];
        assert_eq!(usage["prompt_tokens_details"], details);
    }
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = json!({"max_tokens": 2, "messages": messages("b"), "stream": true, "stream_options": options});
    let answer = pod
        .client
        .post(pod.url("/v1/chat/completions"))
        .json(&body)
        .send()
        .await
        .unwrap();
    let text = answer.text().await.unwrap();
    let usages = events(&text)
        .into_iter()
        .filter_map(|(_, data)| serde_json::from_str::<Value>(&data).ok());
    let usages: Vec<Value> = usages.map(|event| event["usage"].clone()).collect();
    // As captured: every event but the last tells one field that is null.
    let prompt = prompt.as_u64().unwrap();
    let on_the_way = |n: u64| json!({"prompt_tokens": prompt, "total_tokens": prompt + n, "completion_tokens": n, "completion_tokens_details": null});
    let last = json!({"prompt_tokens": prompt, "total_tokens": prompt + 2, "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 128, "created_cache_tokens": 0}});
    assert_eq!(usages, [on_the_way(0), on_the_way(1), on_the_way(2), last]);
}

#[tokio::test]
async fn an_output_is_as_long_as_the_bounds_say() {
    let pod = Pod::start(SimOptions {
        max_model_len: 600,
        ..tiny()
    })
    .await;
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Say hello"}]});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let ended = async |body| {
        let answer = pod.post("/v1/chat/completions", body).await;
        let usage = &answer["usage"];
        let count = |name: &str| usage[name].as_u64().unwrap();
        let reason = answer["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
        (count("completion_tokens"), count("total_tokens"), reason)
    };
    let (natural, _, reason) = ended(chat(json!({}))).await;
    assert_eq!(reason, "stop");
    let (tokens, _, reason) = ended(chat(json!({"min_tokens": natural + 50}))).await;
    assert_eq!((tokens, reason.as_str()), (natural + 50, "stop"));
    let (_, total, reason) = ended(chat(json!({"ignore_eos": true}))).await;
    assert_eq!((total, reason.as_str()), (600, "length"));
    let (_, total, reason) = ended(chat(json!({"min_tokens": 9999}))).await;
    assert_eq!((total, reason.as_str()), (600, "length"));
    // The first full stop is the twelfth token.
    for (min_tokens, tokens) in [(0, 12), (11, 12), (12, 24)] {
        let body = chat(json!({"max_tokens": 40, "stop": ".", "min_tokens": min_tokens}));
        assert_eq!(ended(body).await.0, tokens, "at least {min_tokens}");
    }
}

#[tokio::test]
async fn whole_floats_and_texts_pass_for_integers() {
    let pod = Pod::start(tiny()).await;
    for tokens in [json!(5), json!(5.0), json!("5")] {
        let answer = pod
            .post("/v1/completions", json!({"prompt": "x", "max_tokens": tokens}))
            .await;
        assert_eq!(answer["usage"]["completion_tokens"], 5, "{tokens}");
    }
}

#[tokio::test]
async fn bounds_that_contradict_each_other_are_refused() {
    let pod = Pod::start(tiny()).await;
    let chat = json!([{"role": "user", "content": "x"}]);
    for (body, message) in [
        (
            json!({"prompt": "x", "min_tokens": 9, "max_tokens": 8}),
            "min_tokens must be less than or equal to max_tokens=8, got 9.",
        ),
        (
            json!({"prompt": "x", "min_tokens": -1}),
            "min_tokens must be greater than or equal to 0, got -1.",
        ),
        (json!({"prompt": "x", "n": -1}), "n must be at least 1, got -1."),
        (
            json!({"prompt": "x", "max_tokens": 5.5}),
            "1 validation error:\n  {'type': 'int_from_float', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid \
             integer, got a number with a fractional part', 'input': '5.5'}",
        ),
        (
            json!({"prompt": "x", "n": 2, "temperature": 0}),
            "n must be 1 when using greedy sampling, got 2.",
        ),
        (
            json!({"prompt": "x", "n": 2_000_000_000}),
            "n must be at most 16384, got 2000000000. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment \
             variable.",
        ),
        (
            json!({"prompt": "x", "top_p": 1.5}),
            "top_p must be in (0, 1], got 1.5. (parameter=top_p, value=1.5)",
        ),
        (
            json!({"prompt": "x", "stop": ["."  , ""]}),
            "stop cannot contain an empty string.",
        ),
        (
            json!({"prompt": "x", "logprobs": 21}),
            "Requested sample logprobs of 21, which is greater than max allowed: 20 (parameter=logprobs, value=21)",
        ),
        (
            json!({"prompt": "x", "logprobs": -1}),
            "`logprobs` must be a positive value. (parameter=logprobs, value=-1)",
        ),
        (
            json!({"messages": chat, "top_logprobs": 2}),
            "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)",
        ),
    ] {
        let path = if body.get("messages").is_some() {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        };
        let answer = pod.client.post(pod.url(path)).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{body}");
        assert_eq!(answer.json::<Value>().await.unwrap()["error"]["message"], message);
    }
}

#[tokio::test]
async fn probabilities_belong_to_the_tokens_of_the_answer() {
    let pod = Pod::start(tiny()).await;
    let body = json!({"prompt": "Hello there", "max_tokens": 3, "echo": true, "logprobs": 2});
    let choice = &pod.post("/v1/completions", body).await["choices"][0];
    let tokens: Vec<&str> = choice["logprobs"]["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    assert_eq!(tokens.concat(), choice["text"].as_str().unwrap());
    assert_eq!((tokens.len(), tokens[0], tokens[1]), (5, "Hello", " there"));
    assert_eq!(
        choice["logprobs"]["text_offset"].as_array().unwrap()[..3],
        [json!(0), json!(5), json!(11)]
    );
    assert_eq!(
        choice["logprobs"]["top_logprobs"][4].as_object().unwrap().len(),
        2
    );
    assert_eq!(choice["prompt_logprobs"].as_array().unwrap().len(), 2);
    let stream = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "stream": true, "logprobs": true});
    let answer = pod
        .client
        .post(pod.url("/v1/chat/completions"))
        .json(&stream)
        .send()
        .await
        .unwrap();
    for (_, data) in events(&answer.text().await.unwrap()).iter().skip(1).take(3) {
        let choice = &serde_json::from_str::<Value>(data).unwrap()["choices"][0];
        let content = &choice["logprobs"]["content"];
        assert_eq!(content[0]["token"], choice["delta"]["content"]);
        assert_eq!(
            (content.as_array().unwrap().len(), &content[0]["top_logprobs"]),
            (1, &json!([]))
        );
    }
}

#[tokio::test]
async fn metrics_have_vllms_names_types_and_labels() {
    let pod = Pod::start(captured()).await;
    pod.complete("hello", 3).await;
    // In the form of the fixture: name, type and description, then the labels of each series.
    let mut seen: Vec<String> = Vec::new();
    let (mut family, mut help) = (String::new(), String::new());
    for line in pod.text("/metrics").await.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            text.split_once(' ').unwrap().1.clone_into(&mut help);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            kind.split_once(' ').unwrap().0.clone_into(&mut family);
            if family.starts_with("vllm:") {
                seen.push(format!("{kind} {help}"));
            }
        } else if line.starts_with("vllm:") {
            let series = format!("  {}", labels_of(line, family.ends_with("cache_config_info")));
            if seen.last() != Some(&series) {
                seen.push(series);
            }
        }
    }
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/vllm/http/metrics.txt"
    );
    let captured = std::fs::read_to_string(fixture).unwrap();
    for (seen, captured) in seen.iter().zip(captured.lines()) {
        assert_eq!(seen, captured);
    }
    assert_eq!(seen.len(), captured.lines().count());
}

/// `name{label=value,..}` without the values that differ between servers.
fn labels_of(line: &str, names_only: bool) -> String {
    let (name, labels) = line.rsplit_once(' ').unwrap().0.split_once('{').unwrap();
    let labels = labels.trim_end_matches('}').split("\",").map(|label| {
        let (key, value) = label.split_once("=\"").unwrap();
        match key {
            "le" | "model_name" => key.to_owned(),
            _ if names_only => key.to_owned(),
            _ => format!("{key}={}", value.trim_end_matches('"')),
        }
    });
    format!("{name}{{{}}}", labels.collect::<Vec<_>>().join(","))
}

#[tokio::test]
async fn a_load_report_comes_when_asked_for() {
    let pod = Pod::start(tiny()).await;
    for (format, expected) in [
        (
            "json",
            r#"JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}"#,
        ),
        (
            "text",
            "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0",
        ),
    ] {
        let request = pod
            .client
            .post(pod.url("/v1/completions"))
            .header("endpoint-load-metrics-format", format);
        let answer = request
            .json(&json!({"prompt": "x", "max_tokens": 1}))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.headers()["endpoint-load-metrics"], expected);
    }
    let answer = pod
        .client
        .post(pod.url("/v1/completions"))
        .json(&json!({"prompt": "x"}))
        .send()
        .await
        .unwrap();
    assert!(!answer.headers().contains_key("endpoint-load-metrics"));
}

#[tokio::test]
async fn the_request_id_becomes_the_answers_id() {
    let pod = Pod::start(tiny()).await;
    let request = pod
        .client
        .post(pod.url("/v1/completions"))
        .header("x-request-id", "my-req-123");
    let answer: Value = request
        .json(&json!({"prompt": "x"}))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(answer["id"], "cmpl-my-req-123");
}

#[tokio::test]
async fn deep_and_odd_json_in_fields_nobody_reads_is_no_fault() {
    let pod = Pod::start(tiny()).await;
    let deep = format!("{}{}", "[".repeat(900), "]".repeat(900));
    let body = format!(
        r#"{{"model":"tiny","prompt":"caf\u00e9","metadata":{deep},"user":"\ud800","prompt":"last one wins"}}"#
    );
    let request = pod
        .client
        .post(pod.url("/v1/completions"))
        .header("content-type", "application/json; charset=utf-8");
    let answer: Value = request.body(body).send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
}
