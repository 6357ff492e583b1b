//! Cross-origin requests of browsers, when the gateway is told to answer for the endpoints (Fetch standard, "CORS
//! protocol").

use http::{HeaderName, HeaderValue, Method, header};
use pingora_core::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

/// How long a browser may remember a preflight's answer, in seconds: the most that any of them takes.
const MAX_AGE_S: &str = "7200";

/// The origins whose pages may ask.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    any: bool,
    listed: Vec<String>,
}

impl Origins {
    /// `*` stands for all; with none, CORS is left to the endpoints.
    pub fn new(origins: &[String]) -> Self {
        Self {
            any: origins.iter().any(|origin| origin == "*"),
            listed: origins.to_vec(),
        }
    }

    /// The value of `access-control-allow-origin` for a request, if it is to have one.
    pub fn allowed(&self, request: &RequestHeader) -> Option<HeaderValue> {
        if self.listed.is_empty() {
            return None;
        }
        let origin = request.headers.get(header::ORIGIN)?;
        let listed = self
            .listed
            .iter()
            .any(|known| known.as_bytes() == origin.as_bytes());
        (self.any || listed).then(|| origin.clone())
    }

    /// Whether the request is a preflight that the gateway answers.
    pub fn answers(&self, request: &RequestHeader) -> bool {
        !self.listed.is_empty()
            && request.method == Method::OPTIONS
            && request.headers.contains_key(header::ORIGIN)
            && request
                .headers
                .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }
}

/// Answers a preflight; without an allowed origin the browser gets no permission.
pub async fn preflight(session: &mut Session, allowed: Option<HeaderValue>) -> Result<()> {
    let mut head = ResponseHeader::build(204, Some(6))?;
    if let Some(origin) = allowed {
        let asked = &session.req_header().headers;
        let permitted: [(HeaderName, HeaderName); 2] = [
            (
                header::ACCESS_CONTROL_REQUEST_METHOD,
                header::ACCESS_CONTROL_ALLOW_METHODS,
            ),
            (
                header::ACCESS_CONTROL_REQUEST_HEADERS,
                header::ACCESS_CONTROL_ALLOW_HEADERS,
            ),
        ];
        for (question, answer) in permitted {
            if let Some(value) = asked.get(question) {
                head.insert_header(answer, value.clone())?;
            }
        }
        head.insert_header(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S)?;
        permit(&mut head, origin)?;
    }
    session
        .downstream_session
        .write_response_header(Box::new(head))
        .await?;
    session
        .downstream_session
        .write_response_body(Default::default(), true)
        .await
}

/// Lets the pages of `origin` read a response.
pub fn permit(response: &mut ResponseHeader, origin: HeaderValue) -> Result<()> {
    response.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin)?;
    response.insert_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, "*")?;
    response.append_header(header::VARY, "Origin")?;
    Ok(())
}
