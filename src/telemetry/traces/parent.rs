//! `traceparent`: the trace that a request belongs to (W3C Trace Context, level 1, section 3.2).

use http::HeaderMap;
use opentelemetry::{SpanId, TraceId};

/// The header's name.
pub const TRACEPARENT: &str = "traceparent";
/// The vendors' part, which passes as it came.
pub const TRACESTATE: &str = "tracestate";

/// Length of a version 00 header.
const LENGTH: usize = 55;
/// The `sampled` bit of the flags.
const SAMPLED: u8 = 1;

/// The caller's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    /// Whether the caller records the trace.
    pub sampled: bool,
}

impl Parent {
    /// What the request says; `None` when it says nothing, or nothing that can be understood.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let value = values.next()?.to_str().ok()?;
        // Two parents are none.
        values.next().is_none().then(|| Self::parse(value))?
    }

    fn parse(text: &str) -> Option<Self> {
        let version = hex(text.get(..2)?)?;
        let rest = text.get(LENGTH..)?;
        // Later versions may say more, after another dash; 255 is none.
        let known = version == "00" && rest.is_empty();
        let later = version != "00" && version != "ff" && (rest.is_empty() || rest.starts_with('-'));
        let dashes = [2, 35, 52].iter().all(|&at| text.as_bytes()[at] == b'-');
        if !(known || later) || !dashes {
            return None;
        }
        let trace_id = TraceId::from_hex(hex(text.get(3..35)?)?).ok()?;
        let span_id = SpanId::from_hex(hex(text.get(36..52)?)?).ok()?;
        let flags = u8::from_str_radix(hex(text.get(53..LENGTH)?)?, 16).ok()?;
        let valid = trace_id != TraceId::INVALID && span_id != SpanId::INVALID;
        valid.then_some(Self {
            trace_id,
            span_id,
            sampled: flags & SAMPLED != 0,
        })
    }
}

/// The header of a recorded trace, for a request made by the span `span_id`.
pub fn header(trace_id: TraceId, span_id: SpanId) -> String {
    format!("00-{trace_id:032x}-{span_id:016x}-{SAMPLED:02x}")
}

/// Lower-case hexadecimal digits only, as the standard asks.
fn hex(text: &str) -> Option<&str> {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.bytes().all(digit).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the standard's section 3.2.
    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn reads_the_standards_example_and_writes_it_again() {
        let parent = Parent::parse(EXAMPLE).unwrap();
        assert!(parent.sampled);
        assert_eq!(parent.trace_id.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.span_id.to_string(), "b7ad6b7169203331");
        assert_eq!(header(parent.trace_id, parent.span_id), EXAMPLE);
        let unsampled = EXAMPLE.replace("-01", "-00");
        assert!(!Parent::parse(&unsampled).unwrap().sampled);
        let later = format!("cc{}-what-may-come", &EXAMPLE[2..]);
        assert_eq!(Parent::parse(&later), Some(parent));
    }

    #[test]
    fn what_cannot_be_understood_is_no_parent() {
        let bad = [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333é-1",
        ];
        for text in bad {
            assert_eq!(Parent::parse(text), None, "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, EXAMPLE.parse().unwrap());
        assert!(Parent::of(&headers).is_some());
        headers.append(TRACEPARENT, EXAMPLE.parse().unwrap());
        assert!(Parent::of(&headers).is_none());
    }
}
