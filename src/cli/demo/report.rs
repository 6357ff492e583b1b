//! What the demo prints.

use super::experiments::{Outcome, Verdict};
use super::fleet::{Answer, BLOCK_TOKENS, Fleet, PODS};
use std::io::{self, Write};

/// Widest bar of a table.
const BAR_WIDTH: usize = 20;

/// What is about to be shown.
pub fn intro(out: &mut impl Write, fleet: &Fleet) -> io::Result<()> {
    writeln!(
        out,
        "Homing demo: 3 simulated vLLM pods (KV blocks of {BLOCK_TOKENS} tokens) behind one gateway."
    )?;
    writeln!(
        out,
        "Every request goes to {} and every number below is a pod's own counter.",
        fleet.gateway
    )
}

/// Experiment A.
pub fn pulled_home(out: &mut impl Write, tokens: u64, outcome: &Outcome) -> io::Result<()> {
    let sends = outcome.answers.len();
    writeln!(
        out,
        "\nA. Pulled home: one prompt of {tokens} tokens, sent {sends} times"
    )?;
    route(out, outcome)?;
    table(out, outcome)
}

/// Experiment A with too short a prompt.
pub fn too_short(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    writeln!(out, "\n   The same with a prompt shorter than one block")?;
    table(out, outcome)
}

/// Experiment B.
pub fn newcomers(out: &mut impl Write, how: &str, outcome: &Outcome) -> io::Result<()> {
    let prompts = outcome.answers.len();
    writeln!(out, "\nB. Newcomers: {prompts} distinct prompts, {how}")?;
    table(out, outcome)
}

/// Each promise in a line.
pub fn verdicts(out: &mut impl Write, verdicts: &[Verdict]) -> io::Result<()> {
    writeln!(out)?;
    verdicts.iter().try_for_each(|verdict| {
        let word = if verdict.holds { "HOLDS " } else { "BROKEN" };
        writeln!(out, "{word}  {}", verdict.promise)
    })
}

/// Where to look at a fleet that was left running.
pub fn addresses(out: &mut impl Write, fleet: &Fleet) -> io::Result<()> {
    writeln!(out, "\nThe fleet is up; interrupt (Ctrl-C) to end it.")?;
    writeln!(out, "  gateway    {}/v1/completions", fleet.gateway)?;
    writeln!(out, "  dashboard  {}/", fleet.admin)?;
    let mut pods = PODS.iter().zip(&fleet.pods);
    pods.try_for_each(|(name, url)| writeln!(out, "  {name}      {url}/metrics"))
}

/// Where each request went, and how much of its prompt was known there.
fn route(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    let line = |cell: fn(&Answer) -> &str| {
        let cells = outcome
            .answers
            .iter()
            .map(|answer| format!("{:>7}", cell(answer)));
        cells.collect::<String>()
    };
    writeln!(out, "   went to      {}", line(|answer| &answer.pod))?;
    writeln!(out, "   blocks known {}", line(|answer| &answer.prefix_match))
}

/// Counters per pod before and after, and how many requests went there.
fn table(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
    writeln!(
        out,
        "   {:<5}{:>22}{:>28}  {:>8}",
        "pod", "prompt tokens", "prefix cache hits (tokens)", "requests"
    )?;
    let requests: Vec<usize> = (0..PODS.len()).map(|at| outcome.requests(at)).collect();
    let most = requests.iter().copied().max().unwrap_or(0).max(1);
    for (at, name) in PODS.iter().enumerate() {
        let (before, after) = (outcome.before[at], outcome.after[at]);
        let grown = |before: u64, after: u64, by: u64| format!("{before} -> {after} (+{by})");
        let row = format!(
            "   {name:<5}{:>22}{:>28}  {:>8}  {}",
            grown(
                before.prompt_tokens,
                after.prompt_tokens,
                outcome.prompt_tokens(at)
            ),
            grown(before.hit_tokens, after.hit_tokens, outcome.hit_tokens(at)),
            requests[at],
            "#".repeat(requests[at] * BAR_WIDTH / most),
        );
        writeln!(out, "{}", row.trim_end())?;
    }
    Ok(())
}
