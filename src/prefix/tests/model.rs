//! The index as one would write it without a thought for speed.

use crate::prefix::BlockHash;
use std::collections::HashSet;

/// One request's store: endpoint, chain, life of the engine, undos seen, blocks not confirmed by anyone.
#[derive(Clone, Debug)]
pub struct Stored {
    pub id: usize,
    pub chain: Vec<BlockHash>,
    incarnation: u64,
    undos: u64,
    open: Vec<BlockHash>,
}

#[derive(Debug, Default)]
pub struct Endpoint {
    asked: usize,
    capacity: usize,
    incarnation: u64,
    undos: u64,
    /// Least recent first.
    blocks: Vec<BlockHash>,
    unconfirmed: HashSet<BlockHash>,
}

#[derive(Debug)]
pub struct Model {
    endpoints: Vec<Option<Endpoint>>,
    /// Blocks that fit the table.
    room: usize,
    incarnations: u64,
}

impl Endpoint {
    fn owns(&self, hash: &BlockHash) -> bool {
        self.blocks.contains(hash)
    }

    fn drop_block(&mut self, hash: BlockHash) -> bool {
        self.unconfirmed.remove(&hash);
        let before = self.blocks.len();
        self.blocks.retain(|&block| block != hash);
        self.blocks.len() < before
    }

    fn evict_to(&mut self, len: usize, spared: &[BlockHash]) {
        while self.blocks.len() > len {
            let Some(oldest) = self.blocks.iter().copied().find(|block| !spared.contains(block)) else {
                return;
            };
            self.drop_block(oldest);
        }
    }

    fn store(&mut self, chain: &[BlockHash], provisional: bool) -> Vec<BlockHash> {
        let chain = &chain[..chain.len().min(self.capacity)];
        let missing: HashSet<_> = chain.iter().filter(|hash| !self.owns(hash)).collect();
        self.evict_to(self.capacity - missing.len(), chain);
        for &hash in chain.iter().rev() {
            let is_new = !self.owns(&hash);
            let open = provisional && (is_new || self.unconfirmed.contains(&hash));
            self.drop_block(hash);
            self.blocks.push(hash);
            if open {
                self.unconfirmed.insert(hash);
            }
        }
        chain
            .iter()
            .copied()
            .filter(|hash| self.unconfirmed.contains(hash))
            .collect()
    }
}

impl Model {
    pub fn new(room: usize) -> Self {
        Self {
            endpoints: Vec::new(),
            room,
            incarnations: 0,
        }
    }

    pub fn ids(&self) -> Vec<usize> {
        (0..self.endpoints.len())
            .filter(|&id| self.endpoints[id].is_some())
            .collect()
    }

    pub fn blocks(&self, id: usize) -> usize {
        self.endpoints[id]
            .as_ref()
            .map_or(0, |endpoint| endpoint.blocks.len())
    }

    pub fn capacity(&self, id: usize) -> usize {
        self.endpoints[id]
            .as_ref()
            .map_or(0, |endpoint| endpoint.capacity)
    }

    pub fn matches(&self, chain: &[BlockHash]) -> Vec<u32> {
        let leading =
            |endpoint: &Endpoint| chain.iter().take_while(|hash| endpoint.owns(hash)).count() as u32;
        self.endpoints
            .iter()
            .map(|endpoint| endpoint.as_ref().map_or(0, leading))
            .collect()
    }

    pub fn register(&mut self, asked: usize) -> usize {
        let free = self.endpoints.iter().position(Option::is_none);
        let id = free.unwrap_or(self.endpoints.len());
        if id == self.endpoints.len() {
            self.endpoints.push(None);
        }
        self.incarnations += 1;
        let incarnation = self.incarnations;
        self.endpoints[id] = Some(Endpoint {
            asked,
            incarnation,
            ..Endpoint::default()
        });
        self.share_out();
        id
    }

    pub fn release(&mut self, id: usize) {
        self.endpoints[id] = None;
        self.share_out();
    }

    pub fn set_capacity(&mut self, id: usize, asked: usize) {
        self.endpoint(id).asked = asked;
        self.share_out();
    }

    pub fn clear(&mut self, id: usize) {
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let endpoint = self.endpoint(id);
        endpoint.incarnation = incarnation;
        endpoint.evict_to(0, &[]);
    }

    pub fn store(&mut self, id: usize, chain: &[BlockHash]) -> Stored {
        let endpoint = self.endpoint(id);
        let open = endpoint.store(chain, true);
        let (incarnation, undos) = (endpoint.incarnation, endpoint.undos);
        Stored {
            id,
            chain: chain.to_vec(),
            incarnation,
            undos,
            open,
        }
    }

    pub fn insert(&mut self, id: usize, hashes: &[BlockHash]) {
        self.endpoint(id).store(hashes, false);
    }

    pub fn remove(&mut self, id: usize, hashes: &[BlockHash]) -> usize {
        hashes
            .iter()
            .filter(|&&hash| self.endpoint(id).drop_block(hash))
            .count()
    }

    pub fn confirm(&mut self, stored: &Stored) {
        let Some(endpoint) = self.endpoint_of(stored) else {
            return;
        };
        if stored.open.is_empty() {
            return;
        }
        if endpoint.undos == stored.undos {
            endpoint.unconfirmed.retain(|hash| !stored.open.contains(hash));
        } else {
            endpoint.store(&stored.chain, false);
        }
    }

    pub fn undo(&mut self, stored: &Stored) {
        let Some(endpoint) = self.endpoint_of(stored) else {
            return;
        };
        endpoint.undos += 1;
        for &hash in &stored.open {
            if endpoint.unconfirmed.contains(&hash) {
                endpoint.drop_block(hash);
            }
        }
    }

    fn endpoint(&mut self, id: usize) -> &mut Endpoint {
        self.endpoints[id].as_mut().expect("registered")
    }

    fn endpoint_of(&mut self, stored: &Stored) -> Option<&mut Endpoint> {
        self.endpoints[stored.id]
            .as_mut()
            .filter(|endpoint| endpoint.incarnation == stored.incarnation)
    }

    fn share_out(&mut self) {
        let total: usize = self
            .endpoints
            .iter()
            .flatten()
            .map(|endpoint| endpoint.asked)
            .sum();
        for endpoint in self.endpoints.iter_mut().flatten() {
            let fits = total <= self.room;
            endpoint.capacity = if fits {
                endpoint.asked
            } else {
                endpoint.asked * self.room / total
            };
            endpoint.evict_to(endpoint.capacity, &[]);
        }
    }
}
