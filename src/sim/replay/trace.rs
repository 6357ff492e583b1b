//! Readers of recorded traffic.
//!
//! - Mooncake JSONL, also what `record` writes: `{"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}` per line, the ids of 512-token
//!   blocks. Requests come when they came, whatever the answers take (open loop).
//! - sessions JSONL: `{"session", "turn", "delay_ms", "input_length", "output_length", "keep", "new": [...]}` per line. A
//!   turn keeps the first `keep` blocks of the turn before and appends `new`; it is sent `delay_ms` after the turn
//!   before has ended (closed loop).
//! - Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`: arrivals and lengths, no shared prefixes.

use super::workload::{Session, Turn, Workload, mix};
use rand::{Rng, RngExt};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use thiserror::Error;

/// Tokens per block of the public traces.
pub const TRACE_BLOCK_SIZE: u32 = 512;

/// Sessions that start per second at rate 1, for traces that say nothing about it.
pub const SESSION_STARTS_PER_S: f64 = 0.04;

/// Timestamps that are all multiples of this many milliseconds were rounded: arrivals are spread over the interval.
const ROUNDED_MS: f64 = 3000.0;

/// Why a trace cannot be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The first line fits no format.
    #[error("not a trace: the first line is neither Mooncake JSONL, sessions JSONL, nor an Azure CSV header")]
    UnknownFormat,
    /// A line does not have what its format needs.
    #[error("line {line}: {reason}")]
    BadLine {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// How a trace is turned into a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceOptions {
    /// Tokens per block of the ids; `None`: 512, or what the lengths of a Mooncake trace say.
    pub block_size: Option<u32>,
    /// Seconds over which arrivals are spread at random; `None`: 3 s for timestamps that were rounded to that.
    pub jitter_s: Option<f64>,
    /// How many times a sessions trace is taken, each time with private blocks of its own.
    pub repeat: u32,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            block_size: None,
            jitter_s: None,
            repeat: 1,
        }
    }
}

/// Reads a trace of any known format.
///
/// # Errors
/// An unknown format, or the first line that does not fit.
pub fn read(text: &str, options: &TraceOptions, rng: &mut impl Rng) -> Result<Workload, TraceError> {
    let first = text.lines().next().unwrap_or_default();
    let mut workload = if first.contains("\"hash_ids\"") {
        mooncake(text, options, rng)?
    } else if first.contains("\"session\"") {
        sessions(text, options, rng)?
    } else if first.trim_start_matches('\u{feff}').starts_with("TIMESTAMP,") {
        azure(text, options)?
    } else {
        return Err(TraceError::UnknownFormat);
    };
    workload.sort();
    Ok(workload)
}

