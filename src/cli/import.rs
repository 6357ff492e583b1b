//! `homing import`: a pool configuration from an llm-d `EndpointPickerConfig`.

mod llm_d;

use super::Exit;
use anyhow::Context;
use std::io::{Write, stderr, stdout};
use std::path::PathBuf;

/// Turn an llm-d EndpointPickerConfig into a Homing configuration.
///
/// The configuration goes to stdout, what has no counterpart to stderr (and as comments into the
/// configuration). llm-d finds its endpoints through Kubernetes: put the real ones in.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with `kind: EndpointPickerConfig`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The profile to import, when the file has several.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

/// Converts the file.
///
/// # Errors
/// When the file cannot be read or is no `EndpointPickerConfig`.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let file = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {file}"))?;
    let imported = llm_d::import(&text, args.profile.as_deref()).with_context(|| file.to_string())?;
    for note in &imported.notes {
        writeln!(stderr(), "note: {note}")?;
    }
    stdout().write_all(imported.yaml.as_bytes())?;
    Ok(Exit::Fine)
}
