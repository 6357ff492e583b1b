//! `homing run`: the gateway in the foreground.

use crate::config::Config;
use crate::lifecycle::server;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the gateway in the foreground. SIGTERM lets running requests end, then exits 0.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Runs until a signal ends it.
///
/// # Errors
/// When a port cannot be bound, or a part cannot start.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = match Config::load(&args.config) {
        Ok(config) => config,
        Err(diagnostics) => {
            eprint!("{diagnostics}");
            return Ok(ExitCode::from(super::EXIT_CONFIG));
        }
    };
    super::logging::start();
    server::run(&config)?;
    Ok(ExitCode::SUCCESS)
}
