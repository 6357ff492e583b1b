//! The end of a request: what was learnt, counted and logged. Everything reserved is given back by then.

use super::Gateway;
use super::context::Context;
use crate::openai::{FinishReason, ResponseFacts};
use crate::pool::{Attempt, Plan};
use crate::scheduling::StreamRate;
use crate::telemetry::access_log::Record;
use crate::telemetry::decisions::DecisionRecord;
use crate::telemetry::recorder::Recorded;
use crate::time::Mono;
use pingora_core::{Error, ErrorSource};
use pingora_proxy::Session;
use std::time::{Duration, Instant, SystemTime};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The endpoint's whole response reached the client.
    Complete,
    /// The client left before.
    ClientGone,
    /// The response broke after its head had been sent.
    Broken,
    /// The gateway answered itself.
    Refused,
}

impl Outcome {
    fn of(error: Option<&Error>, ctx: &Context) -> Self {
        match error {
            _ if ctx.refused.is_some() => Self::Refused,
            None => Self::Complete,
            Some(error) if *error.esource() == ErrorSource::Downstream => Self::ClientGone,
            Some(_) => Self::Broken,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientGone => "client-gone",
            Self::Broken => "upstream-broken",
            Self::Refused => "refused",
        }
    }
}

/// When a request ended. Asked once: a clock costs more than most of what is done with its time.
#[derive(Clone, Copy)]
struct End {
    now: Mono,
    wall: SystemTime,
    /// Since the request began.
    elapsed: Duration,
}

impl End {
    fn now(gateway: &Gateway, ctx: &Context) -> Self {
        let now = Instant::now();
        Self {
            now: gateway.at(now),
            wall: SystemTime::now(),
            elapsed: now.saturating_duration_since(ctx.started),
        }
    }
}

/// Ends the request.
pub fn finish(gateway: &Gateway, session: &Session, error: Option<&Error>, ctx: &mut Context) {
    let outcome = Outcome::of(error, ctx);
    let status = status(session, outcome, ctx);
    if let Some(scanner) = ctx.response.scanner.take() {
        ctx.response.facts = scanner.finish();
    }
    let facts = ctx.response.facts;
    let end = End::now(gateway, ctx);
    if let Some(refusal) = &ctx.refused {
        gateway.metrics.count_error(refusal.reason);
    }
    if outcome == Outcome::Complete {
        learn(ctx, &facts, end);
        if let (Some(extension), Some(plan)) = (ctx.response.extension.take(), &ctx.plan) {
            extension.finish(plan, &facts);
        }
        count_tokens(ctx, &facts, end);
        add_to_trace(gateway, ctx, &facts, end);
    }
    count(gateway, ctx, status, end.elapsed);
    compare(ctx, &facts);
    judge_endpoint(ctx, outcome, &facts, end);
    let is_logged = gateway.access_log.is_on()
        && gateway
            .settings
            .load()
            .logged
            .takes(status, end.elapsed, rand::random);
    let trace = ctx.trace.take();
    if is_logged || trace.is_some() {
        let trace_id = trace.as_ref().map(|trace| trace.id());
        let record = Record {
            trace_id: trace_id.as_deref(),
            ..record(session, ctx, outcome, status, &facts, end)
        };
        if is_logged {
            gateway.access_log.write(&record);
        }
        if let (Some(traces), Some(trace)) = (&gateway.traces, trace) {
            traces.end(*trace, &record, ctx.path_kind.operation());
        }
    }
    if let Some(mut plan) = ctx.plan.take() {
        let pool = plan.pool.clone();
        if let Some(tokens) = facts.completion_tokens {
            plan.said(end.now, u32::try_from(tokens).unwrap_or(u32::MAX));
        }
        remember(gateway, plan, ctx, status, &facts, end);
        pool.freed(end.now);
    }
}

/// The status that the client saw; 499 when it left before it saw one.
fn status(session: &Session, outcome: Outcome, ctx: &Context) -> u16 {
    match (&ctx.refused, session.response_written()) {
        (Some(refusal), _) => refusal.reason.status(),
        (None, Some(head)) if !head.status.is_informational() => head.status.as_u16(),
        _ if outcome == Outcome::ClientGone => 499,
        _ => ctx.response.status,
    }
}

