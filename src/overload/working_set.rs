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
mod occupancy;
mod room;
mod settings;

pub use room::{Held, Place};
pub use settings::WorkingSetSettings;

use crate::prefix::{BlockHash, EndpointId};
use crate::time::Mono;
use learnt::{CLASSES, Demand, Growth, Pauses, Regret, Reuse, class_of};
use occupancy::Ledger;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A context of which less than this share is cached anywhere counts as evicted.
const WARM: f64 = 0.5;

/// Names a conversation.
type Name = u64;

/// Blocks by which a conversation's next turn is known.
type Marks = [Option<BlockHash>; 2];

/// A request as the gate sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visit<'a> {
    /// Hash of the session id, when the client sent one.
    pub session: Option<u64>,
    /// Hashes of the prompt's blocks.
    pub blocks: &'a [BlockHash],
    pub prompt_tokens: u32,
    /// Prompt tokens that the endpoint which holds the most of them holds.
    pub best_match_tokens: u32,
    /// How long the request has waited so far.
    pub waited: Duration,
}

/// What a request is to the working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It continues a conversation with tenure.
    Continued,
    /// So it does, but its context was evicted: to compute it anew evicts somebody else's, unless there is room.
    Returning,
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
    /// Length of its last prompt.
    prompt_tokens: u64,
    /// Tokens said so far, answers included.
    context_tokens: u64,
    /// Those of them that it brought itself.
    own_tokens: u64,
    /// Tokens at its start that others had brought.
    shared_tokens: u64,
    /// Their blocks.
    shared_blocks: usize,
    /// The last of these blocks.
    shared_until: Option<BlockHash>,
    turns: u32,
    inflight: u32,
    seen: Mono,
    /// Number of its newest idle period.
    pause: u64,
    /// Touch class under which its idle tokens count now.
    counted: Option<usize>,
    /// Its endpoint's cache was lost since: nobody holds its blocks.
    lost: bool,
    marks: Marks,
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
    ledger: Ledger,
    /// One entry per conversation, roughly in order of last use.
    by_age: VecDeque<(Mono, Name)>,
    /// Idle periods whose end is awaited, and those that count.
    pauses: VecDeque<Pause>,
    counting: VecDeque<Pause>,
    pause_number: u64,
    reuse: [Reuse; CLASSES],
    regret: Regret,
    demand: Demand,
    growth: Growth,
    pause_lengths: Pauses,
}

