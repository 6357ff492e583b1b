//! From a request's body to a decision: parse, hash, look up, score, pick and reserve.

use super::answer;
use super::context::{Context, Refusal};
use super::error::Reason;
use super::queue::{claim, refusal};
use super::{Gateway, PathKind, cors, models};
use crate::datalayer::tokenize::{self, NoTokens};
use crate::openai::{AnswerReader, Peek, PromptSink};
use crate::pool::waiting::Admission;
use crate::pool::{CHUNK_BYTES, Keys, MAX_CHUNKS, Plan, Pool, Pools, Prompt, State, kept_name};
use crate::prefix::{ChainHasher, Chunking, seed};
use crate::telemetry::Metrics;
use bytes::Bytes;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use pingora_core::{Error, Result};
use pingora_proxy::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Longest wait for the first health checks of a pool that has just come up.
const FIRST_CHECK: Duration = Duration::from_secs(2);
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
        if self.settings.load().cors.answers(session.req_header()) {
            Box::pin(cors::preflight(session, ctx.cors_origin.clone())).await?;
            return Ok(true);
        }
        if models::asks_for_list(session.req_header(), ctx) && session.as_mut().is_body_empty() {
            // With keys of the gateway's own, the client's is none of the endpoints'.
            let own_keys = self.settings.load().api_keys.are_required();
            let client_key = session
                .req_header()
                .headers
                .get(AUTHORIZATION)
                .filter(|_| !own_keys);
            if let Some(list) = Box::pin(self.models(client_key.cloned().as_ref())).await {
                Box::pin(models::answer(session, ctx, list)).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the request's plan, if need be when its turn has come; or refuses the request when no pool serves its
    /// model, no endpoint can take it, or it waited in vain.
    ///
    /// # Errors
    /// When the client leaves while the request waits.
    pub(super) async fn decide(&self, session: &mut Session, ctx: &mut Context) -> Result<()> {
        let started = Instant::now();
        let body = std::mem::take(&mut ctx.body);
        let headers = &session.req_header().headers;
        let inspected = self.inspect(ctx.path_kind, &body, headers).await;
        if let Some(trace) = &mut ctx.trace {
            trace.parsed(started);
        }
        let Inspected {
            pool,
            mut prompt,
            tokenizing,
        } = match inspected {
            Ok(inspected) => inspected,
            Err(refusal) => {
                ctx.refused = Some(refusal);
                return Ok(());
            }
        };
        // It may have been replaced while its tokens were asked for.
        let pool = pool.newest();
        pool.settle(FIRST_CHECK).await;
        prompt.stopwatch = ctx.trace.as_ref().map(|trace| trace.stopwatch());
        let asked = Instant::now();
        let admission = match &pool.settings.waiting {
            Some(waiting) => pool.admit(
                prompt,
                claim(&waiting.sharing, headers, body.len()),
                &ctx.request_id,
                self.now(),
            ),
            None => Admission::Placed(pool.place(prompt, self.now())),
        };
        drop(body);
        ctx.decision_time = started.elapsed().saturating_sub(tokenizing);
        pool.decision_duration.observe(ctx.decision_time.as_secs_f64());
        let waited = matches!(admission, Admission::Waits(_));
        let plan = match admission {
            Admission::Placed(plan) => Ok(plan),
            Admission::Waits(waiting) => Box::pin(self.wait(session, waiting)).await?,
            Admission::Refused(away) => Err(refusal(&away)),
        };
        if let Some(trace) = &mut ctx.trace {
            trace.placed(asked, waited);
        }
        match plan {
            Ok(plan) => Self::take_plan(pool, plan, ctx),
            Err(refusal) => ctx.refused = Some(refusal),
        }
        Ok(())
    }

    fn take_plan(pool: &Pool, plan: Plan, ctx: &mut Context) {
        match &plan.attempt {
            Some(attempt) => {
                let metrics = &attempt.endpoint.metrics;
                metrics.count_decision(plan.decision.kind);
                metrics.cost.count(&plan.decision);
            }
            None => ctx.refused = Some(nobody(pool)),
        }
        ctx.plan = Some(plan);
    }

    /// Reads what scheduling needs from a body; a body that cannot be read is routed by load.
    ///
    /// # Errors
    /// When no pool serves the model.
    pub async fn inspect(
        &self,
        kind: PathKind,
        body: &Bytes,
        headers: &HeaderMap,
    ) -> std::result::Result<Inspected, Refusal> {
        let peek = if body.is_empty() {
            None
        } else {
            Peek::parse(body).ok()
        };
        let model = peek.as_ref().map(Peek::model).unwrap_or_default();
        let pool = pool_of(&self.pools.load(), &model)?;
        let Some(peek) = peek.filter(|_| kind.carries_prompt()) else {
            return Ok(Inspected {
                prompt: Prompt::unkeyed(&model),
                pool,
                tokenizing: Duration::ZERO,
            });
        };
        let started = Instant::now();
        let ids = token_ids(&self.metrics, &pool, kind, &peek, body).await;
        let tokenizing = if ids.is_some() {
            started.elapsed()
        } else {
            Duration::ZERO
        };
        let prompt = prompt(&pool, kind, &peek, ids.as_deref(), headers);
        Ok(Inspected {
            pool,
            prompt,
            tokenizing,
        })
    }
}

/// What a request's body says.
#[derive(Debug)]
pub struct Inspected {
    pub pool: Arc<Pool>,
    pub prompt: Prompt,
    /// The time that it took to get token ids, waiting included.
    pub tokenizing: Duration,
}

fn pool_of(pools: &Pools, model: &str) -> std::result::Result<Arc<Pool>, Refusal> {
    pools.for_model(model).cloned().ok_or_else(|| Refusal {
        reason: Reason::NotFound,
        detail: Some(format!(
            "The model `{}` does not exist: no pool serves it.",
            kept_name(model)
        )),
        retry_after: None,
    })
}

/// The ids of the request's prompts, where they are known or worth asking for.
async fn token_ids(
    metrics: &Metrics,
    pool: &Pool,
    kind: PathKind,
    peek: &Peek<'_>,
    body: &Bytes,
) -> Option<Vec<Vec<u32>>> {
    let wanted = pool.exact.is_some() || pool.tokenizer.is_some();
    if !wanted || !kind.fills_kv_cache() {
        return None;
    }
    if let Some(given) = tokenize::given(peek, kind) {
        return Some(given);
    }
    let source = pool.tokenizer.as_ref()?;
    // Boxed, like what else seldom happens: its future is large, and would be part of every request's.
    let ids = Box::pin(source.ids(kind, body, pool)).await;
    metrics.count_tokenization(
        &pool.name,
        ids.as_ref().map_or_else(NoTokens::outcome, |_| "success"),
    );
    ids.inspect_err(|why| tracing::debug!(pool = %pool.name, %why, "a prompt without tokens"))
        .ok()
}

fn prompt(
    pool: &Pool,
    kind: PathKind,
    peek: &Peek<'_>,
    ids: Option<&[Vec<u32>]>,
    headers: &HeaderMap,
) -> Prompt {
    let model = peek.model();
    let salt = peek.cache_salt();
    let exact = ids.and_then(|ids| {
        let salt = salt.as_deref().map(str::from_utf8).transpose().ok()?;
        pool.block_keys(ids, &model, salt)
    });
    let session = headers.get(SESSION_HEADER).map(|value| xxh3_64(value.as_bytes()));
    let session = session.or_else(|| peek.session().map(|id| xxh3_64(id.as_bytes())));
    let mut prompt = Prompt {
        max_output_tokens: peek.max_output_tokens(),
        fills_cache: kind.fills_kv_cache(),
        stream: peek.stream(),
        session,
        conversation: pool.settings.gate.as_ref().and_then(|gate| gate.session(headers)),
        ..Prompt::unkeyed(&model)
    };
    if let Some(keys) = exact {
        prompt.tokens = keys.tokens();
        prompt.keys = Some(Keys::Blocks(keys));
        return prompt;
    }
    let seed = seed(&model, salt.as_deref(), &pool.name);
    key_by_bytes(&mut prompt, pool, kind, peek, seed);
    if let Some(ids) = ids {
        let tokens = ids.iter().map(Vec::len).sum::<usize>();
        prompt.tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        prompt.rate = None;
    }
    prompt
}

/// Keys of chunks of the prompt's canonical bytes, and an estimate of its tokens.
fn key_by_bytes(prompt: &mut Prompt, pool: &Pool, kind: PathKind, peek: &Peek<'_>, seed: u64) {
    let chunking = Chunking {
        chunk_bytes: CHUNK_BYTES,
        max_blocks: MAX_CHUNKS,
    };
    let mut hasher = ChainHasher::new(seed, chunking);
    let fed = peek.feed(kind, &mut hasher);
    let (keys, next) = hasher.finish_and_continue();
    let goes_on = pool.exact.is_none()
        && fed.prompts == 1
        && fed.tokens.is_none()
        && peek.best_of() == 1
        && !peek.echo()
        && AnswerReader::reads(kind);
    prompt.continuation = goes_on.then(|| Box::new(next));
    let rate = fed.tokens.is_none().then(|| pool.rates.of(&prompt.model));
    prompt.tokens = match &rate {
        Some(rate) => rate
            .tokens(keys.total_bytes())
            .saturating_add(fed.media_parts.saturating_mul(MEDIA_TOKENS)),
        None => fed
            .tokens
            .map_or(0, |tokens| u32::try_from(tokens).unwrap_or(u32::MAX)),
    };
    prompt.rate = rate;
    prompt.keys = (!keys.is_empty()).then_some(Keys::Chunks(keys));
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
