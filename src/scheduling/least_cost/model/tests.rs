use super::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const FAST: Constants = Constants {
    prefill_s_per_token: 1.2e-5,
    attention_s_per_pair: 0.0,
    step_s: 0.004,
    context_s_per_token: 2e-8,
    decode_s_per_request: 0.0,
};

fn start() -> Constants {
    Constants {
        attention_s_per_pair: 0.0,
        decode_s_per_request: 0.0,
        ..Constants::default()
    }
}

/// What a server with these constants would take.
fn first_byte_s(constants: &Constants, at: &AtDispatch) -> f64 {
    let missing = f64::from(at.prompt_tokens - at.cached_tokens);
    let pending = at.pending_tokens as f64;
    let steps = 1.0 + (pending + missing) / 8192.0;
    let decode = constants.decode_step_s(at.active_tokens as f64, f64::from(at.inflight));
    constants.prefill_s_per_token * (pending + missing) + steps * (constants.step_s + decode)
}

struct Bench {
    model: FleetModel,
    rng: Pcg64Mcg,
    now_s: f64,
}

impl Bench {
    fn new() -> Self {
        let model = FleetModel::new(start(), 8192.0, true);
        Self {
            model,
            rng: Pcg64Mcg::seed_from_u64(5),
            now_s: 0.0,
        }
    }

    /// Requests of 100 to 20,000 tokens against a server with these constants; noise of +-20 %.
    fn teach(&mut self, id: u16, truth: &Constants, requests: u32, outliers: bool) {
        for request in 0..requests {
            let at = AtDispatch {
                prompt_tokens: self.rng.random_range(100..20_000),
                pending_tokens: self.rng.random_range(0..10_000),
                active_tokens: self.rng.random_range(0..100_000),
                ..AtDispatch::default()
            };
            let mut elapsed = first_byte_s(truth, &at) * self.rng.random_range(0.8..1.2);
            if outliers && request % 10 == 3 {
                elapsed *= 30.0;
            }
            self.now_s += 0.1;
            self.model
                .observe_first_byte(Mono::from_secs_f64(self.now_s), EndpointId(id), &at, elapsed);
        }
    }

    fn prefill(&self, id: u16) -> f64 {
        self.model
            .constants(Mono::from_secs_f64(self.now_s), EndpointId(id))
            .prefill_s_per_token
    }
}

fn within(actual: f64, expected: f64, share: f64) {
    assert!(
        (actual / expected - 1.0).abs() <= share,
        "{actual:e} for {expected:e}"
    );
}

#[test]
fn learns_the_servers_constants_from_a_wrong_start() {
    let mut bench = Bench::new();
    bench.teach(0, &FAST, 200, false);
    within(bench.prefill(0), FAST.prefill_s_per_token, 0.1);
    // One that has served nothing yet is judged as the fleet.
    within(bench.prefill(9), FAST.prefill_s_per_token, 0.1);
}

#[test]
fn a_tenth_of_stalled_requests_moves_little() {
    let mut bench = Bench::new();
    bench.teach(0, &FAST, 400, true);
    within(bench.prefill(0), FAST.prefill_s_per_token, 0.35);
}

#[test]
fn tells_a_slow_endpoint_from_a_fast_one() {
    let mut bench = Bench::new();
    let slow = FAST.scaled(2.0, 2.0);
    for _ in 0..100 {
        bench.teach(0, &FAST, 2, false);
        bench.teach(1, &slow, 1, false);
    }
    within(bench.prefill(1) / bench.prefill(0), 2.0, 0.2);
}

#[test]
fn follows_an_endpoint_that_changes() {
    let mut bench = Bench::new();
    bench.teach(0, &FAST, 300, false);
    bench.teach(0, &FAST.scaled(3.0, 3.0), 300, false);
    within(bench.prefill(0), 3.0 * FAST.prefill_s_per_token, 0.25);
}

#[test]
fn equals_are_not_told_apart_by_noise() {
    let mut bench = Bench::new();
    bench.teach(0, &FAST, 30, false);
    for _ in 0..10 {
        bench.teach(1, &FAST, 1, false);
        bench.teach(2, &FAST, 1, false);
    }
    within(bench.prefill(0), bench.prefill(1), 0.05);
    within(bench.prefill(2), bench.prefill(1), 0.05);
}

