//! What the tests of scheduling share.

use super::view::{EndpointView, RequestView};
use crate::prefix::EndpointId;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

pub(super) fn endpoint(id: u16) -> EndpointView<'static> {
    const NAMES: [&str; 6] = ["pod-a", "pod-b", "pod-c", "pod-d", "pod-e", "pod-f"];
    let name = NAMES.get(usize::from(id)).copied().unwrap_or("pod");
    EndpointView {
        capacity_tokens: Some(100_000),
        ..EndpointView::idle(EndpointId(id), name)
    }
}

pub(super) fn prompt(prompt_tokens: u32) -> RequestView<'static> {
    RequestView {
        model: "m",
        prompt_tokens,
        keyed: true,
        ..RequestView::default()
    }
}

pub(super) fn rng(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}
