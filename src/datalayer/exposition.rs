//! The Prometheus text exposition format, read without copying.
//!
//! Follows <https://prometheus.io/docs/instrumenting/exposition_formats/> and tolerates what
//! OpenMetrics adds to it (`# EOF`, exemplars). Quoted metric names inside braces (Prometheus 3) are
//! counted as malformed: no engine writes them.

mod labels;

pub use labels::{Label, Labels};

use memchr::memchr;

/// The body is not an exposition: not one readable sample, type or help line in it.
///
/// Load balancers and login pages answer `/metrics` with 200 and HTML; taking that for an exposition
/// without samples would make the endpoint look merely unknown instead of wrongly configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a Prometheus text exposition")]
pub struct NotExposition;

/// One sample line, borrowed from the body.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    pub name: &'a str,
    labels: &'a [u8],
    pub value: f64,
    /// As written: milliseconds since the epoch in the Prometheus format, seconds in OpenMetrics.
    pub timestamp: Option<f64>,
}

impl<'a> Sample<'a> {
    /// The labels in the order of the line.
    pub fn labels(&self) -> Labels<'a> {
        Labels::new(self.labels)
    }

    /// The first label of that name.
    pub fn label(&self, name: &str) -> Option<Label<'a>> {
        self.labels().find(|label| label.name == name)
    }
}

/// Iterator over the samples of one body, in its order. Never panics and never ends early:
/// a malformed line is skipped and counted.
#[derive(Clone, Debug)]
pub struct Samples<'a> {
    rest: &'a [u8],
    wanted: fn(&[u8]) -> bool,
    malformed: u64,
}

impl<'a> Samples<'a> {
    /// All samples of `body`.
    ///
    /// # Errors
    /// [`NotExposition`] when a non-empty body has no line of the format, or starts like HTML, XML or JSON.
    pub fn new(body: &'a [u8]) -> Result<Self, NotExposition> {
        Self::only(body, |_| true)
    }

    /// The samples whose metric name satisfies `wanted`. Other lines are passed over without reading
    /// their labels and value, which makes a page of histograms cheap; malformed ones among them are
    /// counted only when even the name is unreadable.
    ///
    /// # Errors
    /// As [`Samples::new`].
    pub fn only(body: &'a [u8], wanted: fn(&[u8]) -> bool) -> Result<Self, NotExposition> {
        if is_exposition(body) {
            Ok(Self {
                rest: body,
                wanted,
                malformed: 0,
            })
        } else {
            Err(NotExposition)
        }
    }

    /// Lines skipped so far because they could not be read.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = Sample<'a>;

    fn next(&mut self) -> Option<Sample<'a>> {
        while !self.rest.is_empty() {
            let line = take_line(&mut self.rest);
            if line.is_empty() || line[0] == b'#' {
                if line == b"# EOF" {
                    self.rest = &[];
                }
                continue;
            }
            let name_len = name_len(line);
            if name_len != 0 && !(self.wanted)(&line[..name_len]) {
                continue;
            }
            match parse_sample(line, name_len) {
                Some(sample) => return Some(sample),
                None => self.malformed += 1,
            }
        }
        None
    }
}

/// Takes the next line off `rest`, without its end (LF or CRLF) and without surrounding blanks.
fn take_line<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let (line, after) = match memchr(b'\n', rest) {
        Some(end) => (&rest[..end], &rest[end + 1..]),
        None => (*rest, &rest[rest.len()..]),
    };
    *rest = after;
    line.trim_ascii()
}

fn is_exposition(body: &[u8]) -> bool {
    let body = body.trim_ascii_start();
    match body.first() {
        None => return true,
        Some(b'<' | b'{' | b'[') => return false,
        Some(_) => {}
    }
    let mut rest = body;
    while !rest.is_empty() {
        let line = take_line(&mut rest);
        let known = match line.strip_prefix(b"# ") {
            Some(comment) => [&b"HELP "[..], b"TYPE ", b"UNIT ", b"EOF"]
                .iter()
                .any(|k| comment.starts_with(k)),
            None => parse_sample(line, name_len(line)).is_some(),
        };
        if known {
            return true;
        }
    }
    false
}

/// Length of the metric name that `line` starts with; 0 when it starts with none.
fn name_len(line: &[u8]) -> usize {
    if line.first().is_none_or(u8::is_ascii_digit) {
        return 0;
    }
    let in_name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':');
    line.iter().position(|b| !in_name(b)).unwrap_or(line.len())
}

fn parse_sample(line: &[u8], name_len: usize) -> Option<Sample<'_>> {
    let (name, after_name) = line.split_at(name_len);
    if name.is_empty() {
        return None;
    }
    let after_name = after_name.trim_ascii_start();
    let (labels, numbers) = match after_name.strip_prefix(b"{") {
        Some(inner) => {
            let end = labels::end(inner)?;
            (&inner[..end], &inner[end + 1..])
        }
        // Without a blank after it the name was cut short by a byte that no name holds.
        None if after_name.len() == line.len() - name_len => return None,
        None => (&[][..], after_name),
    };
    let (value, timestamp) = parse_numbers(numbers)?;
    Some(Sample {
        name: std::str::from_utf8(name).ok()?,
        labels,
        value,
        timestamp,
    })
}

/// `VALUE [TIMESTAMP] [# EXEMPLAR]`; the exemplar is ignored.
fn parse_numbers(numbers: &[u8]) -> Option<(f64, Option<f64>)> {
    let mut fields = numbers
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    let value = parse_float(fields.next()?)?;
    let timestamp = match fields.next() {
        None => return Some((value, None)),
        Some(field) if field.starts_with(b"#") => return Some((value, None)),
        Some(field) => parse_float(field)?,
    };
    match fields.next() {
        Some(field) if !field.starts_with(b"#") => None,
        _ => Some((value, Some(timestamp))),
    }
}

/// Go's `ParseFloat` as far as expositions use it: decimal, exponent, `NaN`, `Inf` with sign.
fn parse_float(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
