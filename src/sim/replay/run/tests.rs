use super::super::workload::Session;
use super::*;
use crate::sim::engine::{EngineSpec, FleetPreset};

const BLOCK: u32 = 64;

fn fleet(endpoints: usize) -> FleetSpec {
    FleetSpec {
        engine: EngineSpec {
            ..FleetPreset::Qwen3On2H100.spec(BLOCK)
        },
        endpoints,
        speeds: Vec::new(),
        index_ratio: 1.0,
        scrape_interval_s: 0.05,
        changes: Vec::new(),
        told: false,
    }
}

fn turn(content: u64, prompt_tokens: u32, output_tokens: u32) -> Turn {
    let ids = (0..u64::from(prompt_tokens.div_ceil(BLOCK))).map(|block| content << 32 | block);
    Turn::from_ids(prompt_tokens, output_tokens, BLOCK, ids, 0)
}

fn open_loop(turns: impl IntoIterator<Item = (f64, Turn)>) -> Workload {
    let sessions = turns
        .into_iter()
        .map(|(at_s, turn)| Session::single(at_s, turn))
        .collect();
    Workload {
        block_size: BLOCK,
        sessions,
    }
}

fn played(workload: &Workload, spec: &FleetSpec, policy: &str) -> Outcome {
    run(workload, spec, Policy::preset(policy).unwrap(), 1)
}

fn close(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < 1e-6, "{actual} for {expected}");
}

#[test]
fn a_request_takes_what_the_engine_model_says() {
    let outcome = played(&open_loop([(0.0, turn(1, 1000, 3))]), &fleet(2), "least-cost");
    let [record] = outcome.records[..] else {
        panic!("one record")
    };
    // One step: 3 ms + 12.5 ms + 1000 tokens + 500,500 pairs; then two decode steps.
    close(record.ttft_s, 0.0155 + 4.31e-5 * 1000.0 + 1.4e-9 * 500_500.0);
    assert!((0.0155..0.0157).contains(&record.tpot_s), "{}", record.tpot_s);
    assert_eq!(
        (record.prompt_tokens, record.cached_tokens, record.output_tokens),
        (1000, 0, 3)
    );
}

#[test]
fn a_repeat_goes_home_and_hits_all_but_the_last_block() {
    let workload = open_loop([
        (0.0, turn(1, 1024, 1)),
        (10.0, turn(2, 1024, 1)),
        (20.0, turn(1, 1024, 1)),
    ]);
    for policy in ["least-cost", "optimized-baseline", "sticky"] {
        let outcome = played(&workload, &fleet(3), policy);
        let [first, other, repeat] = outcome.records[..] else {
            panic!("three records")
        };
        assert_eq!(first.endpoint, repeat.endpoint, "{policy}");
        assert_ne!(first.endpoint, other.endpoint, "{policy}");
        assert_eq!(
            (repeat.cached_tokens, repeat.kind),
            (1024 - BLOCK, DecisionKind::Warm),
            "{policy}"
        );
    }
}

#[test]
fn a_turn_waits_for_the_one_before() {
    let turns = vec![
        turn(1, 640, 100),
        Turn {
            think_s: 5.0,
            ..turn(1, 1280, 1)
        },
    ];
    let workload = Workload {
        block_size: BLOCK,
        sessions: vec![Session {
            start_s: 1.0,
            tenant: 0,
            turns,
        }],
    };
    let outcome = played(&workload, &fleet(2), "least-cost");
    let [first, second] = outcome.records[..] else {
        panic!("two records")
    };
    close(second.arrived_s, first.ended_s + 5.0);
    assert_eq!(second.cached_tokens, 640);
}

fn mixed(requests: u64) -> Workload {
    open_loop((0..requests).map(|n| {
        let tokens = 200 + (n * 7919 % 3000) as u32;
        (n as f64 * 0.01, turn(n % 40, tokens, 1 + (n % 50) as u32))
    }))
}

#[test]
fn everything_is_served_once_and_all_load_is_released() {
    for name in Policy::names() {
        let workload = mixed(400);
        let policy = Policy::named(name, &crate::scheduling::LeastCostParameters::default()).unwrap();
        let spec = fleet(4);
        let mut replay = Replay::new(&workload, &spec, 1.5, policy, 1);
        while replay.step() {}
        assert_eq!(replay.outcome.records.len(), 400, "{name}");
        assert!(
            replay.fleet.pods.iter().all(|pod| pod.load == Default::default()),
            "{name}"
        );
        assert!(replay.live.iter().all(Option::is_none), "{name}");
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let workload = mixed(300);
    for policy in ["random", "least-cost"] {
        assert_eq!(
            played(&workload, &fleet(3), policy),
            played(&workload, &fleet(3), policy),
            "{policy}"
        );
    }
    let other = run(&workload, &fleet(3), Policy::preset("random").unwrap(), 2);
    assert_ne!(played(&workload, &fleet(3), "random"), other);
}

#[test]
fn endpoints_join_and_leave() {
    let change = |endpoint, at_s, kind| Change { at_s, endpoint, kind };
    let spec = FleetSpec {
        changes: vec![
            change(0, 2.0, ChangeKind::Leave),
            change(1, 1.0, ChangeKind::Join),
        ],
        ..fleet(2)
    };
    let outcome = played(&mixed(400), &spec, "round-robin");
    assert_eq!(outcome.records.len(), 400);
    for record in &outcome.records {
        match record.arrived_s {
            early if early < 1.0 => assert_eq!(record.endpoint, 0),
            late if late > 2.0 => assert_eq!(record.endpoint, 1),
            _ => {}
        }
    }
}

#[test]
fn a_restart_loses_the_cache_and_sends_the_unanswered_elsewhere() {
    let restart = Change {
        at_s: 1.0,
        endpoint: 0,
        kind: ChangeKind::Restart,
    };
    let spec = FleetSpec {
        changes: vec![restart],
        ..fleet(1)
    };
    // At the restart the first has been served, the second streams, the third computes its prompt.
    let workload = open_loop([
        (0.0, turn(1, 1024, 1)),
        (0.5, turn(2, 1024, 1000)),
        (0.95, turn(3, 20_000, 1)),
        (5.0, turn(1, 1024, 1)),
    ]);
    let outcome = played(&workload, &spec, "least-cost");
    assert_eq!((outcome.records.len(), outcome.lost), (3, 1));
    let again = outcome
        .records
        .iter()
        .find(|record| record.prompt_tokens == 20_000)
        .unwrap();
    assert!(again.ended_s > 1.8 && again.ttft_s > 0.85, "{again:?}");
    assert_eq!(outcome.records.last().unwrap().cached_tokens, 0);
}

#[test]
fn prompts_beyond_the_kv_cache_are_refused_and_leave_no_load() {
    let workload = open_loop([(0.0, turn(1, 400_000, 1)), (1.0, turn(2, 1000, 1))]);
    let outcome = played(&workload, &fleet(1), "least-cost");
    assert_eq!((outcome.records.len(), outcome.refused), (1, 1));
}

#[test]
fn a_twice_as_fast_endpoint_gets_about_twice_the_work() {
    let workload = open_loop((0..3000u64).map(|n| (n as f64 * 0.05, turn(n, 3000, 20))));
    let spec = FleetSpec {
        speeds: vec![2.0, 1.0],
        ..fleet(2)
    };
    let outcome = played(&workload, &spec, "least-cost");
    let fast = outcome
        .records
        .iter()
        .filter(|record| record.endpoint == 0)
        .count() as f64;
    let ratio = fast / (outcome.records.len() as f64 - fast);
    assert!((1.6..=2.6).contains(&ratio), "{ratio}");
}
