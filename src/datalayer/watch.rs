//! Watches one endpoint: name resolution, health checks and scrapes, each at its own pace.

use super::fetch::{Page, cause};
use super::models::Models;
use super::vllm::EngineMetrics;
use super::{resolve, restart};
use crate::config::schema;
use crate::kv_events::feed::Feed;
use crate::pool::health::Thresholds;
use crate::pool::{CHUNK_BYTES, DEFAULT_BLOCK_TOKENS, Endpoint, Pool};
use crate::proxy::Gateway;
use crate::time::Mono;
use pingora_core::ErrorType;
use pingora_core::connectors::http::Connector;
use pingora_core::protocols::l4::socket::SocketAddr as Address;
use pingora_http::RequestHeader;
use pingora_load_balancing::Backend;
use pingora_load_balancing::health_check::{HealthCheck, HttpHealthCheck};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// An endpoint with nothing in flight is scraped this much less often.
const IDLE_FACTOR: u32 = 10;
/// And never less often than this, so that what it reports stays fresh.
const IDLE_AT_MOST: Duration = Duration::from_millis(500);

/// How often an engine is asked which adapters it serves: they come and go while it runs.
const MODELS_EVERY: Duration = Duration::from_secs(5);
/// And how soon again when it did not answer.
const MODELS_AGAIN: Duration = Duration::from_millis(500);
/// Longest wait for that.
const MODELS_TIMEOUT: Duration = Duration::from_secs(2);

/// One endpoint and its place in the pool.
pub struct Watch {
    pub gateway: Arc<Gateway>,
    pub pool: Arc<Pool>,
    pub at: usize,
    pub endpoint: Arc<Endpoint>,
    pub health: schema::Health,
    pub metrics: schema::Metrics,
}

impl Watch {
    /// Runs until the task is dropped.
    pub async fn run(self) {
        // After a reload it may be listening already.
        if let Some(feed) = self
            .endpoint
            .feed
            .as_ref()
            .filter(|feed| feed.statuses().is_empty())
        {
            feed.start(&self.pool.index, self.endpoint.id);
        }
        tokio::join!(
            resolve::follow(&self.gateway, &self.pool, &self.endpoint),
            self.check_health(),
            self.scrape(),
            self.ask_models()
        );
    }

    /// Keeps the names of LoRA adapters, whose blocks are kept apart, up to date.
    async fn ask_models(&self) {
        let Some(exact) = &self.pool.exact else { return };
        let (connector, key) = (
            self.gateway.connector.clone(),
            self.pool.settings.api_key.as_ref(),
        );
        let Ok(page) = Page::of(connector, &self.endpoint, "/v1/models", key, MODELS_TIMEOUT) else {
            return;
        };
        loop {
            let models = match self.endpoint.address() {
                Some(address) => page.read(address).await.ok(),
                None => None,
            };
            let models = models.and_then(|body| Models::parse(&body).ok());
            let rest = if models.is_some() {
                MODELS_EVERY
            } else {
                MODELS_AGAIN
            };
            if let Some(models) = models {
                exact.set_adapters(self.at, models.adapters());
            }
            tokio::time::sleep(rest).await;
        }
    }

    async fn check_health(&self) {
        let Ok(mut check) = self.health_check() else {
            return;
        };
        let thresholds = Thresholds {
            unhealthy_after: self.health.unhealthy_after.get(),
            healthy_after: self.health.healthy_after.get(),
        };
        let mut ticks = steady(self.health.interval.0);
        loop {
            ticks.tick().await;
            let outcome = self.probe(&mut check).await;
            let now = self.gateway.now();
            self.look_after(now);
            let outcome = outcome.as_ref().copied().map_err(String::as_str);
            let mut changed = false;
            self.pool.update(self.at, |status| {
                changed = status.health_checked(now, outcome, thresholds);
                changed
            });
            if changed {
                tracing::info!(endpoint = %self.endpoint.name, ?outcome, "health changed");
            }
            if changed && outcome.is_err_and(|why| why.ends_with(ErrorType::ConnectRefused.as_str())) {
                // Nobody listens there: the process is gone, and its cache with it. An engine that lived too short
                // to be scraped twice would not be told by its counters.
                // Where events tell, the stream's own new start does.
                if self.endpoint.feed.is_none() {
                    self.pool.index.clear(self.endpoint.id);
                }
                self.pool.newest().cache_lost(self.endpoint.id);
            }
        }
    }

    /// Ends the time out of an endpoint that was set aside, and sets one aside that hangs.
    fn look_after(&self, now: Mono) {
        let mut still_for = Duration::ZERO;
        self.pool.update(self.at, |status| {
            still_for = status.stands_still_for(now);
            status.tick(now)
        });
        if still_for >= self.pool.settings.ejection.hung_after {
            let why = format!("it hangs: no sign of work for {} s", still_for.as_secs());
            self.pool.eject(&self.endpoint, now, &why);
        }
    }

