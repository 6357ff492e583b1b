//! Which tokens count where: conversations' own ones by touch class, and once per endpoint what several share.

use super::Conversation;
use super::learnt::{CLASSES, class_of};
use crate::prefix::{BlockHash, EndpointId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Conversations of one touch class, and the tokens that are theirs alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub tokens: u64,
    pub conversations: u64,
}

/// What counts on one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Occupancy {
    /// Of conversations with a request in flight.
    pub in_use: [Sum; CLASSES],
    pub idle: [Sum; CLASSES],
    /// Beginnings that the counted conversations did not bring themselves, each once.
    pub shared_tokens: u64,
}

/// A beginning that conversations on one endpoint have in common.
#[derive(Clone, Copy, Debug)]
struct Shared {
    conversations: u32,
    tokens: u64,
}

/// What counts on each endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    endpoints: Vec<Occupancy>,
    shared: HashMap<(EndpointId, BlockHash), Shared>,
}

impl Occupancy {
    /// The sum that a conversation counts in; none when it has been idle for too long.
    fn sum_of(&mut self, conversation: &Conversation) -> Option<&mut Sum> {
        if conversation.inflight > 0 {
            Some(&mut self.in_use[class_of(conversation.turns)])
        } else {
            conversation.counted.map(|class| &mut self.idle[class])
        }
    }
}

impl Ledger {
    /// What counts on one endpoint.
    pub fn on(&self, endpoint: EndpointId) -> Occupancy {
        let occupancy = self.endpoints.get(usize::from(endpoint.0));
        occupancy.copied().unwrap_or_default()
    }

    /// What counts on each endpoint, by its id.
    pub fn endpoints(&self) -> &[Occupancy] {
        &self.endpoints
    }

    /// Counts a conversation where it is now.
    pub fn add(&mut self, conversation: &Conversation) {
        let at = usize::from(conversation.endpoint.0);
        if at >= self.endpoints.len() {
            self.endpoints.resize(at + 1, Occupancy::default());
        }
        let occupancy = &mut self.endpoints[at];
        let Some(sum) = occupancy.sum_of(conversation) else {
            return;
        };
        sum.tokens += conversation.own_tokens;
        sum.conversations += 1;
        let Some(block) = conversation.shared_until else {
            return;
        };
        let shared = self
            .shared
            .entry((conversation.endpoint, block))
            .or_insert(Shared {
                conversations: 0,
                tokens: conversation.shared_tokens,
            });
        shared.conversations += 1;
        if shared.conversations == 1 {
            occupancy.shared_tokens += shared.tokens;
        }
    }

    /// Counts a conversation no longer; the reverse of [`add`](Self::add), for a conversation that did not change since.
    pub fn remove(&mut self, conversation: &Conversation) {
        let Some(occupancy) = self.endpoints.get_mut(usize::from(conversation.endpoint.0)) else {
            return;
        };
        let Some(sum) = occupancy.sum_of(conversation) else {
            return;
        };
        sum.tokens -= conversation.own_tokens;
        sum.conversations -= 1;
        let Some(block) = conversation.shared_until else {
            return;
        };
        if let Entry::Occupied(mut entry) = self.shared.entry((conversation.endpoint, block)) {
            entry.get_mut().conversations -= 1;
            if entry.get().conversations == 0 {
                occupancy.shared_tokens -= entry.remove().tokens;
            }
        }
    }
}
