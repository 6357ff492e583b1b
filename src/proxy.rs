//! The proxy: Pingora's phases in the order in which a request passes them.

pub mod auth;
pub mod body;
pub mod budget;
pub mod cors;
pub mod error;
pub mod guarded;

mod answer;
mod buffered;
mod context;
mod cork;
mod drive;
mod extension;
mod finish;
mod framing;
mod headers;
pub mod inspect;
mod join;
mod models;
pub mod queue;
mod upstream;
mod verdict;

pub use context::Context;

use crate::config::schema::{Forwarded, ResponseHeaders};
use crate::datalayer::dns::Dns;
use crate::lifecycle::Drain;
use crate::openai::PathKind;
use crate::pool::Pools;
use crate::prefix::PrefixIndex;
use crate::telemetry::Metrics;
use crate::telemetry::access_log::{AccessLog, Selection};
use crate::telemetry::decisions::RecentDecisions;
use crate::telemetry::recorder::Recorder;
use crate::telemetry::traces::Traces;
use crate::time::Mono;
use crate::tls::server::Certificate;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use auth::ApiKeys;
use body::{BodyError, BodyLimits};
use budget::BodyBudget;
use bytes::Bytes;
use context::Refusal;
use cors::Origins;
use error::Reason;
use pingora_core::connectors::http::Connector;
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What all requests share.
pub struct Gateway {
    /// Monotonic origin of every [`Mono`] in the process.
    pub origin: Instant,
    pub pools: ArcSwap<Pools>,
    pub settings: ArcSwap<Settings>,
    /// Which endpoint holds which prefix, over all pools.
    pub index: Arc<PrefixIndex>,
    pub budget: BodyBudget,
    pub metrics: Metrics,
    pub access_log: AccessLog,
    /// `None`: requests are not traced.
    pub traces: Option<Traces>,
    pub recorder: Recorder,
    pub decisions: RecentDecisions,
    pub drain: Drain,
    /// Connections for what the gateway itself asks endpoints.
    pub connector: Arc<Connector>,
    /// What the data port's TLS shows; none without `tls`.
    pub certificate: Option<Arc<Certificate>>,
    /// Finds the addresses of endpoints.
    pub dns: ArcSwap<Dns>,
}

/// What the configuration says of every request.
#[derive(Clone)]
pub struct Settings {
    pub body: BodyLimits,
    /// Largest request line and headers together, in bytes.
    pub max_header_bytes: u64,
    pub api_keys: ApiKeys,
    pub cors: Origins,
    pub forwarded: Forwarded,
    pub response_headers: ResponseHeaders,
    /// Which requests the access log gets.
    pub logged: Selection,
}

impl Gateway {
    /// Now, on the process's time line.
    pub fn now(&self) -> Mono {
        self.at(Instant::now())
    }

    /// A moment on the process's time line.
    pub fn at(&self, moment: Instant) -> Mono {
        let since_origin = moment.saturating_duration_since(self.origin);
        Mono::from_nanos(u64::try_from(since_origin.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Pingora's hooks around a shared [`Gateway`].
#[derive(Clone)]
pub struct Proxy(pub Arc<Gateway>);

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Box<Context>;

    fn new_ctx(&self) -> Box<Context> {
        Box::new(Context::new(self.0.drain.enter()))
    }

    /// None: the default one would compress nothing and still run for every request.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, ctx: &mut Box<Context>) -> Result<()> {
        ctx.corks = guarded::restore_session(session);
        headers::admit(session, &self.0.settings.load(), ctx);
        if let Some(traces) = &self.0.traces {
            ctx.trace = traces.begin(&session.req_header().headers);
        }
        Ok(())
    }

    /// Reads the body, decides where the request goes, and puts the replaying session in place; `true` when the request
    /// has been answered.
    async fn request_filter(&self, session: &mut Session, ctx: &mut Box<Context>) -> Result<bool> {
        if self.0.answers_itself(session, ctx).await? {
            return Ok(true);
        }
        if ctx.refused.is_none() && !session.as_mut().is_body_empty() {
            let limits = self.0.settings.load().body;
            let mut share = self.0.budget.share();
            match body::read(session, limits, &mut share).await {
                Ok(body) => {
                    ctx.request_bytes = body.len();
                    ctx.body_share = Some(share);
                    ctx.slot = Some(buffered::wrap(session, body.clone(), ctx.corks.clone()));
                    ctx.body = body;
                }
                Err(BodyError::Refused(reason)) => ctx.refused = Some(Refusal::plain(reason)),
                Err(BodyError::ClientGone) => return Err(answer::client_gone()),
            }
        }
        if ctx.refused.is_none() {
            self.0.decide(session, ctx).await?;
        }
        match ctx.refused {
            Some(_) => Box::pin(answer::refuse(session, ctx)).await,
            None => Ok(false),
        }
    }

    /// The first call takes the endpoint of the decision, a later one the next endpoint of the same decision.
    async fn upstream_peer(&self, _session: &mut Session, ctx: &mut Box<Context>) -> Result<Box<HttpPeer>> {
        if std::mem::take(&mut ctx.retry_same) {
            ctx.fresh_connection = true;
        } else if let Some(plan) = ctx.plan.as_mut().filter(|plan| plan.attempt.is_none()) {
            plan.advance(self.0.now());
        }
        upstream::peer(&self.0, ctx)
    }

    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        _reused: bool,
        _peer: &HttpPeer,
        socket: RawFd,
        _digest: Option<&Digest>,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        ctx.endpoint_socket = Some(socket);
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        headers::to_upstream(request, &self.0.settings.load(), ctx)?;
        if let Some(trace) = &ctx.trace {
            trace.send(request)?;
        }
        upstream::send_as_one(ctx);
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        if let Some(corks) = &ctx.corks {
            corks.uncork_endpoint();
        }
        if response.status.is_informational() {
            return Ok(());
        }
        upstream::response_head(&self.0, response, ctx)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Box<Context>,
    ) -> Result<()> {
        headers::to_client(session.req_header(), response, &self.0.settings.load(), ctx)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Box<Context>,
    ) -> Result<Option<Duration>> {
        upstream::response_body(&self.0, body.as_deref().unwrap_or_default(), end_of_stream, ctx)?;
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Box<Context>,
        mut error: Box<Error>,
    ) -> Box<Error> {
        let retry = upstream::failed(&self.0, ctx, Reason::ConnectFailed);
        error.set_retry(retry);
        error
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        ctx: &mut Box<Context>,
        client_reused: bool,
    ) -> Box<Error> {
        if let Some(corks) = &ctx.corks {
            corks.forget_endpoint();
        }
        let retry = upstream::broke(&self.0, session, ctx, &mut error, client_reused);
        error.set_retry(retry);
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut Box<Context>,
    ) -> FailToProxy {
        answer::failure(session, error, ctx).await
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Box<Context>) {
        if let Some(slot) = &ctx.slot {
            buffered::restore(session, slot);
        }
        finish::finish(&self.0, session, error, ctx);
    }

    /// Failures are told by the access log and the metrics, with more context than Pingora has.
    fn suppress_error_log(&self, _session: &Session, _ctx: &Box<Context>, _error: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _ctx: &Box<Context>,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }
}
