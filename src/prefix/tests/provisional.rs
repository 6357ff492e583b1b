//! Stories of provisional blocks, one request at a time; `random` has the rest.

use super::{chain, matched};
use crate::prefix::PrefixIndex;

#[test]
fn undo_takes_back_what_was_new_only() {
    let index = PrefixIndex::crowded(64);
    let id = index.register(100).expect("room");
    let path = chain(1, 10);
    index.insert(id, &path[..4]);
    let stored = index.store(id, &path);
    assert_eq!(
        matched(&index, &path, 1),
        [10],
        "visible to the next lookup at once"
    );
    index.undo(&path, stored);
    assert_eq!(matched(&index, &path, 1), [4]);
}

#[test]
fn undo_spares_what_another_request_confirmed() {
    let index = PrefixIndex::crowded(64);
    let id = index.register(100).expect("room");
    let path = chain(1, 10);
    let first = index.store(id, &path);
    let second = index.store(id, &path[..6]);
    index.confirm(&path[..6], second);
    index.undo(&path, first);
    assert_eq!(matched(&index, &path, 1), [6]);
}

#[test]
fn confirm_restores_what_another_request_undid() {
    let index = PrefixIndex::crowded(64);
    let id = index.register(100).expect("room");
    let path = chain(1, 10);
    let first = index.store(id, &path);
    let second = index.store(id, &path[..6]);
    index.undo(&path, first);
    assert_eq!(matched(&index, &path, 1), [0]);
    index.confirm(&path[..6], second);
    assert_eq!(matched(&index, &path, 1), [6]);
}

#[test]
fn two_failures_leave_nothing() {
    let index = PrefixIndex::crowded(64);
    let id = index.register(100).expect("room");
    let path = chain(1, 10);
    let first = index.store(id, &path);
    let second = index.store(id, &path);
    index.undo(&path, first);
    index.undo(&path, second);
    assert_eq!(index.blocks(id), 0);
}

#[test]
fn nothing_settles_across_a_restart() {
    let index = PrefixIndex::crowded(64);
    let id = index.register(100).expect("room");
    let path = chain(1, 10);
    let (to_confirm, to_undo) = (index.store(id, &path), index.store(id, &path));
    index.clear(id);
    index.confirm(&path, to_confirm);
    assert_eq!(index.blocks(id), 0);
    let _stays_open = index.store(id, &path);
    index.undo(&path, to_undo);
    assert_eq!(index.blocks(id), 10);
}

#[test]
fn a_freed_id_owns_nothing_and_is_given_out_again() {
    let index = PrefixIndex::crowded(64);
    let (first, second) = (
        index.register(100).expect("room"),
        index.register(100).expect("room"),
    );
    let path = chain(1, 10);
    let stored = index.store(first, &path);
    index.release(first);
    index.insert(first, &path);
    assert_eq!(matched(&index, &path, 2), [0, 0]);
    assert_eq!(index.register(100), Some(first));
    index.confirm(&path, stored);
    assert_eq!((index.blocks(first), index.blocks(second)), (0, 0));
}

#[test]
fn what_was_used_before_a_chains_last_use_goes_on_demand() {
    let index = PrefixIndex::crowded(64);
    let id = index.register(100).expect("room");
    let paths = [chain(1, 10), chain(2, 10), chain(3, 10), chain(4, 10)];
    let store = |path: &[u64]| {
        let stored = index.store(id, path);
        let (position, last_use) = (stored.position(), stored.last_use());
        index.confirm(path, stored);
        (position, last_use)
    };
    let firsts = paths.each_ref().map(|path| store(path));
    assert!(firsts.iter().all(|(_, last_use)| last_use.is_none()));
    // A longer prompt with the same start.
    let (position, last_use) = store(&[&paths[2][..], &chain(5, 3)].concat());
    let last_use = last_use.expect("it was stored before");
    assert!(last_use.tail < last_use.head && last_use.head < position);
    assert!(last_use.tail >= firsts[2].0 && last_use.head < firsts[3].0);
    index.evict_before(id, last_use.tail);
    let left = || paths.each_ref().map(|path| matched(&index, path, 1)[0]);
    assert_eq!(left(), [0, 0, 10, 10], "both that were older");
    index.evict_before(id, position);
    assert_eq!(left(), [0, 0, 10, 0], "the last one is new again");
    index.audit();
}
