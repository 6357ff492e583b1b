//! What is said of those who wait, and to them.

use crate::overload::queue::{Outlook, Verdict};
use std::sync::Arc;
use std::time::Duration;

/// Why a request waits no longer without having been placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// The queue is full, and its tenant holds the most of it.
    Full,
    /// It gave way to a tenant that holds less of the full queue.
    GaveWay,
    /// It waited as long as a request may.
    TimedOut,
    /// It would begin a conversation, and no cache had room for one within the longest wait.
    NoRoom,
}

impl Turned {
    /// All of them, for metrics.
    pub const ALL: [Self; 4] = [Self::Full, Self::GaveWay, Self::TimedOut, Self::NoRoom];

    /// The word in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::GaveWay => "gave-way",
            Self::TimedOut => "timed-out",
            Self::NoRoom => "no-room",
        }
    }
}

/// A request that is turned away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnedAway {
    pub why: Turned,
    /// When what waits now will have left the queue.
    pub retry_after: Duration,
    /// Whether any endpoint takes requests at all.
    pub any_ready: bool,
}

/// Why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Every endpoint has enough to prefill, or the best one has.
    Busy,
    /// It would begin a conversation, and no cache has room for one.
    NoRoom,
    /// Its turn has not come yet.
    Turn,
}

impl Why {
    /// The word on admin pages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "endpoints-busy",
            Self::NoRoom => "working-set-full",
            Self::Turn => "others-first",
        }
    }

    pub(super) const fn of(held: Option<Verdict>) -> Self {
        match held {
            Some(Verdict::Gated) => Self::NoRoom,
            Some(Verdict::Busy(_) | Verdict::Stop) => Self::Busy,
            Some(Verdict::Placed) | None => Self::Turn,
        }
    }
}

/// What a request could expect that came now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    pub queue: Outlook,
    pub why: Why,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct WhoWaits {
    pub request_id: Box<str>,
    pub model: Box<str>,
    pub waited: Duration,
    /// Until it is turned away.
    pub gives_up_in: Duration,
    pub why: Why,
    /// The busy endpoint that it is best served by.
    pub endpoint: Option<Arc<str>>,
}
