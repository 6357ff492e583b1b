use super::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// 1 ms per prompt token, 10 ms per step, and nothing else.
const ROUND: TimingModel = TimingModel {
    step_overhead: 10e-3,
    prefill_token: 1e-3,
    ..TimingModel::INSTANT
};

/// A request whose block hashes are `group * 1000 + block index`, so equal groups share prefixes.
fn request(id: u64, group: u64, prompt_tokens: u32, output_tokens: u32, block_size: u32) -> SimRequest {
    let blocks = u64::from(prompt_tokens / block_size);
    SimRequest {
        id: RequestId(id),
        block_hashes: (0..blocks).map(|i| group * 1000 + i).collect(),
        prompt_tokens,
        output_tokens,
        output_seed: id,
        finish: FinishReason::Length,
        content: None,
    }
}

fn ms(millis: u64) -> Mono {
    Mono::ZERO + Duration::from_millis(millis)
}

/// Runs until nothing is left to do.
fn drain(engine: &mut Engine) -> Vec<EngineEvent> {
    let mut events = Vec::new();
    while let Some(at) = engine.next_event_at() {
        engine.advance(at, &mut events);
        engine.invariants().unwrap();
    }
    events
}

fn finished(events: &[EngineEvent]) -> Vec<Finished> {
    events
        .iter()
        .filter_map(|e| {
            if let EngineEvent::Finished(f) = e {
                Some(*f)
            } else {
                None
            }
        })
        .collect()
}

#[test]
fn six_identical_prompts_hit_as_on_a_real_server() {
    let mut engine = Engine::new(EngineSpec::new(128, 512));
    let mut hits = Vec::new();
    for send in 0..6 {
        engine.submit(ms(send), request(send, 7, 207, 20, 128)).unwrap();
        drain(&mut engine);
        hits.push(engine.counters().prefix_cache_hits);
    }
    assert_eq!(hits, [0, 128, 256, 384, 512, 640]);
    let c = engine.counters();
    assert_eq!((c.prefix_cache_queries, c.prompt_tokens), (6 * 207, 6 * 207));
    assert_eq!(
        (c.prompt_tokens_cached, c.generation_tokens, c.finished_length),
        (640, 120, 6)
    );
    assert_eq!(
        c.request_prefill_kv_computed_tokens.sum(),
        f64::from(207 + 5 * 79)
    );
    assert_eq!(c.iteration_tokens.sum(), f64::from(207 + 5 * 79 + 120));
}

#[test]
fn one_prompt_token_is_always_computed() {
    let mut engine = Engine::new(EngineSpec::new(32, 64));
    for (id, tokens, cached) in [(1, 64, 0), (2, 64, 32), (3, 65, 64), (4, 64, 32)] {
        engine.submit(Mono::ZERO, request(id, 1, tokens, 1, 32)).unwrap();
        assert_eq!(
            finished(&drain(&mut engine))[0].cached_tokens,
            cached,
            "request {id}"
        );
    }
}

#[test]
fn prompts_below_one_block_never_hit() {
    let mut engine = Engine::new(EngineSpec::new(128, 64));
    for id in 0..6 {
        engine.submit(Mono::ZERO, request(id, 1, 127, 1, 128)).unwrap();
        drain(&mut engine);
    }
    assert_eq!(
        (
            engine.counters().prefix_cache_hits,
            engine.counters().prefix_cache_queries
        ),
        (0, 6 * 127)
    );
}

#[test]
fn generated_blocks_are_cached_for_the_next_turn() {
    let mut engine = Engine::new(EngineSpec::new(16, 64));
    let mut first = request(1, 5, 20, 45, 16);
    first.block_hashes = vec![100, 101, 102, 103].into();
    engine.submit(Mono::ZERO, first).unwrap();
    drain(&mut engine);
    let mut next = request(2, 0, 75, 1, 16);
    next.block_hashes = vec![100, 101, 102, 103].into();
    engine.submit(Mono::ZERO, next).unwrap();
    // 20 + 45 tokens, the last of which is never computed: 64 tokens fill 4 blocks.
    assert_eq!(finished(&drain(&mut engine))[0].cached_tokens, 64);
}

