//! `cargo xtask faults`: stages a fault in a lab, and runs the command that names its cause.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use lb_tests::{
    faults::{FAULTS, Fault, Scene},
    patient,
};

/// Stage a fault in a lab, and run the command that names its cause; without NAME, list them
#[derive(Parser)]
#[command(name = "faults")]
struct Cli {
    name: Option<String>,

    /// End once the command has named the cause, instead of leaving the fault up until Ctrl-C
    #[arg(long, requires = "name")]
    once: bool,
}

/// How long it may take until the cause is named.
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let cli = Cli::parse();
    let Some(name) = cli.name else {
        for fault in &FAULTS {
            println!("{:<16} {}", fault.name, fault.what);
        }
        return Ok(());
    };
    let fault = Fault::find(&name);
    let fault =
        fault.with_context(|| format!("no fault {name:?}; `cargo xtask faults` lists them"))?;
    let mut scene = Scene::up()?;
    let _staged = fault.stage(&mut scene)?;
    println!("Staged: {}.\n\nnode-1$ {}", fault.what, fault.command);
    let start = Instant::now();
    let output = loop {
        let output = scene.ask(fault.command)?;
        if fault.is_named_by(&output) {
            break output;
        }
        ensure!(
            start.elapsed() < patient(DEADLINE),
            "the cause is not named after {DEADLINE:?}:\n{output}"
        );
        thread::sleep(Duration::from_millis(100));
    };
    println!("{output}");
    if cli.once {
        return Ok(());
    }
    let lab = scene.ground.lab.id();
    println!(
        "The fault stays until Ctrl-C. To look around: cargo xtask lab exec {lab} node-1 COMMAND\n\
         (node-lb's socket there: {})",
        lb_tests::balanced::socket(scene.ground.lab.node(1)).display()
    );
    loop {
        thread::park();
    }
}
