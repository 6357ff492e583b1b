use super::*;
use crate::kv_events::chain::Root;
use crate::kv_events::codec::decode;
use smallvec::SmallVec;
use std::collections::HashSet;

impl BlockSink for HashSet<BlockHash> {
    fn insert(&mut self, block: BlockHash) {
        assert!(HashSet::insert(self, block), "inserted twice");
    }

    fn remove(&mut self, block: BlockHash) {
        assert!(HashSet::remove(self, &block), "removed without an insertion");
    }

    fn clear(&mut self) {
        HashSet::clear(self);
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Tokens of `prompt` that can be reused: whole blocks, and never the last token, which must be computed.
fn matched(index: &HashSet<BlockHash>, root: Root<'_>, prompt: &[u32], block_size: u32) -> usize {
    let usable = &prompt[..prompt.len().saturating_sub(1)];
    chain::of_prompt(root, usable, block_size)
        .take_while(|hash| index.contains(hash))
        .count()
        * block_size as usize
}

/// Replays a captured session: before each request, the match must be what the engine then reported.
fn replay(session: &str) -> (usize, Ownership, HashSet<BlockHash>) {
    let (mut ownership, mut index) = (Ownership::new(Limits::default()), HashSet::new());
    let mut requests = 0;
    for line in session.lines().filter(|line| !line.starts_with('#')) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["req", model, salt, cached_tokens, ids] => {
                let prompt: Vec<u32> = ids.split(',').map(|id| id.parse().unwrap()).collect();
                let lora = if model == "tiny" {
                    Lora::None
                } else {
                    Lora::Name(model)
                };
                let root = Root {
                    lora,
                    cache_salt: (salt != "-").then_some(salt),
                };
                assert_eq!(
                    matched(&index, root, &prompt, 32).to_string(),
                    cached_tokens,
                    "{line}"
                );
                requests += 1;
            }
            ["msg", _, payload] => {
                let payload = unhex(payload);
                for event in decode(&payload).unwrap().events {
                    ownership.apply(&event, &mut index);
                }
            }
            ["reset"] => ownership.forget(&mut index),
            _ => panic!("{line}"),
        }
    }
    assert_eq!(ownership.owned_blocks(), index.len());
    (requests, ownership, index)
}

#[test]
fn predicts_what_the_engine_reported() {
    for (session, requests) in [
        (
            include_str!("../../../tests/fixtures/vllm/kvevents/session_int_hashes.txt"),
            15,
        ),
        (
            include_str!("../../../tests/fixtures/vllm/kvevents/session_bytes_hashes.txt"),
            9,
        ),
    ] {
        let (seen, ownership, _) = replay(session);
        let counts = ownership.counts();
        assert_eq!(seen, requests);
        assert_eq!(
            (
                counts.orphaned_blocks,
                counts.unknown_removals,
                counts.malformed_events
            ),
            (0, 0, 0)
        );
        assert_eq!(ownership.block_size(), Some(32));
    }
}

#[test]
fn only_full_attention_groups_count() {
    let (seen, ownership, _) = replay(include_str!(
        "../../../tests/fixtures/vllm/kvevents/session_hybrid.txt"
    ));
    assert_eq!(seen, 4);
    assert!(ownership.counts().uncounted_blocks > 0);
    assert_eq!(ownership.counts().malformed_events, 0);
}

/// A chain of blocks of two tokens: block i holds tokens 2i and 2i+1 and is named 100+i.
fn stored(parent: Option<u64>, blocks: std::ops::Range<u64>) -> Event<'static> {
    Event::Stored(Stored {
        hashes: blocks.clone().map(|block| 100 + block).collect(),
        parent,
        token_ids: blocks
            .flat_map(|block| [2 * block as u32, 2 * block as u32 + 1])
            .collect(),
        block_size: 2,
        ..Stored::default()
    })
}

fn removed(hashes: &[u64]) -> Event<'static> {
    Event::Removed(Removed {
        hashes: SmallVec::from_slice(hashes),
        ..Removed::default()
    })
}

/// How many blocks of the chain from its start are in the index.
fn prefix(index: &HashSet<BlockHash>) -> usize {
    let tokens: Vec<u32> = (0..100).collect();
    chain::of_prompt(Root::default(), &tokens, 2)
        .take_while(|hash| index.contains(hash))
        .count()
}

struct Fixture {
    ownership: Ownership,
    index: HashSet<BlockHash>,
}

impl Fixture {
    fn new(limits: Limits) -> Self {
        Self {
            ownership: Ownership::new(limits),
            index: HashSet::new(),
        }
    }

    fn apply(&mut self, event: Event<'_>) -> &mut Self {
        self.ownership.apply(&event, &mut self.index);
        assert_eq!(self.ownership.owned_blocks(), self.index.len());
        self
    }
}

#[test]
fn a_block_stays_until_its_last_copy_is_removed() {
    let mut f = Fixture::new(Limits::default());
    f.apply(stored(None, 0..2))
        .apply(stored(Some(100), 1..2))
        .apply(removed(&[101]));
    assert_eq!(prefix(&f.index), 2);
    f.apply(removed(&[101]));
    assert_eq!(prefix(&f.index), 1);
    f.apply(removed(&[101]));
    assert_eq!((prefix(&f.index), f.ownership.counts().unknown_removals), (1, 1));
}

