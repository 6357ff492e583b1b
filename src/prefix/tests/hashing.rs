//! Properties of keys, and the keys spelled out without a hasher.

use crate::prefix::{BlockHash, ChainHasher, Chunking, PromptKeys, block_hash, chain_root, seed};
use proptest::prelude::*;
use std::collections::HashSet;

const CHUNKING: Chunking = Chunking {
    chunk_bytes: 16,
    max_blocks: 1000,
};

fn keys_of(root: u64, prompts: &[&[u8]]) -> PromptKeys {
    let mut hasher = ChainHasher::new(root, CHUNKING);
    for (number, prompt) in prompts.iter().enumerate() {
        if number > 0 {
            hasher.next_prompt();
        }
        hasher.write(prompt);
    }
    hasher.finish()
}

fn only_chain(keys: &PromptKeys) -> Vec<BlockHash> {
    assert!(keys.chains().len() <= 1);
    keys.chains()
        .first()
        .map_or(Vec::new(), |chain| keys.keys(chain).to_vec())
}

fn shared(left: &[BlockHash], right: &[BlockHash]) -> usize {
    left.iter()
        .zip(right)
        .take_while(|(left, right)| left == right)
        .count()
}

#[test]
fn full_chunks_are_blocks_and_the_rest_is_a_tail() {
    let keys = keys_of(1, &[&[7; 40]]);
    let chain = keys.chains()[0];
    assert_eq!(
        (chain.full_blocks(), chain.has_tail(), chain.bytes()),
        (2, true, 40)
    );
    assert_eq!(
        (
            keys.keys(&chain).len(),
            keys.full_blocks(&chain).len(),
            keys.total_blocks()
        ),
        (3, 2, 2)
    );
    assert_eq!(
        [0, 1, 2, 3].map(|matched| keys.matched_block_bytes(&chain, matched)),
        [0, 16, 32, 32]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|matched| keys.matched_bytes(&chain, matched)),
        [0, 16, 32, 40]
    );
    let chain = keys_of(1, &[&[7; 32]]).chains()[0];
    assert_eq!((chain.full_blocks(), chain.has_tail()), (2, false));
}

#[test]
fn blocks_are_linked_to_their_parents() {
    let keys = keys_of(1, &[&[7; 48]]);
    let blocks = only_chain(&keys);
    assert_eq!(blocks[0], block_hash(chain_root(1, 16), &[7; 16]));
    assert_eq!(blocks[1], block_hash(blocks[0], &[7; 16]));
    assert_eq!(blocks[2], block_hash(blocks[1], &[7; 16]));
}

#[test]
fn prompts_of_an_array_are_chains_of_their_own() {
    let (first, second) = (
        b"the first of two prompts, which has a tail".as_slice(),
        [9; 33].as_slice(),
    );
    let keys = keys_of(1, &[first, b"", second]);
    let chains: Vec<_> = keys
        .chains()
        .iter()
        .map(|chain| keys.keys(chain).to_vec())
        .collect();
    let alone = [first, second].map(|prompt| only_chain(&keys_of(1, &[prompt])));
    assert_eq!(chains, alone);
    assert_eq!(keys.total_bytes(), 42 + 33);
}

#[test]
fn beyond_the_bound_bytes_are_counted_only() {
    let chunking = Chunking {
        max_blocks: 3,
        ..CHUNKING
    };
    let mut hasher = ChainHasher::new(1, chunking);
    hasher.write(&[1; 1000]);
    hasher.write(&[2; 1000]);
    hasher.next_prompt();
    hasher.write(&[3; 500]);
    let keys = hasher.finish();
    assert_eq!(
        (keys.chains().len(), keys.total_blocks(), keys.total_bytes()),
        (1, 3, 2500)
    );
    assert_eq!(only_chain(&keys), only_chain(&keys_of(1, &[&[1; 48]])));
}

#[test]
fn a_reused_buffer_leaves_no_trace() {
    let buffer = keys_of(1, &[&[1; 400]]).into_buffer();
    let mut hasher = ChainHasher::reusing(1, CHUNKING, buffer);
    hasher.write(&[2; 20]);
    assert_eq!(hasher.finish(), keys_of(1, &[&[2; 20]]));
}

