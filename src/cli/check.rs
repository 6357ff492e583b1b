//! `homing check`: every fault of a configuration file, and what its endpoints say.

mod probe;

use super::Exit;
use crate::config::{Config, Inspection, Severity};
use clap::ValueEnum;
use probe::Report;
use std::io::{Write, stderr, stdout};
use std::path::PathBuf;

/// Check a configuration file and tell every fault of it.
///
/// Exits with 0 when the file can be used and with 78 when it cannot; with 1 when a probed endpoint lacks what the file
/// asks for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    #[arg(long, short, value_name = "FILE", env = "HOMING_CONFIG")]
    config: PathBuf,
    /// How the faults are written.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Exit with 78 for warnings too.
    #[arg(long)]
    deny_warnings: bool,
    /// Ask each endpoint too: model, version, blocks, prefix caching, KV events, usage details, tokenizer. Runs one small
    /// prompt on each.
    #[arg(long, conflicts_with = "print")]
    probe: bool,
    /// Print the effective configuration, with the defaults marked. Faults go to stderr.
    #[arg(long, conflicts_with = "format")]
    print: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Format {
    /// For people: excerpts with a caret.
    #[default]
    Text,
    /// For programs: one JSON object.
    Json,
}

/// Checks the file.
///
/// # Errors
/// Only when stdout or stderr cannot be written.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let inspection = Inspection::of_file(&args.config);
    let reports = match &inspection.config {
        Some(config) if args.probe => probe::run(config)?,
        _ => Vec::new(),
    };
    match args.format {
        _ if args.print => print(&inspection)?,
        Format::Json => json(args, &inspection, &reports)?,
        Format::Text => {
            text(args, &inspection)?;
            for report in &reports {
                write!(stdout(), "{report}")?;
            }
        }
    }
    let faults = &inspection.diagnostics;
    let faulty = faults.has_errors() || args.deny_warnings && faults.count(Severity::Warning) > 0;
    Ok(if faulty {
        Exit::Config
    } else if reports.iter().any(Report::is_bad) {
        Exit::Failure
    } else {
        Exit::Fine
    })
}

fn json(args: &Args, inspection: &Inspection, reports: &[Report]) -> anyhow::Result<()> {
    let mut value = inspection.diagnostics.to_json();
    if args.probe {
        value["endpoints"] = serde_json::to_value(reports)?;
    }
    writeln!(stdout(), "{value:#}")?;
    Ok(())
}

fn text(args: &Args, inspection: &Inspection) -> anyhow::Result<()> {
    if !inspection.diagnostics.is_empty() {
        write!(stdout(), "{}", inspection.diagnostics)?;
    } else if let Some(config) = &inspection.config {
        writeln!(stdout(), "{}: fine: {}", args.config.display(), summary(config))?;
    }
    Ok(())
}

fn print(inspection: &Inspection) -> anyhow::Result<()> {
    if !inspection.diagnostics.is_empty() {
        write!(stderr(), "{}", inspection.diagnostics)?;
    }
    if let Some(text) = inspection.effective() {
        stdout().write_all(text.as_bytes())?;
    }
    Ok(())
}

/// `2 pools, 11 endpoints`.
fn summary(config: &Config) -> String {
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let endpoints = config.pools.iter().map(|pool| pool.endpoints.len()).sum();
    let discovers = config.pools.iter().any(|pool| !pool.discovery.is_off());
    format!(
        "{}, {}{}",
        count(config.pools.len(), "pool"),
        count(endpoints, "endpoint"),
        if discovers {
            " and those to be discovered"
        } else {
            ""
        }
    )
}
