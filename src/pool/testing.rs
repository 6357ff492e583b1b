//! What the tests of pools share: pools of endpoints that are ready, and whose requests go nowhere.

use super::ejection::EjectionLimits;
use super::health::Thresholds;
use super::retry_budget::RetryLimits;
use super::{Endpoint, Identity, Pool, Settings};
use crate::config::address::EndpointUrl;
use crate::prefix::PrefixIndex;
use crate::scheduling::{Policy, Scheduler};
use crate::telemetry::Metrics;
use crate::time::Mono;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Of a pool that neither queues nor gates.
pub(super) fn settings() -> Settings {
    Settings {
        models: Vec::new(),
        retries: 0,
        retry_on: Vec::new(),
        retry_limits: RetryLimits {
            ratio: 0.0,
            min_per_second: 0,
        },
        ejection: EjectionLimits {
            consecutive_failures: 0,
            failure_ratio: 1.0,
            min_requests: u32::MAX,
            window: Duration::from_secs(10),
            first_time: Duration::from_secs(5),
            longest_time: Duration::from_secs(60),
            hung_after: Duration::from_secs(60),
        },
        slow_start: Duration::ZERO,
        api_key: None,
        error_event: false,
        stale_after: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(1),
        first_byte_timeout: Duration::from_secs(600),
        idle_timeout: Duration::from_secs(300),
        block_tokens: Some(16),
        capacity_tokens: Some(1_000_000),
        waiting: None,
        gate: None,
    }
}

/// A pool whose endpoints have the ids 0, 1 and so on.
pub(super) fn pool(names: &[&str], settings: Settings) -> Arc<Pool> {
    let metrics = Metrics::new().unwrap();
    let index = Arc::new(PrefixIndex::new(1 << 20));
    let url: EndpointUrl = "http://127.0.0.1:1".parse().unwrap();
    let endpoint = |name: &&str| {
        let identity = Identity {
            pool: "default".into(),
            name,
            url: &url,
            max_inflight: None,
            labels: BTreeMap::new(),
            events: Vec::new(),
        };
        let id = index.register(1024).unwrap();
        Arc::new(Endpoint::new(identity, id, metrics.endpoint("default", name)))
    };
    let endpoints = names.iter().map(endpoint).collect();
    let scheduler = Scheduler::new(Policy::preset("least-request").unwrap());
    let pool = Pool::new(
        "default".into(),
        settings,
        index.clone(),
        scheduler,
        endpoints,
        &metrics,
        1,
    );
    let thresholds = Thresholds {
        unhealthy_after: 1,
        healthy_after: 1,
    };
    for at in 0..names.len() {
        pool.update(at, |status| status.health_checked(Mono::ZERO, Ok(()), thresholds));
    }
    Arc::new(pool)
}
