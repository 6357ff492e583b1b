//! Where there is room: for a new conversation, and for one whose context was evicted.

use super::learnt::{CLASSES, class_of, turns_of};
use super::occupancy::{Occupancy, Sum};
use super::{Kind, Name, Visit, WorkingSet};
use crate::prefix::EndpointId;
use crate::time::Mono;
use smallvec::SmallVec;

/// Turns ahead for which it is foreseen what conversations will hold.
const TURNS_AHEAD: [u32; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

/// An endpoint that a request could go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub endpoint: EndpointId,
    /// Prompt tokens that it holds.
    pub match_tokens: u32,
    /// KV tokens that it can hold; `None` while that is unknown.
    pub capacity_tokens: Option<u64>,
}

/// Tokens that conversations hold on one endpoint, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Of conversations with a request in flight, and what they and idle ones share.
    pub in_use_tokens: u64,
    /// Of idle ones that are likely to come back.
    pub idle_tokens: u64,
}

impl Held {
    /// All of them.
    pub const fn tokens(&self) -> u64 {
        self.in_use_tokens + self.idle_tokens
    }
}

impl Kind {
    /// Whether it goes only where there is room, as far as the gate holds anybody back.
    pub const fn needs_room(self) -> bool {
        matches!(self, Self::Returning | Self::Fresh)
    }
}

impl WorkingSet {
    /// Those of `places` that have no room for the request, which is of this [`kind`](Self::kind) and to be answered with
    /// `output_tokens`. Together they prefill `tokens_per_s`.
    pub fn full(
        &self,
        now: Mono,
        kind: Kind,
        visit: &Visit,
        output_tokens: u32,
        places: &[Place],
        tokens_per_s: f64,
    ) -> SmallVec<[EndpointId; 16]> {
        if !kind.needs_room() || self.is_spare(now, tokens_per_s) {
            return SmallVec::new();
        }
        let output_tokens = u64::from(output_tokens);
        let new_tokens =
            |match_tokens: u32| u64::from(visit.prompt_tokens.saturating_sub(match_tokens)) + output_tokens;
        let fleet: Option<u64> = places.iter().map(|place| place.capacity_tokens).sum();
        let outgrown = kind == Kind::Fresh
            && fleet.is_some_and(|fleet| !self.fleet_admits(new_tokens(visit.best_match_tokens), fleet));
        let returning = (kind == Kind::Returning).then(|| self.continued(now, visit));
        let name = returning.flatten();
        let fits = |place: &Place| match name {
            Some(name) => self.readmits(name, visit, output_tokens, place),
            None => !outgrown && self.admits(place, new_tokens(place.match_tokens)),
        };
        // What is too large for an empty endpoint waits in vain.
        let is_empty = |place: &Place| self.held(place.endpoint).tokens() == 0;
        let full = places.iter().filter(|place| !is_empty(place) && !fits(place));
        full.map(|place| place.endpoint).collect()
    }

    /// Whether a fresh request may go to an endpoint, which has to make room for `new_tokens`.
    ///
    /// With regret, only while all that is in use or likely to come back leaves room within `fraction`. Always, what
    /// the conversations there can be expected to grow to must fit: waiting for regret would admit too many, who then
    /// go on for as long as they last.
    fn admits(&self, place: &Place, new_tokens: u64) -> bool {
        let Some(capacity) = place.capacity_tokens.map(|tokens| tokens as f64) else {
            return true;
        };
        let held = self.held(place.endpoint).tokens();
        let fits = (held + new_tokens) as f64 <= self.settings.fraction * capacity;
        let occupancy = self.ledger.on(place.endpoint);
        (fits || !self.is_closing()) && self.foreseen(&[occupancy], new_tokens) <= capacity
    }

