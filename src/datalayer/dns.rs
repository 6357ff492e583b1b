//! Host names to addresses, and service names to host names and ports, each with the time that the answer holds.
//!
//! Answers come from `/etc/hosts` and the name servers of `/etc/resolv.conf`, or from the servers that the configuration
//! names. Nothing is remembered here: who asks keeps the answer for as long as it holds.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Longest wait for one name server's answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Times that each is asked.
const ATTEMPTS: usize = 2;

/// Why a name has no answer.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The name servers say that there is none; also for a name that has records of other types only.
    #[error("there is no such name")]
    NoRecords,
    /// No server could be asked, or none answered usefully.
    #[error("{0}")]
    Failed(#[from] NetError),
    /// The system's resolver settings cannot be read.
    #[error("/etc/resolv.conf: {0}")]
    Settings(String),
}

/// Records, never none, and how long they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    pub records: Vec<T>,
    /// The smallest time to live of the records; a day for those of `/etc/hosts`.
    pub ttl: Duration,
}

/// One SRV record (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    /// Lower ones are to be preferred.
    pub priority: u16,
    /// Share among those of equal priority.
    pub weight: u16,
    pub port: u16,
    /// Host name without a dot at its end.
    pub host: String,
}

/// A resolver.
#[derive(Debug)]
pub struct Dns {
    resolver: Result<TokioResolver, String>,
}

impl Dns {
    /// Asks `servers`, or those of the system when there are none.
    pub fn new(servers: &[SocketAddr]) -> Self {
        let resolver = if servers.is_empty() {
            TokioResolver::builder_tokio()
        } else {
            let servers = servers.iter().map(name_server).collect();
            let config = ResolverConfig::from_name_servers(servers);
            Ok(TokioResolver::builder_with_config(
                config,
                TokioRuntimeProvider::default(),
            ))
        };
        let resolver = resolver.and_then(|mut builder| {
            let options = builder.options_mut();
            options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
            options.timeout = TIMEOUT;
            options.attempts = ATTEMPTS;
            options.cache_size = 0;
            builder.build()
        });
        Self {
            resolver: resolver.map_err(|error| error.to_string()),
        }
    }

    /// The addresses of a host, IPv4 first.
    ///
    /// # Errors
    /// When the name has none, or nobody could tell.
    pub async fn addresses(&self, host: &str) -> Result<Answer<IpAddr>, DnsError> {
        let found = self.resolver()?.lookup_ip(host).await.map_err(kind)?;
        let mut records: Vec<IpAddr> = found.iter().collect();
        records.sort_by_key(IpAddr::is_ipv6);
        answer(records, found.as_lookup())
    }

    /// The SRV records of a service name such as `_http._tcp.vllm.default.svc.cluster.local`, as they came.
    ///
    /// # Errors
    /// When the name has none, or nobody could tell.
    pub async fn services(&self, name: &str) -> Result<Answer<Service>, DnsError> {
        let found = self.resolver()?.srv_lookup(name).await.map_err(kind)?;
        let records = found.answers().iter().filter_map(|record| match &record.data {
            RData::SRV(of) => Some(Service {
                priority: of.priority,
                weight: of.weight,
                port: of.port,
                host: host_name(&of.target),
            }),
            _ => None,
        });
        answer(records.collect(), &found)
    }

    fn resolver(&self) -> Result<&TokioResolver, DnsError> {
        let resolver = self.resolver.as_ref();
        resolver.map_err(|why| DnsError::Settings(why.clone()))
    }
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let at_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
    NameServerConfig::new(address.ip(), true, connections.map(at_port).into())
}

fn answer<T>(records: Vec<T>, of: &Lookup) -> Result<Answer<T>, DnsError> {
    if records.is_empty() {
        return Err(DnsError::NoRecords);
    }
    let ttl = of.valid_until().saturating_duration_since(Instant::now());
    Ok(Answer { records, ttl })
}

fn kind(error: NetError) -> DnsError {
    if error.is_no_records_found() {
        DnsError::NoRecords
    } else {
        DnsError::Failed(error)
    }
}

fn host_name(name: &Name) -> String {
    name.to_utf8().trim_end_matches('.').to_ascii_lowercase()
}
