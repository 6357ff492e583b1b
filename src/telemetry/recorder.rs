//! Live traffic as a trace for `homing replay`: when, how long, and which blocks were alike; no prompt text.
//!
//! The format is Mooncake's: `{"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}` per line. An id stands
//! for a block of tokens and everything before them. A prompt known by its tokens is cut exactly; one known by its
//! bytes into blocks of equal bytes, so that equal beginnings stay equal whatever the tokenizer makes of them.

mod rotating;

use super::lines::Lines;
use crate::pool::{Keys, Prompt};
use crate::prefix::BlockHash;
pub use rotating::Bounds;
use rotating::Rotating;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens that a chunk of [`CHUNK_BYTES`](crate::pool::CHUNK_BYTES) counts as, at 4 bytes each. Ids stand for a multiple.
pub const CHUNK_TOKENS: u32 = 64;
/// Ids are cut to what every JSON reader can hold exactly.
const ID_BITS: u32 = 53;

/// Where the trace goes. Cloning shares the writer.
#[derive(Clone)]
pub struct Recorder {
    lines: Option<Lines>,
    /// Tokens per id.
    block_tokens: u32,
    /// Mixed into every id: nobody can look up whether a known text was sent.
    secret: u64,
}

/// A request that was answered.
#[derive(Debug)]
pub struct Recorded<'a> {
    pub arrived: SystemTime,
    pub prompt: &'a Prompt,
    /// Tokens per KV block of the endpoint that served it.
    pub engine_block_tokens: u32,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
}

impl Recorder {
    /// Writes nothing.
    pub const fn off() -> Self {
        Self {
            lines: None,
            block_tokens: CHUNK_TOKENS,
            secret: 0,
        }
    }

    /// Writes to a new file at `path`, an id per `block_tokens` tokens; what is there moves to `path.1`, as the file does
    /// when it has grown.
    ///
    /// # Errors
    /// When the file cannot be made or the writer thread cannot start.
    pub fn file(path: &Path, bounds: Bounds, block_tokens: u32) -> std::io::Result<Self> {
        let sink = Rotating::new(path, bounds)?;
        Ok(Self {
            lines: Some(Lines::start("recorder", sink)?),
            block_tokens,
            secret: rand::random(),
        })
    }

    /// Whether anything would be written at all.
    pub const fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// Queues one line; never waits for the disk. Requests without a prompt leave none.
    pub fn write(&self, request: &Recorded) {
        let (Some(lines), Some(keys)) = (&self.lines, &request.prompt.keys) else {
            return;
        };
        lines.push(|line| self.line(request, keys, line));
    }

    /// Waits until everything queued so far has been written.
    pub fn flush(&self) {
        if let Some(lines) = &self.lines {
            lines.flush();
        }
    }

    /// Lines that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.lines.as_ref().map_or(0, Lines::dropped)
    }

    fn line(&self, of: &Recorded, keys: &Keys, line: &mut Vec<u8>) {
        let since = of.arrived.duration_since(SystemTime::UNIX_EPOCH);
        let at_ms = since.unwrap_or(Duration::ZERO).as_millis();
        let (input, output) = (of.prompt_tokens, of.output_tokens);
        // Writing to memory cannot fail.
        let _ = write!(
            line,
            "{{\"timestamp\": {at_ms}, \"input_length\": {input}, \"output_length\": {output}, \"hash_ids\": ["
        );
        let start = line.len();
        for_each_block(keys, self.block_tokens, of.engine_block_tokens, |hash| {
            let separator = if line.len() == start { "" } else { ", " };
            let _ = write!(line, "{separator}{}", self.id(hash));
        });
        line.extend_from_slice(b"]}\n");
    }

    fn id(&self, hash: BlockHash) -> u64 {
        xxh3_64_with_seed(&hash.to_le_bytes(), self.secret) >> (u64::BITS - ID_BITS)
    }
}

/// The hash at the end of each block, and at the end of each prompt.
fn for_each_block(keys: &Keys, block_tokens: u32, engine_block_tokens: u32, mut each: impl FnMut(BlockHash)) {
    let mut cut = |chain: &[BlockHash], hash_tokens: u32| {
        let per_id = (block_tokens / hash_tokens.max(1)).max(1) as usize;
        let ends = chain.chunks(per_id).filter_map(<[_]>::last);
        ends.for_each(|hash| each(*hash));
    };
    match keys {
        Keys::Chunks(keys) => {
            for chain in keys.chains() {
                cut(keys.keys(chain), CHUNK_TOKENS);
            }
        }
        Keys::Blocks(keys) => {
            let chains = keys.chains(engine_block_tokens);
            chains.for_each(|chain| cut(chain, engine_block_tokens));
        }
    }
}

#[cfg(test)]
mod tests;
