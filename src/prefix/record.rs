//! Where a word of the table stands, in 32 bits.

use super::line::SLOTS;
use std::ops::Range;

/// Of words on this many lines, a [`Record`] has the slot too.
const NEAR: u32 = 4;
/// Places of a [`Record`] that name a slot.
const NEAR_PLACES: u32 = NEAR << SLOT_BITS;
const SLOT_BITS: u32 = 3;

/// Line and probe distance of a word, in 32 bits: all that eviction needs to find it again. Nearly all words are near
/// their home, and there the slot is known as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record(u32);

impl Record {
    /// No word.
    pub(super) const VACANT: Self = Self(u32::MAX);

    pub(super) const fn new(line: usize, distance: u32, slot: u32) -> Self {
        let place = if distance < NEAR {
            distance << SLOT_BITS | slot
        } else {
            distance - NEAR + NEAR_PLACES
        };
        Self((line as u32) << 8 | place)
    }

    pub(super) const fn line(self) -> usize {
        (self.0 >> 8) as usize
    }

    pub(super) const fn distance(self) -> u32 {
        let place = self.0 & 0xff;
        if place < NEAR_PLACES {
            place >> SLOT_BITS
        } else {
            place - NEAR_PLACES + NEAR
        }
    }

    /// Where the word may stand in its line.
    pub(super) const fn slots(self) -> Range<u32> {
        let place = self.0 & 0xff;
        if place < NEAR_PLACES {
            let slot = place & ((1 << SLOT_BITS) - 1);
            slot..slot + 1
        } else {
            0..SLOTS as u32
        }
    }
}
