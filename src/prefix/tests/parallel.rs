//! Writers and readers at the same time.

use super::{chain, matched};
use crate::prefix::{BlockHash, EndpointId, PrefixIndex};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::sync::atomic::{AtomicUsize, Ordering};

const WRITERS: u64 = 3;
const NAMES: u64 = 40;
const STEPS: usize = 4000;

/// What one writer does to its own endpoint; the outcome does not depend on the others.
fn write(index: &PrefixIndex, id: EndpointId, seed: u64) {
    let mut rng = Pcg64::seed_from_u64(seed);
    for step in 0..STEPS {
        let len = rng.random_range(1..30);
        let path = chain(rng.random_range(0..NAMES), len);
        match rng.random_range(0..10) {
            0 => {
                index.truncate(id, &path, len / 2);
            }
            1 => index.undo(&path, index.store(id, &path)),
            2 if step % 50 == 0 => index.clear(id),
            _ => index.confirm(&path, index.store(id, &path)),
        }
    }
}

/// Endpoint 0 owns `pinned` all the time, the last one owns nothing; both must look so in every lookup.
fn read(index: &PrefixIndex, pinned: &[BlockHash], done: &AtomicUsize) {
    let mut rng = Pcg64::seed_from_u64(0);
    let mut out = [0; WRITERS as usize + 2];
    while done.load(Ordering::Relaxed) < WRITERS as usize {
        index.matches(pinned, &mut out);
        assert_eq!((out[0], out.last()), (pinned.len() as u32, Some(&0)));
        let path = chain(rng.random_range(0..NAMES), 30);
        assert!(index.matches(&path, &mut out) <= 30);
        assert_eq!((out[0], out.last()), (0, Some(&0)));
    }
}

fn index() -> (PrefixIndex, Vec<EndpointId>) {
    // Full at 3 x 200 + 30 of 672 words: probes are long, but no claim fails.
    let index = PrefixIndex::crowded(96);
    let capacities = [30, 160, 160, 160, 10];
    let ids = capacities
        .into_iter()
        .filter_map(|capacity| index.register(capacity));
    let ids = ids.collect();
    (index, ids)
}

#[test]
fn readers_see_what_is_there_and_the_end_is_exact() {
    let (shared, ids) = index();
    let pinned = chain(1000, 30);
    shared.insert(ids[0], &pinned);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for writer in 1..=WRITERS {
            let (shared, done, id) = (&shared, &done, ids[writer as usize]);
            scope.spawn(move || {
                write(shared, id, writer);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| read(&shared, &pinned, &done));
    });
    shared.audit();
    let (alone, ids) = index();
    alone.insert(ids[0], &pinned);
    for writer in 1..=WRITERS {
        write(&alone, ids[writer as usize], writer);
    }
    for name in 0..NAMES {
        let path = chain(name, 30);
        assert_eq!(
            matched(&shared, &path, ids.len()),
            matched(&alone, &path, ids.len())
        );
    }
    assert_eq!(shared.total_blocks(), alone.total_blocks());
}
