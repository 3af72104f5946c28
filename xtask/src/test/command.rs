//! Commands that run tests themselves and print how many.

use std::{
    io::{Read, Write, stdout},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result};

use super::tally::Tally;

/// Shows the output while it comes, and counts the results in it.
///
/// # Errors
///
/// If the command cannot be run.
pub fn run(name: &str, command: &mut Command) -> Result<Tally> {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let mut pipe = child
        .stdout
        .take()
        .with_context(|| format!("{name} has no standard output"))?;
    let mut output = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let length = pipe
            .read(&mut chunk)
            .with_context(|| format!("cannot read from {name}"))?;
        if length == 0 {
            break;
        }
        output.extend_from_slice(&chunk[..length]);
        stdout().write_all(&chunk[..length])?;
        stdout().flush()?;
    }
    let status = child.wait()?;
    Ok(Tally::of_command(
        name,
        &String::from_utf8_lossy(&output),
        status.success(),
        start.elapsed(),
    ))
}
