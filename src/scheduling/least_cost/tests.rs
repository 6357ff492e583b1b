use super::super::recency::Recency;
use super::super::testing::{endpoint, prompt};
use super::super::view::{DecisionKind, RequestView};
use super::*;

fn decide(req: &RequestView, views: &[EndpointView]) -> Decision {
    let least_cost = LeastCost::new(LeastCostParameters::default());
    let recency = Recency::default();
    let field = Field::new(req, 100.0, views, &recency, 3);
    least_cost.decide(Mono::ZERO, field, &TERMS.into())
}

fn term(decision: &Decision, id: u16, name: &str) -> f64 {
    let scored = decision
        .ranked
        .iter()
        .find(|scored| scored.id == EndpointId(id))
        .unwrap();
    scored.terms[decision.term_names.iter().position(|term| *term == name).unwrap()]
}

fn close(actual: f64, expected: f64) {
    assert!(
        (actual - expected).abs() <= 1e-9 + expected.abs() * 1e-9,
        "{actual} for {expected}"
    );
}

#[test]
fn every_term_adds_up_by_hand() {
    let view = EndpointView {
        match_tokens: 6000,
        pending_prefill_tokens: 4192,
        active_tokens: 88_000,
        inflight: 10,
        ..endpoint(0)
    };
    let decision = decide(&prompt(10_000), &[view]);
    let step = 0.0155 + 5.2e-8 * 88_000.0 + 2e-5 * 10.0;
    close(term(&decision, 0, "wait"), 4.31e-5 * 4192.0);
    // 10,000^2 - 6,000^2 = 64e6.
    close(term(&decision, 0, "prefill"), 4.31e-5 * 4000.0 + 1.4e-9 * 32e6);
    // 4192 + 4000 tokens are one step of 8192, and the last one.
    close(term(&decision, 0, "drag"), 2.0 * step);
    // 88,000 of 100,000 tokens in use: odds 7.333; 4000 tokens held for 100 steps.
    close(
        term(&decision, 0, "crowding"),
        2.0 * (0.88 / 0.12) * 0.04 * 100.0 * step,
    );
    // (88,000 + 10,000 + 100) / 100,000 - 0.9.
    close(term(&decision, 0, "overflow"), 20.0 * 0.081);
    close(decision.ranked[0].total, decision.ranked[0].terms.iter().sum());
}

#[test]
fn a_busy_fleet_charges_a_miss_for_those_behind_it() {
    let mut least_cost = LeastCost::new(LeastCostParameters::default());
    let req = prompt(10_000);
    // 0.431 s + 0.07 s of prefill every two seconds over two endpoints: load 0.125.
    for second in 0..300 {
        least_cost.commit(
            Mono::from_secs_f64(f64::from(second) * 2.0),
            &req,
            2,
            &endpoint(0),
        );
    }
    let recency = Recency::default();
    let views = [endpoint(0), endpoint(1)];
    let field = Field::new(&req, 0.0, &views, &recency, 3);
    let decision = least_cost.decide(Mono::from_secs_f64(598.0), field, &TERMS.into());
    let share = term(&decision, 0, "crowding") / term(&decision, 0, "prefill");
    assert!((share - 0.125 / 0.875).abs() < 0.01, "{share}");
}

#[test]
fn an_unknown_capacity_counts_as_the_mean_of_the_known() {
    let loaded = |id, capacity_tokens| EndpointView {
        active_tokens: 100_000,
        capacity_tokens,
        ..endpoint(id)
    };
    let views = [loaded(0, Some(50_000)), loaded(1, Some(150_000)), loaded(2, None)];
    let decision = decide(&prompt(1000), &views);
    close(term(&decision, 2, "overflow"), 20.0 * (1.011 - 0.9));
    let unknown = decide(&prompt(1000), &[loaded(0, None), loaded(1, None)]);
    assert_eq!(term(&unknown, 0, "overflow"), 0.0);
    assert_eq!(term(&unknown, 0, "crowding"), 0.0);
}

#[test]
fn home_is_left_when_its_queue_costs_more_than_the_miss() {
    let choice = |pending_prefill_tokens| {
        let home = EndpointView {
            match_tokens: 8000,
            pending_prefill_tokens,
            ..endpoint(1)
        };
        decide(&prompt(10_000), &[endpoint(0), home])
            .chosen()
            .unwrap()
            .id
            .0
    };
    assert_eq!(choice(0), 1);
    assert_eq!(choice(6000), 1);
    assert_eq!(choice(12_000), 0);
}

#[test]
fn less_than_a_tenth_of_a_second_is_no_reason() {
    // 2,000 pending tokens are 0.086 s of wait and a quarter of a step; 4,000 are twice that.
    let spread = |pending_prefill_tokens| {
        let behind = EndpointView {
            pending_prefill_tokens,
            ..endpoint(1)
        };
        let views = [endpoint(0), behind];
        let mut recency = Recency::default();
        let least_cost = LeastCost::new(LeastCostParameters::default());
        let picks: Vec<u16> = (0..4)
            .map(|salt| {
                let req = prompt(1000);
                let field = Field::new(&req, 100.0, &views, &recency, salt);
                let kind = field.kind;
                let decision = least_cost.decide(Mono::ZERO, field, &TERMS.into());
                let id = decision.chosen().unwrap().id;
                recency.record(id, kind == DecisionKind::Cold);
                id.0
            })
            .collect();
        picks.iter().filter(|id| **id == 1).count()
    };
    assert_eq!(spread(2000), 2);
    assert_eq!(spread(4000), 0);
}
