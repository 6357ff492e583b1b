//! What an endpoint's time is spent on, learnt from the requests that pass.
//!
//! Two robust regressions over the whole fleet, each with two unknowns and exponential forgetting:
//! time to first byte ~ a (P + missing + attention share) + o steps, and time per output token ~ c + k (A + (d/k) N).
//! The ratios q/a and d/k stay as they started: traffic rarely tells them apart. An endpoint differs from the fleet
//! by one factor per regression, and only as far as its own requests prove: equals must not be told
//! apart by noise, or new prompts would not spread evenly over them.

mod fit;

use super::{AtDispatch, StreamRate};
use crate::prefix::EndpointId;
use crate::time::Mono;
use fit::{Bounds, Fit, Sample};
use std::time::Duration;

/// Seconds that a model server spends, by cause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// a: per uncached prompt token.
    pub prefill_s_per_token: f64,
    /// q: per pair of a prompt token and one before it, the attention part of prefill.
    pub attention_s_per_pair: f64,
    /// o: per engine step, whatever is in it.
    pub step_s: f64,
    /// k: per context token of a running decode and step.
    pub context_s_per_token: f64,
    /// d: per running decode and step.
    pub decode_s_per_request: f64,
}

impl Constants {
    /// Qwen3-32B on two H100: prefill from published measurements, decode from a roofline estimate.
    pub const QWEN3_32B_2XH100: Self = Self {
        prefill_s_per_token: 4.31e-5,
        attention_s_per_pair: 1.4e-9,
        step_s: 0.0155,
        context_s_per_token: 5.2e-8,
        decode_s_per_request: 2e-5,
    };

    /// Llama-3.1-8B on one H100, from the same sources.
    pub const LLAMA_3_1_8B_1XH100: Self = Self {
        prefill_s_per_token: 2.7e-5,
        attention_s_per_pair: 6e-10,
        step_s: 0.008,
        context_s_per_token: 4.9e-8,
        decode_s_per_request: 1e-5,
    };

    /// Prefill of a prompt whose first `cached` tokens need no computing, in seconds.
    pub fn prefill_s(&self, prompt_tokens: f64, cached: f64) -> f64 {
        self.prefill_s_per_token * (prompt_tokens - cached)
            + self.attention_s_per_pair * attention_pairs(prompt_tokens, cached)
    }

    /// What running decodes add to one step, in seconds.
    pub fn decode_step_s(&self, active_tokens: f64, inflight: f64) -> f64 {
        self.context_s_per_token * active_tokens + self.decode_s_per_request * inflight
    }

    /// The same work on a server that takes `prefill` times as long to the first byte, `decode` times per token.
    fn scaled(&self, prefill: f64, decode: f64) -> Self {
        Self {
            prefill_s_per_token: self.prefill_s_per_token * prefill,
            attention_s_per_pair: self.attention_s_per_pair * prefill,
            step_s: self.step_s * prefill,
            context_s_per_token: self.context_s_per_token * decode,
            decode_s_per_request: self.decode_s_per_request * decode,
        }
    }
}

/// Pairs of tokens that attention has to look at when the first `cached` ones need no computing.
fn attention_pairs(prompt_tokens: f64, cached: f64) -> f64 {
    (prompt_tokens * prompt_tokens - cached * cached) / 2.0
}

impl Default for Constants {
    /// The larger of the two measured fleets: a prefill that is thought too dear errs towards going home.
    fn default() -> Self {
        Self::QWEN3_32B_2XH100
    }
}

/// Bounds of a: from a small model on the fastest GPUs to a large one on a slow CPU.
const PREFILL_BOUNDS: Bounds = Bounds { low: 1e-7, high: 0.1 };
/// Bounds of o.
const STEP_BOUNDS: Bounds = Bounds { low: 0.0, high: 5.0 };
/// Bounds of k, per context token and step.
const CONTEXT_BOUNDS: Bounds = Bounds {
    low: 1e-10,
    high: 1e-4,
};

/// Observations that the start values weigh as much as.
const START_STRENGTH: f64 = 1.0;
/// What an older observation keeps of its weight with each newer one: about the last 200 of the fleet count,
const FLEET_MEMORY: f64 = 0.995;
/// and about the last 50 of an endpoint.
const ENDPOINT_MEMORY: f64 = 0.98;

/// What an older observation keeps of its weight with each newer one that tells the pace,
const PACE_MEMORY: f64 = 0.98;
/// and how many steps' tokens the constants weigh as much as.
const PACE_START_STEPS: f64 = 4.0;

