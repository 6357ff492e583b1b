//! From a request's body to a decision: parse, hash, look up, score, pick and reserve.

use super::answer;
use super::context::{Context, Refusal};
use super::error::Reason;
use super::{Gateway, PathKind, cors, models};
use crate::openai::{Peek, PromptSink};
use crate::pool::{CHUNK_BYTES, MAX_CHUNKS, Pool, Pools, Prompt, State};
use crate::prefix::{ChainHasher, Chunking, seed};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use pingora_core::{Error, Result};
use pingora_proxy::Session;
use std::sync::Arc;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// Header by which a client names the conversation that a request belongs to.
const SESSION_HEADER: &str = "x-session-id";

/// Prompt tokens assumed for an image or another part that is no text: what current vision models make of a
/// picture of ordinary size.
const MEDIA_TOKENS: u32 = 576;

impl PromptSink for ChainHasher {
    fn write(&mut self, bytes: &[u8]) {
        Self::write(self, bytes);
    }

    fn next_prompt(&mut self) {
        Self::next_prompt(self);
    }
}

impl Gateway {
    /// Answers what needs no endpoint of its own: preflights and the list of models.
    pub(super) async fn answers_itself(&self, session: &mut Session, ctx: &Context) -> Result<bool> {
        if ctx.refused.is_some() {
            return Ok(false);
        }
        if self.settings.cors.answers(session.req_header()) {
            cors::preflight(session, ctx.cors_origin.clone()).await?;
            return Ok(true);
        }
        if models::asks_for_list(session.req_header(), ctx) && session.as_mut().is_body_empty() {
            // With keys of the gateway's own, the client's is none of the endpoints'.
            let own_keys = self.settings.api_keys.are_required();
            let client_key = session
                .req_header()
                .headers
                .get(AUTHORIZATION)
                .filter(|_| !own_keys);
            if let Some(list) = self.models(client_key.cloned().as_ref()).await {
                models::answer(session, ctx, list).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the request's plan, or refuses the request when no pool serves its model or no endpoint can take it.
    pub(super) fn decide(&self, session: &Session, ctx: &mut Context) {
        let started = Instant::now();
        let body = std::mem::take(&mut ctx.body);
        let inspected = inspect(
            &self.pools.load(),
            ctx.path_kind,
            &body,
            &session.req_header().headers,
        );
        let (pool, prompt) = match inspected {
            Ok(inspected) => inspected,
            Err(refusal) => {
                ctx.refused = Some(refusal);
                return;
            }
        };
        let plan = pool.place(prompt, self.now());
        ctx.decision_time = started.elapsed();
        pool.decision_duration.observe(ctx.decision_time.as_secs_f64());
        match &plan.attempt {
            Some(attempt) => attempt.endpoint.metrics.count_decision(plan.decision.kind),
            None => ctx.refused = Some(nobody(&pool)),
        }
        ctx.plan = Some(plan);
    }
}

/// Reads what scheduling needs from a body; a body that cannot be read is routed by load.
///
/// # Errors
/// When no pool serves the model.
pub fn inspect(
    pools: &Pools,
    kind: PathKind,
    body: &[u8],
    headers: &HeaderMap,
) -> std::result::Result<(Arc<Pool>, Prompt), Refusal> {
    let peek = if body.is_empty() {
        None
    } else {
        Peek::parse(body).ok()
    };
    let model = peek.as_ref().map(Peek::model).unwrap_or_default();
    let Some(pool) = pools.for_model(&model) else {
        let detail = Some(format!("The model `{model}` does not exist: no pool serves it."));
        return Err(Refusal {
            reason: Reason::NotFound,
            detail,
        });
    };
    let Some(peek) = peek.filter(|_| kind.carries_prompt()) else {
        return Ok((pool.clone(), Prompt::unkeyed(&model)));
    };
    let salt = peek.cache_salt();
    let chunking = Chunking {
        chunk_bytes: CHUNK_BYTES,
        max_blocks: MAX_CHUNKS,
    };
    let mut hasher = ChainHasher::new(seed(&model, salt.as_deref(), &pool.name), chunking);
    let fed = peek.feed(kind, &mut hasher);
    let keys = hasher.finish();
    let rate = fed.tokens.is_none().then(|| pool.rates.of(&model));
    let tokens = match &rate {
        Some(rate) => rate
            .tokens(keys.total_bytes())
            .saturating_add(fed.media_parts.saturating_mul(MEDIA_TOKENS)),
        None => fed
            .tokens
            .map_or(0, |tokens| u32::try_from(tokens).unwrap_or(u32::MAX)),
    };
    let session = headers.get(SESSION_HEADER).map(|value| xxh3_64(value.as_bytes()));
    let prompt = Prompt {
        model: model.as_ref().into(),
        tokens,
        rate,
        max_output_tokens: peek.max_output_tokens(),
        fills_cache: kind.fills_kv_cache(),
        stream: peek.stream(),
        session: session.or_else(|| peek.session().map(|id| xxh3_64(id.as_bytes()))),
        keys: (!keys.is_empty()).then_some(keys),
    };
    Ok((pool.clone(), prompt))
}

/// Why a pool could place a request nowhere.
fn nobody(pool: &Pool) -> Refusal {
    let any_ready = pool
        .snapshot()
        .entries
        .iter()
        .any(|entry| entry.state == State::Ready);
    Refusal::plain(if any_ready {
        Reason::Overloaded
    } else {
        Reason::NoEndpoint
    })
}

/// The error of a request whose last endpoint failed and that has no further one.
pub fn exhausted(ctx: &mut Context) -> Box<Error> {
    let reason = ctx.failure.unwrap_or(Reason::NoEndpoint);
    answer::refused(ctx, Refusal::plain(reason))
}
