use super::testing::{endpoint, prompt, rng};
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::Range;

fn gauge() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        Just(None),
        Just(Some(f64::NAN)),
        Just(Some(f64::INFINITY)),
        Just(Some(f64::NEG_INFINITY)),
        (-1.0..200.0f64).prop_map(Some),
        any::<f64>().prop_map(Some),
    ]
}

/// Endpoints in any state, with gauges that a broken exporter might send.
pub(super) fn views(count: Range<usize>) -> impl Strategy<Value = Vec<EndpointView<'static>>> {
    let scraped = (gauge(), gauge(), gauge()).prop_map(|(waiting, running, kv_usage)| Scraped {
        waiting,
        running,
        kv_usage,
    });
    let capacity = prop_oneof![Just(None), Just(Some(0)), (1u64..1_000_000).prop_map(Some)];
    let one = (
        scraped,
        0u32..=1000,
        0u32..500,
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        capacity,
    );
    vec(one, count).prop_map(|all| {
        let view =
            |(id, (scraped, matched, inflight, pending, active, cached, capacity_tokens))| EndpointView {
                match_tokens: matched,
                match_ratio: f64::from(matched) / 1000.0,
                scraped,
                inflight,
                pending_prefill_tokens: u64::from(pending),
                active_tokens: u64::from(active),
                cached_tokens: u64::from(cached),
                capacity_tokens,
                ..endpoint(id as u16)
            };
        all.into_iter().enumerate().map(view).collect()
    })
}

fn scheduler(name: &str) -> Scheduler {
    Scheduler::new(Policy::named(name, &LeastCostParameters::default()).unwrap())
}

proptest! {
    #[test]
    fn every_candidate_is_ranked_once_and_no_total_is_nan(views in views(0..12), seed: u64) {
        for name in Policy::names() {
            let decision = scheduler(name).evaluate(Mono::ZERO, &prompt(1000), &views, &mut rng(seed));
            let mut ids: Vec<_> = decision.ranked.iter().map(|scored| scored.id).collect();
            ids.sort_unstable();
            prop_assert_eq!(ids, views.iter().map(|view| view.id).collect::<Vec<_>>(), "{}", name);
            for scored in &decision.ranked {
                prop_assert!(scored.total.is_finite(), "{name}");
                prop_assert_eq!(scored.terms.len(), decision.term_names.len(), "{}", name);
            }
        }
    }

    #[test]
    fn the_candidates_order_does_not_matter(views in views(1..12), seed: u64) {
        let mut reversed = views.clone();
        reversed.reverse();
        for name in Policy::names().filter(|name| *name != "random") {
            let one = scheduler(name).evaluate(Mono::ZERO, &prompt(1000), &views, &mut rng(seed));
            let other = scheduler(name).evaluate(Mono::ZERO, &prompt(1000), &reversed, &mut rng(seed));
            let ids = |decision: &Decision| decision.ranked.iter().map(|s| s.id).collect::<Vec<_>>();
            prop_assert_eq!(ids(&one), ids(&other), "{}", name);
        }
    }

    #[test]
    fn evaluating_changes_nothing(views in views(1..8), seed: u64) {
        for name in Policy::names() {
            let scheduler = scheduler(name);
            let ask = || scheduler.evaluate(Mono::ZERO, &prompt(1000), &views, &mut rng(seed));
            let ids = |decision: Decision| decision.ranked.iter().map(|s| s.id).collect::<Vec<_>>();
            prop_assert_eq!(ids(ask()), ids(ask()), "{}", name);
        }
    }
}

#[test]
fn excluded_endpoints_are_never_ranked() {
    let views: Vec<_> = (0..3).map(endpoint).collect();
    let exclude = [EndpointId(1)];
    let req = RequestView {
        exclude: &exclude,
        ..prompt(100)
    };
    for name in Policy::names() {
        let decision = scheduler(name).evaluate(Mono::ZERO, &req, &views, &mut rng(1));
        assert_eq!(decision.ranked.len(), 2, "{name}");
        assert!(
            decision.ranked.iter().all(|scored| scored.id != EndpointId(1)),
            "{name}"
        );
        assert_eq!(decision.filtered, [(EndpointId(1), "excluded")], "{name}");
    }
}

