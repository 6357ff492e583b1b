//! The working-set gate: which conversations may begin while the running ones fill the caches.
//!
//! Past the caches' capacity each turn evicts somebody else's context, and every turn is computed anew: less gets
//! done the more is asked. The gate lets running conversations go on and admits new ones to an endpoint while what
//! is in use there, and what is idle but likely to come back, leaves room. What is likely is learnt per touch class
//! (how often a conversation has come so far); a gate that would not help stays open, because without regret
//! (missing tokens that the fleet knew a moment ago) nothing is being evicted too early.
//!
//! A conversation is known by its session id, or by its blocks: a prompt that contains the block at the end, or the
//! one at half, of what a conversation said last continues it.

mod learnt;

use crate::prefix::{BlockHash, EndpointId};
use crate::time::Mono;
use learnt::{CLASSES, Demand, Regret, Reuse, class_of};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// What the gate can be told; the defaults were chosen by event simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkingSetSettings {
    /// phi: share of an endpoint's KV capacity that conversations may fill when one is admitted. The rest is for their
    /// growth, and for what they share, which is not counted.
    pub fraction: f64,
    /// tau: an idle conversation counts this long. Must exceed the longest usual pause between turns.
    pub idle: Duration,
    /// How long a conversation that was served may come back without waiting.
    pub tenure: Duration,
    /// Theta: the gate is open while regret is at most this.
    pub regret: f64,
    /// Prompts of which some endpoint holds at least this share bring little that is new, and never wait.
    pub known: f64,
    /// Idle conversations of a touch class count when at least this share of them comes back.
    pub reuse: f64,
    /// The gate is open while the prompts of the last minutes, had nothing of them been cached, would have taken at most
    /// this share of the time that the endpoints have: then evicting costs little. 0: whatever they take.
    pub spare: f64,
    /// Conversations remembered at a time.
    pub max_conversations: usize,
}

impl Default for WorkingSetSettings {
    fn default() -> Self {
        Self {
            fraction: 0.8,
            idle: Duration::from_secs(150),
            tenure: Duration::from_secs(900),
            regret: 0.2,
            known: 0.9,
            reuse: 0.5,
            spare: 0.0,
            max_conversations: 65_536,
        }
    }
}

/// Names a conversation.
type Name = u64;

/// A request as the gate sees it.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// Hash of the session id, when the client sent one.
    pub session: Option<u64>,
    /// Hashes of the prompt's blocks.
    pub blocks: &'a [BlockHash],
    pub prompt_tokens: u32,
    /// Prompt tokens that the endpoint which holds the most of them holds.
    pub best_match_tokens: u32,
}

/// What a request is to the working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It continues a conversation with tenure.
    Continued,
    /// It continues none, and brings little that is new.
    Known,
    /// It would add a conversation.
    Fresh,
}

/// A dispatched request's part in the working set; give it back by [`WorkingSet::ended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay(Name);

#[derive(Clone, Debug)]
struct Conversation {
    endpoint: EndpointId,
    /// Tokens said so far, answers included.
    context_tokens: u64,
    /// Those of them that no other conversation shares.
    own_tokens: u64,
    /// Blocks at its start that others had brought.
    shared_blocks: usize,
    turns: u32,
    inflight: u32,
    seen: Mono,
    /// Number of its newest idle period.
    pause: u64,
    /// Touch class under which its idle tokens count now.
    counted: Option<usize>,
    /// Its endpoint's cache was lost since: nobody holds its blocks.
    lost: bool,
    marks: [Option<BlockHash>; 2],
}

/// Tokens that count on one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Occupancy {
    in_use: u64,
    /// Those of them that belong to conversations which came back at least once.
    in_use_again: u64,
    idle: [u64; CLASSES],
}

/// Tokens that conversations hold on one endpoint, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Of conversations with a request in flight.
    pub in_use_tokens: u64,
    /// Of idle ones that are likely to come back.
    pub idle_tokens: u64,
}

/// An idle period that has not been judged yet.
#[derive(Clone, Copy, Debug)]
struct Pause {
    from: Mono,
    name: Name,
    number: u64,
    class: usize,
}

/// The conversations of one pool. Bounded by [`WorkingSetSettings::max_conversations`].
#[derive(Debug)]
pub struct WorkingSet {
    settings: WorkingSetSettings,
    conversations: HashMap<Name, Conversation>,
    by_mark: HashMap<BlockHash, Name>,
    endpoints: Vec<Occupancy>,
    /// One entry per conversation, roughly in order of last use.
    by_age: VecDeque<(Mono, Name)>,
    pauses: VecDeque<Pause>,
    pause_number: u64,
    reuse: [Reuse; CLASSES],
    regret: Regret,
    demand: Demand,
}

