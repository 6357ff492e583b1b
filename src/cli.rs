//! The command line: one module per command, each with its `Args` and a `run`.
//!
//! A new command is a `mod` line, a variant of `Command` and an arm in `Command::run`.

mod check;
mod demo;
mod explain;
mod generate;
mod import;
mod logging;
mod replay;
mod run;
mod schema;
mod sim;
mod top;

use crate::config::Diagnostics;
use crate::sim::replay::generate::GenerateError;
use clap::{CommandFactory, Parser, Subcommand};
use std::io;
use std::process::ExitCode;

/// How a command ended, as the process's exit code (sysexits.h for the last two).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Fine,
    /// 1: something failed at run time.
    Failure,
    /// 64: the command line itself is wrong.
    Usage,
    /// 78: the configuration is wrong.
    Config,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Fine => 0,
            Exit::Failure => 1,
            Exit::Usage => 64,
            Exit::Config => 78,
        })
    }
}

/// A fault of the command line that its parser does not see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

/// KV-cache-aware load balancer for fleets of vLLM servers.
#[derive(Debug, Parser)]
#[command(name = "homing", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 fine, 1 failure at run time, 64 wrong usage, 78 wrong configuration.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Check(check::Args),
    Demo(demo::Args),
    Explain(explain::Args),
    Import(import::Args),
    Replay(replay::Args),
    Schema(schema::Args),
    Sim(sim::Args),
    Top(top::Args),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

impl Command {
    fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Run(args) => run::run(&args),
            Self::Check(args) => check::run(&args),
            Self::Demo(args) => demo::run(&args),
            Self::Explain(args) => explain::run(&args),
            Self::Import(args) => import::run(&args),
            Self::Replay(args) => replay::run(&args),
            Self::Schema(args) => schema::run(&args),
            Self::Sim(args) => sim::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Completions(args) => generate::completions(&args),
            Self::Man(args) => generate::man(&args),
        }
    }
}

/// The definition of the whole command line, for what is generated from it.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Reads the process's arguments, runs the command and tells its faults on stderr.
pub fn main() -> ExitCode {
    let exit = match Cli::try_parse() {
        Ok(cli) => cli.command.run().unwrap_or_else(|error| told(&error)),
        Err(error) => {
            // Nothing is left to be done when stdout or stderr is gone.
            let _ = error.print();
            if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Fine
            }
        }
    };
    exit.into()
}

/// A factor or a number of seconds that clocks can reckon with.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (1e-9..=1e9).contains(&value) => Ok(value),
        _ => Err("must be a number from 1e-9 to 1e9".to_owned()),
    }
}

/// Tells `error` on stderr and says how the process ends.
fn told(error: &anyhow::Error) -> Exit {
    if let Some(faults) = error.downcast_ref::<Diagnostics>() {
        eprint!("{faults}");
        return Exit::Config;
    }
    let io_error = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    // `homing man | head` is a reader's right, not a failure.
    if io_error.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
        return Exit::Fine;
    }
    eprintln!("homing: {error:#}");
    if error.is::<Misuse>() || error.is::<GenerateError>() {
        Exit::Usage
    } else {
        Exit::Failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_arguments_are_told_from_failures() {
        let exit = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            told(&cli.command.run().unwrap_err())
        };
        for wrong in [
            "homing replay --generate cold",
            "homing replay --generate cold-burst --set x=1",
            "homing replay --generate cold-burst --policy fastest",
            "homing sim --listen 127.0.0.1:0 --name a --name b",
            "homing sim --listen 127.0.0.1:0 --kv-tokens 1",
        ] {
            assert_eq!(exit(wrong), Exit::Usage, "{wrong}");
        }
        let unreadable = "homing replay --trace /nonexistent.jsonl";
        assert_eq!(exit(unreadable), Exit::Failure);
    }

    #[test]
    fn definition_is_consistent() {
        definition().debug_assert();
    }
}
