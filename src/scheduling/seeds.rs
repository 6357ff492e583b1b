//! The two promises, as properties of the pure scheduler: repeats are pulled home, newcomers spread evenly.

use super::testing::{endpoint, prompt, rng};
use super::view::{DecisionKind, EndpointView, RequestView, Scraped};
use super::{Dispatch, Policy, Scheduler};
use rand_pcg::Pcg64Mcg;

const PRESETS_THAT_SPREAD: &[&str] = &[
    "least-cost",
    "optimized-baseline",
    "sticky",
    "least-request",
    "round-robin",
];

/// A fleet as the gateway counts it: load reserved at the pick, released at the end.
struct Fleet {
    scheduler: Scheduler,
    views: Vec<EndpointView<'static>>,
    rng: Pcg64Mcg,
    now_s: f64,
}

impl Fleet {
    fn new(policy: &str, endpoints: u16) -> Self {
        Self {
            scheduler: Scheduler::new(Policy::preset(policy).unwrap()),
            views: (0..endpoints).map(endpoint).collect(),
            rng: rng(7),
            now_s: 0.0,
        }
    }

    fn send(&mut self, req: &RequestView) -> (Dispatch, DecisionKind) {
        let now = crate::time::Mono::from_secs_f64(self.now_s);
        let decision = self.scheduler.evaluate(now, req, &self.views, &mut self.rng);
        let id = decision.chosen().unwrap().id;
        let view = &mut self.views[usize::from(id.0)];
        let dispatch = self.scheduler.commit(now, req, &decision, view);
        view.inflight += 1;
        view.pending_prefill_tokens += u64::from(req.prompt_tokens - view.match_tokens);
        view.active_tokens += u64::from(req.prompt_tokens);
        (dispatch, decision.kind)
    }

    /// First byte and end, `elapsed_s` after the pick.
    fn finish(&mut self, req: &RequestView, dispatch: &Dispatch, elapsed_s: f64) {
        self.now_s += elapsed_s;
        self.scheduler
            .observe_first_byte(crate::time::Mono::from_secs_f64(self.now_s), dispatch);
        let view = &mut self.views[usize::from(dispatch.endpoint.0)];
        view.inflight -= 1;
        view.pending_prefill_tokens -= u64::from(req.prompt_tokens - view.match_tokens);
        view.active_tokens -= u64::from(req.prompt_tokens);
        view.cached_tokens += u64::from(req.prompt_tokens);
    }

    /// Sends the same 207-token prompt six times, one after another, on engines of 128-token blocks.
    fn experiment_a(&mut self) -> Vec<u16> {
        let req = prompt(207);
        let mut went = Vec::new();
        for _ in 0..6 {
            let (dispatch, kind) = self.send(&req);
            let expected = if went.is_empty() {
                DecisionKind::Cold
            } else {
                DecisionKind::Warm
            };
            assert_eq!(kind, expected);
            self.finish(&req, &dispatch, 0.03);
            went.push(dispatch.endpoint.0);
            let view = &mut self.views[usize::from(dispatch.endpoint.0)];
            (view.match_tokens, view.match_ratio) = (128, 1.0);
        }
        for view in &mut self.views {
            (view.match_tokens, view.match_ratio) = (0, 0.0);
        }
        went
    }

    /// Thirty prompts of 12 or 13 tokens that nobody holds; how many each endpoint got.
    fn experiment_b(&mut self, all_at_once: bool) -> Vec<u32> {
        let mut counts = vec![0; self.views.len()];
        let mut open = Vec::new();
        for topic in 0..30 {
            let req = prompt(if topic < 10 { 12 } else { 13 });
            let (dispatch, kind) = self.send(&req);
            assert_eq!(kind, DecisionKind::Cold);
            counts[usize::from(dispatch.endpoint.0)] += 1;
            if all_at_once {
                open.push((req, dispatch));
            } else {
                self.finish(&req, &dispatch, 0.02);
            }
        }
        for (req, dispatch) in open {
            self.finish(&req, &dispatch, 0.001);
        }
        counts
    }
}

#[test]
fn repeats_are_pulled_home() {
    for policy in ["least-cost", "optimized-baseline", "sticky"] {
        let went = Fleet::new(policy, 3).experiment_a();
        assert!(went.iter().all(|id| *id == went[0]), "{policy}: {went:?}");
    }
}

#[test]
fn newcomers_spread_evenly_all_at_once() {
    for policy in PRESETS_THAT_SPREAD {
        assert_eq!(Fleet::new(policy, 3).experiment_b(true), [10, 10, 10], "{policy}");
    }
}

#[test]
fn newcomers_spread_evenly_one_after_another_on_an_idle_fleet() {
    for policy in PRESETS_THAT_SPREAD {
        assert_eq!(
            Fleet::new(policy, 3).experiment_b(false),
            [10, 10, 10],
            "{policy}"
        );
    }
}

#[test]
fn newcomers_spread_evenly_after_repeats_warmed_one_endpoint() {
    for policy in PRESETS_THAT_SPREAD {
        for all_at_once in [true, false] {
            let mut fleet = Fleet::new(policy, 3);
            fleet.experiment_a();
            assert_eq!(
                fleet.experiment_b(all_at_once),
                [10, 10, 10],
                "{policy} at once: {all_at_once}"
            );
        }
    }
}

#[test]
fn newcomers_spread_evenly_while_scraped_metrics_stand_still() {
    for policy in PRESETS_THAT_SPREAD {
        for all_at_once in [true, false] {
            let mut fleet = Fleet::new(policy, 3);
            for (view, usage) in fleet.views.iter_mut().zip([0.02, 0.0, 0.01]) {
                view.scraped = Scraped {
                    waiting: Some(0.0),
                    running: Some(1.0),
                    kv_usage: Some(usage),
                };
            }
            assert_eq!(
                fleet.experiment_b(all_at_once),
                [10, 10, 10],
                "{policy} at once: {all_at_once}"
            );
        }
    }
}

#[test]
fn a_burst_of_newcomers_over_four_endpoints_stays_even() {
    for policy in PRESETS_THAT_SPREAD {
        let mut fleet = Fleet::new(policy, 4);
        let mut counts = [0; 4];
        for _ in 0..64 {
            counts[usize::from(fleet.send(&prompt(4000)).0.endpoint.0)] += 1;
        }
        assert_eq!(counts, [16; 4], "{policy}");
    }
}

#[test]
fn newcomers_spread_evenly_over_equals_whose_times_scatter() {
    use rand::RngExt;
    for (base_s, seed) in [(0.004, 1), (0.08, 2), (0.5, 3), (3.0, 4)] {
        let mut fleet = Fleet::new("least-cost", 3);
        fleet.experiment_a();
        let mut noise = rng(seed);
        let mut counts = [0; 3];
        for topic in 0..30 {
            let req = prompt(if topic < 10 { 12 } else { 13 });
            let (dispatch, _) = fleet.send(&req);
            counts[usize::from(dispatch.endpoint.0)] += 1;
            fleet.finish(&req, &dispatch, base_s * noise.random_range(0.7..1.3));
        }
        assert_eq!(counts, [10; 3], "{base_s} s");
    }
}
