use super::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const POD: EndpointId = EndpointId(1);

fn at(seconds: f64) -> Mono {
    Mono::from_secs_f64(seconds)
}

/// A prompt of `blocks` blocks of ten tokens, the first `known` of which some endpoint holds.
fn visit(blocks: &[BlockHash], known: u32) -> Visit<'_> {
    Visit {
        session: None,
        blocks,
        prompt_tokens: blocks.len() as u32 * 10,
        best_match_tokens: known * 10,
        waited: Duration::ZERO,
    }
}

/// Whether a conversation that begins with this prompt, of which nothing is cached, may go to each of the endpoints, by
/// their capacities. They have no time to spare.
fn fits(set: &WorkingSet, now: Mono, visit: &Visit, capacities: &[(EndpointId, Option<u64>)]) -> Vec<bool> {
    let place = |(endpoint, capacity_tokens): &(EndpointId, Option<u64>)| Place {
        endpoint: *endpoint,
        match_tokens: 0,
        capacity_tokens: *capacity_tokens,
    };
    let places: Vec<Place> = capacities.iter().map(place).collect();
    let full = set.full(now, set.kind(now, visit), visit, 0, &places, 0.0);
    capacities.iter().map(|(id, _)| !full.contains(id)).collect()
}

fn blocks(of: u64, count: u64) -> Vec<BlockHash> {
    (0..count).map(|n| of * 1000 + n).collect()
}

/// Teaches the gate that evicting hurts.
fn make_regretful(set: &mut WorkingSet, now: Mono) {
    let known = blocks(999, 10_000);
    set.dispatched(now, &visit(&known, 10_000), EndpointId(9), 0);
    assert!(set.is_closing());
}

#[test]
fn a_conversation_is_known_by_its_end_its_half_or_its_session() {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    let first = blocks(1, 10);
    assert!(set.is_fresh(at(0.0), &visit(&first, 0)));
    let stay = set.dispatched(at(0.0), &visit(&first, 0), POD, 0).unwrap();
    set.ended(at(1.0), stay, 20);
    let more = blocks(1, 14);
    assert!(
        !set.is_fresh(at(2.0), &visit(&more, 0)),
        "evicted, but it has tenure"
    );
    let mut cut = blocks(1, 6);
    cut.extend(blocks(2, 5));
    assert!(!set.is_fresh(at(2.0), &visit(&cut, 0)));
    let mut early_cut = blocks(1, 4);
    early_cut.extend(blocks(2, 5));
    assert!(set.is_fresh(at(2.0), &visit(&early_cut, 0)));
    assert!(set.is_fresh(at(902.0), &visit(&more, 0)), "tenure is over");
    let named = |blocks| Visit {
        session: Some(77),
        ..visit(blocks, 0)
    };
    let other = blocks(3, 5);
    set.dispatched(at(903.0), &named(&other), POD, 0).unwrap();
    assert!(!set.is_fresh(at(904.0), &named(&first)));
}

#[test]
fn shared_beginnings_make_no_conversation() {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    let with_own = |of| {
        let mut all = blocks(0, 8);
        all.extend(blocks(of, 4));
        all
    };
    let stay = set.dispatched(at(0.0), &visit(&with_own(1), 8), POD, 80).unwrap();
    assert_eq!(set.held(POD).in_use_tokens, 80 + 40);
    let another = set.dispatched(at(0.0), &visit(&with_own(3), 8), POD, 80).unwrap();
    assert_eq!(
        set.held(POD).in_use_tokens,
        80 + 40 + 40,
        "what both begin with is there once"
    );
    let elsewhere = set.dispatched(at(0.0), &visit(&with_own(4), 8), EndpointId(2), 80);
    assert_eq!(set.held(EndpointId(2)).in_use_tokens, 80 + 40);
    set.ended(at(0.5), stay, 0);
    assert_eq!(set.held(POD).in_use_tokens, 80 + 40);
    set.forget_endpoint(POD);
    set.ended(at(0.5), another, 0);
    set.forget_endpoint(POD);
    assert_eq!(set.held(POD), Held::default());
    assert!(elsewhere.is_some() && set.held(EndpointId(2)).in_use_tokens == 120);
    assert!(
        set.is_fresh(at(1.0), &visit(&with_own(2), 8)),
        "the half of the first lies in what both share"
    );
    assert!(
        !set.is_fresh(at(1.0), &visit(&blocks(0, 8), 8)),
        "wholly known: nothing to hold back"
    );
    assert_eq!(set.dispatched(at(1.0), &visit(&blocks(0, 8), 8), POD, 80), None);
}

