//! `homing demo`: three simulated pods, a gateway, and the two promises shown through the front door.

mod experiments;
mod fleet;
mod report;

use super::Exit;
use anyhow::Context as _;
use experiments::Verdict;
use fleet::Fleet;

/// Show both promises on three simulated pods: a known prompt is pulled home, newcomers spread.
///
/// Starts three simulated vLLM servers and a gateway on free loopback ports, sends prompts through the gateway and
/// prints what each pod counted. Exits 0 only when both promises hold.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave the fleet running afterwards and print its addresses.
    #[arg(long)]
    keep: bool,
}

/// Runs both experiments.
///
/// # Errors
/// When the fleet cannot be started or a request fails.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(show(args))
}

async fn show(args: &Args) -> anyhow::Result<Exit> {
    let mut fleet = Fleet::start().await?;
    report::intro(&fleet);
    let home = experiments::pulled_home(&fleet).await?;
    let spread = experiments::newcomers_spread(&fleet).await?;
    let verdicts: Vec<Verdict> = home.into_iter().chain(spread).collect();
    report::verdicts(&verdicts);
    if args.keep {
        report::addresses(&fleet);
        fleet.wait_for_interrupt().await?;
    }
    fleet.stop().await;
    let all_hold = verdicts.iter().all(|verdict| verdict.holds);
    Ok(if all_hold { Exit::Fine } else { Exit::Failure })
}
