//! The shared hash table: cache-line buckets of atomic words, one word per (block, endpoint).
//!
//! A line is a header and seven words `[endpoint 10 | fingerprint 29 | provisional 1 | stamp 24]`. The header holds a
//! 7-bit tag per word, 0 when vacant, so that one comparison finds the candidates among the seven; and the number
//! of words that had to pass the line by because it was full. A probe goes on only while that number is not 0, so a
//! removal leaves no tombstone: it clears the word and takes it off the lines it had passed.
//!
//! The probe sequence takes lines in pairs of neighbours (the second is the one that the hardware fetches along
//! with the first), and then strides by a distance of the key's own: a block that a whole fleet owns fills many
//! lines, and must not push everything that lives near it down a long run.
//!
//! # Who may write what
//! Words of an endpoint are written under that endpoint's lock only. A vacant one is taken by setting its tag by
//! compare-exchange, as other endpoints' writers want it too. Words never move: a block that stays owned is
//! seen by every lookup.
//!
//! # Ordering
//! A reader needs none: `Relaxed` throughout. A word carries all of its meaning itself; what must be seen with it
//! are its tag and the counts on the lines before it. A reader that is not ordered after the store may miss
//! the block, as if it had come earlier, or see a word before its removal. One that is ordered (same thread, lock,
//! channel) is bound by coherence to see all three; and since headers change by read-modify-write, no other
//! writer can lose a part of one.
//!
//! Between two endpoints' writers a word changes hands: the one clears it, then its tag (`Release`), the other sets the
//! tag (`Acquire`), then the word. So the late clearing of a word cannot hit its next owner.
//! The lock orders an endpoint's own writers.

use super::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use super::tags::{TAG_BITS, first_slot, slots_tagged, tag_hits};

const STAMP_BITS: u32 = 24;
const FINGERPRINT_SHIFT: u32 = 25;
const FINGERPRINT_BITS: u32 = 29;
const OWNER_SHIFT: u32 = 54;

/// Stamps are compared modulo this.
pub(super) const STAMPS: u64 = 1 << STAMP_BITS;
/// Set while only requests whose outcome is open vouch for the block.
const PROVISIONAL: u64 = 1 << STAMP_BITS;
const FINGERPRINT: u64 = ((1 << FINGERPRINT_BITS) - 1) << FINGERPRINT_SHIFT;
const OWNER: u64 = !0 << OWNER_SHIFT;
/// Set in no id below 64.
const OWNER_FROM_64: u64 = !0 << (OWNER_SHIFT + 6);

/// The tag is the fingerprint's highest bits.
const TAG_SHIFT: u32 = FINGERPRINT_BITS - TAG_BITS;
const TAG_ONE: u32 = 1 << TAG_SHIFT;
const PASSED_SHIFT: u32 = TAG_BITS * SLOTS as u32;
const PASSED_ONE: u64 = 1 << PASSED_SHIFT;
/// Words that may pass a line by; the count has room for 2^15, and what lies between is for writers at the same time.
const MOST_PASSED: u64 = 30_000;

/// Words per line.
pub(super) const SLOTS: usize = 7;
/// Lines that a word may be away from home, in probe order. Enough for one block on all endpoints.
const MAX_PROBE: u32 = 256;
/// A [`Record`] has 24 bits for the line, and its highest value stands for none.
pub(super) const MAX_LINES: usize = (1 << 24) - 2;
/// Keys whose lines are loaded together.
pub(super) const BATCH: usize = 32;

/// A cache line of the table.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    /// `[words that passed by 15 | tags 7 x 7]`
    header: AtomicU64,
    words: [AtomicU64; SLOTS],
}

/// Where a block's probe begins and how it is told from others there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Key {
    fingerprint: u32,
    home: u32,
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
    slot: u32,
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

    const fn fingerprint(&self) -> u32 {
        ((self.word & FINGERPRINT) >> FINGERPRINT_SHIFT) as u32
    }
}

/// What an endpoint says of a block that it writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) owner: u16,
    pub(super) stamp: u64,
    pub(super) provisional: bool,
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
    Vacancy(Vacancy),
    NoRoom,
}

struct Vacancy {
    distance: u32,
    header: u64,
    slot: u32,
}