/// Steps' tokens that a request misses at least that tells the pace. What a smaller one waits for is a seat, or a CPU of
/// its engine's or the gateway's, and many of them at once would make prefill look slow that nobody waits for.
const PACE_MIN_STEPS: f64 = 1.0 / 64.0;

/// A request tells at most this many times the pace that is believed: one that was held up for another reason must not
/// be all that is known.
const PACE_MAX_FACTOR: f64 = 4.0;

/// An endpoint that taught nothing for this long starts to be judged as the fleet again,
const FADE_FROM: Duration = Duration::from_secs(30);
/// and is judged wholly so after this much longer: what was slow once must get the chance to show otherwise.
const FADE_OVER: Duration = Duration::from_secs(60);

/// The constants of all endpoints.
#[derive(Clone, Debug)]
pub struct FleetModel {
    step_tokens: f64,
    learn: bool,
    constants: Constants,
    first_byte: Fit,
    stream: Fit,
    pace: Pace,
    /// By id, side by side: a decision asks for all of them, one after the other.
    endpoints: Vec<Option<Endpoint>>,
}

/// How fast pending tokens pass when there are many.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    seconds: f64,
    tokens: f64,
}

impl Pace {
    fn observe(&mut self, at: &AtDispatch, elapsed_s: f64, assumed: f64, step_tokens: f64) {
        let missing = f64::from(at.prompt_tokens.saturating_sub(at.cached_tokens));
        let tokens = at.pending_tokens as f64 + missing;
        // With less, the time is that of one step rather than of its tokens.
        if tokens >= step_tokens && missing >= PACE_MIN_STEPS * step_tokens {
            let longest_s = PACE_MAX_FACTOR * self.s_per_token(assumed, step_tokens) * tokens;
            self.seconds = self.seconds * PACE_MEMORY + elapsed_s.min(longest_s);
            self.tokens = self.tokens * PACE_MEMORY + tokens;
        }
    }

    fn s_per_token(&self, assumed: f64, step_tokens: f64) -> f64 {
        let strength = PACE_START_STEPS * step_tokens;
        (self.seconds + assumed * strength) / (self.tokens + strength)
    }
}

/// An endpoint against the fleet.
#[derive(Clone, Debug)]
struct Endpoint {
    /// Told instead of learnt.
    assumed: Option<Constants>,
    first_byte: Fit,
    stream: Fit,
    taught: Mono,
}

impl Endpoint {
    /// How much its own observations still count, from 1 down to 0.
    fn weight(&self, now: Mono) -> f64 {
        match now.since(self.taught).checked_sub(FADE_FROM) {
            None => 1.0,
            Some(faded) => 1.0 - faded.div_duration_f64(FADE_OVER).min(1.0),
        }
    }
}

impl FleetModel {
    /// `step_tokens`: tokens that an engine computes per step.
    pub fn new(start: Constants, step_tokens: f64, learn: bool) -> Self {
        Self {
            step_tokens,
            learn,
            constants: start,
            first_byte: Fit::new(FLEET_MEMORY),
            stream: Fit::new(FLEET_MEMORY),
            pace: Pace::default(),
            endpoints: Vec::new(),
        }
    }

    /// What is believed of an endpoint now.
    pub fn constants(&self, now: Mono, id: EndpointId) -> Constants {
        let Some(Some(own)) = self.endpoints.get(usize::from(id.0)) else {
            return self.constants;
        };
        if let Some(assumed) = own.assumed {
            return assumed;
        }
        let keep = own.weight(now);
        let c = &self.constants;
        let prefill = own.first_byte.factor([c.prefill_s_per_token, c.step_s]);
        let decode = own.stream.factor([c.context_s_per_token, c.step_s]);
        c.scaled(1.0 + keep * (prefill - 1.0), 1.0 + keep * (decode - 1.0))
    }

    /// What one more pending token costs where a step's worth is pending already: how long such requests took for
    /// their tokens and those before them, and a + o / step tokens until that was seen.
    ///
    /// Under load the constants are no guide to it: tokens and steps are then proportional, and prefill that slows
    /// decodes down looks like slow decodes.
    pub fn pace_s_per_token(&self, now: Mono, id: EndpointId) -> f64 {
        let own = self.constants(now, id);
        let is_told =
            matches!(self.endpoints.get(usize::from(id.0)), Some(Some(own)) if own.assumed.is_some());
        if is_told {
            return self.pace_by(&own);
        }
        let assumed = self.pace_by(&self.constants);
        let fleet = self.pace.s_per_token(assumed, self.step_tokens);
        fleet * own.prefill_s_per_token / self.constants.prefill_s_per_token
    }