#[derive(Deserialize)]
struct MooncakeLine {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

fn mooncake(text: &str, options: &TraceOptions, rng: &mut impl Rng) -> Result<Workload, TraceError> {
    let lines: Vec<MooncakeLine> = json_lines(text)?;
    let rounded = lines.len() > 1
        && lines
            .iter()
            .all(|line| (line.timestamp + 10.0) % ROUNDED_MS < 20.0);
    let jitter_s = options
        .jitter_s
        .unwrap_or(if rounded { ROUNDED_MS / 1e3 } else { 0.0 });
    let block_size = options.block_size.unwrap_or_else(|| block_size_of(&lines));
    let session = |line: MooncakeLine| {
        let start_s = line.timestamp / 1e3 + jitter_s * rng.random::<f64>();
        let output_tokens = line.output_length.max(1);
        let turn = Turn::from_ids(line.input_length, output_tokens, block_size, line.hash_ids, 0);
        Session::single(start_s, turn)
    };
    Ok(Workload {
        block_size,
        sessions: lines.into_iter().map(session).collect(),
    })
}

/// Tokens per id: 512, unless the ids are clearly of something else. What was recorded of prompts whose tokens
/// nobody counted is cut into blocks of equal bytes.
fn block_size_of(lines: &[MooncakeLine]) -> u32 {
    let expected: u64 = lines
        .iter()
        .map(|line| u64::from(line.input_length.div_ceil(TRACE_BLOCK_SIZE)))
        .sum();
    let ids: u64 = lines.iter().map(|line| line.hash_ids.len() as u64).sum();
    if ids == 0 || ids.abs_diff(expected) * 100 <= expected {
        return TRACE_BLOCK_SIZE;
    }
    // The last block of each prompt is half full on the average.
    let whole: f64 = lines
        .iter()
        .map(|line| (line.hash_ids.len() as f64 - 0.5).max(0.0))
        .sum();
    let tokens: f64 = lines.iter().map(|line| f64::from(line.input_length)).sum();
    (tokens / whole.max(0.5)).round().max(1.0) as u32
}

#[derive(Deserialize)]
struct SessionLine {
    session: u64,
    turn: u64,
    delay_ms: f64,
    input_length: u32,
    output_length: u32,
    keep: usize,
    new: Vec<u64>,
}

fn sessions(text: &str, options: &TraceOptions, rng: &mut impl Rng) -> Result<Workload, TraceError> {
    let mut recorded: BTreeMap<u64, Vec<SessionLine>> = BTreeMap::new();
    let mut users: HashMap<u64, (u64, bool)> = HashMap::new();
    for line in json_lines::<SessionLine>(text)? {
        for id in &line.new {
            let (first, shared) = users.entry(*id).or_insert((line.session, false));
            *shared |= *first != line.session;
        }
        recorded.entry(line.session).or_default().push(line);
    }
    for turns in recorded.values_mut() {
        turns.sort_by_key(|line| line.turn);
    }
    // Blocks that several sessions share stay shared among all copies; the others are private to one.
    let namespace = |id: &u64, copy: u64| {
        if users.get(id).is_some_and(|(_, shared)| *shared) {
            0
        } else {
            copy
        }
    };
    let block_size = options.block_size.unwrap_or(TRACE_BLOCK_SIZE);
    let (mut start_s, mut all) = (0.0, Vec::new());
    for copy in 0..u64::from(options.repeat.max(1)) {
        for turns in shuffled(recorded.values().collect(), rng) {
            let hash = |id: &u64| mix(namespace(id, copy), *id);
            all.push(Session {
                tenant: 0,
                start_s,
                turns: session_turns(turns, block_size, hash),
            });
            start_s += exponential(rng, SESSION_STARTS_PER_S);
        }
    }
    Ok(Workload {
        block_size,
        sessions: all,
    })
}

fn session_turns(lines: &[SessionLine], block_size: u32, hash: impl Fn(&u64) -> u64) -> Vec<Turn> {
    let mut ids: Vec<u64> = Vec::new();
    let turn = |line: &SessionLine| {
        ids.truncate(line.keep);
        ids.extend(line.new.iter().map(&hash));
        let whole = (line.input_length / block_size.max(1)) as usize;
        Turn {
            think_s: line.delay_ms / 1e3,
            prompt_tokens: line.input_length,
            output_tokens: line.output_length.max(1),
            blocks: ids.iter().take(whole).copied().collect(),
            tail: ids.get(whole).copied(),
        }
    };
    lines.iter().map(turn).collect()
}

fn azure(text: &str, options: &TraceOptions) -> Result<Workload, TraceError> {
    let block_size = options.block_size.unwrap_or(TRACE_BLOCK_SIZE);
    let mut sessions = Vec::new();
    for (index, line) in text
        .lines()
        .enumerate()
        .skip(1)
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let bad = |reason: &str| TraceError::BadLine {
            line: index + 1,
            reason: reason.to_owned(),
        };
        let mut fields = line.split(',');
        let mut next = || {
            fields
                .next()
                .map(str::trim)
                .ok_or_else(|| bad("needs three fields"))
        };
        let (timestamp, context, generated) = (next()?, next()?, next()?);
        let stamp = timestamp.replacen(' ', "T", 1);
        let at: jiff::civil::DateTime = stamp
            .parse()
            .map_err(|_| bad("the timestamp is no date and time"))?;
        let since = at.duration_since(jiff::civil::DateTime::constant(2023, 1, 1, 0, 0, 0, 0));
        let tokens = |text: &str| {
            text.parse::<u32>()
                .map_err(|_| bad("a token count is no whole number"))
        };
        let (prompt_tokens, output_tokens) = (tokens(context)?.max(1), tokens(generated)?.max(1));
        let ids = 0..u64::from(prompt_tokens / block_size.max(1)) + 1;
        let turn = Turn::from_ids(prompt_tokens, output_tokens, block_size, ids, index as u64);
        sessions.push(Session::single(since.as_secs_f64(), turn));
    }
    Ok(Workload { block_size, sessions })
}

fn json_lines<T: for<'de> Deserialize<'de>>(text: &str) -> Result<Vec<T>, TraceError> {
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let parse = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| TraceError::BadLine {
            line: index + 1,
            reason: error.to_string(),
        })
    };
    lines.map(parse).collect()
}

/// Time to the next of events that come at random, `per_s` of them per second.
pub(super) fn exponential(rng: &mut impl Rng, per_s: f64) -> f64 {
    -(1.0 - rng.random::<f64>()).ln() / per_s
}

fn shuffled<T>(mut items: Vec<T>, rng: &mut impl Rng) -> Vec<T> {
    for index in (1..items.len()).rev() {
        items.swap(index, rng.random_range(0..=index));
    }
    items
}

#[cfg(test)]
mod tests;
