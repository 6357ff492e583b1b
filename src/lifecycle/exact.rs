//! What a pool needs to go by exact ownership: where events come from, and a tokenizer.

use crate::config::schema::{self, PrefixSource};
use crate::datalayer::tokenize::TokenSource;
use crate::kv_events::subscriber::Source;
use crate::pool::{CHUNK_BYTES, DEFAULT_BLOCK_TOKENS, Exact, Pool};
use crate::tokens::Tokenizer;
use anyhow::Context as _;
use std::sync::Arc;

/// Memory for texts that the tokenizer has seen.
const TOKENIZER_CACHE_BYTES: usize = 64 << 20;
/// Bytes of text per token, to turn a capacity in tokens into chunks until there is an estimate.
const ASSUMED_BYTES_PER_TOKEN: u64 = 4;

/// Where the endpoint's events come from; nothing in a pool that goes by its traffic.
///
/// # Errors
/// An address that cannot be connected to.
pub fn sources(of: &schema::Pool, endpoint: &schema::Endpoint) -> anyhow::Result<Vec<Source>> {
    if of.prefix_cache.source == PrefixSource::Traffic {
        return Ok(Vec::new());
    }
    let events = of.kv_events.clone().unwrap_or_default();
    events
        .sources(endpoint)
        .map_err(|(address, why)| anyhow::anyhow!("kv_events: `{address}`: {why}"))
}

/// Entries of the index per endpoint, until it has told its capacity.
pub fn assumed_blocks(of: &schema::Pool, capacity_tokens: u64) -> usize {
    match of.prefix_cache.source {
        PrefixSource::KvEvents => {
            let block_tokens = of.prefix_cache.block_size.value();
            let block_tokens = block_tokens.map_or(DEFAULT_BLOCK_TOKENS, Into::into);
            Pool::exact_capacity(capacity_tokens, block_tokens, 0)
        }
        PrefixSource::Traffic => (capacity_tokens * ASSUMED_BYTES_PER_TOKEN) as usize / CHUNK_BYTES,
    }
}

/// Gives the pool what its configuration says of tokens and events; `loaded` is its tokenizer, if it is in memory.
///
/// # Errors
/// When the tokenizer's files cannot be loaded.
pub fn equip(pool: &mut Pool, of: &schema::Pool, loaded: Option<Arc<TokenSource>>) -> anyhow::Result<()> {
    if of.prefix_cache.source == PrefixSource::KvEvents {
        pool.exact = Some(Exact::default());
    }
    pool.tokenizer = match (&of.tokenizer, loaded) {
        (Some(_), Some(loaded)) => Some(loaded),
        (Some(tokenizer), None) => {
            let source = token_source(tokenizer).with_context(|| format!("pool {}: tokenizer", of.name))?;
            Some(Arc::new(source))
        }
        (None, _) => None,
    };
    Ok(())
}

fn token_source(of: &schema::Tokenizer) -> anyhow::Result<TokenSource> {
    let Some(path) = &of.path else {
        return Ok(TokenSource::Engine(Box::default()));
    };
    let tokenizer = Tokenizer::load(path, of.chat_template.as_deref(), TOKENIZER_CACHE_BYTES)?;
    Ok(TokenSource::local(tokenizer))
}