impl WorkingSet {
    /// A gate that knows nothing yet, and is open.
    pub fn new(settings: WorkingSetSettings) -> Self {
        Self {
            settings,
            conversations: HashMap::new(),
            by_mark: HashMap::new(),
            endpoints: Vec::new(),
            by_age: VecDeque::new(),
            pauses: VecDeque::new(),
            pause_number: 0,
            reuse: [Reuse::default(); CLASSES],
            regret: Regret::default(),
            demand: Demand::default(),
        }
    }

    /// Other settings from now on; what was learnt stays.
    pub fn retune(&mut self, settings: WorkingSetSettings) {
        self.settings = settings;
    }

    pub fn settings(&self) -> &WorkingSetSettings {
        &self.settings
    }

    /// What the request is to the working set.
    pub fn kind(&self, now: Mono, visit: &Visit) -> Kind {
        let known = self.settings.known * f64::from(visit.prompt_tokens);
        if self.continued(now, visit).is_some() {
            Kind::Continued
        } else if f64::from(visit.best_match_tokens) < known {
            Kind::Fresh
        } else {
            Kind::Known
        }
    }

    /// Whether the request would add a conversation: it continues none with tenure and is mostly unknown.
    pub fn is_fresh(&self, now: Mono, visit: &Visit) -> bool {
        self.kind(now, visit) == Kind::Fresh
    }

    /// Whether a fresh request may go to `endpoint`, which has to make room for `new_tokens`.
    ///
    /// With regret, only while all that is in use or likely to come back leaves room within `fraction`. Without, while
    /// what can be expected to come back does: waiting for regret would admit too many, who then go on for as long as
    /// they last.
    pub fn admits(&self, endpoint: EndpointId, new_tokens: u64, capacity_tokens: Option<u64>) -> bool {
        let Some(capacity) = capacity_tokens.map(|tokens| tokens as f64) else {
            return true;
        };
        let held = if self.is_closing() {
            let held = self.held(endpoint);
            (held.in_use_tokens + held.idle_tokens) as f64
        } else {
            self.expected(endpoint)
        };
        // What is too large for an empty endpoint waits in vain.
        held == 0.0 || held + new_tokens as f64 <= self.settings.fraction * capacity
    }

    /// Whether endpoints that prefill `tokens_per_s` together could compute anew all that they are asked for: then a
    /// gate keeps conversations waiting for nothing.
    pub fn is_spare(&self, now: Mono, tokens_per_s: f64) -> bool {
        self.settings.spare > 0.0 && self.demand.tokens_per_s(now) <= self.settings.spare * tokens_per_s
    }

    /// Tokens on `endpoint` that can be expected to be asked for again: of conversations that came back before and are
    /// in use, and of idle ones by the share that comes back.
    fn expected(&self, endpoint: EndpointId) -> f64 {
        let Some(occupancy) = self.endpoints.get(usize::from(endpoint.0)) else {
            return 0.0;
        };
        let idle = occupancy.idle.iter().zip(&self.reuse);
        let idle = idle.map(|(tokens, reuse)| *tokens as f64 * reuse.share());
        occupancy.in_use_again as f64 + idle.sum::<f64>()
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
        let Some(occupancy) = self.endpoints.get(usize::from(endpoint.0)) else {
            return Held::default();
        };
        let likely = self
            .reuse
            .iter()
            .map(|reuse| reuse.share() >= self.settings.reuse);
        let idle = occupancy.idle.iter().zip(likely);
        Held {
            in_use_tokens: occupancy.in_use,
            idle_tokens: idle.filter(|(_, likely)| *likely).map(|(tokens, _)| tokens).sum(),
        }
    }

    /// Conversations remembered.
    pub fn len(&self) -> usize {
        self.conversations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.conversations.is_empty()
    }

    /// A request goes to `endpoint`, which holds `match_tokens` of it. `None` for a prompt that brings nothing that
    /// could be known again.
    pub fn dispatched(
        &mut self,
        now: Mono,
        visit: &Visit,
        endpoint: EndpointId,
        match_tokens: u32,
    ) -> Option<Stay> {
        self.pass(now);
        let continued = self.continued(now, visit);
        self.observe_regret(now, visit, continued, match_tokens);
        self.demand.observe(now, visit.prompt_tokens.into());
        let name = continued.or_else(|| self.begin(now, visit))?;
        self.uncount(name);
        let conversation = self.conversations.get_mut(&name)?;
        let grown = u64::from(visit.prompt_tokens).saturating_sub(conversation.context_tokens);
        conversation.own_tokens += grown;
        conversation.context_tokens = visit.prompt_tokens.into();
        conversation.endpoint = endpoint;
        conversation.turns = conversation.turns.saturating_add(1);
        conversation.inflight += 1;
        conversation.seen = now;
        conversation.lost = false;
        self.mark(name, visit.blocks);
        self.count(name);
        Some(Stay(name))
    }

