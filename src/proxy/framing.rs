//! One framing only: requests whose length could be read in two ways are refused before any of it is used.
//!
//! Pingora takes some of them, for example `Content-Length` beside `Transfer-Encoding` (RFC 9112, section 6.3, lets a
//! server decide). The gateway frames every request anew, so none of them could smuggle another request to an engine;
//! they are refused because no honest client sends them.

use super::error::Reason;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use pingora_core::protocols::http::ServerSession;
use pingora_core::{Error, ErrorType};

/// Checks the head that `session` has read.
///
/// # Errors
/// [`Reason::BadRequest`] when its framing is not one of: no body, one plain `Content-Length`, or
/// `Transfer-Encoding: chunked`.
pub fn check(session: &ServerSession) -> Result<(), Reason> {
    let request = session.req_header();
    let one_framing = if request.headers.contains_key(TRANSFER_ENCODING) {
        // Pingora has dropped a Content-Length beside it: only the raw head still tells.
        let raw = session.to_h1_raw();
        is_chunked(&request.headers) && !names_header(&raw, CONTENT_LENGTH.as_str())
    } else {
        has_plain_length(&request.headers)
    };
    // RFC 9112, section 3.2: exactly one, even if it is empty.
    let hosts = request.headers.get_all(HOST).iter().count();
    let one_host = hosts == 1 || (hosts == 0 && request.version != Version::HTTP_11);
    if one_framing && one_host {
        Ok(())
    } else {
        Err(Reason::BadRequest)
    }
}

/// The answer to a head that could not be read; `None` when the connection broke and nobody listens.
pub fn refusal(error: &Error) -> Option<Reason> {
    match error.etype() {
        // Pingora tells its two bounds on the head only in words.
        ErrorType::InvalidHTTPHeader => Some(match error.to_string() {
            text if text.contains("header larger than") || text.contains("too many headers") => {
                Reason::HeadersTooLarge
            }
            _ => Reason::BadRequest,
        }),
        ErrorType::ReadTimedout => Some(Reason::RequestTimeout),
        _ => None,
    }
}

/// One transfer coding, and the only one that says where the body ends.
fn is_chunked(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(TRANSFER_ENCODING).iter();
    let first = values.next().map_or(&b""[..], |value| value.as_bytes());
    first.trim_ascii().eq_ignore_ascii_case(b"chunked") && values.next().is_none()
}

/// No length at all, or one of digits only: no list, sign, or second header, not even one that agrees.
fn has_plain_length(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = values.next() else { return true };
    let digits = first.as_bytes();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) && values.next().is_none()
}

/// Whether a raw head has a line for this header.
fn names_header(raw: &[u8], name: &str) -> bool {
    raw.split(|&byte| byte == b'\n').any(|line| {
        let (key, rest) = line.split_at(line.len().min(name.len()));
        key.eq_ignore_ascii_case(name.as_bytes()) && rest.trim_ascii_start().starts_with(b":")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn with(name: http::HeaderName, values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name.clone(), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn one_transfer_coding_only() {
        for (values, good) in [
            (&["chunked"][..], true),
            (&["Chunked"], true),
            (&["chunked, identity"], false),
            (&["identity, chunked"], false),
            (&["gzip, chunked"], false),
            (&["chunked", "chunked"], false),
            (&["chunked, chunked"], false),
            (&["xchunked"], false),
            (&[""], false),
        ] {
            assert_eq!(is_chunked(&with(TRANSFER_ENCODING, values)), good, "{values:?}");
        }
    }

    #[test]
    fn one_plain_length_only() {
        for (values, good) in [
            (&[][..], true),
            (&["0"], true),
            (&["12"], true),
            (&["12", "12"], false),
            (&["12", "13"], false),
            (&["12, 12"], false),
            (&["+12"], false),
            (&["-1"], false),
            (&["0x10"], false),
            (&[""], false),
        ] {
            assert_eq!(
                has_plain_length(&with(CONTENT_LENGTH, values)),
                good,
                "{values:?}"
            );
        }
    }

    #[test]
    fn finds_a_header_in_the_raw_head() {
        let raw = b"POST / HTTP/1.1\r\nhost: a\r\ncOntent-length: 3\r\n\r\n";
        assert!(names_header(raw, "content-length"));
        assert!(!names_header(
            b"POST /content-length: HTTP/1.1\r\nx: 1\r\n\r\n",
            "content-length"
        ));
        assert!(!names_header(
            b"X\r\ncontent-length-x: 1\r\n\r\n",
            "content-length"
        ));
    }
}
