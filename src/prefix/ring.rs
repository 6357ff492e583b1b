//! Exact recency of one endpoint's blocks: a ring of records, oldest first.
//!
//! A touch writes a new record at the end and vacates the old one, which the block's stamp (its position modulo
//! [`STAMPS`]) leads to. Vacant positions are squeezed out a few at a time by a sweep that slides records
//! towards the end, in order.

use super::line::STAMPS;
use super::record::Record;
use super::table::BATCH;
use smallvec::SmallVec;
use std::collections::VecDeque;

const SEGMENT: usize = 256;
/// How many positions a sweep can look at in the time in which it moves a record, whose word is anywhere in the table.
const MOVE: usize = 16;
const SEGMENT_BYTES: usize = SEGMENT * size_of::<Record>();

/// Positions that a ring for `blocks` blocks may span.
pub(super) const fn span_limit(blocks: usize) -> usize {
    2 * blocks + SEGMENT
}

/// Segments that a ring of `span` positions needs at most: both ends may lie within one.
const fn segments_limit(span: usize) -> usize {
    span / SEGMENT + 2
}

/// Bytes on the heap that a ring of `span` positions takes at most: the list of segments grows by doubling.
pub(super) const fn bytes_limit(span: usize) -> usize {
    segments_limit(span) * (SEGMENT_BYTES + 2 * size_of::<Box<[Record; SEGMENT]>>())
}

#[derive(Debug)]
pub(super) struct Ring {
    /// From the head on; behind the tail there may be vacant ones, which were at the head before. To free thousands of
    /// them at once, as the end of a sweep would, takes as long as hundreds of writes.
    segments: VecDeque<Box<[Record; SEGMENT]>>,
    /// Position of the oldest record; positions only grow.
    head: u64,
    /// Position after the newest record.
    tail: u64,
    sweep: Option<Sweep>,
}

/// Everything in `(read, write]` is vacant; records at `read` and below slide up to `write`.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    read: u64,
    write: u64,
    /// Records left to move, at most.
    left: usize,
}

