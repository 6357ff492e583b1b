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

/// One tenant sends a request every two seconds, the other, from second 10 on, three times what the endpoints take.
#[test]
fn a_flood_of_one_tenant_costs_the_other_little_next_to_what_it_costs_itself() {
    let quiet = one_shots(0.5, 40);
    let mut both = one_shots(90.0, 5_000);
    for session in &mut both.sessions {
        session.tenant = 1;
        session.start_s += 10.0;
    }
    both.sessions.extend(quiet.sessions.iter().cloned());
    both.sort();
    let with = played(&both, queue_and_gate());
    let ttft_s = |outcome: &Outcome, of: u64| {
        let own = |record: &&Record| both.sessions[record.session as usize].tenant == of;
        let mut ttft_s: Vec<f64> = outcome.records.iter().filter(own).map(|r| r.ttft_s).collect();
        ttft_s.sort_by(f64::total_cmp);
        ttft_s
    };
    let (quiet_s, flood_s) = (ttft_s(&with, 0), ttft_s(&with, 1));
    let alone = played(&quiet, queue_and_gate());
    let alone_s = alone
        .records
        .iter()
        .map(|record| record.ttft_s)
        .fold(0.0, f64::max);
    let (longest_s, median_s) = (quiet_s[quiet_s.len() - 1], flood_s[flood_s.len() / 2]);
    assert!(
        longest_s <= alone_s + QueueSettings::default().hold_above_s * 2.0,
        "{longest_s} {alone_s}"
    );
    assert!(longest_s <= median_s / 3.0, "{longest_s} {median_s}");
}
