//! The `endpoint-load-metrics` response header (ORCA): gauges that come back with a response.
//!
//! vLLM adds it when the request carries `endpoint-load-metrics-format: json` or `text`. The value starts
//! with the format's name: `JSON {"named_metrics": {...}}` or `TEXT named_metrics.x=1.0, named_metrics.y=2.0`.

use crate::scheduling::Scraped;
use serde::Deserialize;

/// Name of the response header.
pub const RESPONSE_HEADER: &str = "endpoint-load-metrics";

/// Name of the request header that asks for it.
pub const REQUEST_HEADER: &str = "endpoint-load-metrics-format";

/// The gauges in one header value; what it does not name, or names with no usable number, is `None`.
pub fn parse(value: &str) -> Scraped {
    let value = value.trim();
    let (format, report) = value.split_once(char::is_whitespace).unwrap_or((value, ""));
    let mut gauges = Scraped::default();
    if format.eq_ignore_ascii_case("json") {
        read_json(report, &mut gauges);
    } else if format.eq_ignore_ascii_case("text") {
        read_text(report, &mut gauges);
    }
    gauges
}

#[derive(Deserialize)]
struct Report {
    named_metrics: serde_json::Map<String, serde_json::Value>,
}

fn read_json(report: &str, gauges: &mut Scraped) {
    if let Ok(Report { named_metrics }) = serde_json::from_str(report) {
        for (name, value) in &named_metrics {
            set(gauges, name, value.as_f64());
        }
    }
}

fn read_text(report: &str, gauges: &mut Scraped) {
    for (key, value) in report.split(',').filter_map(|pair| pair.split_once('=')) {
        if let Some(name) = key.trim().strip_prefix("named_metrics.") {
            set(gauges, name, value.trim().parse().ok());
        }
    }
}

fn set(gauges: &mut Scraped, name: &str, value: Option<f64>) {
    let value = value.filter(|v| v.is_finite() && *v >= 0.0);
    match name {
        "num_requests_waiting" => gauges.waiting = value,
        "num_requests_running" => gauges.running = value,
        "kv_cache_usage_perc" | "gpu_cache_usage_perc" => gauges.kv_usage = value.map(|v| v.min(1.0)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Scraped = Scraped {
        waiting: Some(0.0),
        running: None,
        kv_usage: Some(0.0),
    };

    #[test]
    fn both_formats_as_vllm_0_32_sends_them() {
        let json = r#"JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}"#;
        let text = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0";
        assert_eq!(parse(json), IDLE);
        assert_eq!(parse(text), IDLE);
    }

    #[test]
    fn unusable_numbers_are_unknown() {
        let text = "text named_metrics.num_requests_waiting=nan,named_metrics.kv_cache_usage_perc=-1,x=2,named_metrics.num_requests_running=3";
        assert_eq!(
            parse(text),
            Scraped {
                running: Some(3.0),
                ..Scraped::default()
            }
        );
        for bad in [
            "",
            "JSON",
            "JSON {",
            "JSON []",
            "JSON {\"named_metrics\": {\"num_requests_waiting\": \"7\"}}",
            "BIN AAAA",
        ] {
            assert_eq!(parse(bad), Scraped::default(), "{bad}");
        }
    }
}
