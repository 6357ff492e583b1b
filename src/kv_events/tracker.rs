//! One event stream: sequence numbers, gaps, restarts, and what they mean for ownership.
//!
//! vLLM numbers its messages from 0 in each process and drops some when a subscriber is slow. A number
//! that is skipped means lost removals, so nothing held before can be trusted; one that goes back means
//! another process. Which of the two it is decides how much is forgotten.

use super::codec::{self, Batch};
use super::ownership::{BlockSink, Limits, Ownership};

/// What the caller has to do after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it was applied, or was old.
    Done,
    /// Messages from `from` on are missing. Fetch them, hand them to [`Tracker::replayed`], then hand this
    /// message to [`Tracker::resume`] (also when fetching failed).
    Replay { from: u64 },
}

/// What became of the messages, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    pub applied_messages: u64,
    /// Seen before: duplicates, and replayed messages that were not missing.
    pub old_messages: u64,
    pub undecodable_messages: u64,
    /// Gaps that stayed open, and the messages lost in them.
    pub gaps: u64,
    pub lost_messages: u64,
    pub restarts: u64,
    pub unknown_events: u64,
    pub malformed_events: u64,
}

/// The state of one stream (one data-parallel rank of one endpoint).
#[derive(Debug)]
pub struct Tracker {
    ownership: Ownership,
    can_replay: bool,
    /// The sequence number that comes next; `None` before the first message.
    expected: Option<u64>,
    newest_timestamp_s: f64,
    /// No message of the current connection has been accepted: the process behind it may be another one.
    unproven: bool,
    counts: StreamCounts,
}

impl Tracker {
    /// `can_replay`: whether the caller is able to fetch missed messages.
    pub fn new(limits: Limits, can_replay: bool) -> Self {
        Self {
            ownership: Ownership::new(limits),
            can_replay,
            expected: None,
            newest_timestamp_s: f64::NEG_INFINITY,
            unproven: true,
            counts: StreamCounts::default(),
        }
    }

    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    pub fn counts(&self) -> StreamCounts {
        self.counts
    }

    /// The sequence number of the newest message that was applied.
    pub fn last_sequence(&self) -> Option<u64> {
        self.expected.and_then(|next| next.checked_sub(1))
    }

    /// A connection was made. Returns from where to replay before any live message is awaited: from the
    /// newest known message, which also shows whether the process is still the same.
    pub fn connected(&mut self) -> Option<u64> {
        self.unproven = true;
        self.can_replay.then(|| self.last_sequence().unwrap_or(0))
    }

    /// Something else (a scrape, a health check) showed that the engine's cache is gone.
    pub fn reset(&mut self, sink: &mut impl BlockSink) {
        self.restart(sink);
    }

    /// A message from the live stream.
    pub fn live(&mut self, sequence: u64, payload: &[u8], sink: &mut impl BlockSink) -> Next {
        let batch = codec::decode(payload);
        let timestamp_s = batch
            .as_ref()
            .map_or(f64::NEG_INFINITY, |batch| batch.timestamp_s);
        if self.expected.is_some_and(|expected| sequence < expected) {
            if !self.unproven && timestamp_s <= self.newest_timestamp_s {
                self.counts.old_messages += 1;
                return Next::Done;
            }
            self.restart(sink);
        }
        let from = self.expected.unwrap_or(0);
        if sequence > from && self.can_replay {
            return Next::Replay { from };
        }
        self.accept(sequence, batch.ok(), sink);
        Next::Done
    }

    /// A message from the replay socket. [`Next::Replay`] here means that a restart came to light and the
    /// replay has to begin anew, without a message to resume with.
    pub fn replayed(&mut self, sequence: u64, payload: &[u8], sink: &mut impl BlockSink) -> Next {
        let batch = codec::decode(payload).ok();
        if self.expected.is_some_and(|expected| sequence < expected) {
            self.counts.old_messages += 1;
            let newest = self.last_sequence() == Some(sequence);
            if self.unproven && newest {
                self.unproven = false;
                if batch.is_some_and(|batch| batch.timestamp_s != self.newest_timestamp_s) {
                    self.restart(sink);
                    return Next::Replay { from: 0 };
                }
            }
            return Next::Done;
        }
        self.accept(sequence, batch, sink);
        Next::Done
    }

    /// The live message that a replay was fetched for.
    pub fn resume(&mut self, sequence: u64, payload: &[u8], sink: &mut impl BlockSink) {
        if self.expected.is_some_and(|expected| sequence < expected) {
            self.counts.old_messages += 1;
            return;
        }
        self.accept(sequence, codec::decode(payload).ok(), sink);
    }

    /// Takes the message as the next one, whatever is missing before it.
    fn accept(&mut self, sequence: u64, batch: Option<Batch<'_>>, sink: &mut impl BlockSink) {
        if let Some(expected) = self.expected
            && sequence > expected
        {
            self.lose(sequence - expected, sink);
        }
        self.expected = Some(sequence.saturating_add(1));
        self.unproven = false;
        let Some(batch) = batch else {
            self.counts.undecodable_messages += 1;
            return self.lose(1, sink);
        };
        self.newest_timestamp_s = batch.timestamp_s;
        self.counts.applied_messages += 1;
        self.counts.unknown_events += u64::from(batch.unknown_events);
        self.counts.malformed_events += u64::from(batch.malformed_events);
        for event in &batch.events {
            self.ownership.apply(event, sink);
        }
        sink.flush();
    }

    fn lose(&mut self, messages: u64, sink: &mut impl BlockSink) {
        self.counts.gaps += 1;
        self.counts.lost_messages = self.counts.lost_messages.saturating_add(messages);
        self.ownership.disown(sink);
        sink.flush();
    }

    fn restart(&mut self, sink: &mut impl BlockSink) {
        self.counts.restarts += 1;
        self.expected = None;
        self.newest_timestamp_s = f64::NEG_INFINITY;
        self.ownership.forget(sink);
        sink.flush();
    }
}

#[cfg(test)]
mod tests;
