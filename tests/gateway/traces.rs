//! Spans of requests, as a collector gets them; and what the access log says of the same requests.

use super::support::{Gateway, Script, Setup, Step, Upstream, chat, eventually};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
/// The example of the W3C's standard.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Takes whatever is exported.
async fn collector() -> Upstream {
    Upstream::start(|_, _| Script::answer(200, "content-type: application/x-protobuf\r\n", "")).await
}

fn traced(setup: Setup, collector: &Upstream, more: &str) -> Setup {
    setup.top(&format!(
        "traces: {{ endpoint: 'http://{}', headers: {{ x-key: s3cret }}{more} }}",
        collector.address
    ))
}

/// Ends the gateway, which sends the spans that wait; returns all that the collector got.
async fn spans(gateway: &mut Gateway, collector: &Upstream) -> Vec<Span> {
    gateway.signal("TERM");
    assert_eq!(gateway.exit().await.code(), Some(0));
    collector.see(|state| {
        let exported = state.requests.iter().flat_map(|request| {
            assert_eq!((request.method(), request.path()), ("POST", "/v1/traces"));
            assert_eq!(request.headers("x-key"), ["s3cret"]);
            let export = ExportTraceServiceRequest::decode(&*request.body).expect("OTLP");
            export.resource_spans.into_iter().flat_map(|of| {
                let resource = of.resource.expect("a resource").attributes;
                assert_eq!(text(&resource, "service.name"), Some("homing"));
                of.scope_spans.into_iter().flat_map(|of| of.spans)
            })
        });
        exported.collect()
    })
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    let Some(AnyValue { value: Some(value) }) = &found.value else {
        return None;
    };
    Some(value)
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    match value(attributes, key)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn number(span: &Span, key: &str) -> Option<i64> {
    match value(&span.attributes, key)? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// A stream whose engine tells what it counted.
fn stream() -> Script {
    stream_after(Step::Pause(Duration::ZERO))
}

/// The same, with a step between the first token and the wait for the others.
fn stream_after(step: Step) -> Script {
    Script::chunked("text/event-stream")
        .event(r#"{"choices":[{"index":0,"delta":{"content":"Hi"}}]}"#)
        .then(step)
        .pause(Duration::from_millis(20))
        .event(r#"{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}"#)
        .event("[DONE]")
        .last_chunk()
}

#[tokio::test]
async fn a_request_is_one_trace_from_the_caller_to_the_engine() {
    let collector = collector().await;
    let failing = Upstream::start(|_, _| Script::reset()).await;
    let engine = Upstream::start(|_, _| stream()).await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let setup = Setup::of([failing.address, engine.address])
        .top(&format!("access_log: {{ to: '{}' }}", log.display()))
        // The failing one is asked first.
        .pool("scheduling: { preset: round-robin }");
    let mut gateway = traced(setup, &collector, ", sample: 0").start().await;
    for name in ["e0", "e1"] {
        gateway.endpoint_is(name, "ready").await;
    }
    let mut client = gateway.client().await;
    // Without a `traceparent`, and by `sample: 0`: no trace.
    client.post(CHAT, chat("untraced words", true)).await;
    assert_eq!(client.response().await.status, 200);
    while failing.executions() < 2 {
        client
            .post_with(
                CHAT,
                &format!("traceparent: 00-{TRACE}-{CALLER}-01\r\ntracestate: vendor=1\r\n"),
                chat("secret words", true),
            )
            .await;
        assert_eq!(client.response().await.status, 200);
    }
    let spans = spans(&mut gateway, &collector).await;
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
    let roots = named(&spans, "POST /v1/chat/completions");
    let root = *roots.last().unwrap();
    assert_eq!(hex(&root.parent_span_id), CALLER);
    assert_eq!(root.kind, 2, "server");
    let children: Vec<&Span> = spans
        .iter()
        .filter(|span| span.parent_span_id == root.span_id)
        .collect();
    let mut names: Vec<&str> = children.iter().map(|span| span.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["lookup", "parse", "schedule", "upstream", "upstream"]);
    for child in &children {
        assert!(
            child.start_time_unix_nano >= root.start_time_unix_nano,
            "{child:?}"
        );
        assert!(
            child.end_time_unix_nano >= child.start_time_unix_nano,
            "{child:?}"
        );
        assert!(child.end_time_unix_nano <= root.end_time_unix_nano, "{child:?}");
    }
    let of = |endpoint: &str| {
        let found = children
            .iter()
            .find(|span| text(&span.attributes, "homing.endpoint") == Some(endpoint));
        *found.unwrap_or_else(|| panic!("a try on {endpoint}: {children:?}"))
    };
    let (failed, answered) = (of("e0"), of("e1"));
    assert_eq!(text(&failed.attributes, "error.type"), Some("upstream-reset"));
    assert_eq!(failed.status.as_ref().unwrap().code, 2, "error");
    assert_eq!(answered.kind, 3, "client");
    assert_eq!(answered.events[0].name, "first_byte");
    let port = i64::from(engine.address.port());
    assert_eq!(number(answered, "server.port"), Some(port));
    for span in [root, answered] {
        assert_eq!(text(&span.attributes, "gen_ai.operation.name"), Some("chat"));
        assert_eq!(text(&span.attributes, "gen_ai.request.model"), Some("m"));
        assert_eq!(number(span, "gen_ai.usage.input_tokens"), Some(12));
        assert_eq!(number(span, "gen_ai.usage.output_tokens"), Some(3));
        assert_eq!(number(span, "gen_ai.usage.cache_read.input_tokens"), Some(8));
    }
    assert_eq!(number(root, "http.response.status_code"), Some(200));
    // The engine is told that it is called by the span of its try.
    engine.see(|state| {
        let request = state.requests.last().unwrap();
        let expected = format!("00-{TRACE}-{}-01", hex(&answered.span_id));
        assert_eq!(request.headers("traceparent"), [expected.as_str()]);
        assert_eq!(request.headers("tracestate"), ["vendor=1"]);
        assert_eq!(state.requests[0].headers("traceparent"), Vec::<&str>::new());
    });
    collector.see(|state| {
        for request in &state.requests {
            let text = String::from_utf8_lossy(&request.body);
            assert!(!text.contains("words"), "prompt text in a span: {text}");
        }
    });
    let lines = std::fs::read_to_string(log).unwrap();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["trace_id"], serde_json::Value::Null);
    assert_eq!(lines.last().unwrap()["trace_id"], TRACE);
    assert!(lines.iter().all(|line| !line.to_string().contains("words")));
}

#[tokio::test]
async fn a_request_without_a_caller_begins_a_trace_and_one_that_is_not_sampled_passes() {
    let collector = collector().await;
    let engine = Upstream::start(|_, _| stream()).await;
    let mut gateway = traced(Setup::of([engine.address]), &collector, "").start().await;
    let mut client = gateway.client().await;
    let unsampled = format!("00-{TRACE}-{CALLER}-00");
    client
        .post_with(CHAT, &format!("traceparent: {unsampled}\r\n"), chat("a", true))
        .await;
    assert_eq!(client.response().await.status, 200);
    client
        .post_with(
            CHAT,
            "traceparent: nonsense\r\ntracestate: vendor=1\r\n",
            chat("b", true),
        )
        .await;
    assert_eq!(client.response().await.status, 200);
    let spans = spans(&mut gateway, &collector).await;
    assert_eq!(spans.len(), 5, "{spans:?}");
    let root = named(&spans, "POST /v1/chat/completions")[0];
    assert!(root.parent_span_id.is_empty());
    assert_ne!(hex(&root.trace_id), TRACE);
    engine.see(|state| {
        assert_eq!(state.requests[0].headers("traceparent"), [unsampled.as_str()]);
        let own = state.requests[1].headers("traceparent")[0];
        assert!(own.starts_with(&format!("00-{}-", hex(&root.trace_id))), "{own}");
        assert_eq!(state.requests[1].headers("tracestate"), Vec::<&str>::new());
    });
}

#[tokio::test]
async fn without_traces_the_callers_context_passes_as_it_came() {
    let engine = Upstream::echo().await;
    let gateway = Setup::of([engine.address]).start().await;
    let mut client = gateway.client().await;
    let context = "traceparent: any thing\r\ntracestate: vendor=1\r\n";
    client.post_with(CHAT, context, chat("a", false)).await;
    assert_eq!(client.response().await.status, 200);
    engine.see(|state| {
        assert_eq!(state.requests[0].headers("traceparent"), ["any thing"]);
        assert_eq!(state.requests[0].headers("tracestate"), ["vendor=1"]);
    });
}

#[tokio::test]
async fn slow_requests_are_logged_whatever_the_sample_and_models_have_series() {
    let engine = Upstream::start(|request, _| {
        let slow = String::from_utf8_lossy(&request.body).contains("slow");
        if slow {
            stream_after(Step::Await)
        } else {
            Script::echo(request)
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let top = format!(
        "access_log: {{ to: '{}', sample: 0, slow_after: 15ms }}",
        log.display()
    );
    let mut gateway = Setup::of([engine.address]).top(&top).start().await;
    let mut client = gateway.client().await;
    client.post(CHAT, chat("slow", true)).await;
    let mut response = client.head().await.unwrap();
    assert_eq!(response.status, 200);
    client.body_until(&mut response, "Hi").await;
    // The gateway has seen the first token: from now on it takes 20 ms and more to the others.
    engine.release();
    client.body(&mut response).await;
    eventually("the request is accounted for", async || {
        gateway.metrics().await.sum("homing_tokens_total", "model=\"m\"") > 0.0
    })
    .await;
    let metrics = gateway.metrics().await;
    let of = |kind: &str| metrics.sum("homing_tokens_total", &format!("kind=\"{kind}\",model=\"m\""));
    assert_eq!([of("prompt"), of("cached"), of("completion")], [12.0, 8.0, 3.0]);
    for family in ["homing_time_to_first_token_seconds", "homing_inter_token_seconds"] {
        assert_eq!(
            metrics.sum(&format!("{family}_count"), "model=\"m\""),
            1.0,
            "{family}"
        );
    }
    // Two gaps between three tokens, 20 ms together.
    let sum = metrics.sum("homing_inter_token_seconds_sum", "model=\"m\"");
    assert!((0.010..1.0).contains(&sum), "{sum}");
    gateway.signal("TERM");
    assert_eq!(gateway.exit().await.code(), Some(0));
    let lines = std::fs::read_to_string(log).unwrap();
    assert_eq!(lines.lines().count(), 1, "{lines}");
}