    /// Whether all endpoints together can hold what their conversations, and one that begins with `new_tokens`, can be
    /// expected to grow to.
    fn fleet_admits(&self, new_tokens: u64, capacity_tokens: u64) -> bool {
        self.foreseen(self.ledger.endpoints(), new_tokens) <= capacity_tokens as f64
    }

    /// Whether the conversation, whose context is gone, can have it back on an endpoint without evicting others.
    fn readmits(&self, name: Name, visit: &Visit, output_tokens: u64, place: &Place) -> bool {
        let Some(conversation) = self.conversations.get(&name) else {
            return true;
        };
        let Some(capacity) = place.capacity_tokens else {
            return true;
        };
        let mut held = self.held(place.endpoint).tokens();
        if conversation.endpoint == place.endpoint && self.is_held(conversation) {
            held = held.saturating_sub(conversation.own_tokens);
        }
        let own_tokens = u64::from(visit.prompt_tokens).saturating_sub(conversation.shared_tokens);
        held + own_tokens + output_tokens <= capacity
    }

    /// Most tokens that the conversations and a new one can be expected to hold at any of the next turns: of each what
    /// it holds and the mean growth per turn, if it is still there, as often as its touch classes come back.
    fn foreseen(&self, endpoints: &[Occupancy], new_tokens: u64) -> f64 {
        let mut classes = [Sum::default(); CLASSES];
        for sums in endpoints
            .iter()
            .flat_map(|occupancy| [&occupancy.in_use, &occupancy.idle])
        {
            for (class, sum) in classes.iter_mut().zip(sums) {
                class.tokens += sum.tokens;
                class.conversations += sum.conversations;
            }
        }
        classes[0].tokens += new_tokens;
        classes[0].conversations += 1;
        let growth = self.growth.tokens_per_turn();
        let mut foreseen = [0.0_f64; TURNS_AHEAD.len()];
        for (class, sum) in classes
            .iter()
            .enumerate()
            .filter(|(_, sum)| sum.conversations > 0)
        {
            let (mut stays, mut gone) = (self.reuse[class].share(), 0);
            for (foreseen, ahead) in foreseen.iter_mut().zip(TURNS_AHEAD) {
                // The first return is that of its present class.
                for turn in gone.max(1)..ahead {
                    stays *= self.reuse[class_of(turns_of(class) + turn)].share();
                }
                gone = ahead;
                let grown = sum.conversations as f64 * f64::from(ahead) * growth;
                *foreseen += stays * (sum.tokens as f64 + grown);
            }
        }
        let shared: u64 = endpoints.iter().map(|occupancy| occupancy.shared_tokens).sum();
        foreseen.into_iter().fold(0.0, f64::max) + shared as f64
    }

    /// Whether endpoints that prefill `tokens_per_s` together could compute anew all that they are asked for: then a
    /// gate keeps conversations waiting for nothing.
    pub fn is_spare(&self, now: Mono, tokens_per_s: f64) -> bool {
        self.settings.spare > 0.0 && self.demand.tokens_per_s(now) <= self.settings.spare * tokens_per_s
    }

    /// Whether regret is high enough for the gate to hold anybody back.
    pub fn is_closing(&self) -> bool {
        self.regret.share() > self.settings.regret
    }

    /// Share of the missing tokens that the fleet knew within `idle`, 0..=1.
    pub fn regret(&self) -> f64 {
        self.regret.share()
    }

    /// Tokens that count on `endpoint`.
    pub fn held(&self, endpoint: EndpointId) -> Held {
        let occupancy = self.ledger.on(endpoint);
        let in_use = occupancy.in_use.iter().map(|sum| sum.tokens).sum::<u64>();
        let idle = occupancy.idle.iter().zip(&self.reuse);
        let idle = idle.filter(|(_, reuse)| reuse.share() >= self.settings.reuse);
        Held {
            in_use_tokens: in_use + occupancy.shared_tokens,
            idle_tokens: idle.map(|(sum, _)| sum.tokens).sum(),
        }
    }
}
