//! Builds pools from their configuration, and their successors from a changed one.

use super::exact;
use crate::config::Config;
use crate::config::schema::{self, Secret, StreamErrors};
use crate::datalayer::watch::Watch;
use crate::overload::queue::QueueSettings;
use crate::overload::working_set::WorkingSetSettings;
use crate::pool::ejection::EjectionLimits;
use crate::pool::gate::GateSettings;
use crate::pool::retry_budget::RetryLimits;
use crate::pool::waiting::{Sharing, WaitingSettings};
use crate::pool::{self, Endpoint, Identity, Pool, Pools};
use crate::prefix::PrefixIndex;
use crate::proxy::auth::ApiKeys;
use crate::proxy::body::BodyLimits;
use crate::proxy::cors::Origins;
use crate::proxy::{Gateway, Settings};
use crate::scheduling::Scheduler;
use crate::telemetry::Metrics;
use crate::telemetry::access_log::Selection;
use crate::tls::Credentials;
use crate::tls::client::ClientTls;
use anyhow::Context as _;
use http::{HeaderName, HeaderValue};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// KV capacity in tokens assumed until an endpoint has told: 31,250 blocks of 16 tokens.
const DEFAULT_CAPACITY_TOKENS: u64 = 500_000;

/// What pools are made of beside their configuration.
pub struct Materials<'a> {
    pub index: &'a Arc<PrefixIndex>,
    pub metrics: &'a Metrics,
}

/// Pools for a configuration, and the ids that were taken for them.
struct Build<'a> {
    of: &'a Materials<'a>,
    taken: Vec<Arc<Endpoint>>,
}

impl Drop for Build<'_> {
    /// Gives back what a failed build has taken.
    fn drop(&mut self) {
        for endpoint in &self.taken {
            self.of.index.release(endpoint.id);
        }
    }
}

/// The pools of `new`. Pools that stand in `old` unchanged are taken over as they are; of the others, the unchanged
/// endpoints with all that is known of them.
///
/// # Errors
/// When the index has no room for another endpoint, or a pool's scheduling cannot be built; nothing is changed then.
pub fn pools(of: &Materials<'_>, new: &Config, old: Option<(&Config, &Pools)>) -> anyhow::Result<Pools> {
    let mut build = Build {
        of,
        taken: Vec::new(),
    };
    let mut pools = Vec::with_capacity(new.pools.len());
    for config in &new.pools {
        let before = old.and_then(|(old_config, old_pools)| {
            let old_config = old_config.pools.iter().find(|pool| pool.name == config.name)?;
            Some((old_config, old_pools.by_name(&config.name)?))
        });
        pools.push(match before {
            Some((old_config, pool)) if old_config == config => pool.clone(),
            before => Arc::new(build.pool(config, before)?),
        });
    }
    build.taken.clear();
    Ok(Pools::new(pools))
}

impl Build<'_> {
    fn pool(
        &mut self,
        of: &schema::Pool,
        before: Option<(&schema::Pool, &Arc<Pool>)>,
    ) -> anyhow::Result<Pool> {
        let name: Arc<str> = of.name.as_str().into();
        let keeps_events = before.is_some_and(|(old, _)| same_events(old, of));
        let known = before.filter(|_| keeps_events).map(|(_, pool)| pool.snapshot());
        let mut endpoints = Vec::with_capacity(of.endpoints.len());
        for config in &of.endpoints {
            let same = known.as_ref().and_then(|known| known.by_name(&config.name));
            let same = same.filter(|entry| is_same(&entry.endpoint, config, before));
            endpoints.push(match same {
                Some(entry) => entry.endpoint.clone(),
                None => self.endpoint(&name, of, config)?,
            });
        }
        let settings = pool_settings(of)?;
        let scheduler = || of.scheduling.policy().map(Scheduler::new);
        let mut pool = match before {
            Some((old, pool)) => {
                let changed = old.scheduling != of.scheduling;
                pool.successor(
                    settings,
                    changed.then(scheduler).transpose()?,
                    endpoints,
                    self.of.metrics,
                )
            }
            None => {
                let (index, metrics) = (self.of.index.clone(), self.of.metrics);
                Pool::new(
                    name,
                    settings,
                    index,
                    scheduler()?,
                    endpoints,
                    metrics,
                    rand::random(),
                )
            }
        };
        let same_tokenizer = before.filter(|(old, _)| old.tokenizer == of.tokenizer);
        exact::equip(
            &mut pool,
            of,
            same_tokenizer.and_then(|(_, pool)| pool.tokenizer.clone()),
        )?;
        Ok(pool)
    }

    fn endpoint(
        &mut self,
        pool: &Arc<str>,
        of: &schema::Pool,
        config: &schema::Endpoint,
    ) -> anyhow::Result<Arc<Endpoint>> {
        let events = exact::sources(of, config)?;
        let assumed_blocks =
            exact::assumed_blocks(of, capacity_tokens(of).unwrap_or(DEFAULT_CAPACITY_TOKENS));
        let id = self
            .of
            .index
            .register(assumed_blocks)
            .context("too many endpoints")?;
        let identity = Identity {
            pool: pool.clone(),
            name: &config.name,
            url: &config.url,
            max_inflight: config.max_inflight.map(Into::into),
            labels: config.labels.clone(),
            events,
        };
        let metrics = self.of.metrics.endpoint(pool, &config.name);
        let endpoint = Arc::new(Endpoint::new(identity, id, metrics));
        self.taken.push(endpoint.clone());
        Ok(endpoint)
    }
}

