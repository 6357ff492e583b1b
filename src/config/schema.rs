//! The configuration file's shape. One doc comment per key: they become the hover texts of the JSON
//! Schema and the comments of the generated reference, so they speak to the operator.
//!
//! Defaults live in the `Default` implementations and nowhere else.

mod discovery;
mod front;
mod overload;
mod pool;
mod scheduling;
mod secret;
mod traces;

pub use discovery::{Discovery, DnsDiscovery, EndpointsFile};
pub use front::{Auth, Cors, Forwarded, ForwardedFor, Tls};
pub use overload::{Overload, Queue, WorkingSet};
pub use pool::{
    Auto, Ejection, Endpoint, EndpointTls, Health, KvEvents, Metrics, Pool, PrefixCache, PrefixSource,
    RetryBudget, StreamErrors, Timeouts, Tokenizer,
};
pub use scheduling::{
    AffinityFilter, Choice, DEFAULT_PRESET, Fleet, Plugin, PluginKind, PluginRole, PluginType, Preset,
    Scheduling, Start, TokenLoad,
};
pub use secret::Secret;
pub use traces::Traces;

use super::address::{ListenAddresses, addresses_schema, listen_schema};
use super::units::{ByteSize, Period};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

/// Configuration of the Homing gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Data port: where clients connect. One address or a list.
    pub listen: ListenAddresses,
    /// Data port with TLS, beside or instead of `listen`.
    pub tls: Option<Tls>,
    /// Admin port: metrics, health, explain and the dashboard.
    pub admin: Admin,
    /// Worker threads of the data port. Default: one per core.
    #[schemars(range(min = 1, max = 1024), example = 2)]
    pub threads: Option<NonZeroUsize>,
    /// Bounds on what clients may send.
    pub limits: Limits,
    /// API keys of clients.
    pub auth: Auth,
    /// Pages of other sites that may ask from a browser.
    pub cors: Cors,
    /// What endpoints are told of clients.
    pub forwarded: Forwarded,
    /// When responses carry the `x-homing-*` headers that tell where a request went and why.
    pub response_headers: ResponseHeaders,
    /// One JSON line per request. Prompt text is never written.
    pub access_log: AccessLog,
    /// OpenTelemetry spans of requests.
    pub traces: Traces,
    /// Read this file again when it changes, as on SIGHUP.
    pub reload_on_change: bool,
    /// How the host names of endpoints are resolved.
    pub dns: Dns,
    /// Write live traffic as a trace for `homing replay` to this file: times, lengths and hashes of blocks, never text.
    #[schemars(example = "/var/lib/homing/trace.jsonl")]
    pub record: Option<PathBuf>,
    /// How that trace is written.
    pub recording: Recording,
    /// What happens on SIGTERM.
    pub shutdown: Shutdown,
    /// Where `homing run --upgrade` takes the listeners over from a running gateway. Keep it in a folder that only
    /// the gateway's user may write to.
    pub upgrade_socket: PathBuf,
    /// The index of which endpoint holds which prompt prefix.
    pub prefix_index: PrefixIndex,
    /// The pools: each a set of endpoints that serve the same models.
    pub pools: Vec<Pool>,
}

impl Config {
    /// Every address of the data port, without and with TLS.
    pub fn data_ports(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let tls = self.tls.iter().flat_map(|tls| &tls.listen.0);
        self.listen.0.iter().chain(tls).copied()
    }

    /// The files of certificates and keys that it names.
    pub fn tls_files(&self) -> impl Iterator<Item = &Path> {
        let own = self.tls.iter().flat_map(|tls| [&tls.certificate, &tls.key]);
        let pools = self.pools.iter().filter_map(|pool| pool.tls.as_ref());
        let pools = pools.flat_map(|tls| [&tls.ca, &tls.certificate, &tls.key].into_iter().flatten());
        own.chain(pools).map(PathBuf::as_path)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: ListenAddresses(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))]),
            tls: None,
            admin: Admin::default(),
            threads: None,
            limits: Limits::default(),
            auth: Auth::default(),
            cors: Cors::default(),
            forwarded: Forwarded::default(),
            response_headers: ResponseHeaders::default(),
            access_log: AccessLog::default(),
            traces: Traces::default(),
            record: None,
            recording: Recording::default(),
            reload_on_change: false,
            dns: Dns::default(),
            shutdown: Shutdown::default(),
            upgrade_socket: PathBuf::from("/run/homing/upgrade.sock"),
            prefix_index: PrefixIndex::default(),
            pools: Vec::new(),
        }
    }
}

