//! Event batches in MessagePack.

use crate::sim::engine::{BlockContent, EngineEvent};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How events are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EventFormat {
    /// An event is an array that starts with its type: vLLM up to 0.20.
    Array,
    /// An event is a map with a `type`: vLLM since 0.24.
    Map,
}

#[derive(Debug)]
pub(super) struct Encoder {
    format: EventFormat,
    block_size: u32,
    seed: u64,
    /// Adapters by number, from 1 on.
    loras: Mutex<Vec<String>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Event<'a> {
    Stored(Stored<'a>),
    StoredArray(StoredArray<'a>),
    Removed(Removed),
    Cleared(Cleared),
}

#[derive(Serialize)]
struct Stored<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    block_hashes: Vec<u64>,
    parent_block_hash: Option<u64>,
    token_ids: &'a [u32],
    block_size: u32,
    lora_id: Option<u64>,
    medium: &'static str,
    lora_name: Option<&'a str>,
    extra_keys: Vec<Option<Vec<&'a str>>>,
    group_idx: u32,
    kv_cache_spec_kind: &'static str,
}

/// The fields of [`Stored`] that 0.20 knew.
type StoredArray<'a> = (
    &'static str,
    Vec<u64>,
    Option<u64>,
    &'a [u32],
    u32,
    Option<u64>,
    &'static str,
    Option<&'a str>,
    Vec<Option<Vec<&'a str>>>,
    u32,
);

#[derive(Serialize)]
struct Removed {
    #[serde(rename = "type")]
    kind: &'static str,
    block_hashes: [u64; 1],
    medium: &'static str,
    group_idx: u32,
}

#[derive(Serialize)]
struct Cleared {
    #[serde(rename = "type")]
    kind: &'static str,
}

impl Encoder {
    pub(super) fn new(format: EventFormat, block_size: u32, seed: u64) -> Self {
        Self {
            format,
            block_size,
            seed,
            loras: Mutex::new(Vec::new()),
        }
    }

    /// One message's payload; `None` when there is nothing to tell.
    pub(super) fn encode(&self, events: &[EngineEvent]) -> Option<Bytes> {
        let events: Vec<_> = events.iter().filter_map(|event| self.event(event)).collect();
        if events.is_empty() {
            return None;
        }
        let timestamp = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let batch = (timestamp, events, 0);
        let encoded = match self.format {
            EventFormat::Array => rmp_serde::to_vec(&batch),
            EventFormat::Map => rmp_serde::to_vec_named(&batch),
        };
        encoded.ok().map(Bytes::from)
    }

    fn event<'a>(&self, event: &'a EngineEvent) -> Option<Event<'a>> {
        match event {
            EngineEvent::BlocksStored {
                content,
                first_block,
                hashes,
                parent,
            } => self.stored(content.as_deref()?, *first_block, hashes, *parent),
            EngineEvent::BlockRemoved { hash } => Some(Event::Removed(Removed {
                kind: "BlockRemoved",
                block_hashes: [self.name(*hash)],
                medium: "GPU",
                group_idx: 0,
            })),
            EngineEvent::Cleared => Some(Event::Cleared(Cleared {
                kind: "AllBlocksCleared",
            })),
            _ => None,
        }
    }

    fn stored<'a>(
        &self,
        content: &'a BlockContent,
        first_block: u32,
        hashes: &[u64],
        parent: Option<u64>,
    ) -> Option<Event<'a>> {
        let size = self.block_size as usize;
        let first = first_block as usize * size;
        let lora_name = content.lora_name.as_deref();
        let keys = |block: usize| {
            let salt = content
                .cache_salt
                .as_deref()
                .filter(|_| first_block == 0 && block == 0);
            let keys: Vec<_> = lora_name.into_iter().chain(salt).collect();
            Some(keys).filter(|keys| !keys.is_empty())
        };
        let stored = Stored {
            kind: "BlockStored",
            block_hashes: hashes.iter().map(|hash| self.name(*hash)).collect(),
            parent_block_hash: parent.map(|parent| self.name(parent)),
            token_ids: content.tokens.get(first..first + hashes.len() * size)?,
            block_size: self.block_size,
            lora_id: lora_name.map(|name| self.lora_id(name)),
            medium: "GPU",
            lora_name,
            extra_keys: (0..hashes.len()).map(keys).collect(),
            group_idx: 0,
            kv_cache_spec_kind: "full_attention",
        };
        Some(match self.format {
            EventFormat::Map => Event::Stored(stored),
            EventFormat::Array => Event::StoredArray((
                stored.kind,
                stored.block_hashes,
                stored.parent_block_hash,
                stored.token_ids,
                stored.block_size,
                stored.lora_id,
                stored.medium,
                stored.lora_name,
                stored.extra_keys,
                stored.group_idx,
            )),
        })
    }

    fn name(&self, hash: u64) -> u64 {
        xxh3_64_with_seed(&hash.to_le_bytes(), self.seed)
    }

    fn lora_id(&self, name: &str) -> u64 {
        let mut loras = self.loras.lock();
        let at = loras.iter().position(|known| known == name).unwrap_or_else(|| {
            loras.push(name.to_owned());
            loras.len() - 1
        });
        at as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_events::codec::{self, Event as Decoded, Removed as Gone, Stored as Kept};
    use std::sync::Arc;

    #[test]
    fn both_formats_say_the_same() {
        let content = BlockContent {
            tokens: (0..10).collect(),
            lora_name: Some("sql".to_owned()),
            cache_salt: Some("s".to_owned()),
        };
        let events = [
            EngineEvent::Cleared,
            EngineEvent::BlockRemoved { hash: 7 },
            EngineEvent::BlocksStored {
                content: Some(Arc::new(content)),
                first_block: 0,
                hashes: vec![1, 2],
                parent: None,
            },
        ];
        for format in [EventFormat::Array, EventFormat::Map] {
            let encoder = Encoder::new(format, 4, 99);
            let payload = encoder.encode(&events).unwrap();
            let batch = codec::decode(&payload).unwrap();
            let named = |hash| [encoder.name(hash)].into_iter().collect();
            let stored = Kept {
                hashes: [encoder.name(1), encoder.name(2)].into_iter().collect(),
                token_ids: (0..8).collect(),
                block_size: 4,
                lora_id: Some(1),
                lora_name: Some("sql"),
                extra_keys: vec![Some(b"\x92\xa3sql\xa1s"), Some(b"\x91\xa3sql")],
                group: Some(0),
                ..Kept::default()
            };
            let removed = Gone {
                hashes: named(7),
                group: Some(0),
                ..Gone::default()
            };
            assert_eq!(
                batch.events,
                [
                    Decoded::Cleared,
                    Decoded::Removed(removed),
                    Decoded::Stored(stored)
                ]
            );
            assert!(encoder.encode(&[]).is_none());
        }
    }
}
