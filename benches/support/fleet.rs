//! Endpoints to choose between, the same where time is measured and where instructions are counted.

use super::{EndpointId, EndpointView, Scraped};

/// Busy endpoints of which every third holds part of the prompt.
pub fn fleet(count: u16) -> Vec<EndpointView<'static>> {
    let view = |id: u16| {
        let load = u32::from(id).wrapping_mul(2_654_435_761) % 97;
        let match_tokens = if id.is_multiple_of(3) { load * 10 } else { 0 };
        EndpointView {
            match_tokens,
            match_ratio: f64::from(match_tokens) / 1000.0,
            scraped: Scraped {
                waiting: Some(f64::from(load % 5)),
                running: Some(f64::from(load)),
                kv_usage: Some(f64::from(load) / 100.0),
            },
            inflight: load,
            pending_prefill_tokens: u64::from(load) * 100,
            active_tokens: u64::from(load) * 1000,
            cached_tokens: 200_000,
            capacity_tokens: Some(307_328),
            ..EndpointView::idle(EndpointId(id), "endpoint")
        }
    };
    (0..count).map(view).collect()
}
