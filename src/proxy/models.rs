//! `GET /v1/models`: what the fleet serves, as one list, while at least one endpoint answers.

use super::Gateway;
use super::context::Context;
use crate::datalayer::fetch::Page;
use crate::openai::PathKind;
use crate::pool::Endpoint;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Method, header};
use pingora_core::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for one endpoint's list.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a request asks for the whole list.
pub fn asks_for_list(request: &RequestHeader, ctx: &Context) -> bool {
    let path = request.uri.path().trim_end_matches('/');
    ctx.path_kind == PathKind::Models && path == "/v1/models" && request.method == Method::GET
}

impl Gateway {
    /// The models of all ready endpoints, each once, in the order of the configuration; `None` when no endpoint
    /// gave a list.
    pub(super) async fn models(&self, client_key: Option<&HeaderValue>) -> Option<Bytes> {
        let mut asked: Vec<(Arc<Endpoint>, Option<HeaderValue>)> = Vec::new();
        for pool in self.pools.load().iter() {
            let key = pool.settings.api_key.as_ref().or(client_key);
            let ready = pool
                .snapshot()
                .ready()
                .map(|entry| entry.endpoint.clone())
                .collect::<Vec<_>>();
            asked.extend(ready.into_iter().map(|endpoint| (endpoint, key.cloned())));
        }
        let lists = join_all(
            asked
                .iter()
                .map(|(endpoint, key)| self.list(endpoint, key.as_ref())),
        )
        .await;
        let mut seen = HashSet::new();
        let mut answered = false;
        let mut models = Vec::new();
        for list in lists.into_iter().flatten() {
            answered = true;
            for model in list {
                if seen.insert(model["id"].as_str().unwrap_or_default().to_owned()) {
                    models.push(model);
                }
            }
        }
        answered.then(|| json!({ "object": "list", "data": models }).to_string().into())
    }

    async fn list(&self, endpoint: &Arc<Endpoint>, key: Option<&HeaderValue>) -> Option<Vec<Value>> {
        let page = Page::of(self.connector.clone(), endpoint, "/v1/models", key, TIMEOUT).ok()?;
        let body = page.read(endpoint.address()?).await.ok()?;
        match serde_json::from_slice::<Value>(&body)
            .ok()?
            .get_mut("data")?
            .take()
        {
            Value::Array(models) => Some(models),
            _ => None,
        }
    }
}

/// Answers with the list.
pub async fn answer(session: &mut Session, ctx: &Context, list: Bytes) -> Result<()> {
    let mut head = ResponseHeader::build(200, Some(4))?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    head.insert_header(header::CONTENT_LENGTH, list.len().to_string())?;
    head.insert_header("x-request-id", ctx.request_id.as_str())?;
    if let Some(origin) = ctx.cors_origin.clone() {
        super::cors::permit(&mut head, origin)?;
    }
    session
        .downstream_session
        .write_response_header(Box::new(head))
        .await?;
    session.downstream_session.write_response_body(list, true).await
}
