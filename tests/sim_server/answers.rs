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
        Value::Object(fields) => Value::Object(fields.iter().map(|(k, v)| (k.clone(), shape(v))).collect()),
        Value::Array(items) => {
            let mut shapes: Vec<Value> = Vec::new();
            for item in items.iter().map(shape) {
                if !shapes.contains(&item) {
                    shapes.push(item);
                }
            }
            shapes.into()
        }
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
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
    let body = json!({"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "word ".repeat(200)}]});
    pod.post("/v1/messages", body.clone()).await;
    let usage = &pod.post("/v1/messages", body).await["usage"];
    assert_eq!(
        (
            &usage["cache_read_input_tokens"],
            &usage["cache_creation_input_tokens"]
        ),
        (&json!(128), &json!(0))
    );
    assert_eq!(
        usage["input_tokens"].as_u64().unwrap() + 128,
        pod.tokens_of_chat().await
    );
}

impl Pod {
    async fn tokens_of_chat(&self) -> u64 {
        let body = json!({"messages": [{"role": "user", "content": "word ".repeat(200)}]});
        self.post("/tokenize", body).await["count"].as_u64().unwrap()
    }
}

#[tokio::test]
async fn metrics_have_vllms_names_types_and_labels() {
    let pod = Pod::start(captured()).await;
    pod.complete("hello", 3).await;
    let mut families: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    let mut family = String::new();
    for line in pod.text("/metrics").await.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE vllm:") {
            let (name, kind) = kind.split_once(' ').unwrap();
            family = format!("vllm:{name}");
            families.insert(family.clone(), (kind.to_owned(), Vec::new()));
        } else if line.starts_with("vllm:") {
            let series = &mut families.get_mut(&family).unwrap().1;
            let labels = labels_of(line, family.ends_with("cache_config_info"));
            if !series.contains(&labels) {
                series.push(labels);
            }
        }
    }
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/vllm/http/metrics.txt"
    );
    let mut expected: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for line in std::fs::read_to_string(fixture).unwrap().lines() {
        match line.strip_prefix("  ") {
            Some(series) => expected.get_mut(&family).unwrap().1.push(series.to_owned()),
            None => {
                let (name, kind) = line.split_once(' ').unwrap();
                family = name.to_owned();
                expected.insert(family.clone(), (kind.to_owned(), Vec::new()));
            }
        }
    }
    assert_eq!(
        families.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (name, family) in &expected {
        assert_eq!(&families[name], family, "{name}");
    }
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