#[test]
fn orphans_are_linked_when_the_parent_comes() {
    let mut f = Fixture::new(Limits::default());
    f.apply(stored(Some(103), 4..6))
        .apply(stored(Some(101), 2..4))
        .apply(removed(&[105]));
    assert!(f.index.is_empty());
    f.apply(stored(None, 0..2));
    assert_eq!(prefix(&f.index), 5);
    // The removed block left its name: what is stored after it continues the chain and proves it is back.
    f.apply(stored(Some(105), 6..7));
    assert_eq!(prefix(&f.index), 7);
    assert_eq!(
        (
            f.ownership.counts().orphaned_blocks,
            f.ownership.counts().linked_blocks
        ),
        (4, 4)
    );
}

#[test]
fn orphans_are_bounded_and_the_oldest_go() {
    let mut f = Fixture::new(Limits {
        orphan_tokens: 500,
        ..Limits::default()
    });
    for block in (1..50).rev() {
        f.apply(stored(Some(99 + block), block..block + 1));
    }
    let dropped = f.ownership.counts().dropped_orphan_blocks as usize;
    assert!((40..49).contains(&dropped), "{dropped}");
    f.apply(stored(None, 0..1));
    assert_eq!(prefix(&f.index), 50 - dropped);
}

#[test]
fn after_lost_events_names_stay_and_ownership_is_proven_anew() {
    let mut f = Fixture::new(Limits::default());
    f.apply(stored(None, 0..4));
    f.ownership.disown(&mut f.index);
    assert!(f.index.is_empty());
    f.apply(stored(Some(102), 3..4));
    assert_eq!(prefix(&f.index), 4);
    f.ownership.forget(&mut f.index);
    f.apply(stored(Some(102), 3..4));
    assert_eq!(f.index.len(), 0);
}

#[test]
fn offloaded_copies_are_announced_by_hash_alone() {
    let mut f = Fixture::new(Limits::default());
    f.apply(stored(None, 0..2));
    let offloaded = |medium| {
        Event::Stored(Stored {
            hashes: SmallVec::from_slice(&[100, 101]),
            block_size: 2,
            medium,
            ..Stored::default()
        })
    };
    f.apply(offloaded(Medium::Cpu))
        .apply(offloaded(Medium::Other))
        .apply(removed(&[101, 100]));
    assert_eq!(prefix(&f.index), 2);
    f.apply(Event::Removed(Removed {
        hashes: SmallVec::from_slice(&[101]),
        medium: Medium::Cpu,
        group: None,
    }));
    assert_eq!(prefix(&f.index), 1);
    f.apply(Event::Cleared);
    assert!(f.index.is_empty());
}

#[test]
fn blocks_over_the_limit_are_left_out_and_names_forgotten() {
    let mut f = Fixture::new(Limits {
        blocks: 8,
        ..Limits::default()
    });
    f.apply(stored(None, 0..40));
    assert_eq!(
        (prefix(&f.index), f.ownership.counts().over_limit_blocks),
        (8, 32)
    );
    for round in 0..100 {
        let name = 1000 + round;
        let event = Stored {
            hashes: SmallVec::from_slice(&[name]),
            token_ids: vec![round as u32],
            block_size: 1,
            ..Stored::default()
        };
        f.apply(removed(&[107]))
            .apply(Event::Stored(event))
            .apply(removed(&[name]))
            .apply(stored(Some(106), 7..8));
    }
    assert!(f.ownership.names.len() <= 16, "{}", f.ownership.names.len());
    assert!(f.ownership.unowned.len() <= 8);
}

#[test]
fn images_and_unnamed_adapters_are_kept_apart() {
    let keyed = |hash, extra: &'static [u8]| {
        Event::Stored(Stored {
            hashes: SmallVec::from_slice(&[hash]),
            token_ids: vec![0, 1],
            block_size: 2,
            extra_keys: vec![Some(extra)],
            ..Stored::default()
        })
    };
    let mut f = Fixture::new(Limits::default());
    let image_a = b"\x91\x92\xa1a\x00";
    f.apply(keyed(1, image_a))
        .apply(keyed(2, b"\x91\x92\xa1b\x00"))
        .apply(keyed(3, b"\x92\x92\xa1a\x00\xa1s"));
    assert_eq!((prefix(&f.index), f.index.len()), (0, 3));
    let salted = Root {
        cache_salt: Some("s"),
        ..Root::default()
    };
    for spelling in [&b"\x91\xa1s"[..], b"\x91\x92\xaacache_salt\xa1s"] {
        f.apply(Event::Cleared).apply(keyed(4, spelling));
        assert!(f.index.contains(&chain::next(salted.hash(2), &[0, 1])));
    }
}

#[test]
fn contradictory_events_are_counted() {
    let mut f = Fixture::new(Limits::default());
    for (hashes, tokens, block_size) in [(2, 3, 2), (1, 2, 0), (0, 2, 2), (1, 1, u32::MAX)] {
        f.apply(Event::Stored(Stored {
            hashes: (0..hashes).collect(),
            token_ids: vec![1; tokens],
            block_size,
            ..Stored::default()
        }));
    }
    assert_eq!((f.index.len(), f.ownership.counts().malformed_events), (0, 4));
}
