//! The seven 7-bit tags of a line's header, compared all at once.

use std::num::NonZeroU64;

pub(super) const TAG_BITS: u32 = 7;
/// The lowest bit of every tag.
const LANES: u64 = 0x0000_0408_1020_4081;

/// The top bit of each tag in `header` that is `tag`, all compared at once: a lane of the difference is 0 exactly if
/// neither its top bit is set nor adding to its low bits carries into it.
#[inline]
pub(super) fn tag_hits(header: u64, tag: u64) -> u64 {
    const LOW_BITS: u64 = LANES * 0x3f;
    const TOP_BITS: u64 = LANES * 0x40;
    let difference = header ^ (LANES * tag);
    !(((difference & LOW_BITS) + LOW_BITS) | difference) & TOP_BITS
}

/// The lowest slot in what [`tag_hits`] returned.
#[inline]
pub(super) fn first_slot(hits: u64) -> Option<u32> {
    let bit = NonZeroU64::new(hits)?.trailing_zeros();
    Some(u32::from(SLOT_OF_BIT[bit as usize]))
}

/// The slots whose tag is `tag`.
#[inline]
pub(super) fn slots_tagged(header: u64, tag: u64) -> impl Iterator<Item = u32> {
    let mut hits = tag_hits(header, tag);
    std::iter::from_fn(move || {
        let slot = first_slot(hits);
        hits &= hits.wrapping_sub(1);
        slot
    })
}

/// Bit number of the header -> slot: a load is cheaper than to divide by 7.
const SLOT_OF_BIT: [u8; 64] = {
    let mut slots = [0; 64];
    let mut bit = 0;
    while bit < 64 {
        slots[bit] = bit as u8 / TAG_BITS as u8;
        bit += 1;
    }
    slots
};
