//! `homing demo`: three simulated pods, a gateway, and the two promises shown through the front door.

mod experiments;
mod fleet;
mod report;

use super::Exit;
use anyhow::{Context as _, bail};
use experiments::Verdict;
use fleet::Fleet;
use std::io::stdout;
use std::pin::pin;

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
    let mut ended = pin!(termination());
    let (fleet, verdicts) = tokio::select! {
        shown = experiments() => shown?,
        // The fleet goes with the experiments.
        _ = ended.as_mut() => bail!("interrupted"),
    };
    if args.keep {
        report::addresses(&mut stdout(), &fleet)?;
        ended.await?;
    }
    fleet.stop().await;
    let all_hold = verdicts.iter().all(|verdict| verdict.holds);
    Ok(if all_hold { Exit::Fine } else { Exit::Failure })
}

async fn experiments() -> anyhow::Result<(Fleet, Vec<Verdict>)> {
    let fleet = Fleet::start().await?;
    report::intro(&mut stdout(), &fleet)?;
    let home = experiments::pulled_home(&fleet).await?;
    let spread = experiments::newcomers_spread(&fleet).await?;
    let verdicts: Vec<Verdict> = home.into_iter().chain(spread).collect();
    report::verdicts(&mut stdout(), &verdicts)?;
    Ok((fleet, verdicts))
}

/// Returns when somebody wants the demo to end. Left to their defaults, these signals would end it without its fleet.
async fn termination() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).context("cannot wait for an interrupt");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}