#[test]
fn idle_tokens_count_when_their_class_comes_back_and_not_for_ever() {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    for (from_s, turn) in [(0.0, 5), (10.0, 6)] {
        let visits = (0..40).map(|of| set.dispatched(at(from_s), &visit(&blocks(of, turn), 0), POD, 0));
        let stays: Vec<_> = visits.map(Option::unwrap).collect();
        for stay in stays {
            set.ended(at(from_s + 1.0), stay, 0);
        }
    }
    assert_eq!(
        set.held(POD),
        Held::default(),
        "nothing is judged before its time"
    );
    set.pass(at(151.0));
    let stay = set
        .dispatched(at(152.0), &visit(&blocks(100, 5), 0), POD, 0)
        .unwrap();
    assert_eq!(set.held(POD).in_use_tokens, 50);
    set.ended(at(153.0), stay, 17);
    assert_eq!(
        set.held(POD),
        Held {
            in_use_tokens: 0,
            idle_tokens: 67
        }
    );
    set.pass(at(302.9));
    assert_eq!(set.held(POD).idle_tokens, 67);
    set.pass(at(303.0));
    assert_eq!(set.held(POD), Held::default());
}

#[test]
fn with_regret_the_gate_leaves_room_and_never_on_an_empty_endpoint() {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    set.dispatched(at(0.0), &visit(&blocks(1, 85), 0), POD, 0)
        .unwrap();
    let capacity = [(POD, Some(1000))];
    assert_eq!(
        fits(&set, at(1.0), &visit(&blocks(2, 10), 0), &capacity),
        [true],
        "no regret"
    );
    make_regretful(&mut set, at(1.0));
    assert_eq!(fits(&set, at(1.0), &visit(&blocks(2, 5), 0), &capacity), [true]);
    assert_eq!(fits(&set, at(1.0), &visit(&blocks(2, 6), 0), &capacity), [false]);
    assert_eq!(
        fits(&set, at(1.0), &visit(&blocks(2, 6), 0), &[(POD, None)]),
        [true],
        "an unknown capacity bounds nothing"
    );
    let huge = blocks(2, 500);
    assert_eq!(
        fits(&set, at(1.0), &visit(&huge, 0), &[(EndpointId(2), Some(1000))]),
        [true]
    );
}

/// Twenty of thirty-six conversations come back, each with a prompt that is a thousand tokens longer; those that came
/// twice never do. Nothing is evicted. Time is 171 s afterwards.
fn half_come_back_once() -> WorkingSet {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    let begin = |of| set.dispatched(at(0.0), &visit(&blocks(of, 4), 0), EndpointId(7), 0);
    let stays: Vec<_> = (0..36).map(begin).map(Option::unwrap).collect();
    stays.into_iter().for_each(|stay| set.ended(at(0.0), stay, 0));
    for of in 0..20 {
        let longer = blocks(of, 104);
        let stay = set.dispatched(at(10.0), &visit(&longer, 4), EndpointId(7), 40);
        set.ended(at(20.0), stay.unwrap(), 0);
    }
    set.pass(at(171.0));
    assert_eq!(set.held(EndpointId(7)), Held::default());
    set
}

