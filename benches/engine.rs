//! How fast the engine model runs: 12,000 conversation-like requests over 8 engines in virtual time.

use homing::sim::engine::{
    Engine, EngineEvent, EngineSpec, FinishReason, FleetPreset, RequestId, SimRequest,
};
use homing::time::Mono;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

const REQUESTS: u64 = 12_000;
const ENGINES: usize = 8;

fn main() {
    divan::main();
}

/// Prompts of about 12,000 tokens, a third of them shared with one of 300 groups, 343 tokens out, 3.4 per second.
fn trace(block_size: u32) -> Vec<(Mono, usize, SimRequest)> {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut now_s = 0.0;
    (0..REQUESTS)
        .map(|id| {
            now_s += rng.random::<f64>() * 2.0 / 3.4;
            let prompt_tokens = rng.random_range(1_000..23_000);
            let group = rng.random_range(0..300);
            let blocks = u64::from(prompt_tokens / block_size);
            let hash = |i| {
                if i < blocks / 3 {
                    group << 32 | i
                } else {
                    (id + 1) << 40 | i
                }
            };
            let request = SimRequest {
                id: RequestId(id),
                block_hashes: (0..blocks).map(hash).collect(),
                prompt_tokens,
                output_tokens: 343,
                output_seed: id,
                finish: FinishReason::Length,
                content: None,
            };
            (Mono::from_secs_f64(now_s), group as usize % ENGINES, request)
        })
        .collect()
}

fn replay(trace: Vec<(Mono, usize, SimRequest)>, spec: EngineSpec) -> usize {
    let mut engines: Vec<Engine> = (0..ENGINES).map(|_| Engine::new(spec)).collect();
    let mut events = Vec::new();
    let mut finished = 0;
    for (at, engine, request) in trace {
        engines[engine].advance(at, &mut events);
        engines[engine].submit(at, request).expect("fits");
        finished += count_finished(&mut events);
    }
    for engine in &mut engines {
        engine.advance(Mono::from_nanos(u64::MAX), &mut events);
        finished += count_finished(&mut events);
    }
    finished
}

fn count_finished(events: &mut Vec<EngineEvent>) -> usize {
    events
        .drain(..)
        .filter(|e| matches!(e, EngineEvent::Finished(_)))
        .count()
}

#[divan::bench(args = [512, 16], sample_count = 5)]
fn replay_12k_requests_on_8_engines(bencher: divan::Bencher, block_size: u32) {
    let spec = FleetPreset::Qwen3On2H100.spec(block_size);
    bencher.with_inputs(|| trace(block_size)).bench_values(|trace| {
        assert_eq!(replay(trace, spec), REQUESTS as usize);
    });
}
