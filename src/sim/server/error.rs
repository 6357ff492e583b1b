//! Errors exactly as vLLM 0.32 words them.

use super::driver::Refused;
use super::http::{JSON, Reply, reply};
use hyper::StatusCode;

/// An answer that is not the one asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    kind: &'static str,
    message: String,
    /// The field at fault; `null` when there is none.
    param: Option<String>,
}

impl ApiError {
    /// A request that is well-formed but cannot be served.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: message.into(),
            param: None,
        }
    }

    /// A faulty value: the message ends as vLLM's does, with the parameter and, if known, its value.
    pub(super) fn parameter(message: &str, param: &str, value: Option<&str>) -> Self {
        let value = value.map(|v| format!(", value={v}")).unwrap_or_default();
        let message = format!("{message} (parameter={param}{value})");
        Self {
            param: Some(param.to_owned()),
            ..Self::bad_request(message)
        }
    }

    /// A body that FastAPI's validation refuses; `fault` is its description, `loc` where it is.
    pub(super) fn validation(fault: &str, loc: Option<String>) -> Self {
        let message = format!("1 validation error:\n  {fault}");
        Self {
            kind: "Bad Request",
            param: loc,
            ..Self::bad_request(message)
        }
    }

    /// A required field that is missing in a body with `fields` fields.
    pub(super) fn missing_field(name: &str, fields: usize) -> Self {
        let input = format!("<dict of {fields} items>");
        let fault = format!(
            "{{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required', 'input': '{input}'}}"
        );
        Self::validation(&fault, Some(format!("body.{name}")))
    }

    pub(super) fn unknown_model(model: &str, known: &[String]) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!(
                "The model `{model}` does not exist. Valid aliases: {}.",
                known.join(", ")
            ),
            param: Some("model".to_owned()),
        }
    }

    /// Feature that a flag has not switched on.
    pub(super) fn forbidden(message: &str) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            kind: "PermissionDeniedError",
            ..Self::bad_request(message)
        }
    }

    /// The body as vLLM writes it.
    pub(super) fn body(&self) -> String {
        let quoted = |s: &str| serde_json::Value::from(s).to_string();
        let param = self.param.as_deref().map_or_else(|| "null".to_owned(), quoted);
        let (message, kind, code) = (quoted(&self.message), quoted(self.kind), self.status.as_u16());
        format!(r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{code}}}}}"#)
    }

    pub(super) fn reply(&self) -> Reply {
        reply(self.status, JSON, self.body())
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let (status, kind, message) = match refused {
            Refused::Requests => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Service Unavailable",
                "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                 different instance."
                    .to_owned(),
            ),
            Refused::Tokens => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Service Unavailable",
                "The engine has reached its prefill token backlog limit. Please try again later or on a \
                 different instance."
                    .to_owned(),
            ),
            Refused::Down => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalServerError",
                "cannot schedule new futures after shutdown".to_owned(),
            ),
            Refused::Submit(fault) => (StatusCode::BAD_REQUEST, "BadRequestError", fault.to_string()),
        };
        Self {
            status,
            kind,
            message,
            param: None,
        }
    }
}
