//! Segments seen before, within a bound on memory.

use std::collections::HashMap;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Names a segment by its text and the token before it. 128 bits, so that no two are ever confused by chance;
/// who makes two collide on purpose only sends a request of his own to the wrong endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

impl Key {
    pub(super) fn new(after: Option<u32>, text: &str) -> Self {
        Self(xxh3_128_with_seed(
            text.as_bytes(),
            after.map_or(0, |id| u64::from(id) + 1),
        ))
    }
}

/// Two generations: when the young one is full it becomes the old one, and the old one is dropped. What is used
/// moves to the young one, so that nothing in use is lost. No order to keep, no list to walk.
#[derive(Debug)]
pub(super) struct Memory {
    max_bytes: usize,
    young: HashMap<Key, Arc<[u32]>>,
    young_bytes: usize,
    old: HashMap<Key, Arc<[u32]>>,
}

impl Memory {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            young: HashMap::new(),
            young_bytes: 0,
            old: HashMap::new(),
        }
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<Arc<[u32]>> {
        if let Some(ids) = self.young.get(key) {
            return Some(Arc::clone(ids));
        }
        let ids = self.old.remove(key)?;
        self.insert(*key, Arc::clone(&ids));
        Some(ids)
    }

    pub(super) fn insert(&mut self, key: Key, ids: Arc<[u32]>) {
        let bytes = size(&ids);
        if bytes > self.max_bytes / 2 {
            return;
        }
        if self.young_bytes + bytes > self.max_bytes / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        if let Some(replaced) = self.young.insert(key, ids) {
            self.young_bytes -= size(&replaced);
        }
    }
}

fn size(ids: &[u32]) -> usize {
    /// Key, pointer, counts and the map's slack.
    const OVERHEAD_BYTES: usize = 80;
    size_of_val(ids) + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_keeps_what_is_used() {
        let mut memory = Memory::new(20_000);
        let used = Key::new(None, "used");
        memory.insert(used, Arc::from([7; 10]));
        for other in 0..1000 {
            memory.insert(Key::new(Some(other), "x"), Arc::from(vec![0; 100]));
            assert_eq!(memory.get(&used).as_deref(), Some(&[7; 10][..]));
            let bytes: usize = memory
                .young
                .values()
                .chain(memory.old.values())
                .map(|ids| size(ids))
                .sum();
            assert!(bytes <= 20_000, "{bytes}");
        }
        memory.insert(Key::new(None, "huge"), Arc::from(vec![0; 10_000]));
        assert!(memory.get(&Key::new(None, "huge")).is_none());
        assert_ne!(Key::new(None, "x"), Key::new(Some(0), "x"));
    }
}
