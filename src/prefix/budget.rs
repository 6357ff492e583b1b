//! How one memory bound is shared between the table and the rings, and among endpoints.

use super::MAX_ENDPOINTS;
use super::line::{SLOTS, STAMPS};
use super::ring::{bytes_limit, span_limit};
use super::table::MAX_LINES;

const LINE_BYTES: usize = 64;
/// Share of the table's words in use when it is full: above it, probes grow long.
const MAX_LOAD_PERCENT: usize = 80;
/// Ring bytes per block that a share is reckoned at, in 1/64 bytes: twice 4 bytes, and the list of segments.
const RING_BYTES_X64: usize = 8 * 64 + 8;
/// Most blocks of one endpoint: stamps must tell the positions of its ring apart.
pub(super) const MAX_BLOCKS: usize = (STAMPS as usize - 1024) / 2;

/// Sizes that follow from the memory bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Lines of the table.
    pub(super) lines: usize,
    /// Bytes for all rings together.
    pub(super) ring_bytes: usize,
}

impl Budget {
    /// Shares `bytes` so that rings and table are full together.
    pub(super) fn new(bytes: usize) -> Self {
        let blocks_x100_per_line = SLOTS * MAX_LOAD_PERCENT;
        let ring_bytes_per_line = blocks_x100_per_line * RING_BYTES_X64 / (100 * 64);
        let lines = (bytes / (LINE_BYTES + ring_bytes_per_line)).clamp(2, MAX_LINES) & !1;
        Self {
            lines,
            ring_bytes: bytes.saturating_sub(lines * LINE_BYTES),
        }
    }

    /// Blocks that `endpoints` endpoints may own together.
    pub(super) fn blocks(&self, endpoints: usize) -> usize {
        let table = self.lines * SLOTS * MAX_LOAD_PERCENT / 100;
        let fixed = endpoints * bytes_limit(span_limit(0) + 2);
        table.min(self.ring_bytes.saturating_sub(fixed) * 64 / RING_BYTES_X64)
    }

    /// Whether so many endpoints can have a ring each and still own a block.
    pub(super) fn has_room_for(&self, endpoints: usize) -> bool {
        endpoints <= MAX_ENDPOINTS && self.blocks(endpoints) >= endpoints
    }

    /// Scales `capacities` down in proportion when they are more than fits.
    pub(super) fn scale(&self, capacities: &[Option<usize>]) -> Vec<usize> {
        let asked = |capacity: &Option<usize>| capacity.unwrap_or(0).min(MAX_BLOCKS) as u64;
        let total: u64 = capacities.iter().map(asked).sum();
        let room = self.blocks(capacities.iter().flatten().count()) as u64;
        let scaled = |capacity: u64| {
            if total <= room {
                capacity
            } else {
                capacity * room / total
            }
        };
        capacities
            .iter()
            .map(|capacity| scaled(asked(capacity)) as usize)
            .collect()
    }
}
