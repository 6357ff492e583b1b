use super::super::testing::{endpoint, prompt, rng};
use super::super::{Policy, Scheduler};
use super::*;
use crate::time::Mono;

fn with_parameter(kind: &str, parameter: &str, value: f64) -> PluginSpec {
    PluginSpec {
        parameters: [(parameter.to_owned(), value)].into(),
        ..PluginSpec::new(kind, 1.0)
    }
}

fn error(specs: &[PluginSpec]) -> PluginError {
    Policy::plugins(specs).map(|_| ()).unwrap_err()
}

#[test]
fn every_type_is_accepted_and_the_preset_is_its_weights() {
    for kind in PLUGIN_TYPES {
        let specs = [
            PluginSpec::new("queue-scorer", 1.0),
            PluginSpec::new(kind.name, 1.0),
        ];
        assert!(Policy::plugins(&specs).is_ok(), "{}", kind.name);
    }
    let specs = [
        PluginSpec::new("prefix-cache-scorer", 3.0),
        PluginSpec::new("queue-scorer", 2.0),
        PluginSpec::new("kv-cache-utilization-scorer", 2.0),
        PluginSpec::new("no-hit-lru-scorer", 2.0),
        PluginSpec::new("max-score-picker", 1.0),
    ];
    let (plan, preset) = (Plan::from_specs(&specs).unwrap(), Plan::optimized_baseline());
    assert_eq!((plan.scorers, plan.picker), (preset.scorers, preset.picker));
}

#[test]
fn faults_are_named() {
    let unknown = |kind: &str| PluginSpec::new(kind, 1.0);
    assert_eq!(
        error(&[unknown("queue-scorrer")]),
        PluginError::UnknownType("queue-scorrer".into())
    );
    assert_eq!(error(&[unknown("max-score-picker")]), PluginError::NothingToScore);
    let weight = PluginSpec::new("queue-scorer", f64::NAN);
    assert_eq!(error(&[weight]), PluginError::BadWeight("queue-scorer".into()));
    let two = [
        unknown("queue-scorer"),
        unknown("random-picker"),
        unknown("max-score-picker"),
    ];
    assert_eq!(error(&two), PluginError::SecondPicker("max-score-picker".into()));
    let (kind, parameter) = ("token-load-scorer".to_owned(), "threshold_tokens".to_owned());
    let zero = with_parameter(&kind, &parameter, 0.0);
    assert_eq!(error(&[zero]), PluginError::BadParameter { kind, parameter });
    let (kind, parameter) = ("queue-scorer".to_owned(), "threshold".to_owned());
    let misplaced = with_parameter(&kind, &parameter, 1.0);
    assert_eq!(
        error(&[misplaced]),
        PluginError::UnknownParameter { kind, parameter }
    );
}

#[test]
fn parameters_reach_their_plugin() {
    let specs = [
        with_parameter("token-load-scorer", "threshold_tokens", 2000.0),
        with_parameter("prefix-cache-affinity-filter", "min_match_ratio", 0.5),
    ];
    let plan = Plan::from_specs(&specs).unwrap();
    assert_eq!(
        plan.scorers[0].0,
        Scorer::TokenLoad {
            threshold_tokens: 2000.0
        }
    );
    assert_eq!(
        plan.filters[0],
        Affinity {
            min_match_ratio: 0.5,
            ..Affinity::default()
        }
    );
}

/// How often each of three endpoints with 1, 2 and 3 requests in flight comes first.
fn picks(picker: &str) -> [u32; 3] {
    let specs = [
        PluginSpec::new("active-request-scorer", 1.0),
        PluginSpec::new(picker, 1.0),
    ];
    let scheduler = Scheduler::new(Policy::plugins(&specs).unwrap());
    let views: Vec<_> = (0..3u16)
        .map(|id| EndpointView {
            inflight: u32::from(id) + 1,
            ..endpoint(id)
        })
        .collect();
    let mut rng = rng(11);
    let mut counts = [0; 3];
    for _ in 0..3000 {
        let decision = scheduler.evaluate(Mono::ZERO, &prompt(10), &views, &mut rng);
        counts[usize::from(decision.chosen().unwrap().id.0)] += 1;
    }
    counts
}

#[test]
fn pickers_choose_by_total_in_proportion_or_blindly() {
    // Scores 1, 0.5 and 0: odds of 2 : 1 : 0.
    assert_eq!(picks("max-score-picker"), [3000, 0, 0]);
    let [first, second, third] = picks("weighted-random-picker");
    assert!(
        (1900..=2100).contains(&first) && third == 0,
        "{first} {second} {third}"
    );
    assert!(picks("random-picker").iter().all(|n| (900..=1100).contains(n)));
}
