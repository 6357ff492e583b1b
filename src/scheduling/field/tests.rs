use super::*;
use crate::scheduling::testing::{endpoint, prompt};
use proptest::prelude::*;
use smallvec::smallvec;

/// Totals of all signs and sizes, often the same one.
fn total() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(1.0),
        (-3..3).prop_map(f64::from),
        (-1e9..1e9),
        Just(f64::MAX),
        Just(f64::INFINITY),
        Just(f64::NAN)
    ]
}

/// What [`Field::rank`] makes of the totals by id, the best first.
fn ranked(field: Field, totals: &[f64], order: Order) -> Vec<u16> {
    let names = Arc::from(["total"]);
    let decision = field.rank("test", &names, order, |_, view| {
        let total = totals[usize::from(view.id.0)];
        (total, smallvec![total])
    });
    decision.ranked.iter().map(|scored| scored.id.0).collect()
}

proptest! {
    #[test]
    fn the_best_total_comes_first_and_then_the_fair_order(
        totals in prop::collection::vec(total(), 0..150),
        picks in prop::collection::vec(0..150_u16, 0..100),
        salt: u64,
    ) {
        let views: Vec<_> = (0..totals.len() as u16).map(endpoint).collect();
        let mut recency = Recency::default();
        for id in picks {
            recency.record(EndpointId(id), true);
        }
        let request = prompt(100);
        let field = || Field::new(&request, 0.0, &views, &recency, salt);
        for order in [Order::HighestFirst, Order::LowestFirst] {
            let worth = |id: u16| {
                let total = totals[usize::from(id)];
                let sign = if order == Order::HighestFirst { -1.0 } else { 1.0 };
                if total.is_finite() { sign * total } else { f64::MAX }
            };
            let mut expected: Vec<u16> = (0..totals.len() as u16).collect();
            let fair = field();
            expected.sort_by(|&a, &b| {
                worth(a).total_cmp(&worth(b)).then_with(|| fair.fair_order(EndpointId(a), EndpointId(b)))
            });
            prop_assert_eq!(ranked(field(), &totals, order), expected);
        }
    }
}

#[test]
fn totals_that_differ_by_a_rounding_error_are_equal() {
    let views = [endpoint(0), endpoint(1)];
    let mut recency = Recency::default();
    recency.record(EndpointId(1), true);
    let request = prompt(100);
    let rank = |totals: &[f64]| {
        let field = Field::new(&request, 0.0, &views, &recency, 7);
        ranked(field, totals, Order::LowestFirst)
    };
    // Endpoint 1 was used last.
    assert_eq!(rank(&[1.000_000_000_000_1, 1.0]), [0, 1]);
    assert_eq!(rank(&[1.000_000_1, 1.0]), [1, 0]);
}
