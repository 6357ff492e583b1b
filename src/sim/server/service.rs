//! From a path to its answer.

use super::body::Body;
use super::error::ApiError;
use super::generation::Generation;
use super::http::{METRICS_TEXT, Reply, empty, events, json, method_not_allowed, not_found, reply};
use super::reply::{Job, SseBody, whole};
use super::request::{Api, GenerationRequest};
use super::{Inner, info, metrics};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, StatusCode};
use std::convert::Infallible;
use std::sync::Arc;

const LOAD_FORMAT: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");
const LOAD_REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a path does.
#[derive(Clone, Copy)]
enum Route {
    Health,
    Ping,
    Version,
    Metrics,
    Load,
    Models,
    KvEventSources,
    Generate(Api),
    Render(Api),
    CountTokens,
    Tokenize,
    Detokenize,
    ResetPrefixCache,
    Sleep,
    WakeUp,
    IsSleeping,
    Pause,
    Resume,
    IsPaused,
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/health" => Self::Health,
            "/ping" => Self::Ping,
            "/version" => Self::Version,
            "/metrics" => Self::Metrics,
            "/load" => Self::Load,
            "/v1/models" => Self::Models,
            "/kv_event_sources" => Self::KvEventSources,
            "/v1/completions" => Self::Generate(Api::Completions),
            "/v1/chat/completions" => Self::Generate(Api::Chat),
            "/v1/messages" => Self::Generate(Api::Messages),
            "/v1/responses" => Self::Generate(Api::Responses),
            "/v1/completions/render" => Self::Render(Api::Completions),
            "/v1/chat/completions/render" => Self::Render(Api::Chat),
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/reset_prefix_cache" => Self::ResetPrefixCache,
            "/sleep" => Self::Sleep,
            "/wake_up" => Self::WakeUp,
            "/is_sleeping" => Self::IsSleeping,
            "/pause" => Self::Pause,
            "/resume" => Self::Resume,
            "/is_paused" => Self::IsPaused,
            _ => return None,
        })
    }

    /// The methods it knows, as the `allow` header tells them.
    const fn methods(self) -> &'static str {
        match self {
            Self::Health
            | Self::Version
            | Self::Metrics
            | Self::Load
            | Self::Models
            | Self::KvEventSources => "GET",
            Self::IsSleeping | Self::IsPaused => "GET",
            Self::Ping => "GET, POST",
            _ => "POST",
        }
    }

    /// Whether the body is JSON that must be read first.
    const fn takes_json(self) -> bool {
        matches!(
            self,
            Self::Generate(_) | Self::Render(_) | Self::CountTokens | Self::Tokenize | Self::Detokenize
        )
    }
}

/// Answers one request.
pub(super) async fn serve(server: Arc<Inner>, request: Request<Incoming>) -> Result<Reply, Infallible> {
    let (head, body) = request.into_parts();
    let Some(route) = Route::of(head.uri.path()) else {
        return Ok(not_found());
    };
    if !route
        .methods()
        .split(", ")
        .any(|method| method == head.method.as_str())
    {
        // FastAPI registers each method as a route of its own and names the first.
        let allow = route.methods().split(", ").next().unwrap_or_default();
        return Ok(method_not_allowed(allow));
    }
    if !route.takes_json() {
        return Ok(plain(&server, route, &head));
    }
    let Ok(body) = body.collect().await else {
        return Ok(ApiError::bad_request("The request body ended early").reply());
    };
    let body = body.to_bytes();
    let answer = match json_body(&head.headers, &body) {
        Ok(body) => with_json(&server, route, &head.headers, &body).await,
        Err(error) => Err(error),
    };
    Ok(answer.unwrap_or_else(|error| error.reply()))
}

