//! Builds the gateway from its configuration and runs it.

use super::{Drain, Readiness, exact, supervisor};
use crate::admin::guard::Guard;
use crate::admin::{self, Admin};
use crate::config::Config;
use crate::config::schema::{self, AccessLogTarget, Secret, StreamErrors};
use crate::datalayer::watch::Watch;
use crate::overload::queue::QueueSettings;
use crate::pool::ejection::EjectionLimits;
use crate::pool::retry_budget::RetryLimits;
use crate::pool::waiting::{Sharing, WaitingSettings};
use crate::pool::{self, Endpoint, Identity, Pool, Pools};
use crate::prefix::PrefixIndex;
use crate::proxy::auth::ApiKeys;
use crate::proxy::body::BodyLimits;
use crate::proxy::budget::BodyBudget;
use crate::proxy::cors::Origins;
use crate::proxy::guarded::{ConnectionLimits, Guarded};
use crate::proxy::{Gateway, Proxy, Settings};
use crate::scheduling::Scheduler;
use crate::telemetry::Metrics;
use crate::telemetry::access_log::AccessLog;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::HeaderName;
use http::HeaderValue;
use parking_lot::Mutex;
use pingora_core::connectors::http::Connector;
use pingora_core::listeners::ListenerConfig;
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora_core::services::background::{BackgroundService, background_service};
use pingora_core::services::listening::Service;
use pingora_proxy::http_proxy;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use xxhash_rust::xxh3::xxh3_64;

/// KV capacity in tokens assumed until an endpoint has told: 31,250 blocks of 16 tokens.
const DEFAULT_CAPACITY_TOKENS: u64 = 500_000;
/// How long a connection from a client may be idle between two requests.
const CLIENT_IDLE: Duration = Duration::from_secs(75);
/// Idle connections to endpoints kept per worker thread.
const UPSTREAM_POOL: usize = 512;

/// Runs the gateway until a signal ends it.
///
/// # Errors
/// When a port cannot be bound, or a part cannot start.
pub fn run(config: &Config) -> anyhow::Result<()> {
    let gateway = Arc::new(gateway(config)?);
    let readiness = Readiness::default();
    let admin_listener = std_listener(config.admin.listen)?;
    for &address in &config.listen.0 {
        check_bindable(address)?;
    }
    let mut server = Server::new_with_opt_and_conf(None, server_conf(config));
    server.bootstrap();
    server.add_service(data_service(config, &gateway, &server.configuration));
    supervisor::await_listeners(&readiness);
    let control = Control {
        listen: config.listen.0.clone(),
        gateway: gateway.clone(),
        readiness: readiness.clone(),
        admin_listener: Mutex::new(Some(admin_listener)),
        watches: Mutex::new(watches(config, &gateway)),
        max_body_bytes: usize::try_from(config.limits.request_body.0)?,
        guard: Guard {
            listen: config.admin.listen,
            allowed_hosts: config.admin.allowed_hosts.clone(),
        },
        grace: config.shutdown.grace.0,
    };
    server.add_service(background_service("control", control));
    tracing::info!(listen = ?config.listen.0, admin = %config.admin.listen, "serving");
    server.run(RunArgs {
        shutdown_signal: Box::new(Signals { readiness }),
    });
    Ok(())
}

/// The gateway's shared state.
///
/// # Errors
/// When the access log cannot be opened or a pool's scheduling cannot be built.
pub fn gateway(config: &Config) -> anyhow::Result<Gateway> {
    let metrics = Metrics::new()?;
    let index = Arc::new(PrefixIndex::new(usize::try_from(config.prefix_index.memory.0)?));
    let pools = config
        .pools
        .iter()
        .map(|of| pool(of, &index, &metrics).map(Arc::new));
    let pools = Pools::new(pools.collect::<anyhow::Result<_>>()?);
    Ok(Gateway {
        origin: Instant::now(),
        pools: ArcSwap::from_pointee(pools),
        settings: Settings {
            body: BodyLimits {
                max_bytes: config.limits.request_body.0,
                timeout: config.limits.body_timeout.0,
            },
            max_header_bytes: config.limits.request_headers.0,
            api_keys: ApiKeys::new(&config.auth.keys, config.auth.file.as_deref()).context("auth.file")?,
            cors: Origins::new(&config.cors.allow_origins),
            forwarded: config.forwarded.clone(),
            response_headers: config.response_headers,
            access_log_sample: config.access_log.sample,
        },
        budget: BodyBudget::new(config.limits.buffered_bodies.0),
        access_log: access_log(&config.access_log.to)?,
        decisions: Default::default(),
        drain: Drain::default(),
        connector: Arc::new(Connector::new(None)),
        metrics,
    })
}

