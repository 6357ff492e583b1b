//! What goes into an engine and what comes out of it.

use crate::prefix::BlockHash;
use crate::time::Mono;
use std::sync::Arc;

/// Names one request in one engine. The caller keeps them unique among live requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Why a request ended by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FinishReason {
    /// The output reached its maximum length.
    #[default]
    Length,
    /// The output reached a stop string or its natural end.
    Stop,
}

/// What the blocks of a request hold. The engine passes it on in block events and never looks inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockContent {
    /// Token ids of prompt and output.
    pub tokens: Vec<u32>,
    /// The adapter that computed them.
    pub lora_name: Option<String>,
    /// `cache_salt` of the request.
    pub cache_salt: Option<String>,
}

/// One request. The engine does not look at tokens, only at how many there are and which blocks they fill.
#[derive(Clone, Debug)]
pub struct SimRequest {
    /// Chosen by the caller.
    pub id: RequestId,
    /// Chained hashes of the full blocks of prompt and output together, as far as the caller knows them:
    /// block `i` holds tokens `i * block_size ..`. The prompt's full blocks must be there to be found in
    /// the cache. Whoever knows the output's tokens in advance gives their blocks too, and then the next
    /// turn of a conversation, which repeats them in its prompt, hits them.
    pub block_hashes: Arc<[BlockHash]>,
    /// Prompt length, at least 1 token.
    pub prompt_tokens: u32,
    /// Tokens to generate, at least 1.
    pub output_tokens: u32,
    /// Seed of the hashes of the blocks that `block_hashes` leaves out.
    pub output_seed: u64,
    /// How the request ends when it is not aborted.
    pub finish: FinishReason,
    /// For those who publish block events; `None` when nobody does.
    pub content: Option<Arc<BlockContent>>,
}

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub id: RequestId,
    pub reason: FinishReason,
    pub prompt_tokens: u32,
    /// Prompt tokens that the prefix cache had at the first admission: `usage.prompt_tokens_details.cached_tokens`.
    pub cached_tokens: u32,
    pub output_tokens: u32,
    /// Times that the request lost its blocks and had to be computed again.
    pub preemptions: u32,
    pub arrived_at: Mono,
    /// First admission.
    pub scheduled_at: Mono,
    pub first_token_at: Mono,
    /// The step end that gave the last token.
    pub at: Mono,
}

/// What happened in an engine, in order. Block events come with the end of the step that caused them.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// A step gave the request its `generated`-th token. Always reported for the first token; for later
    /// ones when [`EngineSpec::token_events`](super::EngineSpec::token_events) is set.
    Token { id: RequestId, at: Mono, generated: u32 },
    /// The request is done; comes after its last token.
    Finished(Finished),
    /// The request lost its seat and its blocks, and waits again at the head of the queue.
    Preempted { id: RequestId, at: Mono },
    /// Full blocks became findable: block `first_block` of a request and those after it. `content` is
    /// what the request brought; block `i` holds its tokens from `i * block_size` on.
    BlocksStored {
        content: Option<Arc<BlockContent>>,
        first_block: u32,
        hashes: Vec<BlockHash>,
        parent: Option<BlockHash>,
    },
    /// One physical copy of a block's content left the cache.
    BlockRemoved { hash: BlockHash },
    /// The whole cache was cleared. As in vLLM, known only with the next step after the reset.
    Cleared,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Prompt and output need more blocks than the engine has.
    #[error("the request needs {needed} KV blocks, the engine has {available}")]
    TooLong { needed: u32, available: u32 },
    /// No prompt token, or no output token.
    #[error("a request needs at least one prompt token and one output token")]
    Empty,
}

/// A request that waits or runs.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) request: SimRequest,
    pub(super) arrived_at: Mono,
    /// First admission; `None` until then.
    pub(super) scheduled_at: Option<Mono>,
    pub(super) first_token_at: Mono,
    pub(super) last_token_at: Mono,
    pub(super) cached_tokens: u32,
    pub(super) preemptions: u32,
    /// Tokens whose KV entries exist.
    pub(super) computed: u32,
    /// Output tokens sampled so far.
    pub(super) generated: u32,
    /// Tokens that the step in flight computes.
    pub(super) scheduled: u32,
    /// Full blocks that are in the hash map.
    pub(super) registered: u32,
    /// Hash of the last registered block.
    pub(super) last_hash: Option<BlockHash>,
    /// Ends, without an event, when the step in flight does.
    pub(super) aborted: bool,
    pub(super) table: Vec<super::blocks::BlockId>,
}

impl Sequence {
    pub(super) fn new(request: SimRequest, arrived_at: Mono) -> Self {
        Self {
            request,
            arrived_at,
            scheduled_at: None,
            first_token_at: Mono::ZERO,
            last_token_at: Mono::ZERO,
            cached_tokens: 0,
            preemptions: 0,
            computed: 0,
            generated: 0,
            scheduled: 0,
            registered: 0,
            last_hash: None,
            aborted: false,
            table: Vec::new(),
        }
    }

    /// Tokens that exist: the prompt and what was sampled.
    pub(super) fn known_tokens(&self) -> u32 {
        self.request.prompt_tokens + self.generated
    }

    /// Whether the next token to compute is the one sampled last.
    pub(super) fn decodes(&self) -> bool {
        self.generated > 0 && self.computed + 1 == self.known_tokens()
    }

    /// Hash of block `index`, which follows the block with hash `parent`.
    pub(super) fn block_hash(&self, index: u32, parent: Option<BlockHash>) -> BlockHash {
        match self.request.block_hashes.get(index as usize) {
            Some(&hash) => hash,
            None => derived_hash(parent, self.request.output_seed, index),
        }
    }
}

/// Hash of an output block whose tokens nobody knows (the finalizer of splitmix64).
fn derived_hash(parent: Option<BlockHash>, seed: u64, index: u32) -> BlockHash {
    let mut z = parent
        .unwrap_or(0)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(seed.rotate_left(17))
        .wrapping_add(u64::from(index).wrapping_mul(0xD1B5_4A32_D192_ED03));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