    /// The request ended, after an answer of `output_tokens`.
    pub fn ended(&mut self, now: Mono, stay: Stay, output_tokens: u32) {
        self.pass(now);
        self.uncount(stay.0);
        self.pause_number += 1;
        let Some(conversation) = self.conversations.get_mut(&stay.0) else {
            return;
        };
        conversation.own_tokens += u64::from(output_tokens);
        conversation.context_tokens += u64::from(output_tokens);
        conversation.seen = now;
        conversation.inflight = conversation.inflight.saturating_sub(1);
        if conversation.inflight == 0 {
            let class = class_of(conversation.turns);
            conversation.counted = Some(class);
            conversation.pause = self.pause_number;
            self.pauses.push_back(Pause {
                from: now,
                name: stay.0,
                number: self.pause_number,
                class,
            });
        }
        self.count(stay.0);
    }

    /// The request of `stay` is tried at another endpoint.
    pub fn moved(&mut self, stay: Stay, endpoint: EndpointId) {
        self.uncount(stay.0);
        if let Some(conversation) = self.conversations.get_mut(&stay.0) {
            conversation.endpoint = endpoint;
        }
        self.count(stay.0);
    }

    /// A request that continues a conversation begins to wait: until [`WorkingSet::retract`] the conversation counts as
    /// one in use, for it will need its blocks as soon as its turn comes.
    pub fn announce(&mut self, now: Mono, visit: &Visit) -> Option<Stay> {
        self.pass(now);
        let name = self.continued(now, visit)?;
        self.uncount(name);
        let conversation = self.conversations.get_mut(&name)?;
        conversation.inflight += 1;
        conversation.seen = now;
        self.count(name);
        Some(Stay(name))
    }

    /// An announced request waits no longer: it has been dispatched, or is gone.
    pub fn retract(&mut self, now: Mono, stay: Stay) {
        self.ended(now, stay, 0);
    }

    /// Time passes: idle periods are judged, old conversations are forgotten.
    pub fn pass(&mut self, now: Mono) {
        while let Some(pause) = self.pauses.front().copied()
            && pause.from + self.settings.idle <= now
        {
            self.pauses.pop_front();
            self.judge(now, &pause);
        }
        while let Some((seen, name)) = self.by_age.front().copied()
            && (seen + self.settings.tenure <= now
                || self.conversations.len() > self.settings.max_conversations)
        {
            self.by_age.pop_front();
            self.forget_or_requeue(now, name);
        }
    }

    /// An endpoint's cache is gone: idle conversations do not count there, and that they have to be computed anew is
    /// nobody's regret. They keep their tenure.
    pub fn forget_endpoint(&mut self, endpoint: EndpointId) {
        let on_it = self.conversations.iter().filter(|(_, c)| c.endpoint == endpoint);
        let names: Vec<Name> = on_it.map(|(name, _)| *name).collect();
        for name in names {
            let busy = self.conversations.get_mut(&name).is_some_and(|conversation| {
                conversation.lost = true;
                conversation.inflight > 0
            });
            if !busy {
                self.uncount(name);
            }
        }
    }

    /// The conversation with tenure that the request continues.
    fn continued(&self, now: Mono, visit: &Visit) -> Option<Name> {
        let has_tenure = |name: &Name| {
            let conversation = self.conversations.get(name);
            conversation.is_some_and(|c| c.inflight > 0 || c.seen + self.settings.tenure > now)
        };
        if let Some(session) = visit.session {
            return Some(session).filter(has_tenure);
        }
        let deepest_first = visit.blocks.iter().rev();
        deepest_first
            .filter_map(|block| self.by_mark.get(block))
            .copied()
            .find(has_tenure)
    }

    fn begin(&mut self, now: Mono, visit: &Visit) -> Option<Name> {
        let known_share = f64::from(visit.best_match_tokens) / f64::from(visit.prompt_tokens.max(1));
        let shared_blocks = (known_share * visit.blocks.len() as f64).round() as usize;
        // Without a session id, its last block names it; a prompt that others brought is nobody's conversation.
        let name = match visit.session {
            Some(session) => session,
            None => *visit.blocks.get(shared_blocks..)?.last()?,
        };
        self.forget(name);
        self.by_age.push_back((now, name));
        let shared_tokens = visit.best_match_tokens.into();
        self.conversations.insert(
            name,
            Conversation {
                endpoint: EndpointId(0),
                context_tokens: shared_tokens,
                own_tokens: 0,
                shared_blocks,
                turns: 0,
                inflight: 0,
                seen: now,
                pause: 0,
                counted: None,
                lost: false,
                marks: [None; 2],
            },
        );
        Some(name)
    }

