//! Every interleaving of a few writers and a reader on the table of the prefix index.
#![cfg(test)]

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../../src/prefix/line.rs"]
mod line;
#[path = "../../src/prefix/record.rs"]
mod record;
#[path = "../../src/prefix/table.rs"]
mod table;
#[path = "../../src/prefix/tags.rs"]
mod tags;

use loom::sync::Arc;
use loom::thread;
use line::{Claim, Key, SLOTS};
use table::{Claimed, Table};

/// A table of two lines, whose first holds `count` words of endpoint 0.
fn table_with(count: usize) -> Arc<Table> {
    let table = Table::new(2);
    (0..count).for_each(|block| assert!(claim(&table, block, 0)));
    Arc::new(table)
}

/// Keys with the first line as home and tags of their own.
fn key(table: &Table, block: usize) -> Key {
    table.key((block as u64 + 1) << 22)
}

fn claim(table: &Table, block: usize, owner: u16) -> bool {
    let claim = Claim {
        owner,
        stamp: block as u64,
        provisional: false,
    };
    matches!(table.claim(key(table, block), claim), Claimed::New(_))
}

fn vacate(table: &Table, block: usize, owner: u16) {
    let entry = table.find(key(table, block), owner).expect("owned");
    table.vacate(entry);
}

fn owners(table: &Table, block: usize) -> Vec<u16> {
    let mut owners = Vec::new();
    table.for_each_owner(key(table, block), |owner| owners.push(owner));
    owners
}

/// Exactly these words are there, and lines count those that passed them.
fn audit(table: &Table, words: &[(usize, u16)]) {
    let find = |&(block, owner)| table.find(key(table, block), owner).expect("owned");
    table.audit(&words.iter().map(find).collect::<Vec<_>>());
}

fn endpoint_0(blocks: std::ops::Range<usize>) -> Vec<(usize, u16)> {
    blocks.map(|block| (block, 0)).collect()
}

#[test]
fn two_writers_never_take_one_word() {
    loom::model(|| {
        // One word of the first line is left: the loser goes on to the second.
        let table = table_with(SLOTS - 1);
        let other = Arc::clone(&table);
        let writer = thread::spawn(move || assert!(claim(&other, 10, 1)));
        assert!(claim(&table, 11, 2));
        writer.join().unwrap();
        assert_eq!((owners(&table, 10), owners(&table, 11)), (vec![1], vec![2]));
        audit(
            &table,
            &[endpoint_0(0..SLOTS - 1), vec![(10, 1), (11, 2)]].concat(),
        );
    });
}

#[test]
fn a_word_that_stays_is_seen_while_others_come_and_go() {
    loom::model(|| {
        // Block 10 had to pass the full first line.
        let table = table_with(SLOTS);
        assert!(claim(&table, 10, 1));
        let (first, second) = (Arc::clone(&table), Arc::clone(&table));
        let leaving = thread::spawn(move || vacate(&first, 3, 0));
        let coming = thread::spawn(move || assert!(claim(&second, 11, 2)));
        assert_eq!(owners(&table, 10), [1]);
        leaving.join().unwrap();
        coming.join().unwrap();
        let stay = [endpoint_0(0..3), endpoint_0(4..SLOTS), vec![(10, 1), (11, 2)]].concat();
        audit(&table, &stay);
    });
}

#[test]
fn a_reader_sees_a_word_before_or_after_its_removal() {
    loom::model(|| {
        let table = table_with(SLOTS);
        assert!(claim(&table, 10, 1));
        let other = Arc::clone(&table);
        let writer = thread::spawn(move || {
            vacate(&other, 10, 1);
            assert_eq!(owners(&other, 10), [0; 0], "its own removal is seen at once");
            assert!(claim(&other, 10, 3));
            assert_eq!(owners(&other, 10), [3], "and so is its claim");
        });
        assert!([vec![], vec![1], vec![3]].contains(&owners(&table, 10)));
        writer.join().unwrap();
        audit(&table, &[endpoint_0(0..SLOTS), vec![(10, 3)]].concat());
    });
}

#[test]
fn a_word_changes_hands_whole() {
    loom::model(|| {
        // Both lines are full: the newcomer gets the word that is given up, or none.
        let table = table_with(2 * SLOTS);
        let other = Arc::clone(&table);
        let leaving = thread::spawn(move || vacate(&other, 5, 0));
        let has_room = claim(&table, 20, 1);
        leaving.join().unwrap();
        let newcomer = if has_room { vec![(20, 1)] } else { vec![] };
        let stay = [endpoint_0(0..5), endpoint_0(6..2 * SLOTS), newcomer].concat();
        audit(&table, &stay);
    });
}
