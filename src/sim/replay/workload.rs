//! What is replayed: sessions of turns, each turn one request.

use crate::prefix::BlockHash;
use std::sync::Arc;

/// Requests over time. An open-loop trace is one session per request.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Tokens per block of the hashes.
    pub block_size: u32,
    pub sessions: Vec<Session>,
}

/// Turns that follow each other: a turn is sent when the one before has ended and the user has thought.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// When the first turn is sent, in seconds.
    pub start_s: f64,
    /// Whose it is: the queue shares fairly between tenants.
    pub tenant: u64,
    pub turns: Vec<Turn>,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Time between the end of the turn before and this one, in seconds; 0 for the first.
    pub think_s: f64,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Chained hashes of the prompt's whole blocks.
    pub blocks: Arc<[BlockHash]>,
    /// Hash of the partial block behind them.
    pub tail: Option<BlockHash>,
}

impl Workload {
    /// Requests in all sessions.
    pub fn requests(&self) -> usize {
        self.sessions.iter().map(|session| session.turns.len()).sum()
    }

    /// Brings the sessions in order of their start, and lets time begin at the first.
    pub fn sort(&mut self) {
        self.sessions.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        let first = self.sessions.first().map_or(0.0, |session| session.start_s);
        for session in &mut self.sessions {
            session.start_s -= first;
        }
    }

    /// Lets sessions start `factor` times as often; think times stay.
    pub fn speed_up(&mut self, factor: f64) {
        for session in &mut self.sessions {
            session.start_s /= factor;
        }
    }

    /// Share of the prompt tokens that one endless cache would have, for prompts in order of their start:
    /// what no routing can exceed.
    pub fn endless_cache_hit_rate(&self) -> f64 {
        let mut seen = std::collections::HashSet::new();
        let (mut hit, mut total) = (0u64, 0u64);
        for turn in self.sessions.iter().flat_map(|session| &session.turns) {
            let known = turn
                .blocks
                .iter()
                .take_while(|block| seen.contains(*block))
                .count();
            let reusable = u64::from((turn.prompt_tokens.saturating_sub(1)) / self.block_size.max(1));
            hit += (known as u64).min(reusable) * u64::from(self.block_size);
            total += u64::from(turn.prompt_tokens);
            seen.extend(turn.blocks.iter().copied());
        }
        hit as f64 / total.max(1) as f64
    }
}

impl Session {
    /// A session of one request.
    pub fn single(start_s: f64, turn: Turn) -> Self {
        Self {
            start_s,
            tenant: 0,
            turns: vec![turn],
        }
    }
}

impl Turn {
    /// A request whose blocks have these ids, the last one possibly partial. Equal ids mean equal content
    /// with an equal prefix; `namespace` keeps ids of different sources apart.
    pub fn from_ids(
        prompt_tokens: u32,
        output_tokens: u32,
        block_size: u32,
        ids: impl IntoIterator<Item = u64>,
        namespace: u64,
    ) -> Self {
        let whole = (prompt_tokens / block_size.max(1)) as usize;
        let mut hashes = ids.into_iter().map(|id| mix(namespace, id));
        let blocks: Arc<[BlockHash]> = hashes.by_ref().take(whole).collect();
        let tail = hashes.next();
        Self {
            think_s: 0.0,
            prompt_tokens,
            output_tokens,
            blocks,
            tail,
        }
    }
}

/// Spreads small ids over the whole hash (finaliser of splitmix64).
pub fn mix(namespace: u64, id: u64) -> u64 {
    let mut z = id
        .wrapping_add(namespace.wrapping_mul(0xD1B5_4A32_D192_ED03))
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