#[derive(Debug)]
pub(super) struct Table {
    lines: Box<[Line]>,
    pairs: u32,
    /// Lines that a probe may visit; all distinct.
    reach: u32,
    longest_stride: u32,
}

impl Table {
    /// A table of about `lines` lines, at least 2 and at most [`MAX_LINES`].
    pub(super) fn new(lines: usize) -> Self {
        let pairs = (lines.clamp(2, MAX_LINES) / 2) as u32;
        Self {
            lines: (0..2 * pairs).map(|_| Line::default()).collect(),
            pairs,
            reach: MAX_PROBE.min(2 * pairs),
            longest_stride: (2 * pairs / MAX_PROBE).max(1),
        }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    pub(super) fn key(&self, hash: u64) -> Key {
        // High bits place blocks, low bits tell them apart: the two are independent. A tag of 0 would look vacant.
        let low = (hash & ((1 << FINGERPRINT_BITS) - 1)) as u32;
        let fingerprint = low + (u32::from(low < TAG_ONE) << TAG_SHIFT);
        let side = (hash >> FINGERPRINT_BITS) as u32 & 1;
        let pair = ((hash >> 32) * u64::from(self.pairs)) >> 32;
        Key {
            fingerprint,
            home: 2 * pair as u32 + side,
        }
    }

    /// Fills `keys` from as many hashes, and asks for the first lines of each: so the cache misses of a batch overlap,
    /// which those of one probe after the other would not.
    #[inline]
    pub(super) fn warm(&self, hashes: &[u64], keys: &mut [Key; BATCH]) {
        let keys = &mut keys[..hashes.len()];
        for (key, &hash) in keys.iter_mut().zip(hashes) {
            *key = self.key(hash);
        }
        // Loops of few instructions each: only loads within the core's window of instructions overlap.
        let header = |line: usize| self.lines[line].header.load(Relaxed);
        let home = |key: &Key| key.home as usize;
        let near = |key: &Key| header(home(key) ^ usize::from(header(home(key)) >= PASSED_ONE));
        std::hint::black_box(keys.iter().fold(0, |all, key| all | header(home(key))));
        std::hint::black_box(keys.iter().fold(0, |all, key| all | near(key)));
    }

    /// As [`Self::warm`], for words about to be recalled.
    pub(super) fn warm_records(&self, records: impl Iterator<Item = Record>) {
        for line in records.filter_map(|record| self.lines.get(record.line())) {
            std::hint::black_box(line.header.load(Relaxed));
        }
    }

    /// Calls `visit` with each endpoint that owns the block.
    #[inline]
    pub(super) fn for_each_owner(&self, key: Key, mut visit: impl FnMut(u16)) {
        let wanted = identity(key.fingerprint, 0);
        self.walk(key, |line, header| {
            for slot in slots_tagged(header, tag_of(key.fingerprint)) {
                let word = line.word(slot).load(Relaxed);
                if (word ^ wanted) & FINGERPRINT == 0 {
                    visit((word >> OWNER_SHIFT) as u16);
                }
            }
        });
    }

    /// The endpoints with ids below 64 that own the block, as a set of bits.
    #[inline]
    pub(super) fn owners_below_64(&self, key: Key) -> u64 {
        let mut owners = 0;
        self.walk(key, |line, header| owners |= line.owners_below_64(header, key));
        owners
    }

    /// Calls `step` with the lines of a probe and their headers until no word passed one by.
    #[inline]
    fn walk(&self, key: Key, mut step: impl FnMut(&Line, u64)) {
        let mut is_last = |at: usize| {
            let line = &self.lines[at];
            let header = line.header.load(Relaxed);
            step(line, header);
            header < PASSED_ONE
        };
        // Most probes end within the first two lines, whose place needs no arithmetic.
        let home = key.home as usize;
        if is_last(home) || is_last(home ^ 1) {
            return;
        }
        for distance in 2..self.reach {
            if is_last(self.line_at(key, distance)) {
                return;
            }
        }
    }

    /// The endpoint's word for the block. Under the endpoint's lock.
    #[inline]
    pub(super) fn find(&self, key: Key, owner: u16) -> Option<Entry> {
        for distance in 0..self.reach {
            let at = self.line_at(key, distance);
            let line = &self.lines[at];
            let header = line.header.load(Relaxed);
            let found = line.entry(header, key, owner, Record::new(at, distance));
            if found.is_some() || header < PASSED_ONE {
                return found;
            }
        }
        None
    }

    /// The word that the endpoint stamped `stamp`, from its record. Under the endpoint's lock.
    pub(super) fn recall(&self, record: Record, owner: u16, stamp: u64) -> Option<Entry> {
        let line = self.lines.get(record.line())?;
        let wanted = u64::from(owner) << OWNER_SHIFT | (stamp & (STAMPS - 1));
        let at = |slot: u32| Entry {
            word: line.word(slot).load(Relaxed),
            slot,
            record,
        };
        // A vacant word would look like endpoint 0, stamp 0.
        let is_wanted =
            |entry: &Entry| entry.word != 0 && (entry.word ^ wanted) & (OWNER | (STAMPS - 1)) == 0;
        (0..SLOTS as u32).map(at).find(is_wanted)
    }

    /// Takes a vacant word for the block, unless the endpoint has one. Under the endpoint's lock.
    pub(super) fn claim(&self, key: Key, claim: Claim) -> Claimed {
        loop {
            let vacancy = match self.probe(key, claim.owner) {
                Probe::Found(entry) => return Claimed::Owned(entry),
                Probe::NoRoom => return Claimed::NoRoom,
                Probe::Vacancy(vacancy) => vacancy,
            };
            for header in self.passed_by(key, vacancy.distance) {
                header.fetch_add(PASSED_ONE, Relaxed);
            }
            let at = self.line_at(key, vacancy.distance);
            let line = &self.lines[at];
            let tagged = vacancy.header | tag_of(key.fingerprint) << (vacancy.slot * TAG_BITS);
            let taken = line
                .header
                .compare_exchange(vacancy.header, tagged, Acquire, Relaxed);
            if taken.is_ok() {
                line.word(vacancy.slot)
                    .store(claim.word(key.fingerprint), Relaxed);
                return Claimed::New(Record::new(at, vacancy.distance));
            }
            for header in self.passed_by(key, vacancy.distance) {
                header.fetch_sub(PASSED_ONE, Relaxed);
            }
        }
    }

    /// Renews stamp and mark of a word. Under the endpoint's lock.
    pub(super) fn restamp(&self, entry: Entry, stamp: u64, provisional: bool) {
        let word = (entry.word & (OWNER | FINGERPRINT)) | state(stamp, provisional);
        self.lines[entry.record.line()]
            .word(entry.slot)
            .store(word, Relaxed);
    }

    /// Gives a word up. Under the endpoint's lock.
    pub(super) fn vacate(&self, entry: Entry) {
        let line = &self.lines[entry.record.line()];
        line.word(entry.slot).store(0, Relaxed);
        let tag = tag_of(entry.fingerprint()) << (entry.slot * TAG_BITS);
        line.header.fetch_sub(tag, Release);
        if entry.record.distance() > 0 {
            for header in self.passed_by(self.key_of(entry), entry.record.distance()) {
                header.fetch_sub(PASSED_ONE, Relaxed);
            }
        }
    }

    /// Panics unless `entries` are all words in use, and each line counts those of them that passed it.
    #[cfg(any(test, fuzzing))]
    pub(super) fn audit(&self, entries: &[Entry]) {
        let mut headers = vec![0; self.lines.len()];
        for entry in entries {
            let tag = tag_of(entry.fingerprint()) << (entry.slot * TAG_BITS);
            headers[entry.record.line()] |= tag;
            for distance in 0..entry.record.distance() {
                headers[self.line_at(self.key_of(*entry), distance)] += PASSED_ONE;
            }
        }
        let words = self.lines.iter().flat_map(|line| &line.words);
        let in_use = words.filter(|word| word.load(Relaxed) != 0).count();
        assert_eq!(in_use, entries.len(), "words that no endpoint knows of");
        let actual: Vec<u64> = self.lines.iter().map(|line| line.header.load(Relaxed)).collect();
        assert_eq!(actual, headers, "tags and counts of passed words");
    }

    /// The first vacancy counts only when the endpoint's own word is nowhere on the way.
    fn probe(&self, key: Key, owner: u16) -> Probe {
        let mut vacancy = None;
        for distance in 0..self.reach {
            let at = self.line_at(key, distance);
            let line = &self.lines[at];
            let header = line.header.load(Relaxed);
            if let Some(entry) = line.entry(header, key, owner, Record::new(at, distance)) {
                return Probe::Found(entry);
            }
            if vacancy.is_none() {
                let vacant = first_slot(tag_hits(header, 0));
                vacancy = vacant.map(|slot| Vacancy {
                    distance,
                    header,
                    slot,
                });
            }
            if header < PASSED_ONE && vacancy.is_some() {
                break;
            }
            if header >= MOST_PASSED << PASSED_SHIFT && vacancy.is_none() {
                break;
            }
        }
        vacancy.map_or(Probe::NoRoom, Probe::Vacancy)
    }

    /// The headers of the lines before `distance` on the way of `key`.
    fn passed_by(&self, key: Key, distance: u32) -> impl Iterator<Item = &AtomicU64> {
        (0..distance).map(move |distance| &self.lines[self.line_at(key, distance)].header)
    }

    #[inline]
    fn line_at(&self, key: Key, distance: u32) -> usize {
        let mut line = key.home;
        if distance >= 2 {
            let pair = key.home / 2 + distance / 2 * self.stride(key.fingerprint);
            let wrapped = if pair >= self.pairs {
                pair - self.pairs
            } else {
                pair
            };
            line = 2 * wrapped + (key.home & 1);
        }
        (line ^ (distance & 1)) as usize
    }

    /// Pairs between two steps of a probe: so few that a whole probe stays within one round of the table.
    fn stride(&self, fingerprint: u32) -> u32 {
        1 + ((u64::from(fingerprint) * u64::from(self.longest_stride - 1)) >> FINGERPRINT_BITS) as u32
    }

    /// Walks the probe sequence back from where a word stands.
    fn key_of(&self, entry: Entry) -> Key {
        let fingerprint = entry.fingerprint();
        let (line, distance) = (entry.record.line() as u32, entry.record.distance());
        let back = distance / 2 * self.stride(fingerprint);
        let pair = if line / 2 >= back {
            line / 2 - back
        } else {
            line / 2 + self.pairs - back
        };
        Key {
            fingerprint,
            home: 2 * pair + ((line ^ distance) & 1),
        }
    }
}

impl Line {
    /// With several candidates, comparing all seven words without a branch is cheaper than finding them one by one.
    #[inline]
    fn owners_below_64(&self, header: u64, key: Key) -> u64 {
        let wanted = identity(key.fingerprint, 0);
        let bit = |word: &AtomicU64| {
            let word = word.load(Relaxed);
            let is_hit = (word ^ wanted) & (FINGERPRINT | OWNER_FROM_64) == 0;
            u64::from(is_hit).wrapping_shl((word >> OWNER_SHIFT) as u32)
        };
        let hits = tag_hits(header, tag_of(key.fingerprint));
        if hits & hits.wrapping_sub(1) != 0 {
            return self.words.iter().fold(0, |owners, word| owners | bit(word));
        }
        first_slot(hits).map_or(0, |slot| bit(self.word(slot)))
    }

