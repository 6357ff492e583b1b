use super::super::super::generate;
use super::super::super::workload::Workload;
use super::*;
use crate::overload::working_set::WorkingSetSettings;
use crate::scheduling::Policy;
use crate::sim::engine::FleetPreset;
use crate::sim::replay::{FleetSpec, Outcome, Record, run_with};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

/// Prompts that nobody sends twice, 4,000 tokens in the mean, for eight endpoints that take about thirty a second.
fn one_shots(rps: f64, requests: u32) -> Workload {
    let settings = [("rps".to_owned(), rps), ("requests".to_owned(), requests.into())];
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let scenario = generate::generate("one-shot", &settings.into(), &mut rng);
    scenario.unwrap().workload
}

fn played(workload: &Workload, overload: Overload) -> Outcome {
    played_on(workload, 8, overload)
}

fn played_on(workload: &Workload, endpoints: usize, overload: Overload) -> Outcome {
    let spec = FleetSpec {
        engine: FleetPreset::Qwen3On2H100.spec(workload.block_size),
        endpoints,
        speeds: Vec::new(),
        index_ratio: 1.0,
        scrape_interval_s: 0.05,
        changes: Vec::new(),
        told: false,
    };
    run_with(
        workload,
        &spec,
        Policy::preset("least-cost").unwrap(),
        overload,
        1,
        &Default::default(),
    )
}

fn queue_and_gate() -> Overload {
    Overload {
        queue: Some(QueueSettings {
            max_requests: usize::MAX,
            max_bytes: u64::MAX,
            ..QueueSettings::default()
        }),
        working_set: Some(WorkingSetSettings::default()),
    }
}

fn mean_ttft_s(outcome: &Outcome) -> f64 {
    outcome.records.iter().map(|record| record.ttft_s).sum::<f64>() / outcome.records.len() as f64
}

#[test]
fn a_minute_of_twice_the_load_costs_two_fifths_of_the_wait_and_nobody_is_overtaken() {
    let workload = one_shots(60.0, 3_600);
    let without = played(&workload, Overload::default());
    let with = played(&workload, queue_and_gate());
    assert_eq!(with.records.len(), without.records.len());
    let ratio = mean_ttft_s(&with) / mean_ttft_s(&without);
    assert!(ratio <= 0.4, "{ratio}");
    assert!(
        with.held.requests > 1_000 && with.held.unfair == 0,
        "{:?}",
        with.held
    );
    assert_eq!(
        with.held.gate_last_closed_s, 0.0,
        "one-shot prompts never close the gate"
    );
}

#[test]
fn normal_load_is_placed_as_without_queue_and_gate() {
    let workload = one_shots(15.0, 600);
    let with = played(&workload, queue_and_gate());
    assert_eq!(with.held.requests, 0);
    assert_eq!(with.records, played(&workload, Overload::default()).records);
}

#[test]
fn placements_are_those_without_a_queue_until_it_first_holds() {
    let workload = one_shots(45.0, 900);
    let with = played(&workload, queue_and_gate());
    let without = played(&workload, Overload::default());
    let first_held_s = with.held.first_s.expect("somebody waited");
    let placed = |outcome: &Outcome| {
        let before = outcome
            .records
            .iter()
            .filter(|record| record.arrived_s < first_held_s);
        let mut placed: Vec<_> = before.map(|record| (record.session, record.endpoint)).collect();
        placed.sort_unstable();
        placed
    };
    assert!(placed(&with).len() > 50, "{first_held_s}");
    assert_eq!(placed(&with), placed(&without));
}

/// Sessions whose contexts are more than the caches of two endpoints hold.
#[test]
fn the_gate_keeps_what_running_conversations_said_in_the_caches() {
    let settings = [
        ("sessions", 60.0),
        ("starts_per_s", 0.3),
        ("turns", 10.0),
        ("think_s", 6.0),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value));
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let workload = generate::generate("agentic", &settings.into(), &mut rng)
        .unwrap()
        .workload;
    let gate = WorkingSetSettings {
        spare: 1.0,
        ..WorkingSetSettings::default()
    };
    let gated = Overload {
        working_set: Some(gate),
        ..queue_and_gate()
    };
    let without = played_on(&workload, 2, Overload::default());
    let with = played_on(&workload, 2, gated);
    assert_eq!(with.records.len(), without.records.len());
    assert_eq!(with.held.unfair, 0);
    let (before, after) = (hit_rate(&without), hit_rate(&with));
    assert!(after >= before + 0.15, "{before} {after}");
    let (before_s, after_s) = (done_s(&without), done_s(&with));
    assert!(after_s <= before_s, "{before_s} {after_s}");
}