/// A record that has to be told its new position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) record: Record,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Ring {
    pub(super) fn new() -> Self {
        // Position 0 stays unused, so that the sweep can stand before the first record.
        Self {
            segments: VecDeque::new(),
            head: 1,
            tail: 1,
            sweep: None,
        }
    }

    pub(super) fn span(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.segments.len() * SEGMENT_BYTES + self.segments.capacity() * size_of::<Box<[Record; SEGMENT]>>()
    }

    /// Appends `count` vacant positions and returns the first.
    pub(super) fn reserve(&mut self, count: usize) -> u64 {
        let first = self.tail;
        self.tail += count as u64;
        while self.first_segment() + (self.segments.len() as u64) * (SEGMENT as u64) < self.tail {
            self.segments.push_back(Box::new([Record::VACANT; SEGMENT]));
        }
        first
    }

    /// The record at `position`; a vacant one, or what stood there, when that has gone.
    pub(super) fn get(&self, position: u64) -> Record {
        let offset = position.wrapping_sub(self.first_segment()) as usize;
        let segment = self.segments.get(offset / SEGMENT);
        segment.map_or(Record::VACANT, |segment| segment[offset % SEGMENT])
    }

    pub(super) fn set(&mut self, position: u64, record: Record) {
        if let Some(slot) = self.slot(position) {
            *slot = record;
        }
    }

    /// Empties the position that `stamp` stands for.
    pub(super) fn vacate(&mut self, stamp: u64) {
        self.set(self.position(stamp), Record::VACANT);
    }

    /// The position that `stamp` stands for.
    pub(super) fn position(&self, stamp: u64) -> u64 {
        self.head + (stamp.wrapping_sub(self.head) & (STAMPS - 1))
    }

    /// Takes up to `count` of the oldest records that stand before `end` out, with their positions.
    pub(super) fn pop(&mut self, count: usize, end: u64) -> SmallVec<[(u64, Record); BATCH]> {
        let end = end.min(self.tail);
        let mut popped = SmallVec::new();
        while popped.len() < count {
            self.skip_swept();
            let Some(left) = end.checked_sub(self.head).filter(|left| *left > 0) else {
                break;
            };
            let Some(segment) = self.segments.front_mut() else {
                break;
            };
            let in_segment = self.head as usize % SEGMENT;
            let before_gap = self.sweep.map_or(left, |sweep| sweep.read + 1 - self.head);
            let mut head = self.head;
            for slot in segment[in_segment..]
                .iter_mut()
                .take(left.min(before_gap) as usize)
            {
                if popped.len() == count {
                    break;
                }
                let record = std::mem::replace(slot, Record::VACANT);
                if record != Record::VACANT {
                    popped.push((head, record));
                }
                head += 1;
            }
            self.advance(head);
        }
        popped
    }

    /// Begins a sweep of a ring of `records` records, unless one is under way.
    pub(super) fn begin_sweep(&mut self, records: usize) {
        self.skip_swept();
        if self.sweep.is_none() && self.span() > 0 {
            self.sweep = Some(Sweep {
                read: self.tail - 1,
                write: self.tail - 1,
                left: records,
            });
        }
    }

    /// What is left of the sweep: at most so many positions' time. 0 when none is under way.
    pub(super) fn work_left(&self) -> usize {
        self.sweep.map_or(0, |sweep| {
            let positions = (sweep.read + 1).saturating_sub(self.head) as usize;
            positions + sweep.left.min(positions) * MOVE
        })
    }

    /// Sweeps until the sweep is over, [`BATCH`] records have moved or `work`, which it takes its work off, is done.
    /// Reports the records that it moved.
    pub(super) fn sweep(&mut self, work: &mut usize) -> SmallVec<[Moved; BATCH]> {
        let mut moved = SmallVec::new();
        self.skip_swept();
        while *work > 0
            && moved.len() < BATCH
            && let Some(Sweep { read, write, left }) = self.sweep
        {
            let Some((vacant, found)) = self.last_record(read, *work) else {
                break;
            };
            *work -= vacant as usize;
            let mut next = Sweep {
                read: read - vacant,
                write,
                left,
            };
            if let Some(record) = found {
                let from = next.read;
                *work = work.saturating_sub(1);
                if from != write {
                    self.set(write, record);
                    self.set(from, Record::VACANT);
                    moved.push(Moved {
                        record,
                        from,
                        to: write,
                    });
                    *work = work.saturating_sub(MOVE);
                }
                next = Sweep {
                    read: from - 1,
                    write: write - 1,
                    left: left.saturating_sub(1),
                };
            }
            self.sweep = Some(next);
            self.skip_swept();
        }
        moved
    }

    /// Looks from `position` down for a record, at most at `most` positions and not beyond a segment: the number of vacant
    /// ones before it, and the record.
    fn last_record(&self, position: u64, most: usize) -> Option<(u64, Option<Record>)> {
        let end = position.checked_sub(self.first_segment())? as usize;
        let end_in_segment = end % SEGMENT + 1;
        let lowest = if end < SEGMENT {
            self.head as usize % SEGMENT
        } else {
            0
        };
        let start = lowest.max(end_in_segment.saturating_sub(most));
        let looked_at = self.segments.get(end / SEGMENT)?.get(start..end_in_segment)?;
        let found = looked_at.iter().rposition(|record| *record != Record::VACANT);
        let vacant = found.map_or(looked_at.len(), |at| looked_at.len() - 1 - at);
        Some((vacant as u64, found.map(|at| looked_at[at])))
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn records(&self) -> impl Iterator<Item = (u64, Record)> {
        let all = self.segments.iter().flat_map(|segment| segment.iter().copied());
        let positioned = (self.first_segment()..).zip(all);
        let span = self.head..self.tail;
        positioned
            .filter(|(_, record)| *record != Record::VACANT)
            .inspect(move |(at, _)| {
                assert!(
                    span.contains(at),
                    "segments are vacant before they are used again"
                )
            })
    }

    /// Gives the memory back that a ring for `blocks` blocks does not need.
    pub(super) fn shrink(&mut self, blocks: usize) {
        let in_use = (self.tail - self.first_segment()).div_ceil(SEGMENT as u64) as usize;
        let needed = if blocks == 0 {
            0
        } else {
            segments_limit(span_limit(blocks))
        };
        self.segments.truncate(in_use.max(needed));
        if self.segments.capacity() > 2 * self.segments.len() {
            self.segments.shrink_to_fit();
        }
    }

    /// When nothing is left below the sweep, it is over, and its gap is the start of the ring.
    fn skip_swept(&mut self) {
        if let Some(Sweep { read, write, .. }) = self.sweep
            && self.head > read
        {
            self.sweep = None;
            self.advance(write + 1);
        }
    }

    fn advance(&mut self, head: u64) {
        let whole = (head / SEGMENT as u64 - self.head / SEGMENT as u64) as usize;
        self.segments.rotate_left(whole.min(self.segments.len()));
        self.head = head;
    }

    fn first_segment(&self) -> u64 {
        self.head / SEGMENT as u64 * SEGMENT as u64
    }

    fn slot(&mut self, position: u64) -> Option<&mut Record> {
        // Before the first segment, the difference wraps to far beyond the last.
        let offset = position.wrapping_sub(self.first_segment()) as usize;
        self.segments.get_mut(offset / SEGMENT)?.get_mut(offset % SEGMENT)
    }
}
