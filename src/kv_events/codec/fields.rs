//! One event's fields, whichever way they are laid out.

use super::{Attention, EngineHash, Event, Medium, Removed, Stored};
use crate::kv_events::msgpack::{Head, Malformed, Reader};
use smallvec::SmallVec;

/// Array layouts: the fields in the order of the class, which only ever grew at its end.
const STORED: [&[u8]; 11] = [
    b"block_hashes",
    b"parent_block_hash",
    b"token_ids",
    b"block_size",
    b"lora_id",
    b"medium",
    b"lora_name",
    b"extra_keys",
    b"group_idx",
    b"kv_cache_spec_kind",
    b"kv_cache_spec_sliding_window",
];
const REMOVED: [&[u8]; 3] = [b"block_hashes", b"medium", b"group_idx"];

/// Why an event is passed over.
pub(super) enum Refused {
    UnknownType,
    BadValue,
}

/// The union of all events' fields: a name means the same in each.
#[derive(Default)]
pub(super) struct Fields<'a> {
    kind: &'a [u8],
    hashes: SmallVec<[EngineHash; 4]>,
    parent: Option<EngineHash>,
    token_ids: Vec<u32>,
    block_size: u32,
    lora_id: Option<u64>,
    lora_name: Option<&'a str>,
    medium: Medium,
    extra_keys: Vec<Option<&'a [u8]>>,
    group: Option<u32>,
    attention: Attention,
    bad_value: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut fields = Self::default();
        match reader.head()? {
            Head::Map(len) => fields.read_map(len, reader)?,
            Head::Array(len) if len > 0 => fields.read_array(len, reader)?,
            Head::Str(kind) => fields.kind = kind,
            other => reader.skip_rest_of(other)?,
        }
        Ok(fields)
    }

    pub(super) fn into_event(self) -> Result<Event<'a>, Refused> {
        match self.kind {
            b"BlockStored" if !self.bad_value => Ok(Event::Stored(Stored {
                hashes: self.hashes,
                parent: self.parent,
                token_ids: self.token_ids,
                block_size: self.block_size,
                lora_id: self.lora_id,
                lora_name: self.lora_name,
                medium: self.medium,
                extra_keys: self.extra_keys,
                group: self.group,
                attention: self.attention,
            })),
            b"BlockRemoved" if !self.bad_value => Ok(Event::Removed(Removed {
                hashes: SmallVec::from_slice(&self.hashes),
                medium: self.medium,
                group: self.group,
            })),
            b"AllBlocksCleared" => Ok(Event::Cleared),
            b"BlockStored" | b"BlockRemoved" => Err(Refused::BadValue),
            _ => Err(Refused::UnknownType),
        }
    }

    fn read_map(&mut self, len: u32, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        for _ in 0..len {
            let key = reader.head()?;
            let name = if let Head::Str(name) = key { name } else { b"" };
            reader.skip_rest_of(key)?;
            self.field(name, reader)?;
        }
        Ok(())
    }

    fn read_array(&mut self, len: u32, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        self.field(b"type", reader)?;
        let layout: &[&[u8]] = match self.kind {
            b"BlockStored" => &STORED,
            b"BlockRemoved" => &REMOVED,
            _ => &[],
        };
        for index in 0..len as usize - 1 {
            self.field(layout.get(index).copied().unwrap_or(b""), reader)?;
        }
        Ok(())
    }

    fn field(&mut self, name: &[u8], reader: &mut Reader<'a>) -> Result<(), Malformed> {
        match name {
            b"block_hashes" => return self.hashes(reader),
            b"token_ids" => return self.token_ids(reader),
            b"extra_keys" => return self.extra_keys(reader),
            _ => {}
        }
        let head = reader.head()?;
        match (name, head) {
            (b"type", Head::Str(kind)) => self.kind = kind,
            (b"parent_block_hash", Head::Nil) => self.parent = None,
            (b"parent_block_hash", hash) => {
                self.parent = engine_hash(hash);
                self.bad_value |= self.parent.is_none();
            }
            (b"block_size", Head::Uint(tokens)) => self.block_size = self.number(tokens),
            (b"lora_id", Head::Uint(id)) => self.lora_id = Some(id),
            (b"lora_name", Head::Str(lora)) => self.lora_name = std::str::from_utf8(lora).ok(),
            (b"medium", Head::Str(medium)) => self.medium = Medium::of(medium),
            (b"group_idx", Head::Uint(group)) => self.group = Some(self.number(group)),
            (b"kv_cache_spec_kind", Head::Str(kind)) if is_partial(kind) => {
                self.attention = Attention::Partial
            }
            (b"kv_cache_spec_sliding_window", Head::Uint(_)) => self.attention = Attention::Partial,
            _ => {}
        }
        reader.skip_rest_of(head)
    }

    fn number(&mut self, value: u64) -> u32 {
        u32::try_from(value).unwrap_or_else(|_| {
            self.bad_value = true;
            0
        })
    }

    fn hashes(&mut self, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        let Some(len) = self.list(reader)? else {
            return Ok(());
        };
        self.hashes.reserve(reader.plausible(len) / 9);
        for _ in 0..len {
            let head = reader.head()?;
            match engine_hash(head) {
                Some(hash) => self.hashes.push(hash),
                None => self.bad_value = true,
            }
            reader.skip_rest_of(head)?;
        }
        Ok(())
    }

    fn token_ids(&mut self, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        let Some(len) = self.list(reader)? else {
            return Ok(());
        };
        self.token_ids.resize(reader.plausible(len), 0);
        let run = reader.u32s(&mut self.token_ids);
        self.token_ids.truncate(run);
        for _ in run..len as usize {
            match reader.head()? {
                Head::Uint(token) => {
                    let token = self.number(token);
                    self.token_ids.push(token);
                }
                other => {
                    self.bad_value = true;
                    reader.skip_rest_of(other)?;
                }
            }
        }
        Ok(())
    }

    fn extra_keys(&mut self, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        let head = reader.head()?;
        let Head::Array(len) = head else {
            return reader.skip_rest_of(head);
        };
        let mut any = false;
        self.extra_keys.reserve(reader.plausible(len) / 16);
        for _ in 0..len {
            let keys = Some(reader.skip()?).filter(|keys| *keys != [0xc0]);
            any |= keys.is_some();
            self.extra_keys.push(keys);
        }
        if !any {
            self.extra_keys.clear();
        }
        Ok(())
    }

    /// The length of a list that the event must have; anything else marks the event as bad.
    fn list(&mut self, reader: &mut Reader<'a>) -> Result<Option<u32>, Malformed> {
        match reader.head()? {
            Head::Array(len) => Ok(Some(len)),
            other => {
                self.bad_value = true;
                reader.skip_rest_of(other)?;
                Ok(None)
            }
        }
    }
}

impl Medium {
    fn of(name: &[u8]) -> Self {
        match name {
            b"GPU" => Self::Gpu,
            _ if name.starts_with(b"CPU") => Self::Cpu,
            _ => Self::Other,
        }
    }
}

fn engine_hash(head: Head<'_>) -> Option<EngineHash> {
    match head {
        Head::Uint(hash) => Some(hash),
        // Hashes of older engines were Python's signed ones.
        Head::Int(hash) => Some(hash as u64),
        Head::Bin(digest) | Head::Str(digest) => digest.last_chunk().map(|last| u64::from_be_bytes(*last)),
        _ => None,
    }
}

/// Kinds are the names of vLLM's KV cache specs; new ones are taken for full attention.
fn is_partial(kind: &[u8]) -> bool {
    const PARTIAL: [&[u8]; 6] = [b"sliding", b"chunked", b"mamba", b"cross", b"encoder", b"linear"];
    PARTIAL
        .iter()
        .any(|word| memchr::memmem::find(kind, word).is_some())
}
