//! KV event batches as vLLM publishes them, in the encodings of all versions.
//!
//! Up to 0.20 an event is an array that starts with its type's name, since 0.24 a map with a `type` key;
//! both leave trailing or default fields out. Fields and event types that are not known here are passed
//! over: the next version's events must not blind the gateway. Source: vLLM `distributed/kv_events.py`.

mod fields;

use super::msgpack::{Head, Malformed, Reader};
use fields::Fields;
use smallvec::SmallVec;

/// The engine's name for a block: the last 8 bytes, big-endian, of the digest. vLLM sends either those as an
/// integer or the digest as bytes; both give the same name.
pub type EngineHash = u64;

/// The content of one message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<'a> {
    /// Seconds since the epoch on the engine's clock.
    pub timestamp_s: f64,
    pub events: Vec<Event<'a>>,
    /// The data-parallel rank that published it, if said.
    pub rank: Option<u32>,
    /// Events passed over because their type is unknown.
    pub unknown_events: u32,
    /// Events passed over because a known field had an impossible value.
    pub malformed_events: u32,
}

/// Something that happened to an engine's prefix cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    Stored(Stored<'a>),
    Removed(Removed),
    /// The whole cache was reset.
    Cleared,
}

/// Blocks were computed, or loaded, and can be reused from now on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored<'a> {
    pub hashes: SmallVec<[EngineHash; 4]>,
    /// The block before the first one; `None` when the first one starts a prompt.
    pub parent: Option<EngineHash>,
    /// The tokens of all blocks, one after the other.
    pub token_ids: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    pub lora_id: Option<u64>,
    pub lora_name: Option<&'a str>,
    pub medium: Medium,
    /// Per block what else went into its hash, as the MessagePack bytes of a list; empty when no block has any.
    pub extra_keys: Vec<Option<&'a [u8]>>,
    pub group: Option<u32>,
    pub attention: Attention,
}

/// Copies of blocks were dropped from a medium.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Removed {
    pub hashes: SmallVec<[EngineHash; 1]>,
    pub medium: Medium,
    pub group: Option<u32>,
}

/// Where a block is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// Also when the event does not say.
    #[default]
    Gpu,
    /// Host memory: loaded back faster than it is computed.
    Cpu,
    /// Disks, remote stores and whatever comes next.
    Other,
}

/// Whether the blocks of a KV cache group cover a prompt's whole prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// Full attention of any kind; also when the event does not say, as up to 0.20.
    #[default]
    Full,
    /// Sliding windows, chunks, state-space layers: only some blocks of a prefix are kept.
    Partial,
}

/// Reads one message's payload.
///
/// # Errors
/// [`Malformed`] when the bytes are not MessagePack or not a batch at all.
pub fn decode(payload: &[u8]) -> Result<Batch<'_>, Malformed> {
    let mut reader = Reader::new(payload);
    let mut batch = Batch::default();
    match reader.head()? {
        Head::Array(len) => {
            for index in 0..len {
                batch_field(
                    &mut batch,
                    BATCH_FIELDS.get(index as usize).copied().unwrap_or(b""),
                    &mut reader,
                )?;
            }
        }
        Head::Map(len) => {
            for _ in 0..len {
                let key = reader.head()?;
                let name = if let Head::Str(name) = key { name } else { b"" };
                reader.skip_rest_of(key)?;
                batch_field(&mut batch, name, &mut reader)?;
            }
        }
        _ => return Err(Malformed::NotBatch),
    }
    Ok(batch)
}

const BATCH_FIELDS: [&[u8]; 3] = [b"ts", b"events", b"data_parallel_rank"];

fn batch_field<'a>(batch: &mut Batch<'a>, name: &[u8], reader: &mut Reader<'a>) -> Result<(), Malformed> {
    match name {
        b"events" => return events(batch, reader),
        b"ts" => match reader.head()? {
            Head::Float(seconds) => batch.timestamp_s = seconds,
            Head::Uint(seconds) => batch.timestamp_s = seconds as f64,
            other => reader.skip_rest_of(other)?,
        },
        b"data_parallel_rank" => match reader.head()? {
            Head::Uint(rank) => batch.rank = u32::try_from(rank).ok(),
            other => reader.skip_rest_of(other)?,
        },
        _ => {
            reader.skip()?;
        }
    }
    Ok(())
}

fn events<'a>(batch: &mut Batch<'a>, reader: &mut Reader<'a>) -> Result<(), Malformed> {
    let len = match reader.head()? {
        Head::Array(len) => len,
        _ => return Err(Malformed::NotBatch),
    };
    // A removal takes 30 bytes on the wire and more in memory: do not multiply what a header merely claims.
    batch.events.reserve(reader.plausible(len) / 16);
    for _ in 0..len {
        match Fields::read(reader)?.into_event() {
            Ok(event) => batch.events.push(event),
            Err(fields::Refused::UnknownType) => batch.unknown_events += 1,
            Err(fields::Refused::BadValue) => batch.malformed_events += 1,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
