//! Where endpoints come from beside the list in the configuration: DNS names and watched files.
//!
//! A source only says what it finds. What is found is merged into the configuration, and the difference is taken into
//! use as a reload's is: endpoints that stay keep all that is known of them.

mod dns;
mod file;
mod merged;

pub use merged::{Discovered, Merged};

use crate::config::Config;
use crate::config::schema::{self, Endpoint};
use crate::datalayer::dns::Dns;
use crate::proxy::Gateway;
use dns::DnsSource;
use file::FileSource;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Longest wait for endpoints before the gateway starts without them.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// Kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Dns,
    File,
}

impl Origin {
    /// All kinds, for metric labels.
    pub const ALL: [Self; 2] = [Self::Dns, Self::File];

    /// The word in logs and metrics, which is the key in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::File => "file",
        }
    }
}

/// What a source of a pool holds now.
#[derive(Clone, Debug)]
pub struct Found {
    pub pool: String,
    pub origin: Origin,
    pub endpoints: Vec<Endpoint>,
}

/// Looks everything up once, before there is anything to serve: a source that fails or takes too long is left to its
/// watch.
///
/// # Errors
/// When no runtime can be started for it.
pub fn first_look(config: &Config) -> std::io::Result<Discovered> {
    if config.pools.iter().all(|pool| pool.discovery.is_off()) {
        return Ok(Discovered::default());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(async {
        let mut discovered = Discovered::default();
        let mut looks = JoinSet::new();
        let dns = Arc::new(Dns::new(&config.dns.servers));
        for mut source in config.pools.iter().flat_map(sources) {
            let dns = dns.clone();
            looks.spawn(async move {
                let found = timeout(FIRST_LOOK, source.look(&dns)).await;
                (
                    source,
                    found.unwrap_or_else(|_| Err("no answer in time".to_owned())),
                )
            });
        }
        while let Some(Ok((source, found))) = looks.join_next().await {
            match found {
                Ok(endpoints) => drop(discovered.set(source.found(endpoints))),
                Err(fault) => source.warn(&fault),
            }
        }
        discovered
    }))
}

/// Starts the watches of a pool's sources; they end with `tasks`. Each says what it holds after every look that went
/// well.
pub fn watch(
    pool: &schema::Pool,
    tell: &UnboundedSender<Found>,
    gateway: &Arc<Gateway>,
    tasks: &mut JoinSet<()>,
) {
    for source in sources(pool) {
        tasks.spawn(source.run(tell.clone(), gateway.clone()));
    }
}

/// One source of one pool.
struct Source {
    pool: String,
    kind: Kind,
}

enum Kind {
    Dns(DnsSource),
    File(FileSource),
}

fn sources(pool: &schema::Pool) -> impl Iterator<Item = Source> + use<> {
    let dns = pool.discovery.dns.clone().map(DnsSource::new).map(Kind::Dns);
    let file = pool.discovery.file.clone().map(FileSource::new).map(Kind::File);
    let name = pool.name.clone();
    dns.into_iter().chain(file).map(move |kind| Source {
        pool: name.clone(),
        kind,
    })
}

impl Source {
    const fn origin(&self) -> Origin {
        match self.kind {
            Kind::Dns(_) => Origin::Dns,
            Kind::File(_) => Origin::File,
        }
    }

    const fn pause(&self) -> Duration {
        match &self.kind {
            Kind::Dns(dns) => dns.interval(),
            Kind::File(_) => file::LOOK_EVERY,
        }
    }

    async fn look(&mut self, dns: &Dns) -> Result<Vec<Endpoint>, String> {
        match &mut self.kind {
            Kind::Dns(name) => name.look(dns).await.map_err(|fault| name.told(&fault)),
            Kind::File(file) => file.look().map_err(|faults| faults.to_string()),
        }
    }

    fn found(&self, endpoints: Vec<Endpoint>) -> Found {
        Found {
            pool: self.pool.clone(),
            origin: self.origin(),
            endpoints,
        }
    }

    fn warn(&self, fault: &str) {
        let source = self.origin().as_str();
        tracing::warn!(
            pool = self.pool,
            source,
            "discovery keeps what it knows:\n{fault}"
        );
    }

    async fn run(mut self, tell: UnboundedSender<Found>, gateway: Arc<Gateway>) {
        let mut ticks = interval(self.pause().max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut warned = HashSet::new();
        loop {
            ticks.tick().await;
            let dns = gateway.dns.load_full();
            let found = self.look(&dns).await;
            gateway
                .metrics
                .count_discovery(&self.pool, self.origin(), found.is_ok());
            match found {
                Ok(endpoints) => {
                    warned.clear();
                    if tell.send(self.found(endpoints)).is_err() {
                        return;
                    }
                }
                Err(fault) => {
                    if !warned.contains(&fault) {
                        self.warn(&fault);
                        warned.insert(fault);
                    }
                }
            }
        }
    }
}
