//! A record as one line of JSON, written straight into a buffer.
//!
//! Each request makes one. By way of serde it took more instructions than choosing the endpoint did.

use super::Record;
use std::cell::Cell;
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// What stands before a member's value.
macro_rules! key {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

/// Appends `record` and a line feed.
pub(super) fn write(record: &Record<'_>, out: &mut Vec<u8>) {
    let mut line = Line { out };
    line.number("{\"v\":", super::SCHEMA_VERSION.into());
    line.time(key!("time"), record.at);
    line.text(key!("request_id"), record.request_id);
    line.address(key!("client"), record.client);
    line.text(key!("method"), record.method);
    line.text(key!("path"), record.path);
    line.maybe_text(key!("pool"), record.pool);
    line.maybe_text(key!("model"), record.model);
    line.maybe_text(key!("endpoint"), record.endpoint);
    line.number(key!("status"), record.status.into());
    line.maybe_text(key!("error"), record.error);
    line.text(key!("outcome"), record.outcome);
    line.maybe_text(key!("decision"), record.decision);
    line.number(key!("attempts"), record.attempts.into());
    line.flag(key!("stream"), record.stream);
    line.number(key!("request_bytes"), record.request_bytes as u64);
    line.number(key!("response_bytes"), record.response_bytes as u64);
    line.number(key!("prompt_tokens"), record.prompt_tokens.into());
    line.number(key!("prompt_blocks"), record.prompt_blocks.into());
    line.number(key!("matched_blocks"), record.matched_blocks.into());
    line.maybe_number(key!("reported_prompt_tokens"), record.reported_prompt_tokens);
    line.maybe_number(key!("reported_cached_tokens"), record.reported_cached_tokens);
    line.maybe_number(key!("completion_tokens"), record.completion_tokens);
    line.number(key!("decision_us"), whole_us(record.decision_time));
    line.maybe_ms(key!("ttfb_ms"), record.first_byte_after);
    line.maybe_ms(key!("duration_ms"), Some(record.duration));
    line.maybe_text(key!("trace_id"), record.trace_id);
    line.end();
}

struct Line<'a> {
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    fn put(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.put(key);
        // Without an early exit, the compiler looks at 16 bytes at a time.
        let needs_escapes = value.bytes().fold(false, |needs, byte| {
            needs | (byte < b' ') | (byte == b'"') | (byte == b'\\')
        });
        if !needs_escapes {
            self.out.push(b'"');
            self.out.extend_from_slice(value.as_bytes());
            self.out.push(b'"');
        } else {
            // Writing a string into memory does not fail.
            let _ = serde_json::to_writer(&mut *self.out, value);
        }
    }

    fn maybe_text(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => self.text(key, value),
            None => self.nothing(key),
        }
    }

    fn number(&mut self, key: &str, value: u64) {
        self.put(key);
        digits(self.out, value);
    }

    fn maybe_number(&mut self, key: &str, value: Option<u64>) {
        match value {
            Some(value) => self.number(key, value),
            None => self.nothing(key),
        }
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.put(key);
        self.put(if value { "true" } else { "false" });
    }

    /// Milliseconds with three decimals.
    fn maybe_ms(&mut self, key: &str, value: Option<Duration>) {
        let Some(value) = value else {
            return self.nothing(key);
        };
        self.put(key);
        let us = whole_us(value + Duration::from_nanos(500));
        digits(self.out, us / 1000);
        self.out.push(b'.');
        three_digits(self.out, us % 1000);
    }

    fn time(&mut self, key: &str, at: SystemTime) {
        self.put(key);
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.out.push(b'"');
        self.out.extend_from_slice(&second(since.as_secs()));
        self.out.push(b'.');
        three_digits(self.out, since.subsec_millis().into());
        self.put("Z\"");
    }

    fn address(&mut self, key: &str, value: Option<SocketAddr>) {
        let Some(value) = value else {
            return self.nothing(key);
        };
        self.put(key);
        self.out.push(b'"');
        if let SocketAddr::V4(v4) = value {
            for (at, octet) in v4.ip().octets().into_iter().enumerate() {
                if at > 0 {
                    self.out.push(b'.');
                }
                digits(self.out, octet.into());
            }
            self.out.push(b':');
            digits(self.out, v4.port().into());
        } else {
            // Writing into memory does not fail.
            let _ = write!(self.out, "{value}");
        }
        self.out.push(b'"');
    }

    fn nothing(&mut self, key: &str) {
        self.put(key);
        self.put("null");
    }

    fn end(mut self) {
        self.put("}\n");
    }
}

