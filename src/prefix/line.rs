//! A cache line of the table: a header and seven words.

use super::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use super::record::Record;
use super::tags::{TAG_BITS, first_slot, slots_tagged, tag_hits};

/// Words per line.
pub(super) const SLOTS: usize = 7;

const STAMP_BITS: u32 = 24;
const OWNER_SHIFT: u32 = 25;
const OWNER_BITS: u32 = 10;
const FINGERPRINT_SHIFT: u32 = OWNER_SHIFT + OWNER_BITS;
pub(super) const FINGERPRINT_BITS: u32 = 29;

/// Stamps are compared modulo this.
pub(super) const STAMPS: u64 = 1 << STAMP_BITS;
/// Set while only requests whose outcome is open vouch for the block.
const PROVISIONAL: u64 = 1 << STAMP_BITS;
pub(super) const FINGERPRINT: u64 = !0 << FINGERPRINT_SHIFT;
pub(super) const OWNER: u64 = ((1 << OWNER_BITS) - 1) << OWNER_SHIFT;
/// Words of fingerprint 0 and an endpoint below 64 are below it.
const OWNER_64: u64 = 64 << OWNER_SHIFT;

/// The tag is the fingerprint's highest bits.
pub(super) const TAG_SHIFT: u32 = FINGERPRINT_BITS - TAG_BITS;
pub(super) const TAG_ONE: u32 = 1 << TAG_SHIFT;
pub(super) const PASSED_SHIFT: u32 = TAG_BITS * SLOTS as u32;
pub(super) const PASSED_ONE: u64 = 1 << PASSED_SHIFT;

/// A cache line of the table.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line {
    /// `[words that passed by 15 | tags 7 x 7]`
    pub(super) header: AtomicU64,
    pub(super) words: [AtomicU64; SLOTS],
}

/// Where a block's probe begins and how it is told from others there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Key {
    pub(super) fingerprint: u32,
    pub(super) home: u32,
}

/// A word in its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) word: u64,
    pub(super) slot: u32,
    pub(super) record: Record,
}

impl Entry {
    /// The stamp it was last set to, modulo [`STAMPS`].
    pub(super) const fn stamp(&self) -> u64 {
        self.word & (STAMPS - 1)
    }

    /// Whether nobody has confirmed the block yet.
    pub(super) const fn is_provisional(&self) -> bool {
        self.word & PROVISIONAL != 0
    }

    pub(super) const fn fingerprint(&self) -> u32 {
        (self.word >> FINGERPRINT_SHIFT) as u32
    }
}

/// What an endpoint says of a block that it writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) owner: u16,
    pub(super) stamp: u64,
    pub(super) provisional: bool,
}

/// A line on the way of a probe, as it was found.
pub(super) struct Stop<'t> {
    pub(super) at: usize,
    pub(super) distance: u32,
    pub(super) line: &'t Line,
    pub(super) header: u64,
}

impl Stop<'_> {
    /// The endpoint's word for the block, if it stands here.
    #[inline]
    pub(super) fn entry(&self, key: Key, owner: u16) -> Option<Entry> {
        let wanted = identity(key.fingerprint, owner);
        slots_tagged(self.header, tag_of(key.fingerprint)).find_map(|slot| {
            let word = self.line.word(slot).load(Relaxed);
            let record = Record::new(self.at, self.distance, slot);
            ((word ^ wanted) & (OWNER | FINGERPRINT) == 0).then_some(Entry { word, slot, record })
        })
    }

    /// A vacant slot.
    #[inline]
    pub(super) fn vacancy(&self) -> Option<u32> {
        first_slot(tag_hits(self.header, 0))
    }

    /// Takes the vacant `slot`, unless the line has changed.
    #[inline]
    pub(super) fn take(&self, slot: u32, key: Key, claim: Claim) -> Option<Record> {
        let tagged = self.header | tag_of(key.fingerprint) << (slot * TAG_BITS);
        let header = &self.line.header;
        header
            .compare_exchange(self.header, tagged, Acquire, Relaxed)
            .ok()?;
        self.line.word(slot).store(claim.word(key.fingerprint), Relaxed);
        Some(Record::new(self.at, self.distance, slot))
    }
}

impl Line {
    /// With several candidates, comparing all seven words without a branch is cheaper than finding them one by one.
    #[inline(always)]
    pub(super) fn owners_below_64(&self, header: u64, key: Key) -> u64 {
        let wanted = identity(key.fingerprint, 0);
        let bit = |word: &AtomicU64| {
            let difference = word.load(Relaxed) ^ wanted;
            u64::from(difference < OWNER_64).wrapping_shl((difference >> OWNER_SHIFT) as u32)
        };
        let hits = tag_hits(header, tag_of(key.fingerprint));
        if hits & hits.wrapping_sub(1) != 0 {
            return self.words.iter().fold(0, |owners, word| owners | bit(word));
        }
        first_slot(hits).map_or(0, |slot| bit(self.word(slot)))
    }

    pub(super) fn word(&self, slot: u32) -> &AtomicU64 {
        &self.words[slot as usize]
    }
}

impl Claim {
    pub(super) const fn word(self, fingerprint: u32) -> u64 {
        identity(fingerprint, self.owner) | state(self.stamp, self.provisional)
    }
}

pub(super) const fn identity(fingerprint: u32, owner: u16) -> u64 {
    (owner as u64) << OWNER_SHIFT | (fingerprint as u64) << FINGERPRINT_SHIFT
}

pub(super) const fn owner_of(word: u64) -> u16 {
    ((word & OWNER) >> OWNER_SHIFT) as u16
}

pub(super) const fn state(stamp: u64, provisional: bool) -> u64 {
    let mark = if provisional { PROVISIONAL } else { 0 };
    mark | (stamp & (STAMPS - 1))
}

/// Not 0, which marks a vacant word: see [`key`](super::table::Table::key).
pub(super) fn tag_of(fingerprint: u32) -> u64 {
    u64::from(fingerprint >> TAG_SHIFT)
}
