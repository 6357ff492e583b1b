use super::super::testing::{endpoint, prompt, rng};
use super::super::view::RequestView;
use super::super::{LeastCostParameters, Policy, Scheduler};
use super::*;

fn scheduler(rival: Rival) -> Scheduler {
    let fixed = LeastCostParameters {
        learn: false,
        ..LeastCostParameters::default()
    };
    Scheduler::new(Policy::rival(rival, &fixed))
}

fn chosen_for(rival: Rival, req: &RequestView, views: &[EndpointView]) -> u16 {
    scheduler(rival)
        .evaluate(Mono::ZERO, req, views, &mut rng(5))
        .chosen()
        .unwrap()
        .id
        .0
}

fn chosen(rival: Rival, views: &[EndpointView]) -> u16 {
    chosen_for(rival, &prompt(1000), views)
}

fn with(id: u16, inflight: u32, match_tokens: u32, pending_prefill_tokens: u64) -> EndpointView<'static> {
    EndpointView {
        inflight,
        match_tokens,
        pending_prefill_tokens,
        ..endpoint(id)
    }
}

#[test]
fn p2c_never_picks_the_busiest_and_compares_only_two() {
    let views = [with(0, 9, 0, 0), with(1, 1, 0, 0), with(2, 0, 0, 0)];
    let (scheduler, mut rng) = (scheduler(Rival::P2c), rng(1));
    let mut counts = [0; 3];
    for _ in 0..300 {
        let decision = scheduler.evaluate(Mono::ZERO, &prompt(10), &views, &mut rng);
        counts[usize::from(decision.chosen().unwrap().id.0)] += 1;
    }
    // The idlest is drawn in two of three pairs, the middle one wins the third.
    assert!(counts[0] == 0 && (60..=140).contains(&counts[1]), "{counts:?}");
}

#[test]
fn cache_aware_follows_a_match_above_a_third_unless_out_of_balance() {
    let rival = Rival::SglangCacheAware;
    assert_eq!(chosen(rival, &[with(0, 0, 0, 0), with(1, 60, 301, 0)]), 1);
    assert_eq!(chosen(rival, &[with(0, 0, 0, 0), with(1, 60, 300, 0)]), 0);
    assert_eq!(chosen(rival, &[with(0, 0, 0, 0), with(1, 65, 900, 0)]), 0);
    assert_eq!(
        chosen(rival, &[with(0, 140, 0, 0), with(1, 205, 900, 0)]),
        1,
        "65 more, but not 1.5 times"
    );
}

#[test]
fn dynamo_lmetric_and_the_estimate_weigh_misses_against_load() {
    let busy_home = EndpointView {
        active_tokens: 5000,
        ..with(1, 3, 800, 0)
    };
    let idle = with(0, 0, 0, 0);
    // Prefill 1000 + active 1000 against 200 + 6000.
    assert_eq!(chosen(Rival::Dynamo, &[idle, busy_home]), 0);
    // 1000 x 1 against 200 x 4.
    assert_eq!(chosen(Rival::Lmetric, &[idle, busy_home]), 1);
    assert_eq!(
        chosen(
            Rival::Lmetric,
            &[
                idle,
                EndpointView {
                    inflight: 5,
                    ..busy_home
                }
            ]
        ),
        0
    );
    assert_eq!(chosen(Rival::TtftEstimate, &[idle, with(1, 9, 800, 700)]), 1);
    assert_eq!(chosen(Rival::TtftEstimate, &[idle, with(1, 9, 800, 900)]), 0);
}

#[test]
fn chwbl_has_one_home_per_key_and_passes_over_the_overloaded() {
    let key = |key| RequestView {
        prefix_key: Some(key),
        ..prompt(1000)
    };
    let idle: Vec<_> = (0..4).map(|id| with(id, 0, 0, 0)).collect();
    let homes: Vec<_> = (0..64u64)
        .map(|n| chosen_for(Rival::Chwbl, &key(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)), &idle))
        .collect();
    assert!((0..4).all(|id| homes.contains(&id)), "{homes:?}");
    let home = chosen_for(Rival::Chwbl, &key(7), &idle);
    let mut busy = idle;
    busy[usize::from(home)].inflight = 3;
    // Bound: ceil(1.25 x 4 / 4) = 2 < 3 + 1.
    assert_ne!(chosen_for(Rival::Chwbl, &key(7), &busy), home);
}

#[test]
fn smg_follows_a_match_while_its_load_is_near_the_mean() {
    assert_eq!(chosen(Rival::Smg, &[with(0, 0, 0, 0), with(1, 2, 400, 0)]), 1);
    // Mean 5, bound 1.5 x 5 + 2 = 9.5 < 10.
    assert_eq!(chosen(Rival::Smg, &[with(0, 0, 0, 0), with(1, 10, 400, 9000)]), 0);
}

#[test]
fn preble_exploits_a_match_until_its_endpoint_is_the_heaviest_by_far() {
    let mut scheduler = scheduler(Rival::Preble);
    let views = [with(0, 0, 0, 0), with(1, 0, 60_000, 0)];
    let mut rng = rng(1);
    let req = prompt(100_000);
    let ask = |scheduler: &Scheduler, rng: &mut rand_pcg::Pcg64Mcg| {
        scheduler
            .evaluate(Mono::ZERO, &req, &views, rng)
            .chosen()
            .unwrap()
            .id
            .0
    };
    assert_eq!(ask(&scheduler, &mut rng), 1);
    let decision = scheduler.evaluate(Mono::ZERO, &req, &views, &mut rng);
    for _ in 0..5 {
        scheduler.commit(Mono::ZERO, &req, &decision, &views[1]);
    }
    assert_eq!(ask(&scheduler, &mut rng), 0);
    // Ten windows later the load is forgotten.
    let later = Mono::from_secs_f64(1800.0);
    assert_eq!(
        scheduler
            .evaluate(later, &req, &views, &mut rng)
            .chosen()
            .unwrap()
            .id
            .0,
        1
    );
}
