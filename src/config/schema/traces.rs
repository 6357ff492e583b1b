//! Traces: where spans are sent.

use super::Secret;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// OpenTelemetry spans of requests, sent by OTLP over HTTP (protobuf).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Traces {
    /// URL of the collector; without a path, `/v1/traces` is asked. Default: no traces.
    #[schemars(example = "http://127.0.0.1:4318")]
    pub endpoint: Option<String>,
    /// Headers of what is sent there.
    pub headers: BTreeMap<String, Secret>,
    /// Share of requests that are traced, from 0 to 1. A request that comes with a `traceparent` is traced when that
    /// says so, whatever this share is.
    #[schemars(range(min = 0, max = 1))]
    pub sample: f64,
    /// `service.name` of the spans.
    pub service_name: String,
}

impl Default for Traces {
    fn default() -> Self {
        Self {
            endpoint: None,
            headers: BTreeMap::new(),
            sample: 1.0,
            service_name: "homing".to_owned(),
        }
    }
}