fn whole_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn digits(out: &mut Vec<u8>, mut value: u64) {
    // As many as u64::MAX has.
    let mut text = [0; 20];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[start..]);
}

fn three_digits(out: &mut Vec<u8>, value: u64) {
    let digit = |unit: u64| b'0' + (value / unit % 10) as u8;
    out.extend_from_slice(&[digit(100), digit(10), digit(1)]);
}

/// `2026-11-30T00:48:28`, in UTC.
type Second = [u8; 19];

/// The calendar's words for a second since the epoch. Requests of one second share them.
fn second(unix_s: u64) -> Second {
    thread_local! {
        static NEWEST: Cell<(u64, Second)> = const { Cell::new((u64::MAX, [0; 19])) };
    }
    let (known, words) = NEWEST.get();
    if known == unix_s {
        return words;
    }
    let words = i64::try_from(unix_s)
        .ok()
        .and_then(|s| jiff::Timestamp::from_second(s).ok())
        .map(|at| at.strftime("%Y-%m-%dT%H:%M:%S").to_string())
        .and_then(|text| text.into_bytes().try_into().ok())
        // Beyond the calendar's years of four digits.
        .unwrap_or(*b"9999-12-31T23:59:59");
    NEWEST.set((unix_s, words));
    words
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;
    use serde_json::{Value, json};

    fn written(record: &Record<'_>) -> (String, Value) {
        let mut out = Vec::new();
        write(record, &mut out);
        let text = String::from_utf8(out).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains('\n'));
        (line.to_owned(), serde_json::from_str(line).unwrap())
    }

    #[test]
    fn a_record_is_the_object_that_the_documentation_shows() {
        let record = Record {
            // 2026-11-30T00:48:28 UTC is 20,787 days and 2,908 seconds after the epoch.
            at: SystemTime::UNIX_EPOCH + Duration::from_millis((20_787 * 86_400 + 2_908) * 1_000 + 7),
            client: Some("127.0.0.1:50123".parse().unwrap()),
            pool: Some("default"),
            status: 200,
            stream: true,
            request_bytes: 1_048_576,
            reported_prompt_tokens: Some(0),
            completion_tokens: Some(u64::MAX),
            decision_time: Duration::from_nanos(12_999),
            first_byte_after: Some(Duration::from_nanos(1_234_500)),
            duration: Duration::from_secs(61),
            trace_id: Some("0af7651916cd43dd8448eb211c80319c"),
            ..record("r-1")
        };
        let (line, value) = written(&record);
        assert_eq!(value["time"], "2026-11-30T00:48:28.007Z");
        assert_eq!(value["client"], "127.0.0.1:50123");
        assert_eq!(value["v"], 1);
        assert_eq!(value["pool"], "default");
        assert_eq!(value["model"], Value::Null);
        assert_eq!(value["stream"], true);
        assert_eq!(value["request_bytes"], 1_048_576);
        assert_eq!(value["reported_prompt_tokens"], 0);
        assert_eq!(value["completion_tokens"], u64::MAX);
        assert_eq!(value["decision_us"], 12);
        assert!(line.contains(r#""ttfb_ms":1.235,"#), "{line}");
        assert!(line.contains(r#""duration_ms":61000.000,"#), "{line}");
        assert_eq!(value["trace_id"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(value.as_object().unwrap().len(), 27);
    }

    #[test]
    fn the_documentation_tells_of_every_member_in_order() {
        let (line, _) = written(&record("r"));
        let members = serde_json::from_str::<serde_json::Map<String, Value>>(&line).unwrap();
        let page = include_str!("../../../docs/telemetry.md");
        let (table, _) = page.split_once("## Traces").unwrap();
        let told = table
            .lines()
            .filter_map(|row| row.strip_prefix("| `")?.split('`').next());
        assert_eq!(told.collect::<Vec<_>>(), members.keys().collect::<Vec<_>>());
    }

    #[test]
    fn text_that_needs_escapes_gets_them() {
        let record = Record {
            path: "/v1/\u{1}\"\\",
            model: Some("模型"),
            client: Some("[::1]:8080".parse().unwrap()),
            ..record("id")
        };
        let (line, value) = written(&record);
        assert_eq!(value["path"], json!("/v1/\u{1}\"\\"));
        assert_eq!(value["model"], "模型");
        assert_eq!(value["client"], "[::1]:8080");
        assert!(line.contains("\\u0001"));
    }
}