#[test]
fn nobody_left_is_an_empty_decision() {
    for name in Policy::names() {
        let decision = scheduler(name).evaluate(Mono::ZERO, &prompt(100), &[], &mut rng(1));
        assert!(decision.chosen().is_none(), "{name}");
    }
}

#[test]
fn optimized_baseline_adds_up_as_published() {
    let scraped = |waiting, usage| Scraped {
        waiting: Some(waiting),
        kv_usage: Some(usage),
        running: None,
    };
    let views = [
        EndpointView {
            match_tokens: 800,
            match_ratio: 0.8,
            scraped: scraped(6.0, 0.5),
            ..endpoint(0)
        },
        EndpointView {
            scraped: scraped(0.0, 0.25),
            ..endpoint(1)
        },
    ];
    let decision = scheduler("optimized-baseline").evaluate(Mono::ZERO, &prompt(1000), &views, &mut rng(1));
    assert_eq!(decision.kind, DecisionKind::Warm);
    let total = |id| {
        decision
            .ranked
            .iter()
            .find(|scored| scored.id == EndpointId(id))
            .unwrap()
            .total
    };
    // 3 x 0.8 + 2 x 0 + 2 x 0.5 + 2 x 0.5 and 3 x 0 + 2 x 1 + 2 x 0.75 + 2 x 0.5.
    assert!((total(0) - 4.4).abs() < 1e-9, "{}", total(0));
    assert!((total(1) - 4.5).abs() < 1e-9, "{}", total(1));
    assert_eq!(decision.chosen().unwrap().id, EndpointId(1));
}

#[test]
fn requests_without_a_prompt_go_by_load_and_leave_the_cold_order_alone() {
    let mut scheduler = scheduler("optimized-baseline");
    let views: Vec<_> = (0..3).map(endpoint).collect();
    let req = RequestView::default();
    let mut counts = [0; 3];
    for _ in 0..30 {
        let decision = scheduler.evaluate(Mono::ZERO, &req, &views, &mut rng(1));
        assert_eq!(decision.kind, DecisionKind::Unkeyed);
        let id = decision.chosen().unwrap().id;
        scheduler.commit(Mono::ZERO, &req, &decision, &views[usize::from(id.0)]);
        counts[usize::from(id.0)] += 1;
        assert_eq!(scheduler.recency.of(id).cold, 0);
    }
    assert_eq!(counts, [10, 10, 10]);
}

#[test]
fn round_robin_takes_turns_and_random_covers_everybody() {
    let views: Vec<_> = (0..4).map(endpoint).collect();
    for (name, spread) in [("round-robin", 100..=100), ("random", 60..=140)] {
        let (mut scheduler, mut rng) = (scheduler(name), rng(3));
        let mut counts = [0; 4];
        for _ in 0..400 {
            let decision = scheduler.evaluate(Mono::ZERO, &prompt(10), &views, &mut rng);
            let id = usize::from(decision.chosen().unwrap().id.0);
            scheduler.commit(Mono::ZERO, &prompt(10), &decision, &views[id]);
            counts[id] += 1;
        }
        assert!(
            counts.iter().all(|count| spread.contains(count)),
            "{name}: {counts:?}"
        );
    }
}

#[test]
fn a_reverted_pick_gets_the_next_turn() {
    let mut scheduler = scheduler("round-robin");
    let views: Vec<_> = (0..3).map(endpoint).collect();
    let mut next = |revert: bool| {
        let decision = scheduler.evaluate(Mono::ZERO, &prompt(10), &views, &mut rng(9));
        let id = decision.chosen().unwrap().id;
        let dispatch = scheduler.commit(Mono::ZERO, &prompt(10), &decision, &views[usize::from(id.0)]);
        if revert {
            scheduler.revert(&dispatch);
        }
        id
    };
    assert_eq!(next(true), next(false));
    let rest = [next(false), next(false)];
    assert_ne!(rest[0], rest[1]);
}

#[test]
fn unknown_names_are_no_preset() {
    assert!(Policy::preset("fastest").is_none());
    assert!(
        PRESETS
            .iter()
            .all(|name| Policy::preset(name).is_some_and(|policy| policy.name() == *name))
    );
    assert!(Policy::names().all(|name| scheduler(name).policy_name() == name));
}
