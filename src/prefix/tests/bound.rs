//! Capacities, and the memory bound with a table that is full.

use super::{chain, matched};
use crate::prefix::owner::Owner;
use crate::prefix::table::Table;
use crate::prefix::{EndpointId, MAX_ENDPOINTS, PrefixIndex};
use std::collections::HashMap;

#[test]
fn a_prompt_beyond_the_capacity_keeps_its_head() {
    let index = PrefixIndex::crowded(1024);
    let id = index.register(10).expect("room");
    let path = chain(1, 1000);
    for _ in 0..3 {
        index.insert(id, &path);
        assert_eq!((index.blocks(id), matched(&index, &path, 1)), (10, vec![10]));
    }
    index.audit();
}

#[test]
fn the_tail_of_the_oldest_chain_goes_first() {
    let index = PrefixIndex::crowded(1024);
    let id = index.register(20).expect("room");
    let (old, new) = (chain(1, 12), chain(2, 12));
    index.insert(id, &old);
    index.insert(id, &new);
    assert_eq!(matched(&index, &old, 1), [8]);
    assert_eq!(matched(&index, &new, 1), [12]);
}

#[test]
fn every_endpoint_can_own_the_same_block() {
    let index = PrefixIndex::crowded(1024);
    let ids: Vec<_> = (0..MAX_ENDPOINTS).filter_map(|_| index.register(3)).collect();
    let path = chain(1, 3);
    ids.iter().for_each(|&id| index.insert(id, &path));
    assert_eq!(matched(&index, &path, MAX_ENDPOINTS), vec![3; MAX_ENDPOINTS]);
    assert_eq!(index.register(1), None, "all ids are in use");
    index.audit();
}

#[test]
fn a_full_table_stays_within_its_bound() {
    const BOUND: usize = 2 << 20;
    let index = PrefixIndex::new(BOUND);
    let mut name = 0;
    let mut ids = Vec::new();
    let mut fullest = 0;
    while let Some(id) = index.register(1_000_000) {
        ids.push(id);
        // The more endpoints, the less each may own; stores and touches alternate, so that rings grow too.
        // The first two fill the table.
        let rounds = if ids.len() <= 2 { 400 } else { 10 };
        for round in 0..rounds {
            let id = ids[round * 7 % ids.len()];
            name += 1;
            index.insert(id, &chain(name, 150));
            index.insert(id, &chain(name - name % 5, 150));
            assert!(
                index.bytes() <= BOUND,
                "{} bytes with {} endpoints",
                index.bytes(),
                ids.len()
            );
        }
        let shares: usize = ids.iter().map(|&id| index.capacity(id)).sum();
        assert!(index.total_blocks() <= shares);
        fullest = fullest.max(index.total_blocks());
    }
    // Two endpoints had room for 17.5 to 24 bytes per block; the locks of all ids are 264 KiB of the bound.
    assert!(fullest > (BOUND - (264 << 10)) / 24, "{fullest} blocks");
    assert!(ids.len() > 100, "{} endpoints", ids.len());
    index.audit();
    ids.iter().for_each(|&id| index.release(id));
    assert_eq!(index.total_blocks(), 0);
    index.audit();
}

#[test]
fn shares_are_in_proportion_and_grow_back() {
    // 64 lines of 7 words, 80 % of which is 358.
    let index = PrefixIndex::crowded(64);
    let small = index.register(100).expect("room");
    assert_eq!(index.capacity(small), 100);
    let large = index.register(900).expect("room");
    assert_eq!((index.capacity(small), index.capacity(large)), (35, 322));
    index.release(large);
    assert_eq!(index.capacity(small), 100);
    assert_eq!(index.capacity(EndpointId(5000)), 0);
}

/// Most blocks that one store moved up in the order of use although it did not name them, when the same chains of 64
/// are stored again and again.
fn most_moved(capacity: usize, chains: u64) -> usize {
    let table = Table::new(capacity);
    let mut owner = Owner::new(0);
    assert!(owner.approach_capacity(&table, capacity, usize::MAX));
    let stamps = |owner: &Owner| -> HashMap<_, _> {
        let entries = owner.entries(&table);
        entries
            .iter()
            .map(|entry| (entry.fingerprint(), entry.stamp()))
            .collect()
    };
    let store = |name: u64| {
        let path = chain(chain(name, 1)[0] % chains, 64);
        let before = stamps(&owner);
        owner.store(&table, &path, false);
        let named: Vec<_> = path.iter().map(|&hash| table.key(hash).fingerprint).collect();
        let moved = |&(block, stamp): &(&u32, &u64)| {
            !named.contains(block) && before.get(block).is_some_and(|was| was != stamp)
        };
        stamps(&owner).iter().filter(moved).count()
    };
    (0..600).map(store).max().unwrap_or(0)
}

#[test]
fn no_store_pays_for_many_others() {
    // About two for each of the 64 blocks while the endpoint is full, and a third of one while it is a fourth full.
    let (full, fourth) = (most_moved(2048, 32), most_moved(2048, 8));
    assert!((64..160).contains(&full), "{full} blocks moved");
    assert!((8..32).contains(&fourth), "{fourth} blocks moved");
}
