//! A pool's waiting room with a clock of its own.

use super::*;
use crate::config::address::EndpointUrl;
use crate::pool::ejection::EjectionLimits;
use crate::pool::health::Thresholds;
use crate::pool::retry_budget::RetryLimits;
use crate::pool::{Endpoint, Identity, Settings};
use crate::prefix::PrefixIndex;
use crate::scheduling::{Policy, Scheduler};
use crate::telemetry::Metrics;
use futures_util::FutureExt;
use std::collections::BTreeMap;

const LONGEST_WAIT: Duration = Duration::from_secs(10);

fn at(seconds: f64) -> Mono {
    Mono::from_secs_f64(seconds)
}

fn settings() -> Settings {
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
        waiting: Some(WaitingSettings {
            queue: QueueSettings::default(),
            sharing: Sharing::default(),
            timeout: LONGEST_WAIT,
        }),
        gate: None,
    }
}

/// A pool of one endpoint that is ready.
fn pool() -> Arc<Pool> {
    let metrics = Metrics::new().unwrap();
    let index = Arc::new(PrefixIndex::new(1 << 20));
    let url: EndpointUrl = "http://127.0.0.1:1".parse().unwrap();
    let identity = Identity {
        pool: "default".into(),
        name: "pod-a",
        url: &url,
        max_inflight: None,
        labels: BTreeMap::new(),
        events: Vec::new(),
    };
    let id = index.register(1024).unwrap();
    let endpoint = Arc::new(Endpoint::new(
        identity,
        id,
        metrics.endpoint("default", "pod-a"),
    ));
    let scheduler = Scheduler::new(Policy::preset("least-request").unwrap());
    let pool = Pool::new(
        "default".into(),
        settings(),
        index,
        scheduler,
        vec![endpoint],
        &metrics,
        1,
    );
    let thresholds = Thresholds {
        unhealthy_after: 1,
        healthy_after: 1,
    };
    pool.update(0, |status| status.health_checked(Mono::ZERO, Ok(()), thresholds));
    Arc::new(pool)
}

fn admit(pool: &Arc<Pool>, tokens: u32, now: Mono) -> Admission {
    let prompt = Prompt {
        tokens,
        stream: true,
        ..Prompt::unkeyed("")
    };
    let claim = Claim {
        flow: FlowId(0),
        weight: 1.0,
        bytes: 100,
    };
    pool.admit(prompt, claim, "", now)
}

#[test]
fn the_longest_wait_ends_however_often_something_frees() {
    let pool = pool();
    // Minutes of prefill, so that nobody else gets a turn.
    let Admission::Placed(_first) = admit(&pool, 10_000_000, at(0.0)) else {
        panic!("nobody waits yet");
    };
    let Admission::Waits(mut waiting) = admit(&pool, 1_000, at(0.0)) else {
        panic!("the endpoint is busy");
    };
    for tenths in 1..=LONGEST_WAIT.as_secs() * 10 + 5 {
        let now = at(tenths as f64 / 10.0);
        pool.freed(now);
        waiting.tick(now);
    }
    let turn = waiting.turn().now_or_never().expect("the wait is over");
    assert_eq!(turn.unwrap_err().why, Turned::TimedOut);
}