#[test]
fn what_conversations_grow_to_has_to_fit() {
    let mut set = half_come_back_once();
    let now = at(171.0);
    let new = blocks(100, 10);
    set.dispatched(now, &visit(&blocks(101, 40), 0), POD, 0).unwrap();
    assert!(!set.is_closing() && set.regret() == 0.0);
    // Four who never come back are assumed: p = 20 / (36 + 4). Now p (400 + 100) = 250; a turn later p (500 + 2 x 1000)
    // = 1250; afterwards nobody is left.
    assert_eq!(fits(&set, now, &visit(&new, 0), &[(POD, Some(1250))]), [true]);
    assert_eq!(fits(&set, now, &visit(&new, 0), &[(POD, Some(1249))]), [false]);
    let other = EndpointId(2);
    set.dispatched(now, &visit(&blocks(102, 40), 0), other, 0)
        .unwrap();
    // All together: p (400 + 400 + 100 + 3 x 1000) = 1950.
    let both = |other_tokens| [(POD, Some(1250)), (other, Some(other_tokens))];
    assert_eq!(fits(&set, now, &visit(&new, 0), &both(700)), [true, false]);
    assert_eq!(fits(&set, now, &visit(&new, 0), &both(699)), [false, false]);
    let empty = (EndpointId(3), Some(5));
    assert_eq!(
        fits(&set, now, &visit(&new, 0), &[(POD, Some(1249)), empty]),
        [false, true]
    );
}

#[test]
fn a_conversation_whose_context_is_gone_goes_where_there_is_room_and_waits_for_it() {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    let first = blocks(1, 40);
    let stay = set.dispatched(at(0.0), &visit(&first, 0), POD, 0).unwrap();
    set.ended(at(1.0), stay, 0);
    set.dispatched(at(1.0), &visit(&blocks(2, 60), 0), POD, 0)
        .unwrap();
    let other = EndpointId(2);
    set.dispatched(at(1.0), &visit(&blocks(3, 70), 0), other, 0)
        .unwrap();
    let more = blocks(1, 50);
    let gone = visit(&more, 19);
    assert_eq!(
        set.kind(at(2.0), &gone),
        Kind::Continued,
        "nothing is evicted too early"
    );
    make_regretful(&mut set, at(1.0));
    assert_eq!(set.kind(at(2.0), &gone), Kind::Returning);
    assert_eq!(set.kind(at(2.0), &visit(&more, 20)), Kind::Continued);
    // 600 and 700 tokens are in use, and 500 come back.
    let places = |tokens| [(POD, Some(tokens)), (other, Some(tokens))];
    assert_eq!(fits(&set, at(2.0), &gone, &places(1100)), [true, false]);
    assert_eq!(fits(&set, at(2.0), &gone, &places(1099)), [false, false]);
    assert_eq!(set.announce(at(2.0), &gone), None, "nothing of it is in use");
    assert_eq!(set.held(POD).in_use_tokens, 600);
    let waited = |seconds| Visit {
        waited: Duration::from_secs(seconds),
        ..gone
    };
    assert_eq!(set.kind(at(31.0), &waited(29)), Kind::Returning);
    assert_eq!(set.kind(at(32.0), &waited(30)), Kind::Continued);
    assert_eq!(fits(&set, at(32.0), &waited(30), &places(10)), [true, true]);
}

#[test]
fn one_shot_prompts_leave_the_gate_open() {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    for of in 0..2000 {
        let now = at(of as f64);
        let stay = set.dispatched(now, &visit(&blocks(of, 20), 0), POD, 0).unwrap();
        set.ended(now, stay, 10);
    }
    assert!(!set.is_closing() && set.regret() == 0.0);
    assert_eq!(set.held(POD), Held::default());
}

