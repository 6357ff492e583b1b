//! `homing run`: the gateway in the foreground.

use super::Exit;
use crate::config::Inspection;
use crate::lifecycle::server;
use std::path::PathBuf;

/// Run the gateway in the foreground. SIGTERM lets running requests end, then exits 0.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file.
    #[arg(long, short, value_name = "FILE", env = "HOMING_CONFIG")]
    pub config: PathBuf,
    /// Take the listeners over from the gateway that runs with this configuration; then send it SIGQUIT.
    #[arg(long)]
    pub upgrade: bool,
}

/// Runs until a signal ends it.
///
/// # Errors
/// When the configuration is faulty, a port cannot be bound, or a part cannot start.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let inspection = Inspection::of_file(&args.config);
    if inspection.config.is_some() && !inspection.diagnostics.is_empty() {
        eprint!("{}", inspection.diagnostics);
    }
    let config = inspection.into_result()?;
    super::logging::start();
    let start = server::Start {
        path: args.config.clone(),
        upgrade: args.upgrade,
    };
    server::run(&config, start)?;
    Ok(Exit::Fine)
}
