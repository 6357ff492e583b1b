//! Pools: endpoints, how they are watched and how long they are waited for.

use super::super::address::EndpointUrl;
use super::super::units::Period;
use super::{Discovery, Overload, Scheduling, Secret};
use crate::kv_events::address::{Address, AddressError};
use crate::kv_events::subscriber::Source;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// A set of endpoints that serve the same models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// Name in metrics, logs and the admin API. Must be unique.
    pub name: String,
    /// Model names that this pool serves, LoRA adapters included. Empty: every model that no other pool names.
    pub models: Vec<String>,
    /// The model servers.
    pub endpoints: Vec<Endpoint>,
    /// Endpoints that come and go, beside those that are listed.
    pub discovery: Discovery,
    /// The endpoints' own API key (vLLM's `--api-key`); sent instead of what the client sent.
    #[schemars(example = "${VLLM_API_KEY}")]
    pub api_key: Option<Secret>,
    /// How endpoints with `https://` URLs are spoken to.
    pub tls: Option<EndpointTls>,
    /// How the endpoints' metrics are read.
    pub metrics: Metrics,
    /// How the endpoints' health is checked.
    pub health: Health,
    /// How long endpoints are waited for.
    pub timeouts: Timeouts,
    /// How many other endpoints are tried after a failure, only before any response byte.
    #[schemars(range(max = 100))]
    pub retries: u32,
    /// Statuses after which another endpoint is tried. 429 is not among them: it passes with its Retry-After.
    pub retry_on: Vec<u16>,
    /// Bound on the load that retries add when many endpoints fail at once.
    pub retry_budget: RetryBudget,
    /// When endpoints whose requests fail are set aside.
    pub ejection: Ejection,
    /// An endpoint that became ready gets its share of requests little by little over this time. 0s: at once.
    pub slow_start: Period,
    /// How a stream ends that breaks after its first byte.
    pub stream_errors: StreamErrors,
    /// What is known of the endpoints' KV caches.
    pub prefix_cache: PrefixCache,
    /// Where the endpoints publish their KV cache events. Used with `prefix_cache.source: kv-events`.
    pub kv_events: Option<KvEvents>,
    /// Real tokens for text prompts. Without it, text is measured by an estimate that is learnt per model.
    pub tokenizer: Option<Tokenizer>,
    /// How an endpoint is chosen.
    pub scheduling: Scheduling,
    /// What happens when more work comes than the endpoints can take.
    pub overload: Overload,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            models: Vec::new(),
            endpoints: Vec::new(),
            discovery: Discovery::default(),
            api_key: None,
            tls: None,
            metrics: Metrics::default(),
            health: Health::default(),
            timeouts: Timeouts::default(),
            retries: 2,
            retry_on: vec![502, 503],
            retry_budget: RetryBudget::default(),
            ejection: Ejection::default(),
            slow_start: Period::from_secs(10),
            stream_errors: StreamErrors::default(),
            prefix_cache: PrefixCache::default(),
            kv_events: None,
            tokenizer: None,
            scheduling: Scheduling::default(),
            overload: Overload::default(),
        }
    }
}

/// One model server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Name in metrics, logs, headers and the admin API. Must be unique in the pool. Default: host:port of the url.
    #[serde(default)]
    #[schemars(extend("default" = null), example = "pod-a")]
    pub name: String,
    /// Base URL: scheme, host and port.
    #[schemars(example = "http://127.0.0.1:8000")]
    pub url: EndpointUrl,
    /// Free key: value pairs, shown by the admin API.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Overrides the pool's `kv_events.endpoint` for this endpoint.
    #[serde(default)]
    #[schemars(example = "tcp://127.0.0.1:5557")]
    pub kv_events: Option<String>,
    /// Overrides the pool's `kv_events.replay` for this endpoint.
    #[serde(default)]
    #[schemars(example = "tcp://127.0.0.1:5558")]
    pub kv_replay: Option<String>,
    /// Most requests in flight on this endpoint. Default: no bound.
    #[serde(default)]
    #[schemars(example = 256)]
    pub max_inflight: Option<NonZeroU32>,
}

impl Endpoint {
    /// Without a name it takes host:port of its url.
    pub fn take_name(&mut self) {
        if self.name.is_empty() {
            self.name = self.url.authority();
        }
    }
}