#[test]
fn an_endpoint_that_lost_its_cache_holds_nothing() {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    let first = blocks(1, 9);
    let stay = set.dispatched(at(0.0), &visit(&first, 0), POD, 0).unwrap();
    set.ended(at(1.0), stay, 5);
    set.forget_endpoint(POD);
    assert_eq!(set.held(POD), Held::default());
    assert!(
        !set.is_fresh(at(2.0), &visit(&first, 0)),
        "tenure is not lost with the cache"
    );
    let stay = set
        .dispatched(at(2.0), &visit(&first, 0), EndpointId(2), 0)
        .unwrap();
    assert_eq!(set.regret(), 0.0, "nobody could have kept it");
    assert_eq!(set.held(EndpointId(2)).in_use_tokens, 95);
    set.moved(stay, EndpointId(3));
    assert_eq!(set.held(EndpointId(2)), Held::default());
    assert_eq!(set.held(EndpointId(3)).in_use_tokens, 95);
}

#[test]
fn there_is_compute_to_spare_while_all_prompts_could_be_computed_anew() {
    let mut set = WorkingSet::new(WorkingSetSettings::default());
    let prompt = blocks(1, 100);
    for second in 0..600 {
        set.dispatched(at(f64::from(second)), &visit(&prompt, 100), POD, 1000);
    }
    // 1,000 tokens a second, cached or not, of which ten minutes have shown all but a thousandth.
    assert!(set.is_spare(at(599.0), 1010.0));
    assert!(!set.is_spare(at(599.0), 985.0));
    assert!(
        set.is_spare(at(659.0), 510.0),
        "half of it is forgotten a minute later"
    );
    make_regretful(&mut set, at(659.0));
    set.dispatched(at(659.0), &visit(&blocks(2, 10), 0), POD, 0);
    let place = Place {
        endpoint: POD,
        match_tokens: 0,
        capacity_tokens: Some(100),
    };
    let new = blocks(3, 10);
    let full = |tokens_per_s| {
        let (now, visit) = (at(659.0), visit(&new, 0));
        set.full(now, set.kind(now, &visit), &visit, 0, &[place], tokens_per_s)
            .len()
    };
    assert_eq!((full(0.0), full(1e6)), (1, 0));
}

/// The running sums against a sum over all conversations, and the bounds, under any traffic.
#[test]
fn sums_and_bounds_hold_under_random_traffic() {
    for seed in 0..20 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let settings = WorkingSetSettings {
            max_conversations: 30,
            ..WorkingSetSettings::default()
        };
        let mut set = WorkingSet::new(settings);
        let mut stays = Vec::new();
        let mut now_s = 0.0;
        for _ in 0..2000 {
            now_s += rng.random::<f64>() * 40.0;
            match rng.random_range(0..9) {
                0..5 => {
                    let of = rng.random_range(0..60);
                    let all = blocks(of, rng.random_range(1..30));
                    let known = rng.random_range(0..=all.len() as u32);
                    let session = rng.random_bool(0.3).then_some(of);
                    let visit = Visit {
                        session,
                        ..visit(&all, known)
                    };
                    stays.extend(set.dispatched(at(now_s), &visit, EndpointId(rng.random_range(0..3)), 0));
                }
                5..8 if !stays.is_empty() => {
                    let stay = stays.swap_remove(rng.random_range(0..stays.len()));
                    set.ended(at(now_s), stay, rng.random_range(0..50));
                }
                8 if rng.random_bool(0.05) => set.forget_endpoint(EndpointId(1)),
                _ => set.pass(at(now_s)),
            }
            check(&set);
        }
    }
}

fn check(set: &WorkingSet) {
    let mut anew = Ledger::default();
    for conversation in set.conversations.values() {
        anew.add(conversation);
    }
    for id in (0..10).map(EndpointId) {
        assert_eq!(anew.on(id), set.ledger.on(id));
    }
    assert!(set.conversations.len() <= set.settings.max_conversations + 1);
    assert_eq!(set.by_age.len(), set.conversations.len(), "one entry each");
    assert!(set.by_mark.len() <= 2 * set.conversations.len());
    assert!(
        set.by_mark
            .values()
            .all(|name| set.conversations.contains_key(name))
    );
}