fn hit_rate(outcome: &Outcome) -> f64 {
    let sum = |of: fn(&Record) -> u32| outcome.records.iter().map(|r| f64::from(of(r))).sum::<f64>();
    sum(|record| record.cached_tokens) / sum(|record| record.prompt_tokens)
}

fn done_s(outcome: &Outcome) -> f64 {
    outcome
        .records
        .iter()
        .map(|record| record.ended_s)
        .fold(0.0, f64::max)
}

/// Three requests a second of one tenant beside the flood of another, and by itself: its times to the first token in
/// order, and what the flood had computed per second.
fn flooded(settings: &[(&str, f64)], queue: QueueSettings) -> (Vec<f64>, Vec<f64>, f64) {
    let of = |extra: &[(&str, f64)]| {
        let all = settings.iter().chain(extra);
        let settings = all.map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        generate::generate("flooded-tenant", &settings, &mut rng)
            .unwrap()
            .workload
    };
    let overload = Overload {
        queue: Some(queue),
        working_set: None,
    };
    let (both, alone) = (
        played(&of(&[]), overload),
        played(&of(&[("rps", 1e-6)]), overload),
    );
    assert_eq!(both.held.unfair, 0);
    // The flood begins all at once, and is none before there is somebody beside it.
    let settled = |record: &&Record| record.tenant == 0 && record.arrived_s > 8.0;
    let ttft_s = |outcome: &Outcome| {
        let mut ttft_s: Vec<f64> = outcome
            .records
            .iter()
            .filter(settled)
            .map(|record| record.ttft_s)
            .collect();
        ttft_s.sort_by(f64::total_cmp);
        ttft_s
    };
    let in_time = both
        .records
        .iter()
        .filter(|r| r.tenant == 1 && r.ended_s <= both.last_start_s);
    let flood_tokens: f64 = in_time.map(|record| f64::from(record.prompt_tokens)).sum();
    (ttft_s(&both), ttft_s(&alone), flood_tokens / both.last_start_s)
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[(sorted.len() as f64 * share) as usize]
}

#[test]
fn beside_a_flood_the_slowest_hundredth_takes_a_third_longer_at_most() {
    // Bounded: what of the flood has no place is turned away, and the replay ends soon after the last arrival.
    let queue = QueueSettings {
        max_requests: 500,
        ..queue_and_gate().queue.unwrap()
    };
    let as_ever = QueueSettings {
        hold_flood_above_s: queue.hold_above_s,
        flood_kv_share: 1.0,
        ..queue
    };
    for flood in [&[][..], &[("output_tokens", 20.0), ("rps", 110.0)]] {
        let (beside, alone, flood_rate) = flooded(flood, queue);
        assert!(
            beside.len() > 400 && beside.len() == alone.len(),
            "{}",
            beside.len()
        );
        let (p99_s, alone_s) = (quantile(&beside, 0.99), quantile(&alone, 0.99));
        assert!(p99_s <= 1.3 * alone_s, "{flood:?}: {p99_s} {alone_s}");
        let (before, _, rate_before) = flooded(flood, as_ever);
        assert!(
            quantile(&beside, 0.5) <= 0.5 * quantile(&before, 0.5),
            "{flood:?}"
        );
        assert!(
            flood_rate >= 0.94 * rate_before,
            "{flood:?}: {flood_rate} {rate_before}"
        );
    }
}

#[test]
fn a_flood_by_itself_is_placed_as_without_the_lower_limit() {
    let workload = one_shots(60.0, 1_200);
    let lower = |hold_flood_above_s| Overload {
        queue: Some(QueueSettings {
            hold_flood_above_s,
            flood_kv_share: hold_flood_above_s,
            ..queue_and_gate().queue.unwrap()
        }),
        working_set: None,
    };
    let (with, without) = (played(&workload, lower(0.0)), played(&workload, lower(1.0)));
    assert!(with.held.requests > 300);
    assert_eq!(with.records, without.records);
}