/// Counts the request for or against the endpoint that answered it. A client's leaving and a client's errors say
/// nothing about the endpoint.
fn judge_endpoint(ctx: &Context, outcome: Outcome, facts: &ResponseFacts, end: End) {
    let Some(plan) = &ctx.plan else { return };
    let Some(attempt) = &plan.attempt else { return };
    let said_error = ctx.response.is_sse && facts.error;
    let failed = outcome == Outcome::Broken
        || said_error
        || facts.finish == Some(FinishReason::Abort)
        || (ctx.response.status >= 500 && !ctx.response.busy);
    if failed {
        plan.pool.failed(&attempt.endpoint, end.now);
    } else if outcome == Outcome::Complete {
        plan.pool.succeeded(&attempt.endpoint, end.now);
    }
}

/// Corrects the estimates by what the engine reported of an undisturbed request.
fn learn(ctx: &Context, facts: &ResponseFacts, end: End) {
    let Some(plan) = &ctx.plan else { return };
    let Some(attempt) = &plan.attempt else { return };
    if let (Some(rate), Some(tokens)) = (&plan.prompt.rate, facts.prompt_tokens) {
        rate.observe(plan.prompt.bytes(), tokens);
        plan.pool.rates.overall.observe(plan.prompt.bytes(), tokens);
    }
    if let (Some(prompt_tokens), 1) = (facts.prompt_tokens, plan.attempts()) {
        plan.learn_match(facts.cached_tokens, prompt_tokens);
    }
    let Some(completion_tokens) = facts.completion_tokens else {
        return;
    };
    let stream = (plan.attempts() == 1)
        .then(|| stream_rate(ctx, attempt, completion_tokens, end))
        .flatten();
    plan.pool.learn(|scheduler| {
        let tokens = u32::try_from(completion_tokens).unwrap_or(u32::MAX);
        scheduler.observe_output(&plan.prompt.model, tokens);
        if let Some(rate) = stream {
            scheduler.observe_stream(end.now, attempt.endpoint.id, &rate);
        }
    });
}

/// Adds the request to the recorded trace, if one is written.
fn add_to_trace(gateway: &Gateway, ctx: &Context, facts: &ResponseFacts, end: End) {
    let Some(plan) = ctx.plan.as_ref().filter(|_| gateway.recorder.is_on()) else {
        return;
    };
    let Some(attempt) = &plan.attempt else { return };
    if !(plan.prompt.fills_cache && (200..300).contains(&ctx.response.status)) {
        return;
    }
    let prompt = &plan.prompt;
    // Streams tell their usage only to those who ask for it.
    let output_tokens = facts.completion_tokens.unwrap_or_else(|| {
        let expected = plan
            .pool
            .expected_output_tokens(&prompt.model, prompt.max_output_tokens);
        u64::from(expected)
    });
    gateway.recorder.write(&Recorded {
        arrived: end.wall - end.elapsed,
        prompt,
        engine_block_tokens: attempt.block_tokens,
        prompt_tokens: facts.prompt_tokens.unwrap_or_else(|| prompt.tokens.into()),
        output_tokens,
    });
}

/// Mean time from one token to the next; `None` for what was no stream or too short to say.
fn s_per_token(ctx: &Context, attempt: &Attempt, tokens: u64, end: End) -> Option<f64> {
    if !ctx.response.is_sse || tokens < 2 {
        return None;
    }
    let first_byte_at = attempt.dispatch.at + ctx.response.first_byte_after?;
    Some(end.now.since(first_byte_at).as_secs_f64() / (tokens - 1) as f64)
}

/// How fast the stream ran.
fn stream_rate(ctx: &Context, attempt: &Attempt, tokens: u64, end: End) -> Option<StreamRate> {
    let s_per_token = s_per_token(ctx, attempt, tokens, end)?;
    let load = attempt.endpoint.load.sample();
    let active_tokens = (attempt.active_before + load.active_tokens) as f64 / 2.0;
    Some(StreamRate {
        s_per_token,
        active_tokens,
        inflight: f64::from(load.inflight),
    })
}

fn count(gateway: &Gateway, ctx: &Context, status: u16, elapsed: Duration) {
    let kind = ctx.path_kind.as_str();
    let Some(plan) = &ctx.plan else {
        return gateway.metrics.count_unrouted("", status, kind);
    };
    let Some(attempt) = &plan.attempt else {
        return gateway.metrics.count_unrouted(&plan.pool.name, status, kind);
    };
    let metrics = &attempt.endpoint.metrics;
    metrics.count_request(status, kind);
    metrics.request_duration.observe(elapsed.as_secs_f64());
    if let Some(first_byte) = ctx.response.first_byte_after {
        metrics.first_byte.observe(first_byte.as_secs_f64());
    }
    let blocks = plan.blocks();
    metrics.prompt_blocks.inc_by(blocks.total.into());
    metrics.matched_blocks.inc_by(blocks.matched.into());
}