#[test]
fn roots_tell_model_salt_and_namespace_apart() {
    let salts = [None, Some(""), Some("a"), Some("b"), Some("ab")].map(|salt| salt.map(str::as_bytes));
    let words = ["", "a", "b", "ab", "ba"];
    let mut roots = HashSet::new();
    for (model, namespace) in words
        .iter()
        .flat_map(|model| words.map(|namespace| (model, namespace)))
    {
        roots.extend(salts.map(|salt| seed(model, salt, namespace)));
    }
    assert_eq!(roots.len(), words.len() * words.len() * salts.len());
    let chains = [1, 2].map(|root| only_chain(&keys_of(root, &[&[7; 40]])));
    assert!(chains[0].iter().all(|key| !chains[1].contains(key)));
}

#[test]
fn chunk_sizes_share_no_keys() {
    let wider = Chunking {
        chunk_bytes: 32,
        ..CHUNKING
    };
    let mut hasher = ChainHasher::new(1, wider);
    hasher.write(&[7; 16]);
    assert_ne!(only_chain(&hasher.finish()), only_chain(&keys_of(1, &[&[7; 16]])));
}

proptest! {
    #[test]
    fn segments_do_not_matter(
        prompt in prop::collection::vec(any::<u8>(), 0..300),
        cuts in prop::collection::vec(0..300usize, 0..12),
    ) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(prompt.len())).collect();
        cuts.extend([0, prompt.len()]);
        cuts.sort_unstable();
        let mut hasher = ChainHasher::new(1, CHUNKING);
        cuts.windows(2).for_each(|cut| hasher.write(&prompt[cut[0]..cut[1]]));
        prop_assert_eq!(hasher.finish(), keys_of(1, &[&prompt]));
    }

    #[test]
    fn keys_are_shared_exactly_up_to_the_first_difference(
        prompt in prop::collection::vec(any::<u8>(), 1..300),
        at in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let at = at.index(prompt.len());
        let mut other = prompt.clone();
        other[at] ^= flip;
        let (keys, other_keys) = (keys_of(1, &[&prompt]), keys_of(1, &[&other]));
        let (left, right) = (only_chain(&keys), only_chain(&other_keys));
        prop_assert_eq!(shared(&left, &right), at / 16);
        let later = &left[at / 16..];
        prop_assert!(later.iter().all(|key| !right.contains(key)));
    }

    #[test]
    fn a_prefix_has_a_prefix_of_the_keys(
        prompt in prop::collection::vec(any::<u8>(), 1..300),
        len in any::<prop::sample::Index>(),
    ) {
        let len = len.index(prompt.len());
        let (short, long) = (keys_of(1, &[&prompt[..len]]), keys_of(1, &[&prompt]));
        let matched = shared(&only_chain(&short), &only_chain(&long));
        prop_assert_eq!(matched, len / 16);
    }

    #[test]
    fn order_matters(
        chunks in prop::collection::vec(prop::array::uniform16(any::<u8>()), 2..12),
        left in any::<prop::sample::Index>(),
        right in any::<prop::sample::Index>(),
    ) {
        let (left, right) = (left.index(chunks.len()), right.index(chunks.len()));
        let mut swapped = chunks.clone();
        swapped.swap(left, right);
        prop_assume!(swapped != chunks);
        let [one, other] = [chunks, swapped].map(|chunks| only_chain(&keys_of(1, &[&chunks.concat()])));
        prop_assert_ne!(one.last(), other.last());
    }
}

proptest! {
    #[test]
    fn a_chain_goes_on_as_if_it_had_been_written_at_once(
        text in prop::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>(), max_blocks in 0..15_usize,
    ) {
        let chunking = Chunking { max_blocks, ..CHUNKING };
        let blocks = |keys: &PromptKeys| {
            keys.chains().first().map_or(Vec::new(), |chain| keys.full_blocks(chain).to_vec())
        };
        let (prompt, answer) = text.split_at(cut.index(text.len() + 1));
        let mut whole = ChainHasher::new(1, chunking);
        whole.write(&text);
        let mut first = ChainHasher::new(1, chunking);
        first.write(prompt);
        let (keys, mut next) = first.clone().finish_and_continue();
        prop_assert_eq!(&keys, &first.finish());
        next.write(answer);
        prop_assert_eq!([blocks(&keys), blocks(&next.finish())].concat(), blocks(&whole.finish()));
    }
}