    async fn probe(&self, check: &mut HttpHealthCheck) -> Result<(), String> {
        let Some(address) = self.endpoint.address() else {
            return Err("its name is not resolved".into());
        };
        check.peer_template = self.endpoint.peer(address);
        check.peer_template.options.connection_timeout = Some(self.health.timeout.0);
        check.peer_template.options.read_timeout = Some(self.health.timeout.0);
        let backend = Backend {
            addr: Address::Inet(address),
            weight: 1,
            ext: http::Extensions::new(),
        };
        match tokio::time::timeout(self.health.timeout.0, check.check(&backend)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("health check failed: {}", cause(&error))),
            Err(_) => Err("health check timed out".into()),
        }
    }

    fn health_check(&self) -> pingora_core::Result<Box<HttpHealthCheck>> {
        let url = &self.endpoint.url;
        let mut check = HttpHealthCheck::new(url.host(), url.is_tls());
        check.req = RequestHeader::build("GET", self.health.path.as_bytes(), Some(1))?;
        check
            .req
            .insert_header("host", self.endpoint.host_header.clone())?;
        Ok(Box::new(check))
    }

    async fn scrape(&self) {
        let connector = Arc::new(Connector::new(None));
        let (path, timeout) = (&self.metrics.path, self.metrics.timeout.0);
        let Ok(page) = Page::of(connector, &self.endpoint, path, None, timeout) else {
            return;
        };
        let mut ticks = steady(self.metrics.interval.0);
        let idle_for = (self.metrics.interval.0 * IDLE_FACTOR)
            .min(IDLE_AT_MOST)
            .max(self.metrics.interval.0);
        let mut due = Instant::now();
        loop {
            ticks.tick().await;
            let busy = self.endpoint.load.sample().inflight > 0;
            if !busy && Instant::now() < due {
                continue;
            }
            due = Instant::now() + idle_for;
            if let Some(address) = self.endpoint.address() {
                self.take(&page, address).await;
            }
        }
    }

    async fn take(&self, page: &Page, address: SocketAddr) {
        let picked = self.endpoint.load.sample().picked;
        let outcome = match page.read(address).await {
            Ok(body) => match EngineMetrics::parse(&body) {
                Ok(engine) => {
                    self.apply(picked, engine);
                    "success"
                }
                Err(_) => "not-metrics",
            },
            Err(error) => error.outcome(),
        };
        self.endpoint.metrics.count_scrape(outcome);
    }

    fn apply(&self, picked: u64, mut engine: EngineMetrics) {
        let now = self.gateway.now();
        let mut restarted = None;
        let capacity = self.pool.settings.capacity_tokens.or(engine.capacity_tokens);
        let events = self
            .endpoint
            .feed
            .as_ref()
            .map(Feed::statuses)
            .unwrap_or_default();
        // The blocks that events tell of are the ones to match.
        engine.block_size = events
            .iter()
            .find_map(|rank| rank.block_size)
            .or(engine.block_size);
        let block_tokens = engine.block_size.unwrap_or(DEFAULT_BLOCK_TOKENS);
        let counters = engine
            .prefix_cache_hits_tokens
            .zip(engine.prefix_cache_queries_tokens);
        self.pool.update(self.at, |status| {
            restarted = restart::between(status.engine(), &engine);
            status.scraped(now, picked, engine);
            true
        });
        if let Some(sign) = restarted {
            tracing::info!(endpoint = %self.endpoint.name, ?sign, "the engine restarted or its cache was reset");
        }
        match &self.endpoint.feed {
            Some(feed) => feed.looked_at(restarted.is_some()),
            None if restarted.is_some() => {
                self.pool.index.clear(self.endpoint.id);
                self.pool.newest().cache_lost(self.endpoint.id);
                self.endpoint.trust.forget();
            }
            None => {}
        }
        if let Some((hits, queries)) = counters {
            self.endpoint.trust.counted(hits, queries);
        }
        let Some(tokens) = capacity else { return };
        let blocks = if self.endpoint.feed.is_some() {
            let owned = events.iter().map(|rank| rank.owned_blocks).sum();
            Pool::exact_capacity(tokens, block_tokens, owned)
        } else {
            let margin = self.pool.newest().index_margin();
            let held = tokens as f64 * margin * self.endpoint.trust.capacity_share();
            let bytes = held * self.pool.bytes_per_token();
            (bytes / CHUNK_BYTES as f64).ceil() as usize
        };
        self.pool.index.set_capacity(self.endpoint.id, blocks);
    }
}

fn steady(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period.max(Duration::from_millis(1)));
    // After a stall one tick is enough.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
