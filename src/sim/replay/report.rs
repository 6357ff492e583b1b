//! What a replay says about a policy.

use super::run::{Outcome, Record};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// Measures of one policy on one workload. Times in seconds; the first requests are left out as warm-up.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Row {
    pub policy: String,
    pub seed: u64,
    /// Requests measured.
    pub requests: u64,
    /// Requests that no endpoint could take, or that a restart cut off.
    pub failed: u64,
    pub ttft_mean_s: f64,
    pub ttft_p50_s: f64,
    pub ttft_p90_s: f64,
    pub ttft_p99_s: f64,
    pub tpot_mean_s: f64,
    /// Share of the prompt tokens that engines had cached.
    pub hit_rate: f64,
    /// Output tokens of requests that ended before the last session began, over that time.
    pub output_tokens_per_s: f64,
    /// Requests that ended before the last session began, over that time.
    pub requests_per_s: f64,
    /// Prompt tokens of the most loaded endpoint over the mean.
    pub max_over_mean: f64,
    pub preemptions: u64,
    /// Mean time of sessions from the arrival of the first to the end of the last.
    pub session_mean_s: f64,
    /// Mean and longest time to the first token of sessions' first requests.
    pub first_turn_mean_s: f64,
    pub first_turn_max_s: f64,
    /// When the last request ended: what order alone cannot make shorter.
    pub all_done_s: f64,
    /// Requests that waited in the router.
    pub held: u64,
    /// Requests that went out of turn: any number but 0 is a fault of the queue.
    pub unfair: u64,
    /// Mean over requests of |ln(predicted / observed time to the first token)|; only of policies that predict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction_error: Option<f64>,
    pub endpoints: Vec<EndpointRow>,
    /// Each tenant by itself; empty when there is only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantRow>,
}

/// One tenant's part.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct TenantRow {
    pub tenant: u64,
    /// Requests measured.
    pub requests: u64,
    pub ttft_mean_s: f64,
    pub ttft_p50_s: f64,
    pub ttft_p99_s: f64,
    pub tpot_mean_s: f64,
    /// Requests that ended before the last session began, over that time,
    pub requests_per_s: f64,
    /// and the prompt tokens of theirs that had to be computed.
    pub prefilled_tokens_per_s: f64,
}

/// One endpoint's part.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct EndpointRow {
    pub name: String,
    /// Share of all prompt tokens.
    pub token_share: f64,
    /// Share of all requests.
    pub request_share: f64,
    /// Requests that it served.
    pub requests: u64,
    /// Share of the prompt tokens that came within two minutes of its joining; for endpoints that join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_share_after_join: Option<f64>,
}

/// How long after it joined an endpoint's share is measured, in seconds.
const JOIN_WINDOW_S: f64 = 120.0;

/// Sums up a replay of `endpoints` endpoints; `joins` are the seconds at which some of them joined, and
/// `warmup` is the share of requests, in order of arrival, that is left out.
pub fn summarise(
    policy: &str,
    seed: u64,
    outcome: &Outcome,
    endpoints: usize,
    joins: &[(usize, f64)],
    warmup: f64,
) -> Row {
    let mut records = outcome.records.clone();
    records.sort_by(|a, b| a.arrived_s.total_cmp(&b.arrived_s));
    let measured = &records[(records.len() as f64 * warmup) as usize..];
    let mut ttft: Vec<f64> = measured.iter().map(|record| record.ttft_s).collect();
    ttft.sort_by(f64::total_cmp);
    let prompt_tokens: u64 = measured
        .iter()
        .map(|record| u64::from(record.prompt_tokens))
        .sum();
    let cached_tokens: u64 = measured
        .iter()
        .map(|record| u64::from(record.cached_tokens))
        .sum();
    let in_time = || {
        records
            .iter()
            .filter(|record| record.ended_s <= outcome.last_start_s)
    };
    let window_s = outcome.last_start_s.max(f64::MIN_POSITIVE);
    let output_tokens: u64 = in_time().map(|record| u64::from(record.output_tokens)).sum();
    let first_turns = || records.iter().filter(|record| record.turn == 0);
    let streams = || measured.iter().filter(|record| record.output_tokens > 1);
    let endpoints = endpoint_rows(measured, &records, endpoints, joins);
    let most = endpoints.iter().map(|row| row.token_share).fold(0.0, f64::max);
    Row {
        policy: policy.to_owned(),
        seed,
        requests: measured.len() as u64,
        failed: outcome.refused + outcome.lost,
        ttft_mean_s: mean(ttft.iter().copied()),
        ttft_p50_s: quantile(&ttft, 0.5),
        ttft_p90_s: quantile(&ttft, 0.9),
        ttft_p99_s: quantile(&ttft, 0.99),
        tpot_mean_s: mean(streams().map(|record| record.tpot_s)),
        hit_rate: cached_tokens as f64 / prompt_tokens.max(1) as f64,
        output_tokens_per_s: output_tokens as f64 / window_s,
        requests_per_s: in_time().count() as f64 / window_s,
        max_over_mean: most * endpoints.len() as f64,
        preemptions: measured.iter().map(|record| u64::from(record.preemptions)).sum(),
        session_mean_s: session_mean_s(&records),
        first_turn_mean_s: mean(first_turns().map(|record| record.ttft_s)),
        first_turn_max_s: first_turns().map(|record| record.ttft_s).fold(0.0, f64::max),
        all_done_s: records.iter().map(|record| record.ended_s).fold(0.0, f64::max),
        held: outcome.held.requests,
        unfair: outcome.held.unfair,
        prediction_error: prediction_error(measured),
        endpoints,
        tenants: tenant_rows(measured, &records, outcome.last_start_s),
    }
}

