//! Cost of one decision (evaluate and commit) by preset and number of candidates.

use divan::{Bencher, black_box};
use homing::prefix::EndpointId;
use homing::scheduling::{EndpointView, Policy, RequestView, Scheduler, Scraped};
use homing::time::Mono;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

#[path = "support/fleet.rs"]
mod fleet;
use fleet::fleet;

fn main() {
    divan::main();
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
