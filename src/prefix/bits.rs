//! A set of a chain's block numbers.

use smallvec::SmallVec;

/// Holds 256 blocks without an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(SmallVec<[u64; 4]>);

impl Bits {
    pub(super) fn new(len: usize) -> Self {
        Self(SmallVec::from_elem(0, len.div_ceil(64)))
    }

    pub(super) fn set(&mut self, bit: usize) {
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    /// False for numbers beyond the end.
    pub(super) fn get(&self, bit: usize) -> bool {
        self.0
            .get(bit / 64)
            .is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The numbers in the set, the greatest first.
    pub(super) fn descending(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().rev().flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.checked_ilog2()?;
                left ^= 1 << bit;
                Some(index * 64 + bit as usize)
            })
        })
    }
}