fn access_log(to: &AccessLogTarget) -> anyhow::Result<AccessLog> {
    Ok(match to {
        AccessLogTarget::Off => AccessLog::off(),
        AccessLogTarget::Stderr => AccessLog::stderr()?,
        AccessLogTarget::Stdout => AccessLog::stdout()?,
        AccessLogTarget::File(path) => {
            AccessLog::file(path).with_context(|| format!("access_log.to: {}", path.display()))?
        }
    })
}

fn pool(of: &schema::Pool, index: &Arc<PrefixIndex>, metrics: &Metrics) -> anyhow::Result<Pool> {
    let name: Arc<str> = of.name.as_str().into();
    let capacity_tokens = of
        .prefix_cache
        .capacity
        .value()
        .map(|tokens| u64::from(tokens.get()));
    let assumed_blocks = exact::assumed_blocks(of, capacity_tokens.unwrap_or(DEFAULT_CAPACITY_TOKENS));
    let endpoints = of.endpoints.iter().map(|endpoint| {
        let id = index.register(assumed_blocks).context("too many endpoints")?;
        let identity = Identity {
            pool: name.clone(),
            name: &endpoint.name,
            url: &endpoint.url,
            max_inflight: endpoint.max_inflight.map(Into::into),
            labels: endpoint.labels.clone(),
            events: exact::sources(of, endpoint)?,
        };
        Ok(Arc::new(Endpoint::new(
            identity,
            id,
            metrics.endpoint(&name, &endpoint.name),
        )))
    });
    let endpoints = endpoints.collect::<anyhow::Result<Vec<_>>>()?;
    let settings = pool::Settings {
        models: of.models.clone(),
        retries: of.retries,
        retry_on: of.retry_on.clone(),
        retry_limits: RetryLimits {
            ratio: of.retry_budget.ratio,
            min_per_second: of.retry_budget.min_per_second,
        },
        ejection: ejection(&of.ejection),
        slow_start: of.slow_start.0,
        api_key: of.api_key.as_ref().map(bearer).transpose()?,
        error_event: of.stream_errors == StreamErrors::Event,
        stale_after: of.metrics.stale_after.0,
        connect_timeout: of.timeouts.connect.0,
        first_byte_timeout: of.timeouts.first_byte.0,
        idle_timeout: of.timeouts.idle.0,
        block_tokens: of.prefix_cache.block_size.value().map(Into::into),
        capacity_tokens,
        waiting: waiting(&of.overload.queue)?,
    };
    let scheduler = Scheduler::new(of.scheduling.policy()?);
    let mut pool = Pool::new(
        name,
        settings,
        index.clone(),
        scheduler,
        endpoints,
        metrics,
        rand::random(),
    );
    exact::equip(&mut pool, of)?;
    Ok(pool)
}

fn bearer(key: &Secret) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", key.0)).context("api_key")?;
    value.set_sensitive(true);
    Ok(value)
}

fn ejection(of: &schema::Ejection) -> EjectionLimits {
    EjectionLimits {
        consecutive_failures: of.consecutive_failures,
        failure_ratio: of.failure_ratio,
        min_requests: of.min_requests,
        window: of.window.0,
        first_time: of.first_time.0,
        longest_time: of.longest_time.0,
        hung_after: of.hung_after.0,
    }
}

/// How a pool's requests wait; `None` when they are not to.
fn waiting(of: &schema::Queue) -> anyhow::Result<Option<WaitingSettings>> {
    let header = |name: &Option<String>| name.as_deref().map(HeaderName::try_from).transpose();
    let weight = |(tenant, weight): (&String, &f64)| (xxh3_64(tenant.as_bytes()), *weight);
    let settings = WaitingSettings {
        queue: QueueSettings {
            max_requests: of.max_requests.into(),
            max_bytes: of.max_bytes.0,
            hold_above_s: of.hold_above.as_secs_f64(),
            overtake: of.overtake.0,
            ..QueueSettings::default()
        },
        sharing: Sharing {
            tenant_header: header(&of.tenant_header).context("overload.queue.tenant_header")?,
            priority_header: header(&of.priority_header).context("overload.queue.priority_header")?,
            weights: of.weights.iter().map(weight).collect(),
        },
        timeout: of.timeout.0,
    };
    Ok(of.enabled.then_some(settings))
}

