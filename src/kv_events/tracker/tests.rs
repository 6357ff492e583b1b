use super::*;
use crate::kv_events::chain::{self, Root};
use crate::prefix::BlockHash;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// A naive engine: a cache of named blocks with copies, and everything it ever published.
#[derive(Default)]
struct Engine {
    /// Mixed into block names, as the random hash seed of a process.
    seed: u64,
    cached: HashMap<u64, (BlockHash, u32)>,
    published: Vec<Vec<u8>>,
    clock: f64,
}

const BLOCK: u32 = 2;

impl Engine {
    fn restarted(&self, seed: u64) -> Self {
        Self {
            seed,
            clock: self.clock + 1.0,
            ..Self::default()
        }
    }

    /// Prompts share prefixes: `branch` says after how many blocks this one leaves the common trunk.
    fn prompt(branch: u32, blocks: u32) -> Vec<u32> {
        (0..blocks * BLOCK)
            .map(|at| {
                if at / BLOCK < branch {
                    at
                } else {
                    1000 * (branch + 1) + at
                }
            })
            .collect()
    }

    fn publish(&mut self, events: Vec<Value>) {
        self.clock += 1.0;
        self.published
            .push(rmp_serde::to_vec(&json!([self.clock, events, 0])).unwrap());
    }

    fn name(&self, own: BlockHash) -> u64 {
        own.wrapping_mul(3).wrapping_add(self.seed)
    }

    /// Computes a prompt: what is cached is found, the rest (and `again` blocks before it) is stored.
    fn run(&mut self, tokens: &[u32], again: usize) {
        let own: Vec<_> = chain::of_prompt(Root::default(), tokens, BLOCK).collect();
        let names: Vec<_> = own.iter().map(|own| self.name(*own)).collect();
        let found = names
            .iter()
            .take_while(|name| self.cached.contains_key(name))
            .count();
        let first = found.saturating_sub(again);
        for (name, own) in names.iter().zip(&own).skip(first) {
            self.cached.entry(*name).or_insert((*own, 0)).1 += 1;
        }
        if first < names.len() {
            self.publish(vec![json!({
                "type": "BlockStored", "block_hashes": names[first..], "block_size": BLOCK,
                "parent_block_hash": first.checked_sub(1).map(|parent| names[parent]),
                "token_ids": tokens[first * BLOCK as usize..],
            })]);
        }
    }

    /// Evicts a copy of some block at the end of a chain (any block: the index must not care).
    fn evict(&mut self, choice: usize) {
        let mut names: Vec<_> = self.cached.keys().copied().collect();
        names.sort_unstable();
        let Some(name) = names.get(choice % names.len().max(1)) else {
            return;
        };
        if let Some((_, copies)) = self.cached.get_mut(name) {
            *copies -= 1;
            if *copies == 0 {
                self.cached.remove(name);
            }
        }
        self.publish(vec![json!({"type": "BlockRemoved", "block_hashes": [name]})]);
    }

    fn clear(&mut self) {
        self.cached.clear();
        self.publish(vec![json!({"type": "AllBlocksCleared"})]);
    }

    fn holds(&self) -> HashSet<BlockHash> {
        self.cached.values().map(|(own, _)| *own).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Run { branch: u32, blocks: u32, again: usize },
    Evict(usize),
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..6_u32, 1..12_u32, 0..3_usize).prop_map(|(branch, blocks, again)| Step::Run { branch, blocks, again }),
        6 => any::<usize>().prop_map(Step::Evict),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 1..80)
}

fn apply(engine: &mut Engine, step: &Step) {
    match step {
        Step::Run {
            branch,
            blocks,
            again,
        } => engine.run(&Engine::prompt(*branch, *blocks), *again),
        Step::Evict(choice) => engine.evict(*choice),
        Step::Clear => engine.clear(),
    }
}

/// What happens to a message on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Arrives,
    Dropped,
    Twice,
    /// Arrives, followed by an older one once more.
    WithOlder,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![6 => Just(Fate::Arrives), 1 => Just(Fate::Dropped), 1 => Just(Fate::Twice), 1 => Just(Fate::WithOlder)];
    prop::collection::vec(fate, 80)
}

/// The receiving side: a tracker with the index it feeds, and a replay socket that remembers some messages.
struct Receiver {
    tracker: Tracker,
    index: HashSet<BlockHash>,
    replay_buffer: usize,
    /// The newest first, as no engine does.
    replays_backwards: bool,
}

impl Receiver {
    fn new(can_replay: bool, replay_buffer: usize) -> Self {
        Self {
            tracker: Tracker::new(Limits::default(), can_replay),
            index: HashSet::new(),
            replay_buffer,
            replays_backwards: false,
        }
    }

    fn deliver(&mut self, engine: &Engine, sequence: usize) {
        let payload = &engine.published[sequence];
        if let Next::Replay { from } = self.tracker.live(sequence as u64, payload, &mut self.index) {
            self.replay(engine, from);
            self.tracker.resume(sequence as u64, payload, &mut self.index);
        }
    }

