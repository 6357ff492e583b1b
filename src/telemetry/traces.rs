//! OpenTelemetry spans of requests, sent by OTLP over HTTP.
//!
//! A traced request carries a [`Trace`] that notes times as it passes the phases; its spans are made when it ends, and
//! the SDK's batch processor sends them from a thread of its own. A request that is not traced carries nothing.

mod parent;
mod spans;
mod trace;

pub use parent::Parent;
pub use trace::{Stopwatch, Trace};

use super::access_log::Record;
use crate::config::schema;
use http::{HeaderMap, Uri};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, IdGenerator, RandomIdGenerator, SpanProcessor};
use std::time::Duration;

/// Longest wait for one answer of the collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the last spans when the process ends.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// Path that OTLP over HTTP takes spans at.
const PATH: &str = "/v1/traces";

/// Makes and sends spans.
#[derive(Debug)]
pub struct Traces {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    ids: RandomIdGenerator,
    /// Share of requests without a `traceparent` that are traced, 0..=1.
    sample: f64,
}

impl Traces {
    /// What `of` asks for; `None` when that is nothing.
    ///
    /// # Errors
    /// When no client can be made for the collector's URL.
    pub fn start(of: &schema::Traces) -> Result<Option<Self>, ExporterBuildError> {
        let Some(endpoint) = &of.endpoint else {
            return Ok(None);
        };
        let headers = of.headers.iter();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(url(endpoint))
            .with_headers(
                headers
                    .map(|(name, value)| (name.clone(), value.expose().to_owned()))
                    .collect(),
            )
            .with_timeout(EXPORT_TIMEOUT)
            .build()?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        let resource = Resource::builder()
            .with_service_name(of.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        processor.set_resource(&resource);
        Ok(Some(Self {
            processor,
            scope: InstrumentationScope::builder("homing")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
            ids: RandomIdGenerator::default(),
            sample: of.sample,
        }))
    }

    /// The trace of a request that has just been read; `None` when it is not to be traced.
    pub fn begin(&self, headers: &HeaderMap) -> Option<Box<Trace>> {
        let parent = Parent::of(headers);
        let wanted = match &parent {
            Some(parent) => parent.sampled,
            None => self.sample >= 1.0 || (self.sample > 0.0 && rand::random::<f64>() < self.sample),
        };
        wanted.then(|| {
            let trace_id = parent.map_or_else(|| self.ids.new_trace_id(), |parent| parent.trace_id);
            Box::new(Trace::new(trace_id, parent, self.ids.clone()))
        })
    }

    /// Sends the spans of a request that has ended. Never waits: what does not fit the queue is dropped.
    pub fn end(&self, trace: Trace, record: &Record<'_>, operation: Option<&'static str>) {
        for span in spans::of(trace, record, operation, &self.scope) {
            self.processor.on_end(span);
        }
    }

    /// Sends what waits; for the end of the process.
    pub fn shutdown(&self) {
        if let Err(fault) = self.processor.shutdown_with_timeout(LAST_SPANS) {
            tracing::warn!(%fault, "the last spans may be lost");
        }
    }
}

/// Where spans go.
fn url(endpoint: &str) -> String {
    let path_is_given = endpoint
        .parse::<Uri>()
        .is_ok_and(|uri| !matches!(uri.path(), "" | "/"));
    if path_is_given {
        endpoint.to_owned()
    } else {
        format!("{}{PATH}", endpoint.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_where_collectors_expect_them() {
        assert_eq!(url("http://c:4318"), "http://c:4318/v1/traces");
        assert_eq!(url("http://c:4318/"), "http://c:4318/v1/traces");
        assert_eq!(url("http://c/otlp/v1/traces"), "http://c/otlp/v1/traces");
    }
}
