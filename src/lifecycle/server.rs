//! Builds the gateway from its configuration and runs it.

use super::reload::Reloader;
use super::{Drain, Readiness, build, supervisor};
use crate::admin::guard::Guard;
use crate::admin::{self, Admin};
use crate::config::Config;
use crate::config::schema::AccessLogTarget;
use crate::datalayer::dns::Dns;
use crate::discovery::{self, Discovered};
use crate::prefix::PrefixIndex;
use crate::proxy::budget::BodyBudget;
use crate::proxy::guarded::{ConnectionLimits, Guarded};
use crate::proxy::{Gateway, Proxy};
use crate::telemetry::Metrics;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::recorder::{Bounds, Recorder};
use crate::telemetry::traces::Traces;
use crate::tls::server::{Certificate, TlsPorts};
use anyhow::Context as _;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_core::connectors::http::Connector;
use pingora_core::listeners::{L4BufferSettings, ListenerConfig};
use pingora_core::server::configuration::{Opt, ServerConf};
use pingora_core::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora_core::services::background::{BackgroundService, background_service};
use pingora_core::services::listening::Service;
use pingora_proxy::http_proxy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// How long a connection from a client may be idle between two requests.
const CLIENT_IDLE: Duration = Duration::from_secs(75);
/// From the accept of a connection to its first step in a worker: a few milliseconds even on a busy machine.
const LAST_MOMENT: Duration = Duration::from_millis(100);
/// Bytes read ahead from a client without TLS: a request's head. Bodies are read past it; Pingora's own 64 KiB would be
/// a good part of what an idle stream costs.
const PLAIN_READ_BUFFER: usize = 4 * 1024;
/// How many seconds each side of an upgrade waits for the other.
const UPGRADE_PATIENCE_S: usize = 30;
/// Idle connections to endpoints kept per worker thread.
const UPSTREAM_POOL: usize = 512;

/// How the process is to start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The configuration's file, to be read again on SIGHUP.
    pub path: PathBuf,
    /// Take the listeners over from a running gateway, which is told by SIGQUIT to hand them over.
    pub upgrade: bool,
}

/// Runs the gateway until a signal ends it.
///
/// # Errors
/// When a port cannot be bound, or a part cannot start.
pub fn run(config: &Config, start: Start) -> anyhow::Result<()> {
    let discovered = discovery::first_look(config)?;
    let gateway = Arc::new(gateway(&discovered.merge(config).config)?);
    let readiness = Readiness::default();
    let admin_listener = std_listener(config.admin.listen)?;
    if !start.upgrade {
        for address in config.data_ports() {
            check_bindable(address)?;
        }
    }
    let options = Opt {
        upgrade: start.upgrade,
        ..Opt::default()
    };
    let mut server = Server::new_with_opt_and_conf(options, server_conf(config));
    server.bootstrap();
    server.add_service(data_service(config, &gateway, &server.configuration));
    supervisor::await_listeners(&readiness);
    let handed_over = Arc::new(Notify::new());
    let control = Control {
        gateway: gateway.clone(),
        readiness: readiness.clone(),
        admin_listener: Mutex::new(Some(admin_listener)),
        config: config.clone(),
        discovered,
        path: start.path,
        handed_over: handed_over.clone(),
    };
    server.add_service(background_service("control", control));
    let tls = config.tls.as_ref().map(|tls| &tls.listen.0);
    tracing::info!(listen = ?config.listen.0, ?tls, admin = %config.admin.listen, "serving");
    server.run(RunArgs {
        shutdown_signal: Box::new(Signals {
            readiness,
            handed_over,
        }),
    });
    Ok(())
}

