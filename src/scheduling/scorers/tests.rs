use super::super::recency::Recency;
use super::super::testing::{endpoint, prompt};
use super::super::view::RequestView;
use super::*;
use crate::prefix::EndpointId;
use proptest::prelude::*;

fn scores(scorer: Scorer, req: &RequestView, views: &[EndpointView], recency: &Recency) -> Vec<f64> {
    let field = Field::new(req, 0.0, views, recency, 42);
    let prepared = scorer.prepare(&field);
    views
        .iter()
        .enumerate()
        .map(|(index, view)| prepared.score(index, view))
        .collect()
}

fn scores_of(scorer: Scorer, views: &[EndpointView]) -> Vec<f64> {
    scores(scorer, &prompt(1000), views, &Recency::default())
}

fn waiting(queues: &[Option<f64>]) -> Vec<EndpointView<'static>> {
    let queued = |(id, queue): (usize, &Option<f64>)| {
        let scraped = Scraped {
            waiting: *queue,
            running: *queue,
            ..Scraped::default()
        };
        EndpointView {
            scraped,
            ..endpoint(id as u16)
        }
    };
    queues.iter().enumerate().map(queued).collect()
}

fn using(usages: &[Option<f64>]) -> Vec<EndpointView<'static>> {
    let used = |(id, usage): (usize, &Option<f64>)| {
        let scraped = Scraped {
            kv_usage: *usage,
            ..Scraped::default()
        };
        EndpointView {
            scraped,
            ..endpoint(id as u16)
        }
    };
    usages.iter().enumerate().map(used).collect()
}

#[test]
fn queue_and_running_score_between_the_longest_and_the_shortest() {
    for scorer in [Scorer::Queue, Scorer::RunningRequests] {
        let of = |queues: &[Option<f64>]| scores_of(scorer, &waiting(queues));
        assert_eq!(of(&[Some(0.0), Some(2.0), Some(8.0)]), [1.0, 0.75, 0.0]);
        assert_eq!(of(&[Some(5.0), Some(5.0)]), [1.0, 1.0], "all equal");
        assert_eq!(
            of(&[Some(0.0), None, Some(4.0)]),
            [1.0, 0.5, 0.0],
            "unknown: the mean of the known"
        );
        assert_eq!(
            of(&[None, None]),
            [1.0, 1.0],
            "nothing known: nobody is preferred"
        );
        assert_eq!(
            of(&[Some(f64::NAN), Some(1.0), Some(3.0)]),
            [0.5, 1.0, 0.0],
            "NaN is unknown"
        );
        assert_eq!(
            of(&[Some(-1.0), Some(1.0), Some(3.0)]),
            [0.5, 1.0, 0.0],
            "no queue is negative"
        );
    }
}

#[test]
fn own_inflight_requests_score_as_queues_do() {
    let views: Vec<_> = [4, 0, 1]
        .iter()
        .zip(0..)
        .map(|(n, id)| EndpointView {
            inflight: *n,
            ..endpoint(id)
        })
        .collect();
    assert_eq!(scores_of(Scorer::ActiveRequests, &views), [0.0, 1.0, 0.75]);
}

#[test]
fn kv_utilisation_scores_what_is_free() {
    let of = |usages: &[Option<f64>]| scores_of(Scorer::KvCacheUtilization, &using(usages));
    assert_eq!(of(&[Some(0.25), Some(1.0), Some(0.0)]), [0.75, 0.0, 1.0]);
    assert_eq!(
        of(&[Some(0.25), None, Some(0.75)]),
        [0.75, 0.5, 0.25],
        "unknown: the mean of the known"
    );
    assert_eq!(of(&[None, None]), [0.5, 0.5]);
    assert_eq!(of(&[Some(f64::NAN), Some(0.5)]), [0.5, 0.5]);
    assert_eq!(of(&[Some(7.0)]), [0.0], "a percentage above 1 is full");
}

#[test]
fn adapters_score_where_they_run_before_where_they_fit() {
    use AdapterStanding::{FreeSlot, NoSlot, Running, Waiting};
    let of = |standings: &[Option<AdapterStanding>]| {
        let standing = |(id, adapter): (usize, &Option<AdapterStanding>)| EndpointView {
            adapter: *adapter,
            ..endpoint(id as u16)
        };
        let views: Vec<_> = standings.iter().enumerate().map(standing).collect();
        scores_of(Scorer::LoraAffinity, &views)
    };
    assert_eq!(
        of(&[Some(Running), Some(FreeSlot), Some(Waiting), Some(NoSlot)]),
        [1.0, 0.8, 0.6, 0.0]
    );
    assert_eq!(
        of(&[Some(Running), None, Some(NoSlot)]),
        [1.0, 0.5, 0.0],
        "unknown: the mean of the known"
    );
    assert_eq!(of(&[None, None]), [0.5, 0.5]);
}

