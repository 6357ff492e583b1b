//! The admin port's paths.

use super::stats::Stats;
use super::{Admin, explain, page, views};
use crate::openai::ErrorBody;
use crate::pool::Pool;
use http::{Method, header};
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use hyper::http::request::Parts;
use serde_json::{Value, json};
use std::sync::Arc;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Decisions shown when the request does not say how many.
const DEFAULT_DECISIONS: usize = 50;

type Answer = Response<Full<Bytes>>;

impl Admin {
    /// Answers one request.
    pub(super) async fn route(&self, head: &Parts, body: &Bytes) -> Answer {
        let path = head.uri.path();
        match (&head.method, path) {
            (&Method::GET | &Method::HEAD, "/livez") => answer(200, TEXT, "ok\n"),
            (&Method::GET | &Method::HEAD, "/readyz") => self.readyz(has_flag(head, "verbose")),
            (&Method::GET, "/metrics") => self.metrics(),
            (&Method::GET, "/endpoints") => json_answer(&views::endpoints(&self.gateway)),
            (&Method::GET, "/stats") => self.stats(),
            (&Method::GET, "/decisions") => {
                let limit = number(head, "limit").unwrap_or(DEFAULT_DECISIONS);
                let candidates = number(head, "candidates").unwrap_or(usize::MAX);
                json_answer(&self.gateway.decisions.to_json(limit, candidates))
            }
            (&Method::GET, "/queue") => explain::queue(&self.gateway, head),
            (&Method::POST, "/explain") => explain::explain(&self.gateway, head, body).await,
            (&Method::POST, _) => match drain_target(path) {
                Some((pool, endpoint, draining)) => self.drain(pool, endpoint, draining),
                None => error(404, "no such path"),
            },
            (
                _,
                "/livez" | "/readyz" | "/metrics" | "/endpoints" | "/decisions" | "/explain" | "/queue"
                | "/stats",
            ) => error(405, "this path does not take this method"),
            (&Method::GET | &Method::HEAD, _) => {
                page::file(path).unwrap_or_else(|| error(404, "no such path"))
            }
            _ => error(404, "no such path"),
        }
    }

    /// What keeps the gateway from being ready.
    fn pending(&self) -> Vec<(String, String)> {
        let mut pending = self.readiness.pending();
        for pool in self.gateway.pools.load().iter() {
            if pool.snapshot().ready().next().is_none() {
                pending.push((format!("pool {}", pool.name), "no endpoint is ready".to_owned()));
            }
        }
        pending
    }

    fn stats(&self) -> Answer {
        let pending = self
            .pending()
            .into_iter()
            .map(|(task, why)| format!("{task}: {why}"));
        match serde_json::to_vec(&Stats::of(&self.gateway, pending.collect())) {
            Ok(text) => answer(200, JSON, text),
            Err(fault) => error(500, &fault.to_string()),
        }
    }

    fn readyz(&self, verbose: bool) -> Answer {
        let pending = self.pending();
        let status = if pending.is_empty() { 200 } else { 503 };
        let mut text = if pending.is_empty() {
            "ready\n".to_owned()
        } else {
            "not ready\n".to_owned()
        };
        for (task, why) in pending {
            text += &format!("pending: {task}: {why}\n");
        }
        if verbose {
            for pool in self.gateway.pools.load().iter() {
                let snapshot = pool.snapshot();
                let (ready, all) = (snapshot.ready().count(), snapshot.entries.len());
                text += &format!("pool {}: {ready} of {all} endpoints ready\n", pool.name);
            }
            let count = self.gateway.drain.count();
            text += &format!("requests in flight and open connections: {count}\n");
        }
        answer(status, TEXT, text)
    }

    fn metrics(&self) -> Answer {
        views::refresh_gauges(&self.gateway);
        match self.gateway.metrics.encode() {
            Ok(text) => answer(200, "text/plain; version=0.0.4; charset=utf-8", text),
            Err(fault) => error(500, &fault.to_string()),
        }
    }

    fn drain(&self, pool: &str, endpoint: &str, draining: bool) -> Answer {
        let pools = self.gateway.pools.load();
        let found: Option<&Arc<Pool>> = pools.by_name(pool);
        let Some(pool) = found else {
            return error(404, "no pool of that name");
        };
        let known = pool.update_where(|e| *e.name == *endpoint, |status| status.set_draining(draining));
        if !known {
            return error(404, "no endpoint of that name in the pool");
        }
        tracing::info!(pool = %pool.name, endpoint, draining, "an operator changed the endpoint's state");
        json_answer(&json!({ "pool": &*pool.name, "endpoint": endpoint, "draining": draining }))
    }
}

/// Takes `/endpoints/{pool}/{name}/drain` or `/undrain` apart.
fn drain_target(path: &str) -> Option<(&str, &str, bool)> {
    let rest = path.strip_prefix("/endpoints/")?;
    let (names, verb) = rest.rsplit_once('/')?;
    let (pool, endpoint) = names.split_once('/')?;
    match verb {
        "drain" => Some((pool, endpoint, true)),
        "undrain" => Some((pool, endpoint, false)),
        _ => None,
    }
}

/// The value of a query parameter; the admin port's own have no escapes.
pub(super) fn parameter<'a>(head: &'a Parts, name: &str) -> Option<&'a str> {
    let pairs = head.uri.query()?.split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

fn number(head: &Parts, name: &str) -> Option<usize> {
    parameter(head, name)?.parse().ok()
}

fn has_flag(head: &Parts, name: &str) -> bool {
    head.uri
        .query()
        .is_some_and(|query| query.split('&').any(|pair| pair.split('=').next() == Some(name)))
}

fn answer(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    // All statuses given here are valid.
    *answer.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content_type),
    );
    answer.headers_mut().insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-store"),
    );
    answer
}

/// A JSON answer.
pub(super) fn json_answer(value: &Value) -> Answer {
    answer(200, JSON, value.to_string())
}

/// An error answer in the API's shape.
pub(super) fn error(status: u16, message: &str) -> Answer {
    answer(status, JSON, ErrorBody::new(status, message).to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_paths() {
        assert_eq!(
            drain_target("/endpoints/default/pod-a/drain"),
            Some(("default", "pod-a", true))
        );
        assert_eq!(
            drain_target("/endpoints/p/10.0.0.1:8000/undrain"),
            Some(("p", "10.0.0.1:8000", false))
        );
        assert_eq!(drain_target("/endpoints/default/drain"), None);
        assert_eq!(drain_target("/endpoints/default/pod-a/restart"), None);
    }
}