/// The gateway's shared state.
///
/// # Errors
/// When the access log or the trace cannot be opened, or a pool's scheduling cannot be built.
pub fn gateway(config: &Config) -> anyhow::Result<Gateway> {
    let metrics = Metrics::new()?;
    let index = Arc::new(PrefixIndex::new(usize::try_from(config.prefix_index.memory.0)?));
    let materials = build::Materials {
        index: &index,
        metrics: &metrics,
    };
    let pools = build::pools(&materials, config, None)?;
    build::endpoint_tls(config)?.give(&pools);
    let certificate = build::credentials(config)?;
    Ok(Gateway {
        origin: Instant::now(),
        pools: ArcSwap::from_pointee(pools),
        settings: ArcSwap::from_pointee(build::settings(config)?),
        index,
        budget: BodyBudget::new(config.limits.buffered_bodies.0),
        access_log: access_log(&config.access_log.to)?,
        traces: Traces::start(&config.traces).context("traces")?,
        recorder: recorder(config)?,
        decisions: Default::default(),
        drain: Drain::default(),
        connector: Arc::new(Connector::new(None)),
        certificate: certificate.map(|of| Arc::new(Certificate::new(&of))),
        dns: ArcSwap::from_pointee(Dns::new(&config.dns.servers)),
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

fn recorder(config: &Config) -> anyhow::Result<Recorder> {
    let Some(path) = &config.record else {
        return Ok(Recorder::off());
    };
    let of = &config.recording;
    let bounds = Bounds {
        file_bytes: of.file_size.0,
        files: of.files.get(),
    };
    Recorder::file(path, bounds, of.block_tokens.get()).with_context(|| format!("record: {}", path.display()))
}

fn server_conf(config: &Config) -> ServerConf {
    ServerConf {
        threads: config.threads.map_or_else(cores, usize::from),
        upstream_keepalive_pool_size: UPSTREAM_POOL,
        // The control service ends the process when the last request has ended; Pingora would sleep this out.
        grace_period_seconds: Some(config.shutdown.grace.0.as_secs() + 60),
        graceful_shutdown_timeout_seconds: Some(1),
        upgrade_sock: config.upgrade_socket.to_string_lossy().into_owned(),
        upgrade_sock_connect_accept_max_retries: Some(UPGRADE_PATIENCE_S),
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
    let tls = config.tls.as_ref().zip(gateway.certificate.clone());
    let tls = tls.map(|(of, shown)| TlsPorts::new(of.listen.0.clone(), shown, limits.header_timeout));
    let app = Guarded::new(proxy, gateway.clone(), limits, tls);
    let mut service = Service::new("data".to_owned(), app);
    for address in config.data_ports() {
        let mut buffers = L4BufferSettings::default();
        if config.listen.0.contains(&address) {
            buffers = buffers.read(PLAIN_READ_BUFFER);
        }
        service.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(buffers));
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
    gateway: Arc<Gateway>,
    readiness: Readiness,
    admin_listener: Mutex<Option<std::net::TcpListener>>,
    /// As it was written, and what was discovered beside.
    config: Config,
    discovered: Discovered,
    path: PathBuf,
    /// Told when a new process takes over.
    handed_over: Arc<Notify>,
}

impl Control {
    fn serve_admin(&self) {
        let listener = self.admin_listener.lock().take();
        let Some(listener) = listener.and_then(|listener| TcpListener::from_std(listener).ok()) else {
            return;
        };
        let admin = Admin {
            gateway: self.gateway.clone(),
            readiness: self.readiness.clone(),
            max_body_bytes: usize::try_from(self.config.limits.request_body.0).unwrap_or(usize::MAX),
            guard: Guard {
                listen: self.config.admin.listen,
                allowed_hosts: self.config.admin.allowed_hosts.clone(),
            },
        };
        let serving = tokio::spawn(admin.serve(listener));
        let handed_over = self.handed_over.clone();
        tokio::spawn(async move {
            // Both processes listen on the port: whoever asks shall get the new one.
            handed_over.notified().await;
            serving.abort();
        });
    }

    async fn drain(&self) -> ! {
        // What was accepted in the last moment gets to be counted.
        tokio::time::sleep(LAST_MOMENT).await;
        let drained = self.gateway.drain.wait(self.config.shutdown.grace.0).await;
        if drained {
            tracing::info!("all requests have ended");
        } else {
            self.gateway.drain.end_waits().await;
            tracing::warn!(cut = self.gateway.drain.count(), "the grace period is over");
        }
        self.gateway.access_log.flush();
        self.gateway.recorder.flush();
        if self.gateway.traces.is_some() {
            let gateway = self.gateway.clone();
            // It waits for the collector; what the workers still do must not wait with it.
            let sent = tokio::task::spawn_blocking(move || gateway.traces.as_ref().map(Traces::shutdown));
            let _ = sent.await;
        }
        std::process::exit(0);
    }
}

#[async_trait]
impl BackgroundService for Control {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        self.serve_admin();
        let reloader = Reloader::start(
            self.gateway.clone(),
            self.config.clone(),
            self.discovered.clone(),
            self.path.clone(),
        );
        match signal(SignalKind::hangup()) {
            Ok(hangups) => drop(tokio::spawn(reloader.run(hangups))),
            Err(fault) => tracing::error!(%fault, "SIGHUP cannot be received"),
        }
        let ports: Vec<_> = self.config.data_ports().collect();
        supervisor::ready_when_listening(&ports, &self.readiness).await;
        // An error means that the sender is gone: the process is ending as well.
        let _ = shutdown.wait_for(|&down| down).await;
        self.drain().await
    }
}

/// SIGTERM and SIGINT drain; SIGQUIT hands the listeners to a new process first.
struct Signals {
    readiness: Readiness,
    handed_over: Arc<Notify>,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let (Ok(mut terminate), Ok(mut interrupt), Ok(mut quit)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
            signal(SignalKind::quit()),
        ) else {
            return std::future::pending().await;
        };
        let signal = tokio::select! {
            _ = terminate.recv() => ShutdownSignal::GracefulTerminate,
            _ = interrupt.recv() => ShutdownSignal::GracefulTerminate,
            _ = quit.recv() => {
                self.handed_over.notify_one();
                return ShutdownSignal::GracefulUpgrade;
            }
        };
        supervisor::stopping();
        self.readiness.pend("draining", "the gateway is shutting down");
        signal
    }
}