#[test]
fn prefix_scores_the_held_share() {
    let holder = EndpointView {
        match_ratio: 0.75,
        match_tokens: 768,
        ..endpoint(1)
    };
    assert_eq!(
        scores_of(Scorer::PrefixCache, &[endpoint(0), holder]),
        [0.0, 0.75]
    );
    let broken = EndpointView {
        match_ratio: f64::NAN,
        ..endpoint(0)
    };
    assert_eq!(scores_of(Scorer::PrefixCache, &[broken]), [0.0]);
}

#[test]
fn cold_prompts_go_to_the_least_recently_cold() {
    let mut recency = Recency::default();
    recency.record(EndpointId(2), true);
    recency.record(EndpointId(0), true);
    recency.record(EndpointId(1), false);
    let views = [endpoint(0), endpoint(1), endpoint(2)];
    let cold = scores(Scorer::NoHitLru, &prompt(1000), &views, &recency);
    assert_eq!(cold, [0.0, 1.0, 0.5], "never cold first, whatever else it served");
    assert_eq!(
        scores(Scorer::NoHitLru, &prompt(1000), &views[..1], &recency),
        [1.0],
        "alone"
    );
}

#[test]
fn warm_prompts_say_nothing_about_the_cold_order() {
    let mut recency = Recency::default();
    recency.record(EndpointId(0), true);
    let holder = EndpointView {
        match_tokens: 900,
        match_ratio: 0.9,
        ..endpoint(1)
    };
    assert_eq!(
        scores(Scorer::NoHitLru, &prompt(1000), &[endpoint(0), holder], &recency),
        [0.5, 0.5]
    );
}

#[test]
fn token_load_counts_this_requests_misses_too() {
    let scorer = Scorer::TokenLoad {
        threshold_tokens: 4000.0,
    };
    let loaded = EndpointView {
        pending_prefill_tokens: 1000,
        ..endpoint(0)
    };
    let warm = EndpointView {
        pending_prefill_tokens: 1000,
        match_tokens: 1000,
        ..endpoint(1)
    };
    let flooded = EndpointView {
        pending_prefill_tokens: 9000,
        ..endpoint(2)
    };
    assert_eq!(scores_of(scorer, &[loaded, warm, flooded]), [0.5, 0.75, 0.0]);
}

#[test]
fn a_session_has_one_home_and_keeps_it_when_others_leave() {
    let views: Vec<_> = (0..6).map(endpoint).collect();
    let mut homes = [0; 6];
    for session in 0..600 {
        let req = RequestView {
            session: Some(session),
            ..prompt(10)
        };
        let all = scores(Scorer::SessionAffinity, &req, &views, &Recency::default());
        let home = all.iter().position(|score| *score == 1.0).unwrap();
        assert_eq!(all.iter().sum::<f64>(), 1.0);
        homes[home] += 1;
        if home > 0 {
            let fewer = scores(Scorer::SessionAffinity, &req, &views[1..], &Recency::default());
            assert_eq!(fewer[home - 1], 1.0);
        }
    }
    assert!(homes.iter().all(|n| (60..=140).contains(n)), "{homes:?}");
    assert_eq!(
        scores_of(Scorer::SessionAffinity, &views[..2]),
        [0.5, 0.5],
        "no session"
    );
}

const ALL: &[Scorer] = &[
    Scorer::PrefixCache,
    Scorer::Queue,
    Scorer::KvCacheUtilization,
    Scorer::NoHitLru,
    Scorer::RunningRequests,
    Scorer::ActiveRequests,
    Scorer::TokenLoad {
        threshold_tokens: TOKEN_LOAD_THRESHOLD,
    },
    Scorer::SessionAffinity,
];

proptest! {
    #[test]
    fn every_score_is_within_0_and_1(views in super::super::tests::views(1..12), session: Option<u64>) {
        let req = RequestView { session, ..prompt(1000) };
        for scorer in ALL {
            for score in scores(*scorer, &req, &views, &Recency::default()) {
                prop_assert!((0.0..=1.0).contains(&score), "{scorer:?}: {score}");
            }
        }
    }
}