    fn connect(&mut self, engine: &Engine) {
        if let Some(from) = self.tracker.connected() {
            self.replay(engine, from);
        }
    }

    fn replay(&mut self, engine: &Engine, from: u64) {
        let kept = engine.published.len().saturating_sub(self.replay_buffer) as u64;
        let mut missed: Vec<u64> = (from.max(kept)..engine.published.len() as u64).collect();
        if self.replays_backwards {
            missed.reverse();
        }
        for sequence in missed {
            let payload = &engine.published[sequence as usize];
            if let Next::Replay { from } = self.tracker.replayed(sequence, payload, &mut self.index) {
                return self.replay(engine, from);
            }
        }
    }
}

/// Runs the steps over a lossy line; after each message, and at the end, `check` sees index and truth.
fn drive(
    steps: &[Step],
    fates: &[Fate],
    receiver: &mut Receiver,
    mut check: impl FnMut(&Receiver, &Engine, bool),
) {
    let mut engine = Engine::default();
    receiver.connect(&engine);
    for (step, fate) in steps.iter().zip(fates) {
        let before = engine.published.len();
        apply(&mut engine, step);
        for sequence in before..engine.published.len() {
            if *fate == Fate::Dropped {
                continue;
            }
            receiver.deliver(&engine, sequence);
            match fate {
                Fate::Twice => receiver.deliver(&engine, sequence),
                Fate::WithOlder => receiver.deliver(&engine, sequence / 2),
                _ => {}
            }
            check(receiver, &engine, true);
        }
    }
    check(receiver, &engine, false);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn in_order_and_with_duplicates_the_index_is_the_cache(steps in steps(), fates in fates()) {
        let fates: Vec<_> = fates.into_iter().map(|f| if f == Fate::Dropped { Fate::Arrives } else { f }).collect();
        drive(&steps, &fates, &mut Receiver::new(false, 0), |receiver, engine, _| {
            assert_eq!(receiver.index, engine.holds());
            assert_eq!(receiver.tracker.counts().gaps, 0);
        });
    }

    #[test]
    fn with_replay_a_dropped_message_costs_nothing(steps in steps(), fates in fates()) {
        drive(&steps, &fates, &mut Receiver::new(true, 1000), |receiver, engine, arrived| {
            if arrived {
                assert_eq!(receiver.index, engine.holds());
            }
            assert_eq!(receiver.tracker.counts().gaps, 0);
        });
    }

    #[test]
    fn without_replay_the_index_never_claims_what_is_gone(steps in steps(), fates in fates(), buffer in 0..4_usize) {
        for can_replay in [false, true] {
            drive(&steps, &fates, &mut Receiver::new(can_replay, buffer), |receiver, engine, arrived| {
                if arrived {
                    let held = engine.holds();
                    assert!(receiver.index.is_subset(&held), "{:?}", receiver.tracker.counts());
                }
            });
        }
    }

    #[test]
    fn a_replay_out_of_order_never_claims_what_is_gone(steps in steps(), fates in fates()) {
        let mut receiver = Receiver::new(true, 1000);
        receiver.replays_backwards = true;
        drive(&steps, &fates, &mut receiver, |receiver, engine, arrived| {
            if arrived {
                assert!(receiver.index.is_subset(&engine.holds()), "{:?}", receiver.tracker.counts());
            }
        });
    }

    #[test]
    fn a_restart_is_noticed_with_the_next_message(
        before in steps(), after in steps(), missed in 0..4_usize, same_seed: bool, can_replay: bool,
    ) {
        let mut receiver = Receiver::new(can_replay, 1000);
        let mut engine = Engine::default();
        receiver.connect(&engine);
        for step in &before {
            let first = engine.published.len();
            apply(&mut engine, step);
            (first..engine.published.len()).for_each(|sequence| receiver.deliver(&engine, sequence));
        }
        let was_at = engine.published.len();
        engine = engine.restarted(u64::from(!same_seed));
        let mut all_missed = true;
        let mut first_after = 0;
        for (n, step) in after.iter().enumerate() {
            let first = engine.published.len();
            apply(&mut engine, step);
            if n < missed {
                continue;
            }
            if all_missed {
                // Without replay a restart that is past the old number already looks like a gap, or like nothing.
                if !can_replay && first >= was_at {
                    return Ok(());
                }
                receiver.connect(&engine);
                first_after = first;
                all_missed = false;
            }
            (first..engine.published.len()).for_each(|sequence| receiver.deliver(&engine, sequence));
        }
        if all_missed || engine.published.len() == first_after {
            return Ok(());
        }
        let held = engine.holds();
        if can_replay {
            prop_assert_eq!(&receiver.index, &held);
        } else {
            prop_assert!(receiver.index.is_subset(&held));
        }
    }
}

