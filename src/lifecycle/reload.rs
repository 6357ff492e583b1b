//! Takes a changed configuration into use while requests run.
//!
//! The file is validated first; with any fault the old configuration stays. Requests in flight keep the pools that they
//! were placed in. Endpoints that the change does not touch keep their index entries, their health and their load.
//! What discovery finds changes the configuration in the same way.

use super::build::EndpointsTls;
use super::stamp::Stamp;
use super::{build, supervisor};
use crate::config::address::ListenAddresses;
use crate::config::schema::Discovery;
use crate::config::{Config, Inspection};
use crate::datalayer::dns::Dns;
use crate::discovery::{self, Discovered, Found};
use crate::pool::{Endpoint, Pools};
use crate::proxy::Gateway;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// How often the file is looked at when it is watched.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Configuration in use, and the tasks that depend on it.
pub struct Reloader {
    gateway: Arc<Gateway>,
    path: PathBuf,
    /// What the process was started with: part of it stays until a restart.
    started: Config,
    /// The file, as it is in use.
    written: Config,
    discovered: Discovered,
    /// What was discovered last could not be taken into use.
    is_behind: bool,
    /// Both together: what the gateway goes by.
    current: Config,
    /// What the files for TLS towards endpoints held at the newest reload.
    endpoint_tls: Option<EndpointsTls>,
    /// Watches by pool; a pool's end with its entry.
    watches: BTreeMap<String, JoinSet<()>>,
    /// Watches of what pools are to discover, and what they are told to.
    discoveries: BTreeMap<String, (Discovery, JoinSet<()>)>,
    tell: UnboundedSender<Found>,
    told: UnboundedReceiver<Found>,
}

impl Reloader {
    /// Starts the watches of the gateway's pools, which were built of `written` and `discovered`.
    pub fn start(gateway: Arc<Gateway>, written: Config, discovered: Discovered, path: PathBuf) -> Self {
        let (tell, told) = unbounded_channel();
        let mut reloader = Self {
            watches: BTreeMap::new(),
            discoveries: BTreeMap::new(),
            started: written.clone(),
            current: discovered.merge(&written).config,
            // They were read a moment ago; if they are gone since, whoever needs them looks again.
            endpoint_tls: build::endpoint_tls(&written).ok(),
            written,
            discovered,
            is_behind: false,
            gateway,
            path,
            tell,
            told,
        };
        reloader.watch_pools(&Pools::default());
        reloader.watch_discovery();
        reloader
    }