/// How endpoints with `https://` URLs are spoken to: for requests, health checks, scrapes and everything else. Without it,
/// their certificates must be of the URL's host and signed by one of the system's authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointTls {
    /// PEM file of the authorities that sign the endpoints' certificates, instead of the system's.
    #[schemars(example = "/etc/homing/endpoints-ca.crt")]
    pub ca: Option<PathBuf>,
    /// PEM file of the gateway's own certificate, for endpoints that ask for one.
    #[schemars(example = "/etc/homing/client.crt")]
    pub certificate: Option<PathBuf>,
    /// PEM file of its private key.
    #[schemars(example = "/etc/homing/client.key")]
    pub key: Option<PathBuf>,
    /// The name that is asked for (SNI) and that the certificates must be of. Default: the host of each URL.
    #[schemars(example = "vllm.internal")]
    pub server_name: Option<String>,
    /// Believe every certificate, whoever signed it and whatever name it has. Whoever can take an endpoint's address reads
    /// its prompts and gets `api_key`: for trials only.
    pub insecure_skip_verify: bool,
}

/// How the endpoints' metrics are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Path of the Prometheus page.
    pub path: String,
    /// Time between two reads of one endpoint.
    pub interval: Period,
    /// Longest wait for one read.
    pub timeout: Period,
    /// Values older than this count as unknown.
    pub stale_after: Period,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            path: "/metrics".to_owned(),
            interval: Period::from_millis(50),
            timeout: Period::from_secs(1),
            stale_after: Period::from_secs(2),
        }
    }
}

/// How the endpoints' health is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Path that answers 200 while the server is well.
    pub path: String,
    /// Time between two checks of one endpoint.
    pub interval: Period,
    /// Longest wait for one check.
    pub timeout: Period,
    /// Consecutive failed checks until an endpoint gets no more requests.
    pub unhealthy_after: NonZeroU32,
    /// Consecutive passed checks until it gets requests again.
    pub healthy_after: NonZeroU32,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            path: "/health".to_owned(),
            interval: Period::from_secs(1),
            timeout: Period::from_secs(1),
            unhealthy_after: NonZeroU32::MIN.saturating_add(1),
            healthy_after: NonZeroU32::MIN,
        }
    }
}

/// How long endpoints are waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// For a connection to stand.
    pub connect: Period,
    /// Until the response headers. Long prefills and full queues need minutes.
    pub first_byte: Period,
    /// Between two reads of a response.
    pub idle: Period,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Period::from_secs(1),
            first_byte: Period::from_secs(600),
            idle: Period::from_secs(300),
        }
    }
}

/// Bound on the load that retries add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryBudget {
    /// Retries per request, over the last ten seconds.
    #[schemars(range(min = 0, max = 10))]
    pub ratio: f64,
    /// Retries per second that are always allowed.
    pub min_per_second: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            ratio: 0.2,
            min_per_second: 10,
        }
    }
}

/// When endpoints whose requests fail are set aside. Never more than half of the pool, and never the last one that is
/// ready. Errors of clients (4xx) do not count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ejection {
    /// Failed requests in a row after which an endpoint is set aside. 0: never for this reason.
    pub consecutive_failures: u32,
    /// Share of failed requests in a window after which it is set aside.
    #[schemars(range(min = 0.01, max = 1))]
    pub failure_ratio: f64,
    /// Requests in a window below which the share says nothing.
    pub min_requests: u32,
    /// Length of a window.
    pub window: Period,
    /// First time out; afterwards it is tried with one request at a time. Doubled with each further time.
    pub first_time: Period,
    /// Longest time out.
    pub longest_time: Period,
    /// How long an engine may hold requests while none of its counters moves, before it counts as hung.
    pub hung_after: Period,
}

impl Default for Ejection {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            failure_ratio: 0.5,
            min_requests: 20,
            window: Period::from_secs(10),
            first_time: Period::from_secs(5),
            longest_time: Period::from_secs(300),
            hung_after: Period::from_secs(60),
        }
    }
}

