//! The shared hash table: cache-line buckets of atomic words, one word per (block, endpoint).
//!
//! A line is a header and seven words `[fingerprint 29 | endpoint 10 | provisional 1 | stamp 24]`. The header holds a
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
//! A reader needs none: `Relaxed` throughout, and it may load a line's header some time before the words. A word
//! carries all of its meaning itself; what must be seen with it are its tag and the counts on the lines before it. A
//! reader that is not ordered after the store may miss the block, as if it had come earlier, or see a word before
//! its removal. One that is ordered (same thread, lock, channel) is bound by coherence to see all three; and since
//! headers change by read-modify-write, no other writer can lose a part of one.
//!
//! Between two endpoints' writers a word changes hands: the one clears it, then its tag (`Release`), the other sets the
//! tag (`Acquire`), then the word. So the late clearing of a word cannot hit its next owner.
//! The lock orders an endpoint's own writers.

use super::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};
use super::line::{
    Claim, Entry, FINGERPRINT, FINGERPRINT_BITS, Key, Line, OWNER, PASSED_ONE, PASSED_SHIFT, STAMPS, Stop,
    TAG_ONE, TAG_SHIFT, identity, owner_of, state, tag_of,
};
use super::record::Record;
use super::tags::{TAG_BITS, slots_tagged};

/// Words that may pass a line by; the count has room for 2^15, and what lies between is for writers at the same time.
const MOST_PASSED: u64 = 30_000;
/// Lines that a word may be away from home, in probe order. Enough for one block on all endpoints.
const MAX_PROBE: u32 = 228;
/// A [`Record`] has 24 bits for the line, and its highest value stands for none.
pub(super) const MAX_LINES: usize = (1 << 24) - 2;
/// Keys whose lines are loaded together.
pub(super) const BATCH: usize = 32;

