//! Tokenizing in segments that are remembered: the ids of a conversation's earlier turns come from memory.
//!
//! A tokenizer first cuts a text at its special tokens and then treats the pieces apart, so ids before and
//! after a special token do not depend on each other. Texts are cut after special tokens only, and only after
//! those that swallow no white space around them. What remains of a dependence is the piece's place: some
//! pre-tokenizers treat the start of the text differently, and whole-word tokens look at the character before
//! them. So each segment is tokenized behind the special token that it follows.

mod memory;

use super::TokenizeError;
use aho_corasick::{AhoCorasick, MatchKind};
use memory::{Key, Memory};
use parking_lot::Mutex;
use std::sync::Arc;

/// Shorter segments are tokenized faster than remembered.
const WORTH_REMEMBERING_BYTES: usize = 64;

#[derive(Debug)]
pub(super) struct Segments {
    tokenizer: tokenizers::Tokenizer,
    /// All special and added tokens that are found in the text as it is. `None` when there is none to cut at.
    finder: Option<Finder>,
    /// What the tokenizer puts before and after a prompt; `None` when it does more than that.
    around: Option<Around>,
    memory: Mutex<Memory>,
}

#[derive(Debug)]
struct Finder {
    automaton: AhoCorasick,
    /// Per pattern: its id, if a text may be cut after it.
    cuts: Vec<Option<u32>>,
}

#[derive(Debug)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Segments {
    pub(super) fn new(tokenizer: tokenizers::Tokenizer, memory_bytes: usize) -> Self {
        let finder = Finder::new(&tokenizer);
        let around = Around::of(&tokenizer);
        Self {
            tokenizer,
            finder,
            around,
            memory: Mutex::new(Memory::new(memory_bytes)),
        }
    }

    pub(super) fn encode(&self, text: &str, special_tokens: bool) -> Result<Vec<u32>, TokenizeError> {
        let Some(finder) = &self.finder else {
            return self.encode_whole(text, special_tokens);
        };
        let around = self.around.as_ref().filter(|_| special_tokens);
        if special_tokens && around.is_none() {
            return self.encode_whole(text, true);
        }
        let mut ids = around.map_or_else(Vec::new, |around| around.before.clone());
        for segment in finder.segments(text) {
            self.append_segment(&segment, text, &mut ids)?;
        }
        if let Some(around) = around {
            ids.extend_from_slice(&around.after);
        }
        Ok(ids)
    }

    fn encode_whole(&self, text: &str, special_tokens: bool) -> Result<Vec<u32>, TokenizeError> {
        encode(&self.tokenizer, text, special_tokens)
            .map_err(|error| TokenizeError::Tokenizer(error.to_string()))
    }

    fn append_segment(&self, segment: &Segment, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let own = &text[segment.start..segment.end];
        let key = (own.len() >= WORTH_REMEMBERING_BYTES).then(|| Key::new(segment.after, own));
        if let Some(known) = key.as_ref().and_then(|key| self.memory.lock().get(key)) {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        let found = match segment.after {
            None => self.encode_whole(own, false)?,
            Some(_) => self
                .encode_whole(&text[segment.context..segment.end], false)?
                .into_iter()
                .skip(1)
                .collect(),
        };
        ids.extend_from_slice(&found);
        if let Some(key) = key {
            self.memory.lock().insert(key, Arc::from(found));
        }
        Ok(())
    }
}

fn encode(
    tokenizer: &tokenizers::Tokenizer,
    text: &str,
    special_tokens: bool,
) -> tokenizers::Result<Vec<u32>> {
    Ok(tokenizer.encode_fast(text, special_tokens)?.get_ids().to_vec())
}

/// A part of a text between two cuts.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    start: usize,
    end: usize,
    /// The token that the segment follows, and where that begins.
    after: Option<u32>,
    context: usize,
}

impl Finder {
    fn new(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let tokens = tokenizer.get_added_tokens_decoder();
        // Others are found after normalization, within pieces.
        let tokens: Vec<_> = tokens
            .iter()
            .filter(|(_, token)| !token.normalized && !token.content.is_empty())
            .collect();
        let cut = |id: u32, token: &tokenizers::AddedToken| {
            let is_plain = !token.lstrip && !token.rstrip && !token.single_word;
            let is_solid = !token.content.starts_with(char::is_whitespace);
            (is_plain && is_solid).then_some(id)
        };
        let cuts: Vec<_> = tokens.iter().map(|(id, token)| cut(**id, token)).collect();
        if cuts.iter().all(Option::is_none) {
            return None;
        }
        // As the tokenizer itself searches.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(_, token)| token.content.as_str()));
        Some(Self {
            automaton: automaton.ok()?,
            cuts,
        })
    }

    fn segments(&self, text: &str) -> impl Iterator<Item = Segment> {
        let mut cuts = self.automaton.find_iter(text).filter_map(|found| {
            let id = self.cuts[found.pattern().as_usize()]?;
            Some((found.start(), found.end(), id))
        });
        let mut next = Some(Segment {
            start: 0,
            end: 0,
            after: None,
            context: 0,
        });
        std::iter::from_fn(move || {
            let mut segment = next.take()?;
            match cuts.next() {
                Some((context, end, id)) => {
                    segment.end = end;
                    next = Some(Segment {
                        start: end,
                        end,
                        after: Some(id),
                        context,
                    });
                }
                None => segment.end = text.len(),
            }
            Some(segment)
        })
        .filter(|segment| segment.start < segment.end)
    }
}

impl Around {
    /// Learned from a probe: post-processors are code, but nearly all of them only add fixed tokens.
    fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let probe = |text| {
            Self::from_probe(
                &encode(tokenizer, text, false).ok()?,
                &encode(tokenizer, text, true).ok()?,
            )
        };
        let (around, again) = (probe("a")?, probe("b c d")?);
        (around.before == again.before && around.after == again.after).then_some(around)
    }

    fn from_probe(plain: &[u32], full: &[u32]) -> Option<Self> {
        if plain.is_empty() {
            return None;
        }
        let at = full.windows(plain.len()).position(|window| window == plain)?;
        Some(Self {
            before: full[..at].to_vec(),
            after: full[at + plain.len()..].to_vec(),
        })
    }
}

#[cfg(test)]
mod tests;
