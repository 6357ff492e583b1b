//! `homing completions` and `homing man`, from the same definition as the command line itself.

use super::{Exit, definition};
use clap_complete::Shell;
use std::io::{Write, stdout};

/// Print the completion script of a shell.
///
/// For bash: `homing completions bash > /etc/bash_completion.d/homing`
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Print the manual page.
///
/// To read it: `homing man | man -l -`
#[derive(Debug, clap::Args)]
pub struct ManArgs {}

/// Prints the completion script.
///
/// # Errors
/// Only when stdout cannot be written.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    // Into memory first: the generator panics when its writer fails, and a closed pipe is no panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "homing", &mut script);
    stdout().write_all(&script)?;
    Ok(Exit::Fine)
}

/// Prints one manual page: the program, then each command with its options.
///
/// # Errors
/// Only when stdout cannot be written.
pub fn man(_: &ManArgs) -> anyhow::Result<Exit> {
    let mut root = definition();
    root.build();
    let mut page = Vec::new();
    let program = clap_mangen::Man::new(root.clone());
    program.render_title(&mut page)?;
    program.render_name_section(&mut page)?;
    program.render_synopsis_section(&mut page)?;
    program.render_description_section(&mut page)?;
    for command in root.get_subcommands().filter(|c| c.get_name() != "help") {
        let manual = clap_mangen::Man::new(command.clone());
        writeln!(page, ".SH \"HOMING {}\"", command.get_name().to_uppercase())?;
        let mut part = Vec::new();
        manual.render_synopsis_section(&mut part)?;
        manual.render_description_section(&mut part)?;
        manual.render_options_section(&mut part)?;
        // Sections of the command become subsections of the one page.
        page.extend_from_slice(String::from_utf8_lossy(&part).replace(".SH ", ".SS ").as_bytes());
    }
    program.render_extra_section(&mut page)?;
    program.render_version_section(&mut page)?;
    stdout().write_all(&page)?;
    Ok(Exit::Fine)
}
