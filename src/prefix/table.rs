//! The shared hash table: cache-line buckets of atomic words, one word per (block, endpoint).
//!
//! A word is `[fingerprint 29 | provisional 1 | endpoint 10 | stamp 24]`, 0 when vacant. A line holds seven words
//! and the number of words that had to pass it by because it was full. A probe goes on only while that number
//! is not 0, so a removal leaves no tombstone: it clears the word and takes it off the lines it had passed.
//!
//! The probe sequence takes lines in pairs of neighbours (the second is the one that the hardware fetches along
//! with the first), and then strides by a distance of the key's own: a block that a whole fleet owns fills many
//! lines, and must not push everything that lives near it down a long run.
//!
//! # Who may write what
//! Words of an endpoint are written under that endpoint's lock only; a vacant word is taken by compare-exchange,
//! as other endpoints' writers want it too. Words never move: a block that stays owned is seen by every lookup.
//!
//! # Ordering
//! Everything is `Relaxed`. A word carries all of its meaning itself, and publishes nothing else. What must be
//! seen together are a word and the counts on the lines before it. A reader that is not ordered after the store
//! may miss the block, as if it had come earlier. One that is (same thread, lock, channel) is bound by coherence
//! to see the counts too, as they are raised before the word is set and lowered after it is cleared; and since counts
//! move by read-modify-write, no other writer can lose a raise. The lock orders an endpoint's own writers.

use super::atomic::{AtomicU64, Ordering::Relaxed};
use smallvec::SmallVec;

const STAMP_BITS: u32 = 24;
const OWNER_BITS: u32 = 10;
const FINGERPRINT_SHIFT: u32 = 35;

/// Stamps are compared modulo this.
pub(super) const STAMPS: u64 = 1 << STAMP_BITS;
/// Set while only requests whose outcome is open vouch for the block.
const PROVISIONAL: u64 = 1 << (FINGERPRINT_SHIFT - 1);
const OWNER_AND_STAMP: u64 = PROVISIONAL - 1;
const FINGERPRINT_AND_OWNER: u64 = !(PROVISIONAL | (STAMPS - 1));

/// Keys whose lines are loaded together.
pub(super) const BATCH: usize = 16;
/// Words per line.
pub(super) const SLOTS: usize = 7;
/// Lines that a word may be away from home, in probe order. Enough for one block on all endpoints.
const MAX_PROBE: u32 = 256;
/// A [`Record`] has 24 bits for the line, and its highest value stands for none.
pub(super) const MAX_LINES: usize = (1 << 24) - 2;

/// A cache line of the table.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line {
    /// Words whose probe passed this line by.
    passed: AtomicU64,
    slots: [AtomicU64; SLOTS],
}

/// Where a block's probe begins and how it is told from others there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Key {
    fingerprint: u32,
    home: u32,
    stride: u32,
}

/// Line and probe distance of a word, in 32 bits: all that eviction needs to find it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record(u32);

impl Record {
    /// No word.
    pub(super) const VACANT: Self = Self(u32::MAX);

    const fn new(line: usize, distance: u32) -> Self {
        Self((line as u32) << 8 | distance)
    }

    const fn line(self) -> usize {
        (self.0 >> 8) as usize
    }

    const fn distance(self) -> u32 {
        self.0 & 0xff
    }
}

/// A word in its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    word: u64,
    slot: usize,
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
}

/// What an endpoint says of a block that it writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) owner: u16,
    pub(super) stamp: u64,
    pub(super) provisional: bool,
}

impl Claim {
    const fn word(self, fingerprint: u32) -> u64 {
        let mark = if self.provisional { PROVISIONAL } else { 0 };
        identity(fingerprint, self.owner) | mark | (self.stamp & (STAMPS - 1))
    }
}

/// Outcome of [`Table::claim`].
#[derive(Debug)]
pub(super) enum Claimed {
    /// A vacant word was taken.
    New(Record),
    /// The endpoint owns the block already.
    Owned(Entry),
    /// Every line within reach is full.
    NoRoom,
}

/// Where a probe for an endpoint's word ended.
enum Probe {
    Found(Entry),
    Vacancy { distance: u32, slot: usize },
    NoRoom,
}

#[derive(Debug)]
pub(super) struct Table {
    lines: Box<[Line]>,
    pairs: u32,
    /// Lines that a probe may visit; their pairs are distinct.
    reach: u32,
    longest_stride: u32,
}