    /// Reloads whenever `signals` says so, and when the file changes if that is configured. Takes into use what is
    /// discovered.
    pub async fn run(mut self, mut signals: tokio::signal::unix::Signal) {
        let mut seen = self.stamps();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                signal = signals.recv() => if signal.is_none() { return },
                Some(found) = self.told.recv() => {
                    self.take(found);
                    continue;
                }
                _ = ticks.tick(), if self.written.reload_on_change => {
                    if self.stamps() == seen {
                        continue;
                    }
                }
            }
            let files = self.files();
            seen = self.stamps();
            self.reload();
            if self.files() != files {
                seen = self.stamps();
            }
        }
    }

    fn take(&mut self, found: Found) {
        let (pool, source) = (found.pool.clone(), found.origin.as_str());
        let is_new = self.discovered.set(found);
        if !is_new && !self.is_behind {
            return;
        }
        let taken = self
            .kept_tls()
            .and_then(|tls| self.go_by(self.written.clone(), tls));
        self.is_behind = taken.is_err();
        if let Err(fault) = taken {
            tracing::warn!(pool, source, "what was discovered cannot be used: {fault:#}");
        }
    }

    /// Endpoints that come are given what the files held: only a reload reads them again.
    fn kept_tls(&self) -> anyhow::Result<EndpointsTls> {
        let kept = self.endpoint_tls.clone();
        kept.map_or_else(|| build::endpoint_tls(&self.written), Ok)
    }

    /// What changes when the file, or one with certificates that it names, is written or replaced.
    fn stamps(&self) -> Vec<Option<Stamp>> {
        self.files().iter().map(|file| Stamp::of(file)).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        let named = self.written.tls_files();
        std::iter::once(&*self.path)
            .chain(named)
            .map(Path::to_owned)
            .collect()
    }

    fn reload(&mut self) {
        supervisor::reloading();
        let outcome = self.try_reload();
        let metrics = &self.gateway.metrics;
        let label = if outcome.is_ok() { "success" } else { "failure" };
        metrics.config_reloads.with_label_values(&[label]).inc();
        metrics
            .config_last_reload_successful
            .set(if outcome.is_ok() { 1.0 } else { 0.0 });
        match outcome {
            Ok(()) => tracing::info!(file = %self.path.display(), "the configuration was reloaded"),
            Err(fault) => {
                tracing::error!(file = %self.path.display(), "the old configuration stays in use:\n{fault:#}");
            }
        }
        supervisor::reloaded();
    }

    fn try_reload(&mut self) -> anyhow::Result<()> {
        let new = Inspection::of_file(&self.path).into_result()?;
        let settings = build::settings(&new)?;
        let credentials = build::credentials(&new)?;
        let endpoint_tls = build::endpoint_tls(&new)?;
        self.go_by(new, endpoint_tls)?;
        self.gateway.settings.store(Arc::new(settings));
        if let (Some(shown), Some(credentials)) = (&self.gateway.certificate, &credentials) {
            shown.replace(credentials);
        }
        // Also what the system says of name servers and hosts may have changed.
        let dns = Dns::new(&self.written.dns.servers);
        self.gateway.dns.store(Arc::new(dns));
        for key in needs_restart(&self.started, &self.written) {
            tracing::warn!("`{key}` was changed: that takes effect after a restart");
        }
        self.watch_discovery();
        Ok(())
    }

    /// Takes the pools of `written`, and what was discovered for them, into use.
    fn go_by(&mut self, written: Config, endpoint_tls: EndpointsTls) -> anyhow::Result<()> {
        self.discovered.retain(&written);
        let merged = self.discovered.merge(&written);
        let new = merged.config;
        let old_pools = self.gateway.pools.load_full();
        if new.pools != self.current.pools {
            let materials = build::Materials {
                index: &self.gateway.index,
                metrics: &self.gateway.metrics,
            };
            let pools = build::pools(&materials, &new, Some((&self.current, &old_pools)))?;
            // From here on nothing fails.
            endpoint_tls.give(&pools);
            self.gateway.pools.store(Arc::new(pools));
            self.replace(&old_pools);
            for why in merged.left_out {
                tracing::warn!("a discovered endpoint is left out: {why}");
            }
            tell_difference(&self.current, &new);
        } else {
            // The files may hold something new.
            endpoint_tls.give(&old_pools);
        }
        self.endpoint_tls = Some(endpoint_tls);
        self.written = written;
        self.current = new;
        self.watch_pools(&old_pools);
        self.forget_gone(&old_pools);
        Ok(())
    }

    /// Ends the discovery of pools that are gone or are to discover otherwise, and starts that of others.
    fn watch_discovery(&mut self) {
        let pools = &self.written.pools;
        let wanted = |name: &str| pools.iter().find(|pool| pool.name == name);
        self.discoveries
            .retain(|name, (of, _)| wanted(name).is_some_and(|pool| pool.discovery == *of));
        for pool in pools {
            if !self.discoveries.contains_key(&pool.name) {
                let mut tasks = JoinSet::new();
                discovery::watch(pool, &self.tell, &self.gateway, &mut tasks);
                let watched = (pool.discovery.clone(), tasks);
                self.discoveries.insert(pool.name.clone(), watched);
            }
        }
    }

    fn replace(&self, old: &Pools) {
        let pools = self.gateway.pools.load();
        for old in old.iter() {
            if let Some(new) = pools.by_name(&old.name).filter(|new| !Arc::ptr_eq(new, old)) {
                old.replaced_by(new);
            }
        }
    }

    /// Ends the watches of pools that are gone or replaced, and starts those of new ones.
    fn watch_pools(&mut self, old: &Pools) {
        let pools = self.gateway.pools.load_full();
        self.watches.retain(|name, _| {
            let kept = pools.by_name(name).zip(old.by_name(name));
            kept.is_some_and(|(new, old)| Arc::ptr_eq(new, old))
        });
        for of in &self.current.pools {
            if let Some(pool) = pools.by_name(&of.name)
                && !self.watches.contains_key(&of.name)
            {
                let mut tasks = JoinSet::new();
                for watch in build::watches(of, pool, &self.gateway) {
                    tasks.spawn(watch.run());
                }
                self.watches.insert(of.name.clone(), tasks);
            }
        }
    }

    /// Gives back what endpoints held that are no longer there.
    fn forget_gone(&self, old: &Pools) {
        let pools = self.gateway.pools.load();
        for endpoint in endpoints(old) {
            let mut named_so = endpoints(&pools)
                .into_iter()
                .filter(|new| new.pool == endpoint.pool && new.name == endpoint.name)
                .peekable();
            if named_so.peek().is_none() {
                endpoint.metrics.forget();
            }
            if !named_so.any(|new| new.id == endpoint.id) {
                if let Some(feed) = &endpoint.feed {
                    feed.stop();
                }
                endpoint.retire();
                self.gateway.index.release(endpoint.id);
                for pool in pools.iter() {
                    pool.cache_lost(endpoint.id);
                }
            }
        }
    }
}