impl WorkingSet {
    /// A gate that knows nothing yet, and is open.
    pub fn new(settings: WorkingSetSettings) -> Self {
        Self {
            settings,
            conversations: HashMap::new(),
            by_mark: HashMap::new(),
            ledger: Ledger::default(),
            by_age: VecDeque::new(),
            pauses: VecDeque::new(),
            counting: VecDeque::new(),
            pause_number: 0,
            reuse: [Reuse::default(); CLASSES],
            regret: Regret::default(),
            demand: Demand::default(),
            growth: Growth::default(),
            pause_lengths: Pauses::default(),
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
        let continued = self.continued(now, visit);
        let continued = continued.and_then(|name| self.conversations.get(&name));
        match continued {
            Some(conversation) if self.is_returning(conversation, visit) => Kind::Returning,
            Some(_) => Kind::Continued,
            None if f64::from(visit.best_match_tokens) < known => Kind::Fresh,
            None => Kind::Known,
        }
    }

    /// Whether the conversation's context was evicted, and the request has not waited for room long enough.
    fn is_returning(&self, conversation: &Conversation, visit: &Visit) -> bool {
        let context = conversation.context_tokens.min(visit.prompt_tokens.into());
        self.is_closing()
            && !conversation.lost
            && visit.waited < self.settings.return_wait
            && f64::from(visit.best_match_tokens) < WARM * context as f64
    }

    /// Whether its tokens are part of what its endpoint [holds](Self::held).
    fn is_held(&self, conversation: &Conversation) -> bool {
        let likely = |class: usize| self.reuse[class].share() >= self.settings.reuse;
        conversation.inflight > 0 || conversation.counted.is_some_and(likely)
    }

    /// Whether the request would add a conversation: it continues none with tenure and is mostly unknown.
    pub fn is_fresh(&self, now: Mono, visit: &Visit) -> bool {
        self.kind(now, visit) == Kind::Fresh
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
        self.returned(now, name, visit);
        self.uncount(name);
        let conversation = self.conversations.get_mut(&name)?;
        if conversation.turns > 0 {
            let longer = u64::from(visit.prompt_tokens).saturating_sub(conversation.prompt_tokens);
            self.growth.observe(now, longer as f64);
        }
        let grown = u64::from(visit.prompt_tokens).saturating_sub(conversation.context_tokens);
        conversation.own_tokens += grown;
        conversation.prompt_tokens = visit.prompt_tokens.into();
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
            let pause = Pause {
                from: now,
                name: stay.0,
                number: self.pause_number,
                class,
            };
            self.pauses.push_back(pause);
            self.counting.push_back(pause);
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
    /// one in use, for it will need its blocks as soon as its turn comes. One whose context was evicted counts nowhere
    /// until it has room again.
    pub fn announce(&mut self, now: Mono, visit: &Visit) -> Option<Stay> {
        self.pass(now);
        let name = self.continued(now, visit)?;
        let conversation = self.conversations.get(&name)?;
        if self.is_returning(conversation, visit) {
            if conversation.inflight == 0 {
                self.uncount(name);
            }
            return None;
        }
        self.returned(now, name, visit);
        self.uncount(name);
        let conversation = self.conversations.get_mut(&name)?;
        conversation.inflight += 1;
        conversation.seen = now;
        self.count(name);
        Some(Stay(name))
    }

    /// The conversation comes back: how long it paused says how long others may.
    fn returned(&mut self, now: Mono, name: Name, visit: &Visit) {
        let idle = |c: &&Conversation| c.turns > 0 && c.inflight == 0;
        if let Some(conversation) = self.conversations.get(&name).filter(idle) {
            let paused = now.since(conversation.seen).saturating_sub(visit.waited);
            self.pause_lengths.observe(now, paused);
        }
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
        let idle = self.pause_lengths.usual(now).unwrap_or(self.settings.idle);
        while let Some(pause) = self.counting.front().copied()
            && pause.from + idle.min(self.settings.idle) <= now
        {
            self.counting.pop_front();
            if self.lasts(&pause) {
                self.uncount(pause.name);
            }
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
        // Of a conversation by that name whose tenure is over, the entry by age is taken over.
        if !self.forget(name) {
            self.by_age.push_back((now, name));
        }
        let shared_tokens = visit.best_match_tokens.into();
        self.conversations.insert(
            name,
            Conversation {
                endpoint: EndpointId(0),
                prompt_tokens: 0,
                context_tokens: shared_tokens,
                own_tokens: 0,
                shared_tokens,
                shared_blocks,
                shared_until: visit.blocks[..shared_blocks.min(visit.blocks.len())]
                    .last()
                    .copied(),
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
        self.unmark(name, old);
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
        let unused = self.lasts(pause) || !self.conversations.contains_key(&pause.name);
        self.reuse[pause.class].observe(now, !unused);
        if unused {
            self.uncount(pause.name);
        }
    }

    /// Whether the conversation has been idle ever since.
    fn lasts(&self, pause: &Pause) -> bool {
        let conversation = self.conversations.get(&pause.name);
        conversation.is_some_and(|c| c.inflight == 0 && c.pause == pause.number)
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

    /// False when there is no conversation by that name.
    fn forget(&mut self, name: Name) -> bool {
        self.uncount(name);
        let Some(conversation) = self.conversations.remove(&name) else {
            return false;
        };
        self.unmark(name, conversation.marks);
        true
    }

    fn unmark(&mut self, name: Name, marks: Marks) {
        for mark in marks.into_iter().flatten() {
            if self.by_mark.get(&mark) == Some(&name) {
                self.by_mark.remove(&mark);
            }
        }
    }

    /// Counts a conversation where it is now.
    fn count(&mut self, name: Name) {
        if let Some(conversation) = self.conversations.get(&name) {
            self.ledger.add(conversation);
        }
    }

    /// Counts a conversation no longer, until [`count`](Self::count).
    fn uncount(&mut self, name: Name) {
        if let Some(conversation) = self.conversations.get_mut(&name) {
            self.ledger.remove(conversation);
            conversation.counted = None;
        }
    }
}

#[cfg(test)]
mod tests;
