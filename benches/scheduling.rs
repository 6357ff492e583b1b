//! Cost of one decision (evaluate and commit) by preset and number of candidates.

use divan::{Bencher, black_box};
use homing::prefix::EndpointId;
use homing::scheduling::{EndpointView, Policy, RequestView, Scheduler, Scraped};
use homing::time::Mono;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

fn main() {
    divan::main();
}

/// Busy endpoints of which every third holds part of the prompt.
fn fleet(count: u16) -> Vec<EndpointView<'static>> {
    let view = |id: u16| {
        let load = u32::from(id).wrapping_mul(2_654_435_761) % 97;
        let match_tokens = if id.is_multiple_of(3) { load * 10 } else { 0 };
        EndpointView {
            match_tokens,
            match_ratio: f64::from(match_tokens) / 1000.0,
            scraped: Scraped {
                waiting: Some(f64::from(load % 5)),
                running: Some(f64::from(load)),
                kv_usage: Some(f64::from(load) / 100.0),
            },
            inflight: load,
            pending_prefill_tokens: u64::from(load) * 100,
            active_tokens: u64::from(load) * 1000,
            cached_tokens: 200_000,
            capacity_tokens: Some(307_328),
            ..EndpointView::idle(EndpointId(id), "endpoint")
        }
    };
    (0..count).map(view).collect()
}

#[divan::bench(
    args = [8, 64, 512],
    consts = [0, 1, 2, 3],
)]
fn decide<const PRESET: usize>(bencher: Bencher, endpoints: u16) {
    let preset = ["least-cost", "optimized-baseline", "sticky", "least-request"][PRESET];
    let Some(policy) = Policy::preset(preset) else {
        return;
    };
    let mut scheduler = Scheduler::new(policy);
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let views = fleet(endpoints);
    let request = RequestView {
        model: "m",
        prompt_tokens: 1000,
        keyed: true,
        ..RequestView::default()
    };
    let mut request_number = 0;
    bencher.bench_local(|| {
        request_number += 1;
        let now = Mono::from_nanos(request_number * 1_000_000);
        let decision = scheduler.evaluate(now, black_box(&request), black_box(&views), &mut rng);
        if let Some(chosen) = decision.chosen() {
            let view = views[usize::from(chosen.id.0)];
            let dispatch = scheduler.commit(now, &request, &decision, &view);
            scheduler.observe_first_byte(Mono::from_nanos(now.as_nanos() + 50_000_000), &dispatch);
        }
        decision
    });
}