/// What [`Table::load`] fills.
#[derive(Debug)]
pub(super) struct Batch {
    keys: [Key; BATCH],
    headers: [u64; BATCH],
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            keys: [Key::default(); BATCH],
            headers: [0; BATCH],
        }
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
enum Probe<'t> {
    Found(Entry),
    /// The slot of a line that is vacant.
    Vacancy(Stop<'t>, u32),
    NoRoom,
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

    /// Fills `batch` with the keys of as many hashes and the first line of each as it is now, and asks for the second
    /// of those that words passed by: so the cache misses of a batch overlap, which those of one probe after the
    /// other would not.
    #[inline]
    pub(super) fn load<'b>(
        &self,
        hashes: &[u64],
        batch: &'b mut Batch,
    ) -> impl DoubleEndedIterator<Item = (Key, u64)> + use<'b> {
        let keys = &mut batch.keys[..hashes.len()];
        let headers = &mut batch.headers[..hashes.len()];
        // Loops of few instructions each: only loads within the core's window of instructions overlap.
        for (key, &hash) in keys.iter_mut().zip(hashes) {
            *key = self.key(hash);
        }
        for (header, key) in headers.iter_mut().zip(&*keys) {
            *header = self.lines[key.home as usize].header.load(Relaxed);
        }
        let mut seconds = 0;
        for (header, key) in headers.iter().zip(&*keys) {
            let near = key.home as usize ^ usize::from(*header >= PASSED_ONE);
            seconds |= self.lines[near].header.load(Relaxed);
        }
        std::hint::black_box(seconds);
        keys.iter().copied().zip(headers.iter().copied())
    }

    /// As [`Self::load`], for words about to be recalled.
    pub(super) fn warm_records(&self, records: impl Iterator<Item = Record>) {
        for line in records.filter_map(|record| self.lines.get(record.line())) {
            std::hint::black_box(line.header.load(Relaxed));
        }
    }

    /// Calls `visit` with each endpoint that owns the block.
    #[inline]
    pub(super) fn for_each_owner(&self, key: Key, mut visit: impl FnMut(u16)) {
        let wanted = identity(key.fingerprint, 0);
        self.walk(key, |stop| {
            for slot in slots_tagged(stop.header, tag_of(key.fingerprint)) {
                let word = stop.line.word(slot).load(Relaxed);
                if (word ^ wanted) & FINGERPRINT == 0 {
                    visit(owner_of(word));
                }
            }
            true
        });
    }

    /// The endpoints that own the block, at least those of `among`, as bits by id. All of `among` are below 64;
    /// `header` is that of the first line.
    #[inline]
    pub(super) fn owners_below_64(&self, key: Key, header: u64, among: u64) -> u64 {
        // Most probes end within the first two lines, whose place needs no arithmetic.
        let home = key.home as usize;
        let mut owners = self.lines[home].owners_below_64(header, key);
        if among & !owners == 0 || header < PASSED_ONE {
            return owners;
        }
        let near = self.stop(home ^ 1, 1);
        owners |= near.line.owners_below_64(near.header, key);
        if among & !owners != 0 && near.header >= PASSED_ONE {
            self.walk_from(2, key, |stop| {
                owners |= stop.line.owners_below_64(stop.header, key);
                among & !owners != 0
            });
        }
        owners
    }

    /// The endpoint's word for the block. Under the endpoint's lock.
    #[inline]
    pub(super) fn find(&self, key: Key, owner: u16) -> Option<Entry> {
        let mut found = None;
        self.walk(key, |stop| {
            found = stop.entry(key, owner);
            found.is_none()
        });
        found
    }

    /// Calls `step` along a probe while it says true and words passed the line by.
    #[inline]
    fn walk<'t>(&'t self, key: Key, step: impl FnMut(&Stop<'t>) -> bool) {
        self.walk_from(0, key, step);
    }

    #[inline]
    fn walk_from<'t>(&'t self, distance: u32, key: Key, mut step: impl FnMut(&Stop<'t>) -> bool) {
        for distance in distance..self.reach {
            let stop = self.stop(self.line_at(key, distance), distance);
            if !step(&stop) || stop.header < PASSED_ONE {
                return;
            }
        }
    }

    #[inline]
    fn stop(&self, at: usize, distance: u32) -> Stop<'_> {
        let line = &self.lines[at];
        Stop {
            at,
            distance,
            line,
            header: line.header.load(Relaxed),
        }
    }

    /// The word that the endpoint stamped `stamp`, from its record. Under the endpoint's lock.
    #[inline]
    pub(super) fn recall(&self, record: Record, owner: u16, stamp: u64) -> Option<Entry> {
        let line = self.lines.get(record.line())?;
        let wanted = identity(0, owner) | (stamp & (STAMPS - 1));
        let at = |slot: u32| Entry {
            word: line.word(slot).load(Relaxed),
            slot,
            record,
        };
        // A vacant word would look like endpoint 0, stamp 0.
        let is_wanted =
            |entry: &Entry| entry.word != 0 && (entry.word ^ wanted) & (OWNER | (STAMPS - 1)) == 0;
        record.slots().map(at).find(is_wanted)
    }

    /// The endpoint's word for the block, if that stands where `record` says. Under the endpoint's lock.
    #[inline]
    pub(super) fn entry_at(&self, record: Record, key: Key, owner: u16) -> Option<Entry> {
        let line = self.lines.get(record.line())?;
        if self.line_at(key, record.distance()) != record.line() {
            return None;
        }
        let wanted = identity(key.fingerprint, owner);
        let at = |slot: u32| Entry {
            word: line.word(slot).load(Relaxed),
            slot,
            record,
        };
        record
            .slots()
            .map(at)
            .find(|entry| (entry.word ^ wanted) & (OWNER | FINGERPRINT) == 0)
    }

    /// Takes a vacant word for the block, unless the endpoint has one. Under the endpoint's lock.
    #[inline(always)]
    pub(super) fn claim(&self, key: Key, claim: Claim) -> Claimed {
        let home = self.stop(key.home as usize, 0);
        if let Some(entry) = home.entry(key, claim.owner) {
            return Claimed::Owned(entry);
        }
        if home.header < PASSED_ONE
            && let Some(slot) = home.vacancy()
            && let Some(record) = home.take(slot, key, claim)
        {
            return Claimed::New(record);
        }
        self.claim_along(key, claim)
    }

    /// [`Self::claim`], wherever the probe leads.
    #[inline(never)]
    fn claim_along(&self, key: Key, claim: Claim) -> Claimed {
        loop {
            let (stop, slot) = match self.probe(key, claim.owner) {
                Probe::Found(entry) => return Claimed::Owned(entry),
                Probe::NoRoom => return Claimed::NoRoom,
                Probe::Vacancy(stop, slot) => (stop, slot),
            };
            for header in self.passed_by(key, stop.distance) {
                header.fetch_add(PASSED_ONE, Relaxed);
            }
            if let Some(record) = stop.take(slot, key, claim) {
                return Claimed::New(record);
            }
            for header in self.passed_by(key, stop.distance) {
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
    fn probe(&self, key: Key, owner: u16) -> Probe<'_> {
        let mut vacancy = None;
        for distance in 0..self.reach {
            let stop = self.stop(self.line_at(key, distance), distance);
            let header = stop.header;
            if let Some(entry) = stop.entry(key, owner) {
                return Probe::Found(entry);
            }
            if vacancy.is_none() {
                vacancy = stop.vacancy().map(|slot| (stop, slot));
            }
            if header < PASSED_ONE && vacancy.is_some() {
                break;
            }
            if header >= MOST_PASSED << PASSED_SHIFT && vacancy.is_none() {
                break;
            }
        }
        vacancy.map_or(Probe::NoRoom, |(stop, slot)| Probe::Vacancy(stop, slot))
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