fn plain(server: &Inner, route: Route, head: &Parts) -> Reply {
    let query = head.uri.query().unwrap_or_default();
    match route {
        Route::Health if server.is_healthy() => empty(StatusCode::OK),
        Route::Health => empty(StatusCode::SERVICE_UNAVAILABLE),
        Route::Ping => empty(StatusCode::OK),
        Route::Version => json(r#"{"version":"0.32.0"}"#),
        Route::Metrics => reply(StatusCode::OK, METRICS_TEXT, metrics::render(server)),
        Route::Load => json(format!(r#"{{"server_load":{}}}"#, server.driver.in_flight())),
        Route::Models => info::models(server),
        Route::KvEventSources => json(server.kv_event_sources()),
        Route::ResetPrefixCache => info::reset_prefix_cache(server),
        Route::Sleep => info::sleep(server, query),
        Route::WakeUp => info::wake_up(server),
        Route::IsSleeping => json(format!(r#"{{"is_sleeping":{}}}"#, server.driver.is_sleeping())),
        Route::Pause => info::pause(server, query),
        Route::Resume => info::resume(server),
        Route::IsPaused => json(format!(r#"{{"is_paused":{}}}"#, server.driver.is_paused())),
        _ => not_found(),
    }
}

fn json_body<'a>(headers: &HeaderMap, bytes: &'a [u8]) -> Result<Body<'a>, ApiError> {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(ApiError::validation(
            "Unsupported Media Type: Only 'application/json' is allowed",
            None,
        ));
    }
    Body::parse(bytes)
}

async fn with_json(
    server: &Arc<Inner>,
    route: Route,
    headers: &HeaderMap,
    body: &Body<'_>,
) -> Result<Reply, ApiError> {
    match route {
        Route::Generate(api) => generate(server, api, headers, body).await,
        Route::Render(api) => info::render(server, api, body),
        Route::CountTokens => info::count_tokens(server, body),
        Route::Tokenize => info::tokenize(server, body),
        Route::Detokenize => info::detokenized(server, body),
        _ => Ok(not_found()),
    }
}

/// Dropping the future, as hyper does when the client goes away, aborts the request.
async fn generate(
    server: &Arc<Inner>,
    api: Api,
    headers: &HeaderMap,
    body: &Body<'_>,
) -> Result<Reply, ApiError> {
    let request = GenerationRequest::parse(api, body, &server.options)?;
    let (block_size, max_len) = (server.options.engine.block_size, server.options.max_model_len);
    let generation = Generation::start(&server.driver, &request, block_size, max_len)?;
    server.params_n.lock().observe(f64::from(request.n));
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let job = Job {
        id: given.map_or_else(|| server.next_id(), str::to_owned),
        created: server.created(),
        fingerprint: server.fingerprint.clone(),
        details: server.options.enable_prompt_tokens_details,
        request,
    };
    let mut answer = if job.request.stream {
        events(SseBody::new(generation, job))
    } else {
        std::future::poll_fn(|cx| generation.poll_ended(cx)).await;
        json(whole(&job, &generation))
    };
    if let Some(report) = load_report(server, headers) {
        answer.headers_mut().insert(LOAD_REPORT, report);
    }
    Ok(answer)
}

/// The ORCA load report, if the request asks for one.
fn load_report(server: &Inner, headers: &HeaderMap) -> Option<HeaderValue> {
    let format = headers.get(LOAD_FORMAT)?.to_str().ok()?;
    let (waiting, usage) = server.driver.load_report();
    let waiting = f64::from(waiting);
    let text = match format.to_ascii_lowercase().as_str() {
        "json" => format!(
            "JSON {{\"named_metrics\": {{\"num_requests_waiting\": {waiting:?}, \"kv_cache_usage_perc\": {usage:?}}}}}"
        ),
        "text" => format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        ),
        _ => return None,
    };
    HeaderValue::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_names_its_methods() {
        for (path, methods) in [
            ("/health", "GET"),
            ("/ping", "GET, POST"),
            ("/v1/completions", "POST"),
        ] {
            assert_eq!(Route::of(path).map(Route::methods), Some(methods));
        }
        assert!(Route::of("/v1/nope").is_none());
        assert!(!Route::Health.methods().contains("HEAD"));
    }
}