fn endpoints(pools: &Pools) -> Vec<Arc<Endpoint>> {
    let snapshots = pools.iter().map(|pool| pool.snapshot());
    snapshots
        .flat_map(|snapshot| {
            let entries = snapshot.entries.iter();
            entries.map(|entry| entry.endpoint.clone()).collect::<Vec<_>>()
        })
        .collect()
}

/// Logs which endpoints came and went.
fn tell_difference(old: &Config, new: &Config) {
    let names = |config: &Config, pool: &str| {
        let pool = config.pools.iter().find(|of| of.name == pool);
        let endpoints = pool.into_iter().flat_map(|pool| &pool.endpoints);
        endpoints
            .map(|endpoint| endpoint.name.clone())
            .collect::<BTreeSet<_>>()
    };
    for pool in &new.pools {
        let (before, now) = (names(old, &pool.name), names(new, &pool.name));
        let (came, went): (Vec<_>, Vec<_>) = (
            now.difference(&before).collect(),
            before.difference(&now).collect(),
        );
        if !(came.is_empty() && went.is_empty()) {
            tracing::info!(pool = pool.name, ?came, ?went, "the pool has other endpoints");
        }
    }
}

fn ports(config: &Config) -> Option<&ListenAddresses> {
    config.tls.as_ref().map(|tls| &tls.listen)
}

/// Keys whose change has no effect on a running process.
fn needs_restart(started: &Config, new: &Config) -> Vec<&'static str> {
    let (a, b) = (&started.limits, &new.limits);
    let changes = [
        ("listen", started.listen != new.listen),
        ("tls.listen", ports(started) != ports(new)),
        ("admin", started.admin != new.admin),
        ("threads", started.threads != new.threads),
        ("limits.headers_timeout", a.headers_timeout != b.headers_timeout),
        ("limits.send_timeout", a.send_timeout != b.send_timeout),
        ("limits.buffered_bodies", a.buffered_bodies != b.buffered_bodies),
        ("record", started.record != new.record),
        ("recording", started.recording != new.recording),
        ("access_log.to", started.access_log.to != new.access_log.to),
        ("traces", started.traces != new.traces),
        ("shutdown", started.shutdown != new.shutdown),
        ("prefix_index", started.prefix_index != new.prefix_index),
        ("upgrade_socket", started.upgrade_socket != new.upgrade_socket),
    ];
    changes
        .into_iter()
        .filter(|(_, changed)| *changed)
        .map(|(key, _)| key)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_needs_a_restart() {
        let parse = |top: &str| {
            let text = format!("{top}\npools: [{{ endpoints: [{{ url: 'http://10.0.0.1:8000' }}] }}]");
            Config::parse(&text, "test").unwrap()
        };
        let started = parse("");
        assert!(needs_restart(&started, &started).is_empty());
        assert!(needs_restart(&started, &parse("limits: { request_body: 1MiB }")).is_empty());
        let changed = parse("threads: 7\nlimits: { send_timeout: 1s }");
        assert_eq!(
            needs_restart(&started, &changed),
            ["threads", "limits.send_timeout"]
        );
    }
}