    /// Remembers the blocks by which the next turn is known: the last one, and the one at half, for a context that
    /// was cut since. Blocks that others share say nothing.
    fn mark(&mut self, name: Name, blocks: &[BlockHash]) {
        let Some(conversation) = self.conversations.get_mut(&name) else {
            return;
        };
        let half = blocks.len().div_ceil(2).max(conversation.shared_blocks);
        let new = [
            blocks
                .get(conversation.shared_blocks..)
                .and_then(<[_]>::last)
                .copied(),
            blocks.get(half).copied(),
        ];
        let old = std::mem::replace(&mut conversation.marks, new);
        for mark in old.into_iter().flatten() {
            if self.by_mark.get(&mark) == Some(&name) {
                self.by_mark.remove(&mark);
            }
        }
        for mark in new.into_iter().flatten() {
            self.by_mark.insert(mark, name);
        }
    }

    fn observe_regret(&mut self, now: Mono, visit: &Visit, continued: Option<Name>, match_tokens: u32) {
        let recent = continued
            .and_then(|name| self.conversations.get(&name))
            .filter(|c| !c.lost && (c.inflight > 0 || c.seen + self.settings.idle > now))
            .map_or(0, |c| c.context_tokens.min(visit.prompt_tokens.into()));
        let known = recent.max(visit.best_match_tokens.into());
        let missing = visit.prompt_tokens.saturating_sub(match_tokens);
        let avoidable = known.saturating_sub(match_tokens.into());
        self.regret.observe(now, avoidable as f64, f64::from(missing));
    }

    /// An idle period is old enough to say how it ended. Judging reuse at once and its absence later would make
    /// reuse look more likely than it is, most of all at the start.
    fn judge(&mut self, now: Mono, pause: &Pause) {
        let conversation = self.conversations.get_mut(&pause.name);
        let unused = match conversation {
            None => true,
            Some(c) => c.inflight == 0 && c.pause == pause.number,
        };
        self.reuse[pause.class].observe(now, !unused);
        if unused {
            self.uncount(pause.name);
        }
    }

    fn forget_or_requeue(&mut self, now: Mono, name: Name) {
        let Some(conversation) = self.conversations.get(&name) else {
            return;
        };
        let crowded = self.conversations.len() > self.settings.max_conversations;
        if !crowded && (conversation.inflight > 0 || conversation.seen + self.settings.tenure > now) {
            self.by_age.push_back((conversation.seen.max(now), name));
        } else {
            self.forget(name);
        }
    }

    fn forget(&mut self, name: Name) {
        self.uncount(name);
        let Some(conversation) = self.conversations.remove(&name) else {
            return;
        };
        for mark in conversation.marks.into_iter().flatten() {
            if self.by_mark.get(&mark) == Some(&name) {
                self.by_mark.remove(&mark);
            }
        }
    }

    /// Adds a conversation's own tokens where they count now.
    fn count(&mut self, name: Name) {
        let Some(conversation) = self.conversations.get(&name) else {
            return;
        };
        let at = usize::from(conversation.endpoint.0);
        if at >= self.endpoints.len() {
            self.endpoints.resize(at + 1, Occupancy::default());
        }
        self.endpoints[at].change(conversation, |sum| *sum += conversation.own_tokens);
    }

    /// Takes a conversation's tokens out of where they count; the reverse of [`count`](Self::count).
    fn uncount(&mut self, name: Name) {
        let Some(conversation) = self.conversations.get_mut(&name) else {
            return;
        };
        if let Some(occupancy) = self.endpoints.get_mut(usize::from(conversation.endpoint.0)) {
            occupancy.change(conversation, |sum| *sum -= conversation.own_tokens);
        }
        conversation.counted = None;
    }
}

impl Occupancy {
    /// Changes the sums that a conversation counts in; none when it has been idle for too long.
    fn change(&mut self, conversation: &Conversation, change: impl Fn(&mut u64)) {
        if conversation.inflight > 0 {
            change(&mut self.in_use);
            if conversation.turns > 1 {
                change(&mut self.in_use_again);
            }
        } else if let Some(class) = conversation.counted {
            change(&mut self.idle[class]);
        }
    }
}

#[cfg(test)]
mod tests;
