//! What goes into a block's hash besides its tokens.
//!
//! vLLM lists it per block: the LoRA adapter's name on every block, the cache salt on a prompt's first block,
//! hashes of images and embeddings on the blocks that hold them. Adapter and salt move into the chain's root,
//! where a gateway can put them too; the rest is mixed into the block.

use crate::kv_events::chain::{Lora, Root};
use crate::kv_events::codec::Stored;
use crate::kv_events::msgpack::{Head, Reader};

/// The extra keys of one block: the MessagePack bytes of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockKeys<'a>(&'a [u8]);

impl<'a> BlockKeys<'a> {
    pub(super) fn new(list: &'a [u8]) -> Self {
        Self(list)
    }

    /// The keys that are content of this very block.
    pub(super) fn content(self, lora: Lora<'a>, is_first: bool) -> impl Iterator<Item = &'a [u8]> {
        let salted = is_first && self.cache_salt(lora).is_some();
        self.beside(lora).filter(move |_| !salted)
    }

    /// The salt of a prompt's first block: the only key beside the adapter's, and a text.
    fn cache_salt(self, lora: Lora<'a>) -> Option<&'a str> {
        let mut keys = self.beside(lora);
        let only = keys.next().filter(|_| keys.next().is_none())?;
        text(only).or_else(|| tagged(only, "cache_salt"))
    }

    fn beside(self, lora: Lora<'a>) -> impl Iterator<Item = &'a [u8]> {
        let is_lora = move |key: &[u8]| match lora {
            Lora::Name(name) => text(key) == Some(name) || tagged(key, "lora") == Some(name),
            _ => false,
        };
        self.keys()
            .enumerate()
            .filter(move |(index, key)| *index > 0 || !is_lora(key))
            .map(|(_, key)| key)
    }

    fn keys(self) -> impl Iterator<Item = &'a [u8]> {
        let mut reader = Reader::new(self.0);
        let len = match reader.head() {
            Ok(Head::Array(len)) => len,
            _ => 0,
        };
        (0..len).map_while(move |_| reader.skip().ok())
    }
}

pub(super) fn lora_of<'a>(event: &Stored<'a>) -> Lora<'a> {
    match (event.lora_name, event.lora_id) {
        (Some(name), _) => Lora::Name(name),
        (None, Some(id)) => Lora::Id(id),
        (None, None) => Lora::None,
    }
}

/// What the first block of a prompt is chained to.
pub(super) fn root_of<'a>(event: &Stored<'a>) -> Root<'a> {
    let lora = lora_of(event);
    let first = event.extra_keys.first().copied().flatten();
    Root {
        lora,
        cache_salt: first.and_then(|keys| BlockKeys::new(keys).cache_salt(lora)),
    }
}

fn text(key: &[u8]) -> Option<&str> {
    match Reader::new(key).head() {
        Ok(Head::Str(text)) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

/// The second element of `[tag, value, ...]`, the form in which engines hash some keys.
fn tagged<'a>(key: &'a [u8], tag: &str) -> Option<&'a str> {
    let mut reader = Reader::new(key);
    match reader.head() {
        Ok(Head::Array(len)) if len >= 2 => {}
        _ => return None,
    }
    let is_tag = text(reader.skip().ok()?) == Some(tag);
    text(reader.skip().ok()?).filter(|_| is_tag)
}
