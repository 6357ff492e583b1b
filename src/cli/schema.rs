//! `homing schema`: the configuration file's JSON Schema and its reference.

use super::Exit;
use crate::config;
use std::io::{Write, stdout};

/// Print the JSON Schema of the configuration file.
///
/// Editors use it for completion, hover texts and checks while typing: put
/// `# yaml-language-server: $schema=PATH` on the file's first line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print a configuration file that shows every key with its comment and default instead.
    #[arg(long)]
    reference: bool,
}

/// Prints the schema or the reference.
///
/// # Errors
/// Only when stdout cannot be written.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    if args.reference {
        write!(stdout(), "{}", config::reference())?;
    } else {
        writeln!(stdout(), "{:#}", config::json_schema())?;
    }
    Ok(Exit::Fine)
}