#[test]
fn a_step_takes_its_work_and_the_next_follows_at_once() {
    let spec = EngineSpec {
        timing: ROUND,
        token_events: true,
        ..EngineSpec::new(16, 64)
    };
    let mut engine = Engine::new(spec);
    engine.submit(ms(5), request(1, 1, 20, 3, 16)).unwrap();
    assert_eq!(engine.next_event_at(), Some(ms(5)));
    let mut events = Vec::new();
    engine.advance(ms(5), &mut events);
    assert_eq!((engine.next_event_at(), events.len()), (Some(ms(35)), 0));
    // Arrives during the first step, so it is computed together with the first decode.
    engine.submit(ms(6), request(2, 2, 40, 1, 16)).unwrap();
    assert_eq!(
        (
            engine.counters().requests_running,
            engine.counters().requests_waiting
        ),
        (0, 0)
    );
    let events = drain(&mut engine);
    let tokens: Vec<_> = events
        .iter()
        .filter_map(|e| {
            if let EngineEvent::Token { id, at, generated } = e {
                Some((id.0, *at, *generated))
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        tokens,
        [(1, ms(35), 1), (1, ms(85), 2), (2, ms(85), 1), (1, ms(95), 3)]
    );
    assert_eq!(engine.counters().time_to_first_token.sum(), 0.030 + 0.079);
    assert_eq!(engine.counters().inter_token_latency.count(), 2);
    assert!((engine.counters().inter_token_latency.sum() - 0.060).abs() < 1e-9);
}

#[test]
fn prefill_is_chunked_and_decodes_go_first() {
    let spec = EngineSpec {
        timing: ROUND,
        max_num_batched_tokens: 32,
        ..EngineSpec::new(16, 64)
    };
    let mut engine = Engine::new(spec);
    engine.submit(ms(0), request(1, 1, 10, 4, 16)).unwrap();
    engine.submit(ms(0), request(2, 2, 50, 1, 16)).unwrap();
    // Steps: 10 + 22 tokens (42 ms), decode + 28 tokens (38 ms), two more decodes.
    let ends: Vec<_> = finished(&drain(&mut engine))
        .iter()
        .map(|f| (f.id.0, f.first_token_at, f.at))
        .collect();
    assert_eq!(ends, [(2, ms(80), ms(80)), (1, ms(42), ms(100))]);
}

#[test]
fn seats_are_given_in_order_of_arrival() {
    let mut engine = Engine::new(EngineSpec {
        timing: ROUND,
        max_num_seqs: 1,
        ..EngineSpec::new(16, 64)
    });
    for id in 0..3 {
        engine.submit(ms(0), request(id, id, 10, 2, 16)).unwrap();
    }
    let mut events = Vec::new();
    engine.advance(ms(20), &mut events);
    assert_eq!(
        (
            engine.counters().requests_running,
            engine.counters().requests_waiting
        ),
        (1, 2)
    );
    let order: Vec<_> = finished(&drain(&mut engine))
        .iter()
        .map(|f| (f.id.0, f.at))
        .collect();
    assert_eq!(order, [(0, ms(30)), (1, ms(60)), (2, ms(90))]);
}

#[test]
fn the_last_admitted_is_preempted_and_computed_again() {
    // 4 blocks of 4 tokens. Two requests of 7 tokens fill them; each needs a third block for token 9.
    let mut engine = Engine::new(EngineSpec {
        timing: ROUND,
        block_events: true,
        ..EngineSpec::new(4, 4)
    });
    engine.submit(ms(0), request(1, 1, 7, 6, 4)).unwrap();
    engine.submit(ms(0), request(2, 2, 7, 6, 4)).unwrap();
    let events = drain(&mut engine);
    let preempted: Vec<_> = events
        .iter()
        .filter_map(|e| {
            if let EngineEvent::Preempted { id, at } = e {
                Some((id.0, *at))
            } else {
                None
            }
        })
        .collect();
    assert_eq!(preempted, [(2, ms(34))]);
    let done = finished(&events);
    // 24 + 5 x 10 ms; then request 2, with 9 tokens known and its first block cached: 15, 10, 10, 10 ms.
    assert_eq!(
        done.iter()
            .map(|f| (f.id.0, f.at, f.preemptions))
            .collect::<Vec<_>>(),
        [(1, ms(74), 0), (2, ms(119), 1)]
    );
    assert_eq!(
        (engine.counters().preemptions, engine.counters().prefix_cache_hits),
        (1, 0)
    );
    assert_eq!(engine.counters().prefix_cache_queries, 14);
}

#[test]
fn the_tail_of_the_oldest_prefix_is_evicted_first() {
    let mut engine = Engine::new(EngineSpec {
        block_events: true,
        ..EngineSpec::new(16, 6)
    });
    for (id, tokens) in [(1, 48), (2, 32), (3, 32)] {
        engine.submit(Mono::ZERO, request(id, id, tokens, 1, 16)).unwrap();
        let events = drain(&mut engine);
        let removed: Vec<_> = events
            .iter()
            .filter_map(|e| {
                if let EngineEvent::BlockRemoved { hash } = e {
                    Some(*hash)
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(removed, if id == 3 { vec![1002] } else { vec![] });
    }
}

#[test]
fn an_exact_multiple_is_stored_once_per_copy() {
    let mut engine = Engine::new(EngineSpec {
        block_events: true,
        ..EngineSpec::new(16, 8)
    });
    for id in 0..2 {
        engine.submit(Mono::ZERO, request(id, 9, 32, 1, 16)).unwrap();
        let events = drain(&mut engine);
        let expected = if id == 0 {
            (0, vec![9000, 9001], None)
        } else {
            (1, vec![9001], Some(9000))
        };
        let EngineEvent::BlocksStored {
            first_block,
            hashes,
            parent,
            ..
        } = &events[0]
        else {
            panic!("{events:?}")
        };
        assert_eq!((*first_block, hashes.clone(), *parent), expected);
    }
}

#[test]
fn abort_frees_seat_and_blocks_at_the_step_end() {
    let mut engine = Engine::new(EngineSpec {
        timing: ROUND,
        max_num_seqs: 1,
        ..EngineSpec::new(16, 64)
    });
    for id in 1..=3 {
        engine.submit(ms(0), request(id, id, 20, 100, 16)).unwrap();
    }
    let mut events = Vec::new();
    engine.advance(ms(30), &mut events);
    assert!(engine.abort(RequestId(2)));
    assert!(engine.abort(RequestId(1)));
    assert!(!engine.abort(RequestId(1)) && !engine.abort(RequestId(9)));
    engine.invariants().unwrap();
    engine.advance(ms(40), &mut events);
    engine.invariants().unwrap();
    assert_eq!((engine.running(), engine.waiting()), (1, 0));
    let done = finished(&drain(&mut engine));
    assert_eq!(done.iter().map(|f| f.id.0).collect::<Vec<_>>(), [3]);
    assert_eq!(
        (
            engine.counters().finished_length,
            engine.counters().kv_cache_usage
        ),
        (1, 0.0)
    );
}

#[test]
fn reset_clears_an_idle_cache_only() {
    let spec = EngineSpec {
        timing: ROUND,
        block_events: true,
        ..EngineSpec::new(16, 64)
    };
    let mut engine = Engine::new(spec);
    engine.submit(ms(0), request(1, 1, 33, 2, 16)).unwrap();
    let mut events = Vec::new();
    engine.advance(ms(0), &mut events);
    assert!(!engine.reset_prefix_cache());
    drain(&mut engine);
    assert!(engine.reset_prefix_cache());
    engine.invariants().unwrap();
    engine.submit(ms(500), request(2, 1, 33, 1, 16)).unwrap();
    let events = drain(&mut engine);
    assert_eq!(events[0], EngineEvent::Cleared);
    assert_eq!(finished(&events)[0].cached_tokens, 0);
}

#[test]
fn what_cannot_fit_is_refused() {
    let mut engine = Engine::new(EngineSpec::new(16, 4));
    assert!(engine.submit(Mono::ZERO, request(1, 1, 60, 5, 16)).is_ok());
    let refused = engine.submit(Mono::ZERO, request(2, 1, 60, 6, 16));
    assert_eq!(
        refused,
        Err(SubmitError::TooLong {
            needed: 5,
            available: 4
        })
    );
    assert_eq!(
        engine.submit(Mono::ZERO, request(3, 1, 0, 6, 16)),
        Err(SubmitError::Empty)
    );
}

#[test]
fn a_paused_engine_reports_nothing_and_goes_on_later() {
    let mut engine = Engine::new(EngineSpec {
        timing: ROUND,
        ..EngineSpec::new(16, 64)
    });
    engine.submit(ms(0), request(1, 1, 10, 2, 16)).unwrap();
    engine.advance(ms(0), &mut Vec::new());
    engine.set_paused(ms(1), true);
    engine.advance(ms(900), &mut Vec::new());
    assert_eq!((engine.next_event_at(), engine.running()), (None, 1));
    engine.set_paused(ms(1000), false);
    assert_eq!(finished(&drain(&mut engine))[0].at, ms(1010));
}

/// The cache as a subscriber of block events sees it.
#[derive(Default)]
struct Mirror(HashMap<u64, u32>);

impl Mirror {
    fn apply(&mut self, event: &EngineEvent) {
        match event {
            EngineEvent::BlocksStored { hashes, .. } => {
                hashes
                    .iter()
                    .for_each(|&hash| *self.0.entry(hash).or_default() += 1);
            }
            EngineEvent::BlockRemoved { hash } => {
                let copies = self
                    .0
                    .get_mut(hash)
                    .expect("removed a block that was never stored");
                *copies -= 1;
                if *copies == 0 {
                    self.0.remove(hash);
                }
            }
            EngineEvent::Cleared => self.0.clear(),
            _ => {}
        }
    }

    fn prefix_blocks(&self, request: &SimRequest) -> u32 {
        request
            .block_hashes
            .iter()
            .take_while(|&hash| self.0.contains_key(hash))
            .count() as u32
    }
}

fn random_spec(rng: &mut Pcg64) -> EngineSpec {
    EngineSpec {
        timing: [TimingModel::INSTANT, ROUND, TimingModel::CPU_SMALL][rng.random_range(0..3)],
        max_num_seqs: rng.random_range(1..12),
        max_num_batched_tokens: rng.random_range(1..200),
        block_events: true,
        token_events: true,
        ..EngineSpec::new(rng.random_range(1..20), rng.random_range(4..40))
    }
}

#[test]
fn random_operations_keep_the_invariants() {
    for seed in 0..60 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut engine = Engine::new(random_spec(&mut rng));
        let block_size = engine.spec().block_size;
        let (mut now, mut mirror, mut live, mut events) =
            (Mono::ZERO, Mirror::default(), Vec::new(), Vec::new());
        for id in 0..400 {
            match rng.random_range(0..10) {
                0..=4 => {
                    let (prompt, output) = (rng.random_range(1..200), rng.random_range(1..60));
                    if engine
                        .submit(
                            now,
                            request(id, rng.random_range(0..6), prompt, output, block_size),
                        )
                        .is_ok()
                    {
                        live.push(RequestId(id));
                    }
                }
                5 if !live.is_empty() => {
                    let id = live.swap_remove(rng.random_range(0..live.len()));
                    assert!(engine.abort(id), "seed {seed}: {id:?} is lost");
                }
                6 => drop(engine.reset_prefix_cache()),
                _ => now = now + Duration::from_millis(rng.random_range(0..100)),
            }
            engine.advance(now, &mut events);
            engine
                .invariants()
                .unwrap_or_else(|fault| panic!("seed {seed}, operation {id}: {fault}"));
            for event in events.drain(..) {
                mirror.apply(&event);
                if let EngineEvent::Finished(done) = event {
                    live.retain(|&id| id != done.id);
                }
            }
        }
        let rest = drain(&mut engine);
        rest.iter().for_each(|event| mirror.apply(event));
        assert_eq!(
            finished(&rest).len(),
            live.len(),
            "seed {seed}: every live request ends"
        );
        assert_eq!(engine.counters().kv_cache_usage, 0.0);
        // A reset is reported with the next step only.
        engine.submit(now, request(999, 999, 1, 1, block_size)).unwrap();
        drain(&mut engine).iter().for_each(|event| mirror.apply(event));
        for group in 0..6 {
            let probe = request(0, group, 200, 1, block_size);
            let limit = 199 / block_size;
            let expected = mirror.prefix_blocks(&probe).min(limit) * block_size;
            assert_eq!(
                engine.cached_prefix_tokens(&probe),
                expected,
                "seed {seed}, group {group}"
            );
        }
    }
}

#[test]
fn late_advance_changes_nothing() {
    let run = |lateness_ms: u64| {
        let mut engine = Engine::new(EngineSpec {
            timing: ROUND,
            ..EngineSpec::new(16, 64)
        });
        let mut events = Vec::new();
        for id in 0..20 {
            let arrival = ms(id * 37);
            engine.advance(arrival, &mut events);
            engine.submit(arrival, request(id, id % 3, 50, 5, 16)).unwrap();
        }
        while let Some(at) = engine.next_event_at() {
            engine.advance(at + Duration::from_millis(lateness_ms), &mut events);
        }
        finished(&events)
    };
    assert_eq!(run(0), run(123));
}

#[test]
fn content_travels_with_the_block_event() {
    let mut engine = Engine::new(EngineSpec {
        block_events: true,
        ..EngineSpec::new(4, 8)
    });
    let content = Arc::new(BlockContent {
        tokens: (0..9).collect(),
        ..BlockContent::default()
    });
    engine
        .submit(
            Mono::ZERO,
            SimRequest {
                content: Some(content.clone()),
                ..request(1, 1, 8, 1, 4)
            },
        )
        .unwrap();
    let events = drain(&mut engine);
    let EngineEvent::BlocksStored {
        content: Some(seen), ..
    } = &events[0]
    else {
        panic!("{events:?}")
    };
    assert!(Arc::ptr_eq(seen, &content));
}
