//! The least that Pingora can do: a reverse proxy that looks at nothing and sends requests to its upstreams in
//! turn. `loadtest/compare` runs it as the floor that the gateway is measured against, with the gateway's own
//! allocator, build profile and connection pool.

use async_trait::async_trait;
use clap::Parser;
use pingora_core::Result;
use pingora_core::modules::http::HttpModules;
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{RunArgs, Server};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// As in the gateway: idle connections kept per worker thread, and for how long.
const UPSTREAM_POOL: usize = 512;
const KEEPALIVE: Duration = Duration::from_secs(4);

#[derive(Parser)]
struct Arguments {
    /// Address to listen on.
    #[arg(long)]
    listen: SocketAddr,
    /// Upstream address; may be given several times.
    #[arg(long, required = true)]
    upstream: Vec<SocketAddr>,
    /// Worker threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

struct Bare {
    upstreams: Vec<SocketAddr>,
    next: AtomicUsize,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    /// None, as in the gateway: the default one would run for every request.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut ()) -> Result<Box<HttpPeer>> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.upstreams.len();
        let mut peer = HttpPeer::new(self.upstreams[at], false, String::new());
        peer.options.idle_timeout = Some(KEEPALIVE);
        Ok(Box::new(peer))
    }
}

fn main() {
    let arguments = Arguments::parse();
    let conf = ServerConf {
        threads: arguments.threads,
        upstream_keepalive_pool_size: UPSTREAM_POOL,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let bare = Bare {
        upstreams: arguments.upstream,
        next: AtomicUsize::new(0),
    };
    let mut service = http_proxy_service(&server.configuration, bare);
    service.add_tcp(&arguments.listen.to_string());
    server.add_service(service);
    server.run(RunArgs::default());
}