/// The admin port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address of the admin port. It can drain endpoints and asks for no password: keep it on loopback.
    #[schemars(schema_with = "listen_schema")]
    pub listen: SocketAddr,
    /// Host names by which the port may be asked, beside `localhost` and IP addresses; `*`: any. Guards against
    /// pages that lead a browser here.
    pub allowed_hosts: Vec<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9901)),
            allowed_hosts: Vec::new(),
        }
    }
}

/// Bounds on what clients may send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest request body. Larger: 413.
    pub request_body: ByteSize,
    /// Largest request head (request line and headers). Larger: 431.
    pub request_headers: ByteSize,
    /// Longest wait for a complete request head. Longer: 408.
    pub headers_timeout: Period,
    /// Longest wait between two reads of a request body. Longer: 408.
    pub body_timeout: Period,
    /// How long a client may take nothing of a response that waits for it. Longer: the connection is closed.
    pub send_timeout: Period,
    /// Bytes of request bodies held in memory at a time, over all clients. What does not fit is answered
    /// 503 with Retry-After.
    pub buffered_bodies: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_body: ByteSize::mib(32),
            request_headers: ByteSize::kib(64),
            headers_timeout: Period::from_secs(10),
            body_timeout: Period::from_secs(30),
            send_timeout: Period::from_secs(60),
            buffered_bodies: ByteSize::mib(1024),
        }
    }
}

/// When responses carry the `x-homing-*` headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ResponseHeaders {
    /// Never.
    Off,
    /// When the request carries `x-homing-explain: 1`.
    #[default]
    OnRequest,
    /// On every response.
    Always,
}

/// The access log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccessLog {
    /// Where the lines go: `off`, `stderr`, `stdout` or the path of a file that is appended to.
    pub to: AccessLogTarget,
    /// Share of requests that are written, from 0 to 1. Errors are always written.
    #[schemars(range(min = 0, max = 1))]
    pub sample: f64,
    /// Requests that took longer are always written. With `sample: 0`, only they and errors are.
    #[schemars(example = "10s")]
    pub slow_after: Option<Period>,
}

impl Default for AccessLog {
    fn default() -> Self {
        Self {
            to: AccessLogTarget::Stderr,
            sample: 1.0,
            slow_after: None,
        }
    }
}

/// Where access log lines go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(inline, with = "String")]
pub enum AccessLogTarget {
    /// Nowhere.
    Off,
    /// Standard error, among the gateway's own log.
    Stderr,
    /// Standard output.
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}

impl From<String> for AccessLogTarget {
    fn from(text: String) -> Self {
        match text.as_str() {
            "off" => Self::Off,
            "stderr" => Self::Stderr,
            "stdout" => Self::Stdout,
            _ => Self::File(text.into()),
        }
    }
}

impl From<AccessLogTarget> for String {
    fn from(target: AccessLogTarget) -> Self {
        match target {
            AccessLogTarget::Off => "off".to_owned(),
            AccessLogTarget::Stderr => "stderr".to_owned(),
            AccessLogTarget::Stdout => "stdout".to_owned(),
            AccessLogTarget::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// How the host names of endpoints are resolved. They are asked for again when their time to live is over, not
/// before a second has passed and after 30 seconds at the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Dns {
    /// Name servers to ask instead of those in /etc/resolv.conf.
    #[schemars(schema_with = "addresses_schema", example = ["10.96.0.10:53"])]
    pub servers: Vec<SocketAddr>,
}

/// How the trace is written that `record` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Recording {
    /// A file that has grown to this moves to `FILE.1`, that to `FILE.2` and so on.
    pub file_size: ByteSize,
    /// Files kept, the newest included.
    #[schemars(range(min = 1))]
    pub files: NonZeroU32,
    /// Tokens per hash, a multiple of 64. The public traces have 512; fewer show the reuse of shorter prompts and make
    /// larger files.
    #[schemars(range(min = 64, max = 65536))]
    pub block_tokens: NonZeroU32,
}

impl Default for Recording {
    fn default() -> Self {
        Self {
            file_size: ByteSize::mib(256),
            files: NonZeroU32::MIN.saturating_add(3),
            block_tokens: NonZeroU32::MIN.saturating_add(511),
        }
    }
}

/// What happens on SIGTERM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long running responses may go on after SIGTERM before they are cut.
    pub grace: Period,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            grace: Period::from_secs(30),
        }
    }
}

/// The prefix index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrefixIndex {
    /// Memory of the whole index, over all pools; never exceeded. When it is full, the least recently used
    /// prefixes go first.
    pub memory: ByteSize,
}

impl Default for PrefixIndex {
    fn default() -> Self {
        Self {
            memory: ByteSize::mib(64),
        }
    }
}
