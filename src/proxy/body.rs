//! Reads the whole request body before an endpoint is chosen.

use super::budget::BodyShare;
use super::error::Reason;
use bytes::{Bytes, BytesMut};
use http::{Version, header};
use pingora_core::ErrorType;
use pingora_proxy::Session;
use std::time::Duration;
use tokio::time::Instant;

/// A body may take this much longer for each second of its size at this rate: slower ones are cut off.
const SLOWEST_BYTES_PER_S: u64 = 8 * 1024;

/// Bounds for reading one request body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Largest body, in bytes.
    pub max_bytes: u64,
    /// Longest wait between two reads, and for a body of no size to speak of.
    pub timeout: Duration,
}

/// Why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyError {
    /// Answer the client with this.
    Refused(Reason),
    /// The client went away; there is nobody to answer.
    ClientGone,
}

/// Reads the body to its end. A body that arrives in one read is not copied.
///
/// # Errors
/// [`BodyError::Refused`] when it is larger or slower than `limits`, finds no room in the budget, or is badly
/// framed.
pub async fn read(
    session: &mut Session,
    limits: BodyLimits,
    share: &mut BodyShare,
) -> Result<Bytes, BodyError> {
    let announced = announced_length(session);
    if announced.is_some_and(|length| length > limits.max_bytes) {
        return Err(BodyError::Refused(Reason::BodyTooLarge));
    }
    let mut reader = Reader {
        limits,
        share,
        started: Instant::now(),
        received: 0,
    };
    reader.reserve(announced.unwrap_or(0))?;
    if expects_continue(session) {
        session
            .downstream_session
            .write_continue_response()
            .await
            .map_err(|_| BodyError::ClientGone)?;
    }
    reader.read_all(session, announced).await
}

struct Reader<'a> {
    limits: BodyLimits,
    share: &'a mut BodyShare,
    started: Instant,
    received: u64,
}

impl Reader<'_> {
    async fn read_all(&mut self, session: &mut Session, announced: Option<u64>) -> Result<Bytes, BodyError> {
        let Some(first) = self.next(session).await? else {
            return Ok(Bytes::new());
        };
        // Without a length it takes another read to see that a body has ended.
        if announced == Some(self.received) && session.as_mut().is_body_done() {
            return Ok(first);
        }
        let Some(second) = self.next(session).await? else {
            return Ok(first);
        };
        // Both bounds were checked, so an announced length cannot reserve more than they allow.
        let expected = announced.map_or(first.len() * 2, |length| length as usize);
        let mut whole = BytesMut::with_capacity(expected.max(first.len() + second.len()));
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&second);
        drop((first, second));
        while let Some(chunk) = self.next(session).await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }

    async fn next(&mut self, session: &mut Session) -> Result<Option<Bytes>, BodyError> {
        let read = session.downstream_session.read_request_body();
        let Ok(read) = tokio::time::timeout_at(self.deadline(), read).await else {
            return Err(BodyError::Refused(Reason::RequestTimeout));
        };
        let chunk = read.map_err(|error| broken(error.etype()))?;
        if let Some(chunk) = &chunk {
            self.received += chunk.len() as u64;
            self.reserve(self.received)?;
        }
        Ok(chunk)
    }

    fn deadline(&self) -> Instant {
        let earned = Duration::from_secs(self.received / SLOWEST_BYTES_PER_S);
        (self.started + self.limits.timeout + earned).min(Instant::now() + self.limits.timeout)
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), BodyError> {
        if bytes > self.limits.max_bytes {
            return Err(BodyError::Refused(Reason::BodyTooLarge));
        }
        if !self.share.grow_to(bytes) {
            return Err(BodyError::Refused(Reason::Overloaded));
        }
        Ok(())
    }
}

fn broken(error: &ErrorType) -> BodyError {
    match error {
        ErrorType::ReadTimedout => BodyError::Refused(Reason::RequestTimeout),
        ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::H2Error => BodyError::ClientGone,
        _ => BodyError::Refused(Reason::BadRequest),
    }
}

fn announced_length(session: &Session) -> Option<u64> {
    let value = session.req_header().headers.get(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.trim().parse().ok()
}

/// HTTP/1.0 knows no interim answers: an expectation in it is ignored (RFC 9110, section 10.1.1).
fn expects_continue(session: &Session) -> bool {
    let request = session.req_header();
    let expectation = request.headers.get(header::EXPECT);
    request.version != Version::HTTP_10
        && expectation.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}
