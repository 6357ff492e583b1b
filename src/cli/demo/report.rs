//! What the demo prints.

use super::experiments::{Outcome, Verdict};
use super::fleet::{BLOCK_TOKENS, Fleet, PODS};

/// Widest bar of a table.
const BAR_WIDTH: usize = 30;

/// What is about to be shown.
pub fn intro(fleet: &Fleet) {
    println!("Homing demo: 3 simulated vLLM pods (KV blocks of {BLOCK_TOKENS} tokens) behind one gateway.");
    println!(
        "Every request goes to {} and every number below is a pod's own counter.",
        fleet.gateway
    );
}

/// Experiment A.
pub fn pulled_home(tokens: u64, outcome: &Outcome) {
    println!(
        "\nA. Pulled home: one prompt of {tokens} tokens, sent {} times",
        outcome.answers.len()
    );
    route(outcome);
    table(outcome);
}

/// Experiment A with too short a prompt.
pub fn too_short(outcome: &Outcome) {
    println!("\n   The same with a prompt shorter than one block");
    table(outcome);
}

/// Experiment B.
pub fn newcomers(how: &str, outcome: &Outcome) {
    println!(
        "\nB. Newcomers: {} distinct prompts, {how}",
        outcome.answers.len()
    );
    table(outcome);
}

/// Each promise in a line.
pub fn verdicts(verdicts: &[Verdict]) {
    println!();
    for verdict in verdicts {
        println!(
            "{}  {}",
            if verdict.holds { "HOLDS " } else { "BROKEN" },
            verdict.promise
        );
    }
}

/// Where to look at a fleet that was left running.
pub fn addresses(fleet: &Fleet) {
    println!("\nThe fleet is up; interrupt (Ctrl-C) to end it.");
    println!("  gateway    {}/v1/completions", fleet.gateway);
    println!("  dashboard  {}/", fleet.admin);
    for (name, url) in PODS.iter().zip(&fleet.pods) {
        println!("  {name}      {url}/metrics");
    }
}

fn route(outcome: &Outcome) {
    let way: Vec<String> = outcome
        .answers
        .iter()
        .map(|answer| format!("{} ({})", answer.pod, answer.prefix_match))
        .collect();
    println!("   went to, with matched/total blocks: {}", way.join(", "));
}

/// Counters per pod before and after, and where the requests went.
fn table(outcome: &Outcome) {
    println!(
        "   {:<8}{:>24}{:>28}  {:>8}",
        "pod", "prompt tokens", "prefix cache hits (tokens)", "requests"
    );
    let most = (0..PODS.len())
        .map(|at| outcome.requests(at))
        .max()
        .unwrap_or(0)
        .max(1);
    for (at, name) in PODS.iter().enumerate() {
        let (before, after) = (outcome.before[at], outcome.after[at]);
        let grown = |before: u64, after: u64, by: u64| format!("{before} -> {after} (+{by})");
        let requests = outcome.requests(at);
        println!(
            "   {name:<8}{:>24}{:>28}  {requests:>8}  {}",
            grown(
                before.prompt_tokens,
                after.prompt_tokens,
                outcome.prompt_tokens(at)
            ),
            grown(before.hit_tokens, after.hit_tokens, outcome.hit_tokens(at)),
            "#".repeat(requests * BAR_WIDTH / most),
        );
    }
}
