//! From a prompt's canonical bytes to chained block hashes.
//!
//! The byte stream is cut into chunks of a fixed number of BYTES, not tokens: a better estimate of bytes per
//! token then changes what a match is worth, never which keys match.

use super::BlockHash;
use smallvec::SmallVec;
use std::ops::Range;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Separates the hash of a partial tail from that of a full chunk.
const TAIL_SEED: u64 = 0x7461_696c;
/// Separates an absent cache salt from an empty one.
const UNSALTED: u64 = 0x756e_7361_6c74_6564;

/// Root of every chain of one model, tenant salt and namespace (pool, tokenizer, medium ...): chains with
/// different roots share no block.
pub fn seed(model: &str, cache_salt: Option<&[u8]>, namespace: &str) -> u64 {
    let salt = cache_salt.map_or(UNSALTED, xxh3_64);
    let root = link(xxh3_64(model.as_bytes()), salt);
    link(root, xxh3_64(namespace.as_bytes()))
}

/// What [`ChainHasher`] chains a prompt's first chunk to: cuts of different lengths share no block.
pub fn chain_root(seed: u64, chunk_bytes: usize) -> u64 {
    link(seed, chunk_bytes as u64)
}

/// Hash of the block with `content` that follows the block hashed `parent` (or the chain's root).
///
/// Chunks are hashed on their own and linked afterwards, so that the long hashes of a prompt do not wait for
/// each other; seeding xxh3 with the parent would also rebuild its 192-byte secret for every chunk.
pub fn block_hash(parent: u64, content: &[u8]) -> BlockHash {
    link(parent, xxh3_64(content))
}

fn link(parent: u64, content: u64) -> u64 {
    xxh3_64(&pair(parent, content))
}

fn tail_hash(parent: u64, content: &[u8]) -> BlockHash {
    xxh3_64_with_seed(&pair(parent, xxh3_64(content)), TAIL_SEED)
}

fn pair(parent: u64, content: u64) -> [u8; 16] {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&parent.to_le_bytes());
    both[8..].copy_from_slice(&content.to_le_bytes());
    both
}

/// How a prompt is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunking {
    /// Bytes per chunk; 0 counts as 1.
    pub chunk_bytes: usize,
    /// Hashes per request, over all its prompts. Bytes beyond are counted but not hashed.
    pub max_blocks: usize,
}

/// Cuts a byte stream into chunks and chains their hashes; where segments begin and end does not matter.
///
/// Chunks that lie within one segment are hashed in place, only those that span segments are copied.
#[derive(Clone, Debug)]
pub struct ChainHasher {
    chunking: Chunking,
    root: u64,
    parent: u64,
    carry: SmallVec<[u8; 256]>,
    chain: Chain,
    keys: PromptKeys,
}

impl ChainHasher {
    /// A hasher whose chains start at `seed`, see [`seed`].
    pub fn new(seed: u64, chunking: Chunking) -> Self {
        Self::reusing(seed, chunking, Vec::new())
    }

    /// As [`Self::new`]; fills `buffer` (see [`PromptKeys::into_buffer`]) instead of allocating.
    pub fn reusing(seed: u64, mut chunking: Chunking, mut buffer: Vec<BlockHash>) -> Self {
        buffer.clear();
        chunking.chunk_bytes = chunking.chunk_bytes.max(1);
        let root = chain_root(seed, chunking.chunk_bytes);
        let keys = PromptKeys {
            chunk_bytes: chunking.chunk_bytes,
            hashes: buffer,
            ..PromptKeys::default()
        };
        Self {
            chunking,
            root,
            parent: root,
            carry: SmallVec::new(),
            chain: Chain::default(),
            keys,
        }
    }

    /// Appends the next bytes of the current prompt.
    pub fn write(&mut self, segment: &[u8]) {
        self.chain.bytes += segment.len() as u64;
        let rest = self.fill_carry(segment);
        if self.is_full() {
            return;
        }
        let chunks = rest.chunks_exact(self.chunking.chunk_bytes);
        self.carry.extend_from_slice(chunks.remainder());
        for chunk in chunks {
            if self.is_full() {
                break;
            }
            self.push_block(block_hash(self.parent, chunk));
        }
    }

    /// Ends the current prompt and begins another, independent one.
    pub fn next_prompt(&mut self) {
        let mut chain = std::mem::take(&mut self.chain);
        self.keys.total_bytes += chain.bytes;
        if !self.carry.is_empty() && !self.is_full() {
            self.keys.hashes.push(tail_hash(self.parent, &self.carry));
            chain.has_tail = true;
        }
        self.carry.clear();
        self.parent = self.root;
        self.chain.start = self.keys.hashes.len();
        if self.chain.start > chain.start {
            self.keys.chains.push(chain);
        }
    }

