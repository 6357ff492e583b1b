//! What a miss costs everybody else: how busy the fleet is with prefill, and how full its KV caches are.

use crate::scheduling::view::{EndpointView, Scraped};
use crate::time::Mono;

/// How far back the measures look, in seconds: time constant of their decay.
const MEMORY_S: f64 = 60.0;

/// Most that either measure may say. At 1 a queue would never end, and the price of a miss would be infinite.
const MAX_PREFILL_LOAD: f64 = 0.9;
/// The same for the share of the KV cache in use.
const MAX_KV_LOAD: f64 = 0.95;

/// Endpoints that use less of their KV cache say little about how much of it requests share.
const MIN_ACTIVE_SHARE: f64 = 0.05;

/// Running measures over the whole fleet, current at each pick.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowding {
    at: Mono,
    /// Prefill work sent, in seconds per endpoint and second.
    prefill_load: f64,
    /// KV tokens that engines held, decayed sum over picks,
    held_tokens: f64,
    /// and the context tokens that the gateway had in flight there.
    active_tokens: f64,
}

impl Crowding {
    /// A pick that sends `prefill_s` of work to one of `endpoints`.
    pub fn record(&mut self, now: Mono, prefill_s: f64, endpoints: usize, view: &EndpointView) {
        let keep = (-now.since(self.at).as_secs_f64() / MEMORY_S).exp();
        self.at = now;
        self.prefill_load = self.prefill_load * keep + prefill_s / MEMORY_S / endpoints.max(1) as f64;
        if let Some((held, active)) = held_and_active(view) {
            self.held_tokens = self.held_tokens * keep + held;
            self.active_tokens = self.active_tokens * keep + active;
        }
    }

    /// rho / (1 - rho): seconds that a second of prefill delays later requests by, in a queue under load rho.
    pub fn behind(&self, now: Mono) -> f64 {
        let keep = (-now.since(self.at).as_secs_f64() / MEMORY_S).exp();
        odds((self.prefill_load * keep).min(MAX_PREFILL_LOAD))
    }

    /// KV tokens that an engine holds per context token in flight: below 1 where requests share blocks.
    pub fn held_share(&self) -> f64 {
        if self.active_tokens > 0.0 {
            (self.held_tokens / self.active_tokens).min(1.0)
        } else {
            1.0
        }
    }

    /// u / (1 - u), where u is the share of all KV caches together that requests in flight hold.
    pub fn full<'a>(&self, views: impl Iterator<Item = &'a EndpointView<'a>>) -> f64 {
        let known = views.filter_map(|view| Some((view.active_tokens as f64, view.capacity_tokens? as f64)));
        let (active, capacity) = known.fold((0.0, 0.0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
        if capacity <= 0.0 {
            return 0.0;
        }
        odds((active / capacity * self.held_share()).min(MAX_KV_LOAD))
    }
}

fn odds(share: f64) -> f64 {
    share / (1.0 - share)
}

/// KV tokens held and context tokens running, where both are known. Requests that the engine has not
/// seated hold nothing yet.
fn held_and_active(view: &EndpointView) -> Option<(f64, f64)> {
    let capacity = view.capacity_tokens? as f64;
    let usage = view
        .scraped
        .kv_usage
        .filter(|usage| (0.0..=1.0).contains(usage))?;
    let active = view.active_tokens as f64 * seated_share(&view.scraped);
    (active > MIN_ACTIVE_SHARE * capacity).then_some((usage * capacity, active))
}

fn seated_share(scraped: &Scraped) -> f64 {
    match (scraped.running, scraped.waiting) {
        (Some(running), Some(waiting)) if running >= 0.0 && waiting >= 0.0 && running + waiting > 0.0 => {
            running / (running + waiting)
        }
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::testing::endpoint;

    fn at(seconds: f64) -> Mono {
        Mono::from_secs_f64(seconds)
    }

    fn using(active_tokens: u64, usage: f64, running: f64, waiting: f64) -> EndpointView<'static> {
        let scraped = Scraped {
            waiting: Some(waiting),
            running: Some(running),
            kv_usage: Some(usage),
        };
        EndpointView {
            active_tokens,
            scraped,
            ..endpoint(0)
        }
    }

    #[test]
    fn prefill_load_is_work_per_endpoint_and_second() {
        let mut crowding = Crowding::default();
        // 0.8 s of work each second over two endpoints: load 0.4, odds 2/3.
        for second in 0..600 {
            crowding.record(at(f64::from(second)), 0.8, 2, &endpoint(0));
        }
        assert!(
            (crowding.behind(at(599.0)) - 2.0 / 3.0).abs() < 0.02,
            "{}",
            crowding.behind(at(599.0))
        );
        assert!(
            crowding.behind(at(900.0)) < 0.01,
            "forgotten after five minutes of rest"
        );
        crowding.record(at(900.0), 1e9, 2, &endpoint(0));
        assert!((crowding.behind(at(900.0)) - 9.0).abs() < 1e-9, "bounded");
    }

    #[test]
    fn shared_blocks_count_once() {
        let mut crowding = Crowding::default();
        assert_eq!(crowding.held_share(), 1.0, "nothing known: nothing shared");
        // 80,000 context tokens of which the engine holds 20,000 in its 100,000.
        crowding.record(at(0.0), 0.0, 1, &using(80_000, 0.2, 10.0, 0.0));
        assert_eq!(crowding.held_share(), 0.25);
        // Half of the requests wait: 40,000 run and hold 10,000.
        let mut waiting = Crowding::default();
        waiting.record(at(0.0), 0.0, 1, &using(80_000, 0.1, 5.0, 5.0));
        assert_eq!(waiting.held_share(), 0.25);
    }

    #[test]
    fn broken_gauges_teach_nothing() {
        let mut crowding = Crowding::default();
        for usage in [f64::NAN, f64::INFINITY, -0.5, 40.0] {
            crowding.record(at(0.0), 0.0, 1, &using(80_000, usage, 10.0, 0.0));
        }
        crowding.record(at(0.0), 0.0, 1, &endpoint(0));
        assert_eq!(crowding.held_share(), 1.0);
    }

    #[test]
    fn fullness_is_of_all_caches_together() {
        let crowding = Crowding::default();
        let views = [using(60_000, 0.6, 1.0, 0.0), using(0, 0.0, 0.0, 0.0)];
        // 60,000 of 200,000: 0.3 / 0.7.
        assert!((crowding.full(views.iter()) - 0.3 / 0.7).abs() < 1e-9);
        let unknown = EndpointView {
            capacity_tokens: None,
            ..using(60_000, 0.6, 1.0, 0.0)
        };
        assert_eq!(crowding.full([unknown].iter()), 0.0);
        let over = using(500_000, 1.0, 1.0, 0.0);
        assert!((crowding.full([over].iter()) - 19.0).abs() < 1e-9, "bounded");
    }
}
