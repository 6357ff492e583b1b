use super::super::super::generate;
use super::super::super::workload::Workload;
use super::*;
use crate::overload::working_set::WorkingSetSettings;
use crate::scheduling::Policy;
use crate::sim::engine::FleetPreset;
use crate::sim::replay::{FleetSpec, Outcome, run_with};
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
    let spec = FleetSpec {
        engine: FleetPreset::Qwen3On2H100.spec(workload.block_size),
        endpoints: 8,
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