/// Counts tokens and their times by model, of what an endpoint answered well: so that clients cannot make up labels.
fn count_tokens(ctx: &Context, facts: &ResponseFacts, end: End) {
    let answered = ctx.path_kind.carries_prompt() && (200..300).contains(&ctx.response.status);
    let Some(plan) = ctx.plan.as_ref().filter(|_| answered) else {
        return;
    };
    let Some(attempt) = &plan.attempt else { return };
    let Some(metrics) = attempt.endpoint.metrics.model(&plan.prompt.model) else {
        return;
    };
    metrics.count_tokens(facts.prompt_tokens, facts.cached_tokens, facts.completion_tokens);
    if let Some(first_byte) = ctx.response.first_byte_after.filter(|_| ctx.response.is_sse) {
        metrics.first_token.observe(first_byte.as_secs_f64());
    }
    let tokens = facts.completion_tokens.unwrap_or(0);
    if let Some(s_per_token) = s_per_token(ctx, attempt, tokens, end) {
        metrics.inter_token.observe(s_per_token);
    }
}

/// Counts the predicted against the reported match.
fn compare(ctx: &Context, facts: &ResponseFacts) {
    let Some(reported) = facts.cached_tokens else {
        return;
    };
    if let Some(attempt) = ctx.plan.as_ref().and_then(|plan| plan.attempt.as_ref()) {
        let predicted = u64::from(attempt.match_tokens);
        attempt.endpoint.metrics.kv.count_prediction(predicted, reported);
    }
}

/// What there is to tell of the request.
fn record<'a>(
    session: &'a Session,
    ctx: &'a Context,
    outcome: Outcome,
    status: u16,
    facts: &ResponseFacts,
    end: End,
) -> Record<'a> {
    let plan = ctx.plan.as_ref();
    let attempt = plan.and_then(|plan| plan.attempt.as_ref());
    let blocks = plan.map(Plan::blocks).unwrap_or_default();
    let request = session.req_header();
    Record {
        at: end.wall,
        request_id: &ctx.request_id,
        client: session
            .client_addr()
            .and_then(|address| address.as_inet())
            .copied(),
        method: request.method.as_str(),
        path: request.uri.path(),
        pool: plan.map(|plan| &*plan.pool.name),
        model: plan
            .map(|plan| &*plan.prompt.model)
            .filter(|model| !model.is_empty()),
        endpoint: attempt.map(|attempt| &*attempt.endpoint.name),
        status,
        error: ctx.refused.as_ref().map(|refusal| refusal.reason.label()),
        outcome: outcome.as_str(),
        decision: plan.map(|plan| plan.decision.kind.as_str()),
        attempts: plan.map_or(0, Plan::attempts),
        stream: ctx.response.is_sse,
        request_bytes: ctx.request_bytes,
        response_bytes: ctx.response.bytes,
        prompt_tokens: plan.map_or(0, |plan| plan.prompt.tokens),
        prompt_blocks: blocks.total,
        matched_blocks: blocks.matched,
        reported_prompt_tokens: facts.prompt_tokens,
        reported_cached_tokens: facts.cached_tokens,
        completion_tokens: facts.completion_tokens,
        decision_time: ctx.decision_time,
        first_byte_after: ctx.response.first_byte_after,
        duration: end.elapsed,
        trace_id: None,
    }
}

/// Milliseconds with three decimals.
fn millis(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

/// Keeps the decision for the admin pages.
fn remember(
    gateway: &Gateway,
    mut plan: Plan,
    ctx: &mut Context,
    status: u16,
    facts: &ResponseFacts,
    end: End,
) {
    let attempt = plan.attempt.as_ref();
    let record = DecisionRecord {
        at_unix_ms: end
            .wall
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64),
        pool: plan.pool.name.clone(),
        model: std::mem::take(&mut plan.prompt.model).into(),
        path_kind: ctx.path_kind.as_str(),
        prompt: plan.shape(),
        snapshot: plan.snapshot.clone(),
        endpoint: attempt.map(|attempt| attempt.endpoint.name.clone()),
        attempts: plan.attempts(),
        status,
        predicted_cached_tokens: attempt.map_or(0, |attempt| attempt.match_tokens),
        reported_cached_tokens: facts.cached_tokens,
        predicted_ttfb_ms: attempt
            .and_then(|attempt| attempt.dispatch.predicted_first_byte_s)
            .map(millis),
        ttfb_ms: ctx
            .response
            .first_byte_after
            .map(|after| millis(after.as_secs_f64())),
        request_id: std::mem::take(&mut ctx.request_id),
        decision: plan.take_decision(),
    };
    gateway.decisions.push(record);
}