fn tenant_rows(measured: &[Record], all: &[Record], last_start_s: f64) -> Vec<TenantRow> {
    let tenants: BTreeSet<u64> = all.iter().map(|record| record.tenant).collect();
    if tenants.len() < 2 {
        return Vec::new();
    }
    let window_s = last_start_s.max(f64::MIN_POSITIVE);
    let row = |tenant: u64| {
        let own = || measured.iter().filter(move |record| record.tenant == tenant);
        let mut ttft: Vec<f64> = own().map(|record| record.ttft_s).collect();
        ttft.sort_by(f64::total_cmp);
        let in_time = || {
            all.iter()
                .filter(move |record| record.tenant == tenant && record.ended_s <= last_start_s)
        };
        let prefilled = in_time().map(|record| u64::from(record.prompt_tokens - record.cached_tokens));
        TenantRow {
            tenant,
            requests: ttft.len() as u64,
            ttft_mean_s: mean(ttft.iter().copied()),
            ttft_p50_s: quantile(&ttft, 0.5),
            ttft_p99_s: quantile(&ttft, 0.99),
            tpot_mean_s: mean(own().filter(|r| r.output_tokens > 1).map(|record| record.tpot_s)),
            requests_per_s: in_time().count() as f64 / window_s,
            prefilled_tokens_per_s: prefilled.sum::<u64>() as f64 / window_s,
        }
    };
    tenants.into_iter().map(row).collect()
}

fn endpoint_rows(
    measured: &[Record],
    all: &[Record],
    endpoints: usize,
    joins: &[(usize, f64)],
) -> Vec<EndpointRow> {
    let tokens =
        |records: &mut dyn Iterator<Item = &Record>| records.map(|r| f64::from(r.prompt_tokens)).sum::<f64>();
    let row = |endpoint: usize| {
        let own = || measured.iter().filter(|record| record.endpoint == endpoint);
        let joined = joins.iter().find(|(joining, _)| *joining == endpoint);
        let after_join = joined.map(|(_, at_s)| {
            let window = || {
                all.iter()
                    .filter(|r| (*at_s..at_s + JOIN_WINDOW_S).contains(&r.arrived_s))
            };
            let own = tokens(&mut window().filter(|record| record.endpoint == endpoint));
            own / tokens(&mut window()).max(1.0)
        });
        EndpointRow {
            name: format!("pod-{endpoint}"),
            token_share: tokens(&mut own()) / tokens(&mut measured.iter()).max(1.0),
            request_share: own().count() as f64 / measured.len().max(1) as f64,
            requests: own().count() as u64,
            token_share_after_join: after_join,
        }
    };
    (0..endpoints).map(row).collect()
}

fn session_mean_s(records: &[Record]) -> f64 {
    let mut sessions: HashMap<u32, (f64, f64)> = HashMap::new();
    for record in records {
        let (from_s, to_s) = sessions.entry(record.session).or_insert((f64::MAX, 0.0));
        *from_s = from_s.min(record.arrived_s);
        *to_s = to_s.max(record.ended_s);
    }
    mean(sessions.values().map(|(from_s, to_s)| to_s - from_s))
}

fn prediction_error(records: &[Record]) -> Option<f64> {
    let error = |record: &Record| Some((record.predicted_ttft_s? / record.ttft_s).ln().abs());
    let errors: Vec<f64> = records
        .iter()
        .filter_map(error)
        .filter(|error| error.is_finite())
        .collect();
    (!errors.is_empty()).then(|| mean(errors.iter().copied()))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// Nearest-rank quantile of sorted values; 0 when there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

/// A table for people: one line per row.
pub fn table(rows: &[Row]) -> String {
    let seeds = rows.iter().any(|row| row.seed != rows[0].seed);
    let joins = rows
        .iter()
        .any(|row| row.endpoints.iter().any(|e| e.token_share_after_join.is_some()));
    let mut text = format!(
        "{:<20}{}{:>9} {:>9} {:>9} {:>9} {:>8} {:>6} {:>8} {:>8} {:>8} {:>7}{}\n",
        "policy",
        if seeds { " seed" } else { "" },
        "TTFT mean",
        "p50 s",
        "p90 s",
        "p99 s",
        "TPOT ms",
        "hit",
        "out tok/s",
        "max/mean",
        "preempt",
        "failed",
        if joins { "  share after join" } else { "" },
    );
    for row in rows {
        let seed = if seeds {
            format!(" {:>4}", row.seed)
        } else {
            String::new()
        };
        let joined = row.endpoints.iter().find_map(|e| e.token_share_after_join);
        let joined = joined.map_or(String::new(), |share| format!("  {share:>16.3}"));
        let _ = writeln!(
            text,
            "{:<20}{seed}{:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>8.1} {:>6.3} {:>9.0} {:>8.2} {:>8} {:>7}{joined}",
            row.policy,
            row.ttft_mean_s,
            row.ttft_p50_s,
            row.ttft_p90_s,
            row.ttft_p99_s,
            row.tpot_mean_s * 1e3,
            row.hit_rate,
            row.output_tokens_per_s,
            row.max_over_mean,
            row.preemptions,
            row.failed,
        );
        for tenant in &row.tenants {
            let _ = writeln!(
                text,
                "{:<20}{:9.3} {:>9.3} {:>9} {:>9.3} {:>8.1}  {} requests, {:.2} ended/s",
                format!("  tenant {}", tenant.tenant),
                tenant.ttft_mean_s,
                tenant.ttft_p50_s,
                "",
                tenant.ttft_p99_s,
                tenant.tpot_mean_s * 1e3,
                tenant.requests,
                tenant.requests_per_s,
            );
        }
    }
    text
}

#[cfg(test)]
mod tests;
