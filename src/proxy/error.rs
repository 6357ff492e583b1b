//! One table from what went wrong to what the client, the metrics and the log see.

use crate::openai::ErrorBody;
use std::time::Duration;

/// Every answer that the gateway itself can give instead of an endpoint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    BadRequest,
    Unauthorized,
    NotFound,
    RequestTimeout,
    BodyTooLarge,
    HeadersTooLarge,
    NoEndpoint,
    Overloaded,
    TooManyRequests,
    ConnectFailed,
    UpstreamTimeout,
    UpstreamReset,
    Draining,
}

/// One row of the table.
struct Row {
    status: u16,
    label: &'static str,
    message: &'static str,
    retry_after_s: Option<u64>,
    /// Request parameter at fault.
    param: Option<&'static str>,
}

const fn row(status: u16, label: &'static str, message: &'static str) -> Row {
    Row {
        status,
        label,
        message,
        retry_after_s: None,
        param: None,
    }
}

const fn retry(mut row: Row) -> Row {
    row.retry_after_s = Some(1);
    row
}

const fn about(param: &'static str, mut row: Row) -> Row {
    row.param = Some(param);
    row
}

impl Reason {
    /// All reasons, for metrics that must exist before the first error.
    pub const ALL: [Self; 13] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::NotFound,
        Self::RequestTimeout,
        Self::BodyTooLarge,
        Self::HeadersTooLarge,
        Self::NoEndpoint,
        Self::Overloaded,
        Self::TooManyRequests,
        Self::ConnectFailed,
        Self::UpstreamTimeout,
        Self::UpstreamReset,
        Self::Draining,
    ];

    const fn row(self) -> Row {
        match self {
            Self::BadRequest => row(400, "bad-request", "The request could not be read."),
            Self::Unauthorized => row(401, "unauthorized", "A valid API key is required."),
            // As vLLM says it.
            Self::NotFound => about("model", row(404, "not-found", "No pool serves this model.")),
            Self::RequestTimeout => row(408, "bad-request", "The request did not arrive in time."),
            Self::BodyTooLarge => row(413, "body-too-large", "The request body is too large."),
            Self::HeadersTooLarge => row(431, "headers-too-large", "The request headers are too large."),
            Self::NoEndpoint => retry(row(
                503,
                "no-endpoint",
                "No endpoint is ready to serve this request.",
            )),
            Self::Overloaded => retry(row(
                503,
                "overloaded",
                "The gateway cannot take more requests now.",
            )),
            Self::TooManyRequests => retry(row(429, "overloaded", "Too many requests are waiting.")),
            Self::ConnectFailed => row(502, "connect-failed", "No endpoint could be reached."),
            Self::UpstreamTimeout => row(504, "upstream-timeout", "The endpoint did not answer in time."),
            Self::UpstreamReset => row(
                502,
                "upstream-reset",
                "The endpoint closed the connection before it answered.",
            ),
            Self::Draining => retry(row(503, "draining", "The gateway is shutting down.")),
        }
    }

    /// HTTP status of the answer.
    pub const fn status(self) -> u16 {
        self.row().status
    }

    /// The word in `x-homing-error` and in the metric label `reason`.
    pub const fn label(self) -> &'static str {
        self.row().label
    }

    /// When a client may try again, for 429 and 503.
    pub fn retry_after(self) -> Option<Duration> {
        self.row().retry_after_s.map(Duration::from_secs)
    }

    /// The OpenAI-shaped body; `detail` replaces the table's message where more is known.
    pub fn body(self, detail: Option<&str>) -> Vec<u8> {
        let row = self.row();
        let error = ErrorBody::new(row.status, detail.unwrap_or(row.message));
        let error = match row.param {
            Some(param) => error.param(param),
            None => error,
        };
        error.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_503_says_when_to_come_back() {
        for reason in Reason::ALL {
            assert_eq!(
                reason.retry_after().is_some(),
                matches!(reason.status(), 429 | 503),
                "{reason:?}"
            );
        }
    }

    #[test]
    fn bodies_have_the_api_shape() {
        let body: serde_json::Value =
            serde_json::from_slice(&Reason::NotFound.body(Some("no \"such\" model"))).unwrap();
        assert_eq!(body["error"]["message"], "no \"such\" model");
        assert!(body["error"]["type"].is_string());
        assert_eq!(body["error"]["param"], "model");
        assert_eq!(body["error"]["code"], 404);
    }
}
