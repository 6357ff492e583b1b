//! The two promises as experiments: what was sent, where it went, what the pods counted.

use super::fleet::{Answer, BLOCK_TOKENS, Fleet, PODS, PodCounts};
use super::report;
use anyhow::ensure;
use futures_util::future::try_join_all;
use std::io::stdout;

/// Tokens of the prompt that is sent again and again: one whole block and part of a second.
const HOME_PROMPT_TOKENS: u64 = 207;
/// How often it is sent.
const SENDS: usize = 6;
/// Newcomers per round.
const NEWCOMERS: usize = 30;

/// Whether a promise held.
#[derive(Debug)]
pub struct Verdict {
    pub promise: String,
    pub holds: bool,
}

/// What a row of a report needs: the pods' counters around an experiment and where its requests went.
pub struct Outcome {
    pub before: Vec<PodCounts>,
    pub after: Vec<PodCounts>,
    pub answers: Vec<Answer>,
}

impl Outcome {
    /// Requests served by the pod at `at`, by the gateway's header.
    pub fn requests(&self, at: usize) -> usize {
        self.answers
            .iter()
            .filter(|answer| answer.pod == PODS[at])
            .count()
    }

    /// Prefix cache hits of the pod at `at` during the experiment, in tokens.
    pub fn hit_tokens(&self, at: usize) -> u64 {
        self.after[at].hit_tokens - self.before[at].hit_tokens
    }

    /// Prompt tokens of the pod at `at` during the experiment.
    pub fn prompt_tokens(&self, at: usize) -> u64 {
        self.after[at].prompt_tokens - self.before[at].prompt_tokens
    }

    fn all_answered(&self) -> bool {
        self.answers.iter().all(|answer| answer.status == 200)
    }

    fn spread(&self) -> [usize; PODS.len()] {
        std::array::from_fn(|at| self.requests(at))
    }
}

/// A: a prompt longer than one block comes home and hits; one shorter than a block has nothing to hit.
pub async fn pulled_home(fleet: &Fleet) -> anyhow::Result<Vec<Verdict>> {
    let prompt = prompt_of(fleet, HOME_PROMPT_TOKENS).await?;
    let long = one_after_another(fleet, &vec![prompt; SENDS]).await?;
    report::pulled_home(&mut stdout(), HOME_PROMPT_TOKENS, &long)?;
    let short = one_after_another(fleet, &vec!["A prompt of less than one block.".to_owned(); SENDS]).await?;
    report::too_short(&mut stdout(), &short)?;
    let home = long.spread().into_iter().max().unwrap_or_default();
    let expected_hits = (SENDS as u64 - 1) * u64::from(BLOCK_TOKENS);
    let hits: u64 = (0..PODS.len()).map(|at| long.hit_tokens(at)).sum();
    Ok(vec![
        Verdict {
            promise: format!(
                "a known prompt is pulled home: {home} of {SENDS} on one pod, {hits} tokens hit"
            ),
            holds: home == SENDS && hits == expected_hits && long.all_answered(),
        },
        Verdict {
            promise: "a prompt shorter than one block has nothing to hit".into(),
            holds: (0..PODS.len()).all(|at| short.hit_tokens(at) == 0) && short.all_answered(),
        },
    ])
}

/// B: prompts that nobody has seen spread evenly, at once and one after another.
pub async fn newcomers_spread(fleet: &Fleet) -> anyhow::Result<Vec<Verdict>> {
    let together = at_once(fleet, &newcomers(0)).await?;
    report::newcomers(&mut stdout(), "at once", &together)?;
    let in_turn = one_after_another(fleet, &newcomers(NEWCOMERS)).await?;
    report::newcomers(&mut stdout(), "one after another, on an idle fleet", &in_turn)?;
    let verdict = |how: &str, outcome: &Outcome| {
        let spread = outcome.spread();
        let shown = spread.map(|requests| requests.to_string()).join(" / ");
        Verdict {
            promise: format!("newcomers spread, {how}: {shown}"),
            holds: spread == [NEWCOMERS / PODS.len(); PODS.len()] && outcome.all_answered(),
        }
    };
    Ok(vec![
        verdict("at once", &together),
        verdict("one after another", &in_turn),
    ])
}

fn newcomers(first: usize) -> Vec<String> {
    let prompt = |number| format!("Write one sentence about topic number {number} in cloud computing.");
    (first..first + NEWCOMERS).map(prompt).collect()
}

async fn one_after_another(fleet: &Fleet, prompts: &[String]) -> anyhow::Result<Outcome> {
    let before = fleet.counts().await?;
    let mut answers = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        answers.push(fleet.complete(prompt).await?);
    }
    Ok(Outcome {
        before,
        answers,
        after: fleet.counts().await?,
    })
}

async fn at_once(fleet: &Fleet, prompts: &[String]) -> anyhow::Result<Outcome> {
    let before = fleet.counts().await?;
    let answers = try_join_all(prompts.iter().map(|prompt| fleet.complete(prompt))).await?;
    Ok(Outcome {
        before,
        answers,
        after: fleet.counts().await?,
    })
}

/// A text that the pods make exactly `tokens` tokens of.
async fn prompt_of(fleet: &Fleet, tokens: u64) -> anyhow::Result<String> {
    let mut text = "Summarise the notes below for somebody who was not there.".to_owned();
    let mut count = fleet.count_tokens(&text).await?;
    while count < tokens {
        // A short word is one token, so the missing ones are added at one go; the loop only checks it.
        text += &" and so on".repeat(((tokens - count) / 3) as usize);
        text += &" and".repeat(((tokens - count) % 3) as usize);
        count = fleet.count_tokens(&text).await?;
    }
    ensure!(
        count == tokens,
        "the pods make {count} tokens of a prompt that should have {tokens}"
    );
    Ok(text)
}
