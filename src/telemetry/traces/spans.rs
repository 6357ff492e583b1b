//! The spans of a request that has ended. Attributes follow OpenTelemetry's semantic conventions for HTTP and for
//! generative AI; what they have no word for is under `homing.`. No prompt text, ever.

use super::trace::{Attempt, Trace};
use crate::telemetry::access_log::Record;
use opentelemetry::trace::{Event, SpanContext, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, SpanId};
use opentelemetry_sdk::trace::{IdGenerator, SpanData, SpanEvents, SpanLinks};
use std::borrow::Cow;
use std::time::{Instant, SystemTime};

/// The gateway's span, its steps, and one span per try. `operation` is the semantic conventions' word for what the
/// path does, if they have one.
pub(super) fn of(
    mut trace: Trace,
    record: &Record<'_>,
    operation: Option<&'static str>,
    scope: &InstrumentationScope,
) -> Vec<SpanData> {
    let end = Instant::now();
    let attempts = std::mem::take(&mut trace.attempts);
    let steps = std::mem::take(&mut trace.steps);
    let write = Writer { trace, scope };
    let mut spans = Vec::with_capacity(1 + steps.len() + attempts.len());
    for step in steps {
        let id = write.trace.ids.new_span_id();
        spans.push(write.child(id, step.name, SpanKind::Internal, (step.from, step.to)));
    }
    let last = attempts.len().saturating_sub(1);
    for (n, attempt) in attempts.into_iter().enumerate() {
        spans.push(write.upstream(attempt, (n == last).then_some(record), operation, end));
    }
    spans.push(write.gateway(record, operation, end));
    spans
}

struct Writer<'a> {
    trace: Trace,
    scope: &'a InstrumentationScope,
}

impl Writer<'_> {
    /// The span of the whole request.
    fn gateway(&self, record: &Record<'_>, operation: Option<&'static str>, end: Instant) -> SpanData {
        // Paths are bounded only where they are known.
        let name = match operation {
            Some(_) => format!("{} {}", record.method, record.path),
            None => record.method.to_owned(),
        };
        let mut attributes = vec![
            KeyValue::new("http.request.method", record.method.to_owned()),
            KeyValue::new("url.path", record.path.to_owned()),
            KeyValue::new("http.response.status_code", i64::from(record.status)),
            KeyValue::new("homing.request_id", record.request_id.to_owned()),
            KeyValue::new("homing.outcome", record.outcome.to_owned()),
            KeyValue::new("homing.attempts", i64::from(record.attempts)),
            KeyValue::new("homing.prompt_blocks", i64::from(record.prompt_blocks)),
            KeyValue::new("homing.matched_blocks", i64::from(record.matched_blocks)),
        ];
        push(&mut attributes, "homing.pool", record.pool);
        push(&mut attributes, "homing.endpoint", record.endpoint);
        push(&mut attributes, "homing.decision", record.decision);
        push(&mut attributes, "error.type", record.error);
        gen_ai(&mut attributes, record, operation);
        let parent = self.trace.parent;
        SpanData {
            parent_span_id: parent.map_or(SpanId::INVALID, |parent| parent.span_id),
            parent_span_is_remote: parent.is_some(),
            attributes,
            status: status(record),
            ..self.span(
                self.trace.span_id,
                name.into(),
                SpanKind::Server,
                (self.trace.started, end),
            )
        }
    }

    /// The span of one try; `record` is that of the request when this was the last one.
    fn upstream(
        &self,
        attempt: Attempt,
        record: Option<&Record<'_>>,
        operation: Option<&'static str>,
        end: Instant,
    ) -> SpanData {
        let mut attributes = vec![KeyValue::new("homing.endpoint", attempt.endpoint)];
        if let Some(address) = attempt.address {
            attributes.push(KeyValue::new("server.address", address.ip().to_string()));
            attributes.push(KeyValue::new("server.port", i64::from(address.port())));
        }
        let answered = record.filter(|_| attempt.failed.is_none());
        if let Some(record) = answered {
            gen_ai(&mut attributes, record, operation);
        }
        let status = match (attempt.failed, answered) {
            (Some((_, why)), _) => {
                attributes.push(KeyValue::new("error.type", why));
                Status::error(why)
            }
            (None, Some(record)) => status(record),
            (None, None) => Status::Unset,
        };
        let mut events = SpanEvents::default();
        events.events.extend(
            attempt
                .first_byte
                .map(|moment| Event::new("first_byte", self.trace.at(moment), Vec::new(), 0)),
        );
        let to = attempt.failed.map_or(end, |(at, _)| at);
        SpanData {
            attributes,
            events,
            status,
            ..self.child(attempt.span_id, "upstream", SpanKind::Client, (attempt.from, to))
        }
    }

    fn child(&self, id: SpanId, name: &'static str, kind: SpanKind, times: (Instant, Instant)) -> SpanData {
        SpanData {
            parent_span_id: self.trace.span_id,
            ..self.span(id, name.into(), kind, times)
        }
    }

    fn span(
        &self,
        id: SpanId,
        name: Cow<'static, str>,
        kind: SpanKind,
        times: (Instant, Instant),
    ) -> SpanData {
        let (start_time, end_time): (SystemTime, SystemTime) =
            (self.trace.at(times.0), self.trace.at(times.1));
        SpanData {
            span_context: SpanContext::new(
                self.trace.trace_id,
                id,
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            ),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: kind,
            name,
            start_time,
            end_time,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

/// What the conventions for generative AI have words for.
fn gen_ai(attributes: &mut Vec<KeyValue>, record: &Record<'_>, operation: Option<&'static str>) {
    push(attributes, "gen_ai.operation.name", operation);
    push(attributes, "gen_ai.request.model", record.model);
    let counts = [
        ("gen_ai.usage.input_tokens", record.reported_prompt_tokens),
        ("gen_ai.usage.output_tokens", record.completion_tokens),
        (
            "gen_ai.usage.cache_read.input_tokens",
            record.reported_cached_tokens,
        ),
    ];
    for (key, count) in counts {
        if let Some(count) = count {
            attributes.push(KeyValue::new(key, i64::try_from(count).unwrap_or(i64::MAX)));
        }
    }
}

fn push(attributes: &mut Vec<KeyValue>, key: &'static str, value: Option<&str>) {
    if let Some(value) = value {
        attributes.push(KeyValue::new(key, value.to_owned()));
    }
}

/// A server's span is in error when the server is to blame (HTTP conventions); a stream that broke is as well.
fn status(record: &Record<'_>) -> Status {
    if record.status >= 500 || record.outcome == "upstream-broken" {
        Status::error(record.error.unwrap_or(record.outcome).to_owned())
    } else {
        Status::Unset
    }
}
