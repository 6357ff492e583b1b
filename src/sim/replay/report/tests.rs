use super::*;
use crate::scheduling::DecisionKind;

fn record(arrived_s: f64, ttft_s: f64, endpoint: usize) -> Record {
    Record {
        session: 0,
        tenant: u64::from(endpoint == 1),
        turn: 0,
        arrived_s,
        ttft_s,
        tpot_s: 0.02,
        ended_s: arrived_s + ttft_s + 0.2,
        prompt_tokens: 100,
        cached_tokens: if endpoint == 0 { 50 } else { 0 },
        output_tokens: 11,
        preemptions: 0,
        endpoint,
        kind: DecisionKind::Cold,
        predicted_ttft_s: None,
    }
}

/// Request n arrives at second n and takes n + 1 tenths; every fourth goes to endpoint 1.
fn outcome() -> Outcome {
    let records = (0..20)
        .rev()
        .map(|n| record(f64::from(n), 0.1 * f64::from(n + 1), usize::from(n % 4 == 3)));
    Outcome {
        records: records.collect(),
        refused: 1,
        lost: 2,
        last_start_s: 19.0,
        held: Default::default(),
    }
}

#[test]
fn measures_by_hand() {
    let row = summarise("p", 1, &outcome(), 2, &[], 0.5);
    assert_eq!((row.requests, row.failed), (10, 3));
    // The later ten take 1.1 .. 2.0 s.
    assert!((row.ttft_mean_s - 1.55).abs() < 1e-9);
    assert!((row.ttft_p50_s - 1.5).abs() < 1e-9);
    assert!((row.ttft_p90_s - 1.9).abs() < 1e-9);
    assert!((row.ttft_p99_s - 2.0).abs() < 1e-9);
    assert!((row.tpot_mean_s - 0.02).abs() < 1e-9);
    // Requests 11, 15 and 19 went to endpoint 1.
    assert!((row.endpoints[1].token_share - 0.3).abs() < 1e-9);
    assert!((row.max_over_mean - 1.4).abs() < 1e-9);
    assert!((row.hit_rate - 0.35).abs() < 1e-9);
    // Request n ends at 1.1 n + 0.3: those up to 17 do so by second 19.
    assert!(
        (row.requests_per_s - 18.0 / 19.0).abs() < 1e-9,
        "{}",
        row.requests_per_s
    );
}

#[test]
fn tenants_are_measured_apart_when_there_are_several() {
    let row = summarise("p", 1, &outcome(), 2, &[], 0.0);
    let [quiet, other] = &row.tenants[..] else {
        panic!("{:?}", row.tenants)
    };
    // Requests 3, 7, 11, 15 and 19 are the second one's, and the last of them ends after second 19.
    assert_eq!((quiet.tenant, quiet.requests), (0, 15));
    assert_eq!((other.tenant, other.requests), (1, 5));
    assert!((other.ttft_p50_s - 1.2).abs() < 1e-9);
    assert!((other.ttft_p99_s - 2.0).abs() < 1e-9);
    assert!((other.requests_per_s - 4.0 / 19.0).abs() < 1e-9);
    assert!((other.prefilled_tokens_per_s - 400.0 / 19.0).abs() < 1e-9);
    assert_eq!(table(&[row]).lines().count(), 4);
    let only = Outcome {
        records: vec![record(0.0, 0.1, 0)],
        ..outcome()
    };
    assert!(summarise("p", 1, &only, 2, &[], 0.0).tenants.is_empty());
}

#[test]
fn the_share_after_joining_counts_two_minutes() {
    let row = summarise("p", 1, &outcome(), 2, &[(1, 10.0)], 0.0);
    // Of the requests 10 to 19, those numbered 11, 15 and 19.
    assert!((row.endpoints[1].token_share_after_join.unwrap() - 0.3).abs() < 1e-9);
    assert_eq!(row.endpoints[0].token_share_after_join, None);
    assert!(table(&[row]).contains("share after join"));
}

#[test]
fn nothing_served_is_all_zeros() {
    let row = summarise("p", 1, &Outcome::default(), 2, &[], 0.1);
    assert_eq!(
        (row.requests, row.ttft_mean_s, row.ttft_p99_s, row.hit_rate),
        (0, 0.0, 0.0, 0.0)
    );
    assert!(
        serde_json::to_string(&row)
            .unwrap()
            .contains("\"ttft_mean_s\":0.0")
    );
}