#[test]
fn a_message_that_cannot_be_read_is_a_gap() {
    let mut receiver = Receiver::new(false, 0);
    let mut engine = Engine::default();
    engine.run(&Engine::prompt(3, 4), 0);
    receiver.deliver(&engine, 0);
    assert_eq!(receiver.index.len(), 4);
    engine.published.push(b"\xc1".to_vec());
    receiver.deliver(&engine, 1);
    assert_eq!(receiver.index.len(), 0);
    let counts = receiver.tracker.counts();
    assert_eq!(
        (counts.undecodable_messages, counts.gaps, counts.lost_messages),
        (1, 1, 1)
    );
    assert_eq!(receiver.tracker.last_sequence(), Some(1));
}

#[test]
fn a_reset_from_outside_empties_the_index() {
    let mut receiver = Receiver::new(false, 0);
    let mut engine = Engine::default();
    engine.run(&Engine::prompt(3, 4), 0);
    receiver.deliver(&engine, 0);
    receiver.tracker.reset(&mut receiver.index);
    assert!(receiver.index.is_empty());
    engine = engine.restarted(7);
    engine.run(&Engine::prompt(3, 2), 0);
    receiver.deliver(&engine, 0);
    assert_eq!(receiver.index.len(), 2);
}

/// How many names each block is held under: a made-up stream may give a block several.
#[derive(Default)]
struct Names(HashMap<BlockHash, u32>);

impl BlockSink for Names {
    fn insert(&mut self, block: BlockHash) {
        *self.0.entry(block).or_default() += 1;
    }

    fn remove(&mut self, block: BlockHash) {
        *self
            .0
            .get_mut(&block)
            .filter(|names| **names > 0)
            .expect("removed without an insertion") -= 1;
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Messages from few names and tokens, so that parents, copies and orphans of all kinds come about.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let name = 0..12_u64;
    let stored = (prop::collection::vec(name.clone(), 0..4), prop::option::of(name.clone()), 0..3_u32, 0..3_usize)
        .prop_map(|(names, parent, token, odd)| {
            let medium = ["GPU", "CPU", "DISK"][odd];
            let tokens = vec![token; names.len() + usize::from(token == 2 && odd == 2)];
            json!({"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens,
                "block_size": 1, "medium": medium, "extra_keys": vec![json!(["k"]); names.len()]})
        });
    let removed = (prop::collection::vec(name, 0..4), any::<bool>()).prop_map(|(names, gpu)| {
        json!({"type": "BlockRemoved", "block_hashes": names, "medium": if gpu { "GPU" } else { "CPU" }})
    });
    let event = prop_oneof![6 => stored, 4 => removed, 1 => Just(json!(["AllBlocksCleared"]))];
    (0..5_u32, prop::collection::vec(event, 0..5))
        .prop_map(|(clock, events)| rmp_serde::to_vec(&json!([f64::from(clock), events])).unwrap())
}

proptest! {
    #[test]
    fn no_stream_gets_index_and_count_out_of_step(
        messages in prop::collection::vec((0..8_u64, any_message()), 1..60),
        blocks in 1..10_usize,
        orphan_tokens in 0..400_usize,
        damage in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let (mut tracker, mut index) = (Tracker::new(Limits { blocks, orphan_tokens }, false), Names::default());
        let mut messages = messages;
        if let Some((message, at, byte)) = damage {
            let message = message.index(messages.len());
            let payload = &mut messages[message].1;
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        for (sequence, payload) in &messages {
            tracker.live(*sequence, payload, &mut index);
            let held: u32 = index.0.values().sum();
            prop_assert_eq!(held as usize, tracker.ownership().owned_blocks());
            prop_assert!(held as usize <= blocks);
        }
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
fn each_rank_of_an_engine_has_numbers_and_blocks_of_its_own() {
    let captured = include_str!("../../../tests/fixtures/vllm/kvevents/ranks.txt");
    let mut ranks = [0, 1].map(|_| (Tracker::new(Limits::default(), false), HashSet::new()));
    for line in captured.lines().filter(|line| !line.starts_with('#')) {
        let [rank, sequence, prompt, payload] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let (rank, payload): (usize, _) = (rank.parse().unwrap(), unhex(payload));
        assert_eq!(codec::decode(&payload).unwrap().rank, Some(rank as u32));
        let (tracker, index) = &mut ranks[rank];
        assert_eq!(
            tracker.live(sequence.parse().unwrap(), &payload, index),
            Next::Done
        );
        let prompt: Vec<u32> = prompt.split(',').map(|id| id.parse().unwrap()).collect();
        let held = |index: &HashSet<u64>| {
            chain::of_prompt(Root::default(), &prompt, 32)
                .filter(|block| index.contains(block))
                .count()
        };
        assert_eq!(
            [0, 1].map(|at: usize| held(&ranks[at].1) > 0),
            [rank == 0, rank == 1],
            "{line}"
        );
        assert_eq!(held(&ranks[rank].1), prompt.len() / 32);
    }
    for (tracker, index) in &ranks {
        assert_eq!((tracker.counts().gaps, tracker.counts().unknown_events), (0, 0));
        assert_eq!(tracker.ownership().owned_blocks(), index.len());
    }
    let applied = ranks.map(|(tracker, _)| tracker.counts().applied_messages);
    assert_eq!(applied, [3, 4]);
}