impl Table {
    /// A table of about `lines` lines, at least 2 and at most [`MAX_LINES`].
    pub(super) fn new(lines: usize) -> Self {
        let pairs = lines.clamp(2, MAX_LINES) / 2;
        let reach = MAX_PROBE.min(2 * pairs as u32);
        Self {
            lines: (0..2 * pairs).map(|_| Line::default()).collect(),
            pairs: pairs as u32,
            reach,
            longest_stride: (2 * pairs as u32 / MAX_PROBE).max(1),
        }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    pub(super) fn key(&self, hash: u64) -> Key {
        let scale = |bits: u64, range: u32| ((bits * u64::from(range)) >> 32) as u32;
        // Low bits tell blocks apart, high bits place them: the two are independent. 0 would look vacant.
        let fingerprint = ((hash & ((1 << 29) - 1)) as u32).max(1);
        let side = (hash >> 29) as u32 & 1;
        Key {
            fingerprint,
            home: 2 * scale(hash >> 32, self.pairs) + side,
            stride: self.stride(fingerprint),
        }
    }

    fn stride(&self, fingerprint: u32) -> u32 {
        1 + ((u64::from(fingerprint) * u64::from(self.longest_stride - 1)) >> 29) as u32
    }

    /// The keys of at most [`BATCH`] hashes, once the first lines of each have been asked for: so the cache misses
    /// of a batch overlap, which those of one probe after the other would not.
    #[inline]
    pub(super) fn warmed_keys(&self, hashes: &[u64]) -> SmallVec<[Key; BATCH]> {
        let keys: SmallVec<[Key; BATCH]> = hashes.iter().map(|&hash| self.key(hash)).collect();
        for key in &keys {
            let home = key.home as usize;
            let passed = self.lines[home].passed.load(Relaxed);
            let next = home ^ usize::from(passed != 0);
            std::hint::black_box(self.lines[next].passed.load(Relaxed));
        }
        keys
    }

    /// Calls `visit` with each endpoint that owns the block.
    #[inline]
    pub(super) fn for_each_owner(&self, key: Key, mut visit: impl FnMut(u16)) {
        for distance in 0..self.reach {
            let line = &self.lines[self.line_at(key, distance)];
            let words = line.words();
            let mut hits = mask(&words, |word| {
                word >> FINGERPRINT_SHIFT == u64::from(key.fingerprint)
            });
            while hits != 0 {
                let word = words[hits.trailing_zeros() as usize];
                visit((word >> STAMP_BITS) as u16 & ((1 << OWNER_BITS) - 1));
                hits &= hits - 1;
            }
            if line.passed.load(Relaxed) == 0 {
                return;
            }
        }
    }

    /// The endpoint's word for the block. Under the endpoint's lock.
    pub(super) fn find(&self, key: Key, owner: u16) -> Option<Entry> {
        match self.probe(key, owner) {
            Probe::Found(entry) => Some(entry),
            Probe::Vacancy { .. } | Probe::NoRoom => None,
        }
    }

    /// The word that the endpoint stamped `stamp`, from its record. Under the endpoint's lock.
    pub(super) fn recall(&self, record: Record, owner: u16, stamp: u64) -> Option<Entry> {
        let words = self.lines.get(record.line())?.words();
        let wanted = u64::from(owner) << STAMP_BITS | (stamp & (STAMPS - 1));
        // A vacant word would look like endpoint 0, stamp 0.
        let hits = mask(&words, |word| word != 0 && (word ^ wanted) & OWNER_AND_STAMP == 0);
        let slot = hits.trailing_zeros() as usize;
        words.get(slot).map(|&word| Entry { word, slot, record })
    }

    /// Takes a vacant word for the block, unless the endpoint has one. Under the endpoint's lock.
    pub(super) fn claim(&self, key: Key, claim: Claim) -> Claimed {
        loop {
            let (distance, slot) = match self.probe(key, claim.owner) {
                Probe::Found(entry) => return Claimed::Owned(entry),
                Probe::NoRoom => return Claimed::NoRoom,
                Probe::Vacancy { distance, slot } => (distance, slot),
            };
            let line = self.line_at(key, distance);
            for passed in self.passed_by(key, distance) {
                passed.fetch_add(1, Relaxed);
            }
            let word = claim.word(key.fingerprint);
            if self.lines[line].slots[slot]
                .compare_exchange(0, word, Relaxed, Relaxed)
                .is_ok()
            {
                return Claimed::New(Record::new(line, distance));
            }
            for passed in self.passed_by(key, distance) {
                passed.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Renews stamp and mark of a word. Under the endpoint's lock.
    pub(super) fn restamp(&self, entry: Entry, stamp: u64, provisional: bool) {
        let mark = if provisional { PROVISIONAL } else { 0 };
        let word = (entry.word & FINGERPRINT_AND_OWNER) | mark | (stamp & (STAMPS - 1));
        self.slot(entry).store(word, Relaxed);
    }

    /// Gives a word up. Under the endpoint's lock.
    pub(super) fn vacate(&self, entry: Entry) {
        self.slot(entry).store(0, Relaxed);
        for passed in self.passed_by(self.key_of(entry), entry.record.distance()) {
            passed.fetch_sub(1, Relaxed);
        }
    }

    /// Panics unless `entries` are all words in use, and each line counts those of them that passed it.
    #[cfg(test)]
    pub(super) fn audit(&self, entries: &[Entry]) {
        let in_use = self
            .lines
            .iter()
            .flat_map(Line::words)
            .filter(|&word| word != 0)
            .count();
        assert_eq!(in_use, entries.len(), "words that no endpoint knows of");
        for entry in entries {
            for passed in self.passed_by(self.key_of(*entry), entry.record.distance()) {
                passed.fetch_sub(1, Relaxed);
            }
        }
        assert!(
            self.lines.iter().all(|line| line.passed.load(Relaxed) == 0),
            "counts of passed words"
        );
        for entry in entries {
            for passed in self.passed_by(self.key_of(*entry), entry.record.distance()) {
                passed.fetch_add(1, Relaxed);
            }
        }
    }

    fn slot(&self, entry: Entry) -> &AtomicU64 {
        &self.lines[entry.record.line()].slots[entry.slot]
    }

    /// The counts of the lines before `distance` on the way of `key`.
    fn passed_by(&self, key: Key, distance: u32) -> impl Iterator<Item = &AtomicU64> {
        (0..distance).map(move |distance| &self.lines[self.line_at(key, distance)].passed)
    }

    /// The first vacancy counts only when the endpoint's own word is nowhere on the way.
    fn probe(&self, key: Key, owner: u16) -> Probe {
        let wanted = identity(key.fingerprint, owner);
        let mut end = Probe::NoRoom;
        for distance in 0..self.reach {
            let at = self.line_at(key, distance);
            let line = &self.lines[at];
            let words = line.words();
            let hits = mask(&words, |word| (word ^ wanted) & FINGERPRINT_AND_OWNER == 0);
            if hits != 0 {
                let slot = hits.trailing_zeros() as usize;
                return Probe::Found(Entry {
                    word: words[slot],
                    slot,
                    record: Record::new(at, distance),
                });
            }
            let vacant = mask(&words, |word| word == 0);
            if vacant != 0 && matches!(end, Probe::NoRoom) {
                end = Probe::Vacancy {
                    distance,
                    slot: vacant.trailing_zeros() as usize,
                };
            }
            if matches!(end, Probe::Vacancy { .. }) && line.passed.load(Relaxed) == 0 {
                break;
            }
        }
        end
    }

    fn line_at(&self, key: Key, distance: u32) -> usize {
        let pair = key.home / 2 + distance / 2 * key.stride;
        let pair = if pair >= self.pairs {
            pair - self.pairs
        } else {
            pair
        };
        (2 * pair + (key.home & 1)) as usize ^ (distance & 1) as usize
    }

    /// Walks the probe sequence back from where a word stands.
    fn key_of(&self, entry: Entry) -> Key {
        let fingerprint = (entry.word >> FINGERPRINT_SHIFT) as u32;
        let stride = self.stride(fingerprint);
        let (line, distance) = (entry.record.line() as u32, entry.record.distance());
        let back = distance / 2 * stride;
        let pair = if line / 2 >= back {
            line / 2 - back
        } else {
            line / 2 + self.pairs - back
        };
        Key {
            fingerprint,
            home: 2 * pair + ((line ^ distance) & 1),
            stride,
        }
    }
}

impl Line {
    fn words(&self) -> [u64; SLOTS] {
        std::array::from_fn(|slot| self.slots[slot].load(Relaxed))
    }
}

const fn identity(fingerprint: u32, owner: u16) -> u64 {
    (fingerprint as u64) << FINGERPRINT_SHIFT | (owner as u64) << STAMP_BITS
}

fn mask(words: &[u64; SLOTS], is_hit: impl Fn(u64) -> bool) -> u32 {
    words
        .iter()
        .enumerate()
        .fold(0, |hits, (slot, &word)| hits | u32::from(is_hit(word)) << slot)
}
