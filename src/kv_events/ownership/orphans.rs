//! Blocks whose parent is not known: kept, within a bound, until the parent comes.

use super::{Blocks, keys};
use crate::kv_events::chain::Lora;
use crate::kv_events::codec::{EngineHash, Stored};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};

/// A stored event that waits.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) hashes: Vec<EngineHash>,
    pub(super) tier: usize,
    parent: EngineHash,
    token_ids: Vec<u32>,
    block_size: u32,
    lora_name: Option<String>,
    extra_keys: Vec<Option<Vec<u8>>>,
    removed: Vec<bool>,
}

impl Orphan {
    pub(super) fn new(event: &Stored<'_>, parent: EngineHash, tier: usize) -> Self {
        let lora_name = match keys::lora_of(event) {
            Lora::Name(name) => Some(name.to_owned()),
            _ => None,
        };
        Self {
            hashes: event.hashes.to_vec(),
            tier,
            parent,
            token_ids: event.token_ids.clone(),
            block_size: event.block_size,
            lora_name,
            extra_keys: event
                .extra_keys
                .iter()
                .map(|keys| keys.map(<[u8]>::to_vec))
                .collect(),
            removed: vec![false; event.hashes.len()],
        }
    }

    /// Copies that are left of a block: one, unless its removal came while it waited.
    pub(super) fn copies(&self, index: usize) -> u16 {
        u16::from(!self.removed[index])
    }

    pub(super) fn keys(&self) -> Vec<Option<&[u8]>> {
        self.extra_keys.iter().map(|keys| keys.as_deref()).collect()
    }

    /// Everything but the extra keys.
    pub(super) fn blocks(&self) -> Blocks<'_> {
        Blocks {
            hashes: &self.hashes,
            token_ids: &self.token_ids,
            block_size: self.block_size,
            lora: self.lora_name.as_deref().map_or(Lora::None, Lora::Name),
            extra_keys: &[],
        }
    }

    /// Memory in units of tokens.
    fn weight(&self) -> usize {
        let keys: usize = self.extra_keys.iter().flatten().map(Vec::len).sum();
        self.token_ids.len() + 32 * self.hashes.len() + keys / 4 + 64
    }
}

/// Waiting events by id, which is by age.
#[derive(Debug)]
pub(super) struct Orphans {
    max_weight: usize,
    weight: usize,
    next_id: u64,
    by_id: BTreeMap<u64, Orphan>,
    by_parent: HashMap<EngineHash, SmallVec<[u64; 1]>>,
    /// Where copies of a block wait: the event and the place in it.
    by_hash: HashMap<EngineHash, SmallVec<[(u64, u32); 1]>>,
}

impl Orphans {
    pub(super) fn new(max_weight: usize) -> Self {
        Self {
            max_weight,
            weight: 0,
            next_id: 0,
            by_id: BTreeMap::new(),
            by_parent: HashMap::new(),
            by_hash: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.max_weight);
    }

    /// Adds an orphan and gives up the oldest ones over the bound; returns how many blocks were given up.
    pub(super) fn insert(&mut self, orphan: Orphan) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.weight += orphan.weight();
        self.by_parent.entry(orphan.parent).or_default().push(id);
        for (index, hash) in (0..).zip(&orphan.hashes) {
            self.by_hash.entry(*hash).or_default().push((id, index));
        }
        self.by_id.insert(id, orphan);
        let mut dropped = 0;
        while self.weight > self.max_weight
            && let Some((&oldest, _)) = self.by_id.first_key_value()
        {
            dropped += self.take(oldest).map_or(0, |orphan| orphan.hashes.len() as u64);
        }
        dropped
    }

    /// Takes out the orphans that wait for `parent`.
    pub(super) fn take_children(&mut self, parent: EngineHash) -> Vec<Orphan> {
        let ids = self.by_parent.remove(&parent).unwrap_or_default();
        ids.into_iter().filter_map(|id| self.take(id)).collect()
    }

    /// Notes that a copy of a waiting block was removed; false when no copy waits.
    pub(super) fn remove_copy(&mut self, hash: EngineHash) -> bool {
        let Some(places) = self.by_hash.get_mut(&hash) else {
            return false;
        };
        let place = places.pop();
        if places.is_empty() {
            self.by_hash.remove(&hash);
        }
        let Some((id, index)) = place else { return false };
        if let Some(orphan) = self.by_id.get_mut(&id) {
            orphan.removed[index as usize] = true;
        }
        true
    }

    fn take(&mut self, id: u64) -> Option<Orphan> {
        let orphan = self.by_id.remove(&id)?;
        self.weight -= orphan.weight();
        forget(&mut self.by_parent, orphan.parent, |of| *of == id);
        for hash in &orphan.hashes {
            forget(&mut self.by_hash, *hash, |(of, _)| *of == id);
        }
        Some(orphan)
    }
}

fn forget<P>(
    places_by: &mut HashMap<EngineHash, SmallVec<[P; 1]>>,
    hash: EngineHash,
    is_gone: impl Fn(&P) -> bool,
) {
    if let Some(places) = places_by.get_mut(&hash) {
        places.retain(|place| !is_gone(place));
        if places.is_empty() {
            places_by.remove(&hash);
        }
    }
}
