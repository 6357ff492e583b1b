//! The gateway's own errors in the shape that clients of the API know.

use serde::Serialize;

/// An error body `{"error":{"message","type","param","code"}}`, with the status as `code` as vLLM writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorBody<'a> {
    status: u16,
    message: &'a str,
    param: Option<&'a str>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: u16,
}

impl<'a> ErrorBody<'a> {
    /// An error of this HTTP status with a message for people.
    pub const fn new(status: u16, message: &'a str) -> Self {
        Self {
            status,
            message,
            param: None,
        }
    }

    /// Names the request parameter at fault.
    #[must_use]
    pub const fn param(mut self, param: &'a str) -> Self {
        self.param = Some(param);
        self
    }

    /// The body's bytes, for `content-type: application/json`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let error = Inner {
            message: self.message,
            r#type: error_type(self.status),
            param: self.param,
            code: self.status,
        };
        // Strings and a number always serialise; an empty body is still an answer with the right status.
        serde_json::to_vec(&Envelope { error }).unwrap_or_default()
    }
}

/// The `type` word of a status: vLLM's where vLLM has one (its request validation answers with the names of
/// OpenAI's client exceptions, everything else with the reason phrase), else the client exception's name.
const fn error_type(status: u16) -> &'static str {
    match status {
        401 => "AuthenticationError",
        403 => "PermissionDeniedError",
        404 => "NotFoundError",
        408 => "Request Timeout",
        409 => "ConflictError",
        413 => "Content Too Large",
        422 => "UnprocessableEntityError",
        429 => "RateLimitError",
        431 => "Request Header Fields Too Large",
        501 => "NotImplementedError",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        500.. => "InternalServerError",
        _ => "BadRequestError",
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorBody;

    #[test]
    fn writes_what_vllm_writes_byte_for_byte() {
        // Captured from vLLM 0.32.0.
        let not_found = ErrorBody::new(
            404,
            "The model `no-such-model` does not exist. Valid aliases: tiny.",
        );
        assert_eq!(
            not_found.param("model").to_bytes(),
            br#"{"error":{"message":"The model `no-such-model` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}"#
        );
        let busy = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.";
        assert_eq!(
            ErrorBody::new(503, busy).to_bytes(),
            br#"{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}"#
        );
    }

    #[test]
    fn escapes_what_json_must_escape() {
        let message = "a \"quoted\" \\ path\nwith \u{1} and é";
        let bytes = ErrorBody::new(400, message).to_bytes();
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["error"]["message"], message);
        assert_eq!(value["error"]["type"], "BadRequestError");
    }
}