    /// The keys of everything written.
    pub fn finish(mut self) -> PromptKeys {
        self.next_prompt();
        self.keys
    }

    /// As [`Self::finish`], and a hasher that goes on from the end of the last prompt: its full blocks follow those
    /// of the keys, and its room is what they leave.
    pub fn finish_and_continue(self) -> (PromptKeys, Self) {
        let next = Self {
            chunking: Chunking {
                max_blocks: self.chunking.max_blocks.saturating_sub(self.keys.hashes.len()),
                ..self.chunking
            },
            root: self.parent,
            parent: self.parent,
            carry: self.carry.clone(),
            chain: Chain::default(),
            keys: PromptKeys {
                chunk_bytes: self.chunking.chunk_bytes,
                ..PromptKeys::default()
            },
        };
        (self.finish(), next)
    }

    /// Completes the chunk begun by earlier segments; gives back what is left of `segment`.
    fn fill_carry<'s>(&mut self, segment: &'s [u8]) -> &'s [u8] {
        if self.carry.is_empty() {
            return segment;
        }
        let wanted = self.chunking.chunk_bytes - self.carry.len();
        let (head, rest) = segment.split_at(wanted.min(segment.len()));
        self.carry.extend_from_slice(head);
        if self.carry.len() == self.chunking.chunk_bytes {
            if !self.is_full() {
                self.push_block(block_hash(self.parent, &self.carry));
            }
            self.carry.clear();
        }
        rest
    }

    fn push_block(&mut self, hash: BlockHash) {
        self.parent = hash;
        self.keys.hashes.push(hash);
        self.chain.full_blocks += 1;
    }

    fn is_full(&self) -> bool {
        self.keys.hashes.len() >= self.chunking.max_blocks
    }
}

/// One prompt within [`PromptKeys`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    start: usize,
    full_blocks: usize,
    has_tail: bool,
    bytes: u64,
}

impl Chain {
    /// Number of full chunks; only these may be reported as blocks.
    pub const fn full_blocks(&self) -> usize {
        self.full_blocks
    }

    /// Whether a partial chunk follows the full ones: it may pull a repeat home, but is no block.
    pub const fn has_tail(&self) -> bool {
        self.has_tail
    }

    /// Bytes of the prompt, those beyond `max_blocks` included.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    fn keys(&self) -> Range<usize> {
        self.start..self.start + self.full_blocks + usize::from(self.has_tail)
    }
}

/// The keys of one request: a chain of block hashes per prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptKeys {
    chunk_bytes: usize,
    hashes: Vec<BlockHash>,
    chains: SmallVec<[Chain; 1]>,
    total_bytes: u64,
}

impl PromptKeys {
    /// The prompts that have at least one key.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// What to look up and store for `chain`: its full chunks and then, if there is one, its partial tail.
    pub fn keys(&self, chain: &Chain) -> &[BlockHash] {
        self.hashes.get(chain.keys()).unwrap_or_default()
    }

    /// The hashes of the full chunks of `chain`.
    pub fn full_blocks(&self, chain: &Chain) -> &[BlockHash] {
        self.keys(chain).get(..chain.full_blocks).unwrap_or_default()
    }

    /// Number of full chunks over all prompts.
    pub fn total_blocks(&self) -> usize {
        self.chains.iter().map(Chain::full_blocks).sum()
    }

    /// Bytes over all prompts, those beyond `max_blocks` included.
    pub const fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes per chunk.
    pub const fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// No prompt has a key.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Bytes of full chunks among the first `matched` keys of `chain`: what an engine may be able to reuse.
    pub fn matched_block_bytes(&self, chain: &Chain, matched: u32) -> u64 {
        let blocks = (matched as usize).min(chain.full_blocks);
        blocks as u64 * self.chunk_bytes as u64
    }

    /// Bytes among the first `matched` keys of `chain`, the partial tail included: what pulls a repeat home.
    pub fn matched_bytes(&self, chain: &Chain, matched: u32) -> u64 {
        if chain.has_tail && matched as usize > chain.full_blocks {
            return chain.bytes;
        }
        self.matched_block_bytes(chain, matched)
    }

    /// Gives the buffer back for [`ChainHasher::reusing`].
    pub fn into_buffer(self) -> Vec<BlockHash> {
        self.hashes
    }
}