#[test]
fn a_verdict_fades_when_nothing_confirms_it() {
    let mut bench = Bench::new();
    for _ in 0..50 {
        bench.teach(0, &FAST, 4, false);
        bench.teach(1, &FAST.scaled(3.0, 3.0), 1, false);
    }
    assert!(
        bench.prefill(1) > 1.7 * bench.prefill(0),
        "{}",
        bench.prefill(1) / bench.prefill(0)
    );
    bench.now_s += (FADE_FROM + FADE_OVER).as_secs_f64();
    assert_eq!(bench.prefill(1), bench.prefill(9));
}

#[test]
fn nonsense_is_not_learnt() {
    let mut model = FleetModel::new(start(), 8192.0, true);
    let at = AtDispatch {
        prompt_tokens: 1000,
        ..AtDispatch::default()
    };
    for elapsed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        model.observe_first_byte(Mono::ZERO, EndpointId(0), &at, elapsed);
    }
    let rate = StreamRate {
        s_per_token: f64::NAN,
        active_tokens: 1.0,
        inflight: 1.0,
    };
    model.observe_stream(Mono::ZERO, EndpointId(0), &rate);
    assert_eq!(model.constants(Mono::ZERO, EndpointId(0)), start());
}

#[test]
fn stays_within_bounds_whatever_it_sees() {
    let mut model = FleetModel::new(start(), 8192.0, true);
    let mut rng = Pcg64Mcg::seed_from_u64(3);
    for _ in 0..2000 {
        let at = AtDispatch {
            prompt_tokens: rng.random_range(1..100_000),
            cached_tokens: 0,
            pending_tokens: rng.random_range(0..1_000_000),
            active_tokens: rng.random_range(0..1_000_000),
            inflight: rng.random_range(0..300),
        };
        let elapsed = 10f64.powf(rng.random_range(-6.0..6.0));
        model.observe_first_byte(Mono::ZERO, EndpointId(0), &at, elapsed);
        let c = model.constants(Mono::ZERO, EndpointId(0));
        let all = [
            c.prefill_s_per_token,
            c.attention_s_per_pair,
            c.step_s,
            c.context_s_per_token,
        ];
        assert!(all.iter().all(|x| x.is_finite() && *x >= 0.0), "{c:?}");
    }
}

#[test]
fn learns_decode_drag_from_streams() {
    let mut model = FleetModel::new(start(), 8192.0, true);
    let mut rng = Pcg64Mcg::seed_from_u64(3);
    for _ in 0..400 {
        let active_tokens = rng.random_range(0.0..500_000.0);
        let rate = StreamRate {
            s_per_token: 0.01 + 2e-7 * active_tokens,
            active_tokens,
            inflight: 0.0,
        };
        model.observe_stream(Mono::ZERO, EndpointId(0), &rate);
    }
    within(
        model.constants(Mono::ZERO, EndpointId(0)).context_s_per_token,
        2e-7,
        0.15,
    );
}

/// The pace in milliseconds per 1,000 tokens, after 50 prompts of 4,000 tokens behind 16,000 that took 0.25 s, and then
/// `count` first bytes of others.
fn pace_ms(count: usize, prompt_tokens: u32, pending_tokens: u64, elapsed_s: f64) -> f64 {
    let mut model = FleetModel::new(FAST, 8192.0, true);
    let mut observe = |prompt_tokens, pending_tokens, elapsed_s| {
        let at = AtDispatch {
            prompt_tokens,
            pending_tokens,
            ..AtDispatch::default()
        };
        model.observe_first_byte(Mono::ZERO, EndpointId(0), &at, elapsed_s);
    };
    (0..50).for_each(|_| observe(4_000, 16_000, 0.25));
    (0..count).for_each(|_| observe(prompt_tokens, pending_tokens, elapsed_s));
    model.pace_s_per_token(Mono::ZERO, EndpointId(9)) * 1e6
}

#[test]
fn the_pace_is_that_of_requests_that_have_a_step_of_tokens_before_them() {
    within(pace_ms(0, 0, 0, 0.0), 12.5, 0.05);
    // 0.8 s for 20,000 tokens.
    within(pace_ms(300, 4_000, 16_000, 0.8), 40.0, 0.05);
}

#[test]
fn a_thousand_tiny_prompts_on_a_starved_machine_do_not_make_prefill_slow() {
    let tiny_ms = pace_ms(1_000, 10, 20_000, 5.0);
    assert!(tiny_ms < 25.0, "{tiny_ms}");
    // One that was held up for a minute counts as 1 s, with 20,000 tokens of the 650,000 that are remembered.
    let once_ms = pace_ms(1, 4_000, 16_000, 60.0);
    assert!((12.5..16.0).contains(&once_ms), "{once_ms}");
}