    /// The endpoint's word for the block, if it stands in this line, whose record is `record`.
    #[inline]
    fn entry(&self, header: u64, key: Key, owner: u16, record: Record) -> Option<Entry> {
        let wanted = identity(key.fingerprint, owner);
        slots_tagged(header, tag_of(key.fingerprint)).find_map(|slot| {
            let word = self.word(slot).load(Relaxed);
            ((word ^ wanted) & (OWNER | FINGERPRINT) == 0).then_some(Entry { word, slot, record })
        })
    }

    fn word(&self, slot: u32) -> &AtomicU64 {
        &self.words[slot as usize]
    }
}

impl Claim {
    const fn word(self, fingerprint: u32) -> u64 {
        identity(fingerprint, self.owner) | state(self.stamp, self.provisional)
    }
}

const fn identity(fingerprint: u32, owner: u16) -> u64 {
    (owner as u64) << OWNER_SHIFT | (fingerprint as u64) << FINGERPRINT_SHIFT
}

const fn state(stamp: u64, provisional: bool) -> u64 {
    let mark = if provisional { PROVISIONAL } else { 0 };
    mark | (stamp & (STAMPS - 1))
}

/// Not 0, which marks a vacant word: see [`Table::key`].
fn tag_of(fingerprint: u32) -> u64 {
    u64::from(fingerprint >> TAG_SHIFT)
}