/// How a stream ends that breaks after its first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StreamErrors {
    /// The connection is cut, so that any client can tell.
    #[default]
    Cut,
    /// A last event carries the error, and the stream ends properly.
    Event,
}

/// What is known of the endpoints' KV caches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrefixCache {
    /// Where the knowledge comes from.
    pub source: PrefixSource,
    /// Tokens per KV block. `auto` reads it from `vllm:cache_config_info`.
    pub block_size: Auto<NonZeroU32>,
    /// KV capacity of one endpoint in tokens. `auto` reads it from `vllm:cache_config_info`.
    pub capacity: Auto<NonZeroU32>,
}

/// Where the knowledge of cached prefixes comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PrefixSource {
    /// Inferred from the requests that each endpoint was sent.
    #[default]
    Traffic,
    /// Exact: the engines' own KV cache events.
    KvEvents,
}

/// A number, or `auto` for the value that the endpoint itself reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// The endpoint's own value.
    #[default]
    Auto,
    /// This value, whatever the endpoint reports.
    Value(T),
}

impl<T> Auto<T> {
    /// The fixed value, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Value(value) => Some(value),
        }
    }
}

/// Written form of [`Auto`].
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum AutoText<T> {
    Word(AutoWord),
    Value(T),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AutoWord {
    Auto,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match AutoText::deserialize(deserializer)? {
            AutoText::Word(AutoWord::Auto) => Self::Auto,
            AutoText::Value(value) => Self::Value(value),
        })
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => AutoText::<&T>::Word(AutoWord::Auto).serialize(serializer),
            Self::Value(value) => AutoText::Value(value).serialize(serializer),
        }
    }
}

impl<T: JsonSchema> JsonSchema for Auto<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Auto_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "const": "auto" }, value] })
    }
}

/// Where the endpoints publish their KV cache events (vLLM's `--kv-events-config`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KvEvents {
    /// ZMQ address of the publisher; `{host}` stands for the endpoint's host.
    pub endpoint: String,
    /// ZMQ address that replays missed events; `{host}` stands for the endpoint's host. Default: no replay.
    #[schemars(example = "tcp://{host}:5558")]
    pub replay: Option<String>,
    /// Topic to subscribe to. Empty: all.
    pub topic: String,
    /// Data-parallel ranks behind each endpoint (`--data-parallel-size`): rank N publishes on the port of `endpoint`
    /// plus N, and replays on the port of `replay` plus N.
    #[schemars(range(min = 1, max = 64))]
    pub ranks: u16,
}

impl KvEvents {
    /// Where the events of each rank of `endpoint` come from.
    ///
    /// # Errors
    /// The address that cannot be connected to, and why.
    pub fn sources(&self, endpoint: &Endpoint) -> Result<Vec<Source>, (String, AddressError)> {
        let address = |template: &str| {
            Address::of_host(template, endpoint.url.host()).map_err(|why| (template.to_owned(), why))
        };
        let events = address(endpoint.kv_events.as_ref().unwrap_or(&self.endpoint))?;
        let replay = endpoint.kv_replay.as_ref().or(self.replay.as_ref());
        let replay = replay.map(|replay| address(replay)).transpose()?;
        let past_the_last = |address: &Address| (address.to_string(), AddressError::Port);
        (0..self.ranks)
            .map(|rank| {
                let of_rank =
                    |address: &Address| address.for_rank(rank).ok_or_else(|| past_the_last(address));
                Ok(Source {
                    events: of_rank(&events)?,
                    replay: replay.as_ref().map(of_rank).transpose()?,
                    topic: self.topic.clone(),
                })
            })
            .collect()
    }
}

impl Default for KvEvents {
    fn default() -> Self {
        Self {
            endpoint: "tcp://{host}:5557".to_owned(),
            replay: None,
            topic: String::new(),
            ranks: 1,
        }
    }
}

/// Real tokens for text prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tokenizer {
    /// A model's folder, or its tokenizer.json.
    #[schemars(example = "/models/qwen")]
    pub path: Option<PathBuf>,
    /// Ask the endpoints' own `/tokenize` instead.
    pub engine: bool,
    /// Chat template file. Default: the one in the model's folder.
    #[schemars(example = "/models/qwen/chat_template.jinja")]
    pub chat_template: Option<PathBuf>,
}
