//! Questions to one engine over HTTP.

use http::{HeaderMap, HeaderValue, header};
use serde_json::Value;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A busy engine may take this long for one token.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An engine to ask.
pub struct Engine {
    client: reqwest::Client,
    base: String,
}

impl Engine {
    /// The engine at the URL `base`, with `key` as its API key.
    ///
    /// # Errors
    /// When the key cannot stand in a header.
    pub fn new(base: &str, key: Option<&str>) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert(
                header::AUTHORIZATION,
                HeaderValue::try_from(format!("Bearer {key}"))?,
            );
        }
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .default_headers(headers)
            .no_proxy()
            .build()?;
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self { client, base })
    }

    /// The page at `path`.
    ///
    /// # Errors
    /// When the engine does not answer with success.
    pub async fn get(&self, path: &str) -> reqwest::Result<Vec<u8>> {
        let answer = self.client.get(format!("{}{path}", self.base)).send().await?;
        Ok(answer.error_for_status()?.bytes().await?.to_vec())
    }

    /// The answer to a JSON request.
    ///
    /// # Errors
    /// When the engine does not answer with success and JSON.
    pub async fn post(&self, path: &str, body: &Value) -> reqwest::Result<Value> {
        let request = self.client.post(format!("{}{path}", self.base)).json(body);
        request.send().await?.error_for_status()?.json().await
    }

    /// Whether the engine says that it publishes KV events.
    pub async fn publishes(&self) -> bool {
        let Ok(body) = self.get("/kv_event_sources").await else {
            return false;
        };
        String::from_utf8_lossy(&body).contains("\"enable_kv_cache_events\":true")
    }
}