    /// a + o / step tokens.
    fn pace_by(&self, c: &Constants) -> f64 {
        c.prefill_s_per_token + c.step_s / self.step_tokens
    }

    /// Takes an endpoint's constants as told, whatever it shows.
    pub fn assume(&mut self, id: EndpointId, constants: Constants) {
        self.endpoint(Mono::ZERO, id).assumed = Some(constants);
    }

    /// The id was released: its next owner starts as the fleet.
    pub fn forget(&mut self, id: EndpointId) {
        if let Some(slot) = self.endpoints.get_mut(usize::from(id.0)) {
            *slot = None;
        }
    }

    /// A first byte came `elapsed_s` after dispatch. Not for retried or failed requests: their time is not the
    /// endpoint's.
    pub fn observe_first_byte(&mut self, now: Mono, id: EndpointId, at: &AtDispatch, elapsed_s: f64) {
        if !(self.learn && elapsed_s.is_finite() && elapsed_s > 0.0) {
            return;
        }
        let c = self.constants;
        let assumed = self.pace_by(&c);
        self.pace.observe(at, elapsed_s, assumed, self.step_tokens);
        let sample = self.first_byte_sample(at, elapsed_s);
        let believed = [c.prefill_s_per_token, c.step_s];
        self.first_byte.add(&sample, believed);
        let [a, o] = self
            .first_byte
            .solve(believed, START_STRENGTH, [PREFILL_BOUNDS, STEP_BOUNDS]);
        self.constants.attention_s_per_pair *= a / c.prefill_s_per_token;
        (self.constants.prefill_s_per_token, self.constants.step_s) = (a, o);
        let own = self.endpoint(now, id);
        own.first_byte.add_scaled(&sample, [a, o]);
        own.taught = now;
    }

    /// A stream ended after at least a few tokens.
    pub fn observe_stream(&mut self, now: Mono, id: EndpointId, rate: &StreamRate) {
        let all = [rate.s_per_token, rate.active_tokens, rate.inflight];
        if !(self.learn && all.iter().all(|x| x.is_finite() && *x >= 0.0) && rate.s_per_token > 0.0) {
            return;
        }
        let c = self.constants;
        let per_request = c.decode_s_per_request / c.context_s_per_token;
        let x = [rate.active_tokens + per_request * rate.inflight, 1.0];
        let sample = Sample {
            x,
            y: rate.s_per_token,
            scale: rate.s_per_token,
        };
        let believed = [c.context_s_per_token, c.step_s];
        self.stream.add(&sample, believed);
        let [k, base] = self
            .stream
            .solve(believed, START_STRENGTH, [CONTEXT_BOUNDS, STEP_BOUNDS]);
        self.constants.decode_s_per_request *= k / c.context_s_per_token;
        self.constants.context_s_per_token = k;
        self.endpoint(now, id).stream.add_scaled(&sample, [k, base]);
    }

    fn first_byte_sample(&self, at: &AtDispatch, elapsed_s: f64) -> Sample {
        let c = &self.constants;
        let (prompt, cached) = (f64::from(at.prompt_tokens), f64::from(at.cached_tokens));
        let pending = at.pending_tokens as f64;
        let attention = c.attention_s_per_pair / c.prefill_s_per_token * attention_pairs(prompt, cached);
        let steps = 1.0 + (pending + prompt - cached) / self.step_tokens;
        let decode_s = steps * c.decode_step_s(at.active_tokens as f64, f64::from(at.inflight));
        Sample {
            x: [pending + prompt - cached + attention, steps],
            y: elapsed_s - decode_s,
            scale: elapsed_s,
        }
    }

    fn endpoint(&mut self, now: Mono, id: EndpointId) -> &mut Endpoint {
        let index = usize::from(id.0);
        if index >= self.endpoints.len() {
            self.endpoints.resize(index + 1, None);
        }
        self.endpoints[index].get_or_insert_with(|| {
            let fit = Fit::new(ENDPOINT_MEMORY);
            Endpoint {
                assumed: None,
                first_byte: fit.clone(),
                stream: fit,
                taught: now,
            }
        })
    }
}

#[cfg(test)]
mod tests;