/// Whether what is known of the endpoints' caches has the same source in both.
fn same_events(old: &schema::Pool, new: &schema::Pool) -> bool {
    old.prefix_cache.source == new.prefix_cache.source && old.kv_events == new.kv_events
}

/// Whether an endpoint is the one that the configuration describes. What only its pool says of it may differ.
fn is_same(
    endpoint: &Endpoint,
    config: &schema::Endpoint,
    before: Option<(&schema::Pool, &Arc<Pool>)>,
) -> bool {
    let old = before.and_then(|(old, _)| old.endpoints.iter().find(|old| old.name == config.name));
    endpoint.url == config.url && old == Some(config)
}

fn capacity_tokens(of: &schema::Pool) -> Option<u64> {
    let fixed = of.prefix_cache.capacity.value();
    fixed.map(|tokens| u64::from(tokens.get()))
}

fn pool_settings(of: &schema::Pool) -> anyhow::Result<pool::Settings> {
    Ok(pool::Settings {
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
        capacity_tokens: capacity_tokens(of),
        waiting: waiting(&of.overload.queue)?,
        gate: gate(&of.overload.working_set)?,
    })
}

fn bearer(key: &Secret) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose())).context("api_key")?;
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
            hold_flood_above_s: of.hold_flood_above.as_secs_f64(),
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

/// What the endpoints' TLS goes by, per pool, in the order of the configuration.
#[derive(Clone)]
pub struct EndpointsTls(Vec<(String, Option<Arc<ClientTls>>)>);

/// Reads the files that the pools' `tls` names.
///
/// # Errors
/// When one of them cannot be used.
pub fn endpoint_tls(config: &Config) -> anyhow::Result<EndpointsTls> {
    let each = config.pools.iter().map(|pool| {
        let read = pool.tls.as_ref().map(ClientTls::read).transpose();
        let read = read.with_context(|| format!("pool {}: tls", pool.name))?;
        Ok((pool.name.clone(), read.map(Arc::new)))
    });
    Ok(EndpointsTls(each.collect::<anyhow::Result<_>>()?))
}

impl EndpointsTls {
    /// Gives each endpoint its pool's terms.
    pub fn give(&self, pools: &Pools) {
        for (name, tls) in &self.0 {
            let snapshot = pools.by_name(name).map(|pool| pool.snapshot());
            for entry in snapshot.iter().flat_map(|snapshot| &snapshot.entries) {
                entry.endpoint.set_tls(tls.clone());
            }
        }
    }
}

/// The data port's certificate and key.
///
/// # Errors
/// When they cannot be used.
pub fn credentials(config: &Config) -> anyhow::Result<Option<Credentials>> {
    let read = config
        .tls
        .as_ref()
        .map(|tls| Credentials::read(&tls.certificate, &tls.key));
    read.transpose().context("tls")
}

/// Which conversations may begin; `None` when all may.
fn gate(of: &schema::WorkingSet) -> anyhow::Result<Option<GateSettings>> {
    let headers = of.session_headers.iter().map(HeaderName::try_from);
    let settings = GateSettings {
        working_set: WorkingSetSettings {
            fraction: of.fraction,
            idle: of.idle.0,
            tenure: of.tenure.0,
            return_wait: of.return_wait.0,
            regret: of.regret,
            spare: of.spare,
            ..WorkingSetSettings::default()
        },
        session_headers: headers
            .collect::<Result<_, _>>()
            .context("overload.working_set.session_headers")?,
        timeout: of.timeout.0,
    };
    Ok(of.enabled.then_some(settings))
}

/// What the configuration says of every request.
///
/// # Errors
/// When the file of API keys cannot be read.
pub fn settings(config: &Config) -> anyhow::Result<Settings> {
    Ok(Settings {
        body: BodyLimits {
            max_bytes: config.limits.request_body.0,
            timeout: config.limits.body_timeout.0,
        },
        max_header_bytes: config.limits.request_headers.0,
        api_keys: ApiKeys::new(&config.auth.keys, config.auth.file.as_deref()).context("auth.file")?,
        cors: Origins::new(&config.cors.allow_origins),
        forwarded: config.forwarded.clone(),
        response_headers: config.response_headers,
        logged: Selection {
            sample: config.access_log.sample,
            slow_after: config.access_log.slow_after.map(|slow| slow.0),
        },
    })
}

/// The watches of one pool's endpoints.
pub fn watches(of: &schema::Pool, pool: &Arc<Pool>, gateway: &Arc<Gateway>) -> Vec<Watch> {
    let snapshot = pool.snapshot();
    let each = snapshot.entries.iter().enumerate().map(|(at, entry)| Watch {
        gateway: gateway.clone(),
        pool: pool.clone(),
        at,
        endpoint: entry.endpoint.clone(),
        health: of.health.clone(),
        metrics: of.metrics.clone(),
    });
    each.collect()
}