fn watches(config: &Config, gateway: &Arc<Gateway>) -> Vec<Watch> {
    let pools = gateway.pools.load();
    let watch = |of: &schema::Pool, pool: &Arc<Pool>| {
        let snapshot = pool.snapshot();
        let each = snapshot.entries.iter().enumerate().map(|(at, entry)| Watch {
            gateway: gateway.clone(),
            pool: pool.clone(),
            at,
            endpoint: entry.endpoint.clone(),
            health: of.health.clone(),
            metrics: of.metrics.clone(),
        });
        each.collect::<Vec<_>>()
    };
    config
        .pools
        .iter()
        .zip(pools.iter())
        .flat_map(|(of, pool)| watch(of, pool))
        .collect()
}

fn server_conf(config: &Config) -> ServerConf {
    ServerConf {
        threads: config.threads.map_or_else(cores, usize::from),
        upstream_keepalive_pool_size: UPSTREAM_POOL,
        // The control service ends the process when the last request has ended; Pingora would sleep this out.
        grace_period_seconds: Some(config.shutdown.grace.0.as_secs() + 60),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn data_service(config: &Config, gateway: &Arc<Gateway>, conf: &Arc<ServerConf>) -> Service<Guarded<Proxy>> {
    let proxy = http_proxy(conf, Proxy(gateway.clone()));
    let limits = ConnectionLimits {
        header_timeout: config.limits.headers_timeout.0,
        idle_timeout: CLIENT_IDLE,
        send_timeout: config.limits.send_timeout.0,
    };
    let mut service = Service::new("data".to_owned(), Guarded::new(proxy, gateway.clone(), limits));
    for address in &config.listen.0 {
        service.add_listener(ListenerConfig::tcp(address.to_string()));
    }
    service
}

/// Pingora panics on an address that it cannot bind; an operator is owed a sentence instead.
fn check_bindable(address: SocketAddr) -> anyhow::Result<()> {
    std::net::TcpListener::bind(address)
        .map(drop)
        .with_context(|| format!("cannot listen on {address}"))
}

fn std_listener(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    admin::bind(address).with_context(|| format!("cannot listen on {address} (admin)"))
}

/// Everything that runs beside the requests.
struct Control {
    listen: Vec<SocketAddr>,
    gateway: Arc<Gateway>,
    readiness: Readiness,
    admin_listener: Mutex<Option<std::net::TcpListener>>,
    watches: Mutex<Vec<Watch>>,
    max_body_bytes: usize,
    guard: Guard,
    grace: Duration,
}

#[async_trait]
impl BackgroundService for Control {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let admin = Admin {
            gateway: self.gateway.clone(),
            readiness: self.readiness.clone(),
            max_body_bytes: self.max_body_bytes,
            guard: self.guard.clone(),
        };
        if let Some(listener) = self
            .admin_listener
            .lock()
            .take()
            .and_then(|l| tokio::net::TcpListener::from_std(l).ok())
        {
            tokio::spawn(admin.serve(listener));
        }
        let watches = std::mem::take(&mut *self.watches.lock());
        for watch in watches {
            tokio::spawn(watch.run());
        }
        supervisor::ready_when_listening(&self.listen, &self.readiness).await;
        // An error means that the sender is gone: the process is ending as well.
        let _ = shutdown.wait_for(|&down| down).await;
        supervisor::stopping();
        let drained = self.gateway.drain.wait(self.grace).await;
        if drained {
            tracing::info!("all requests have ended");
        } else {
            tracing::warn!(cut = self.gateway.drain.count(), "the grace period is over");
        }
        self.gateway.access_log.flush();
        std::process::exit(0);
    }
}

/// SIGTERM and SIGINT drain; SIGQUIT hands the listeners to a new process first.
struct Signals {
    readiness: Readiness,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let (Ok(mut terminate), Ok(mut interrupt), Ok(mut quit), Ok(mut hangup)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
            signal(SignalKind::quit()),
            signal(SignalKind::hangup()),
        ) else {
            return std::future::pending().await;
        };
        let signal = loop {
            tokio::select! {
                _ = terminate.recv() => break ShutdownSignal::GracefulTerminate,
                _ = interrupt.recv() => break ShutdownSignal::GracefulTerminate,
                _ = quit.recv() => break ShutdownSignal::GracefulUpgrade,
                // The signal's default would end the process, and its streams with it.
                _ = hangup.recv() => {
                    tracing::warn!("SIGHUP: reloading is not supported yet, restart to apply a new configuration");
                }
            }
        };
        self.readiness.pend("draining", "the gateway is shutting down");
        signal
    }
}
