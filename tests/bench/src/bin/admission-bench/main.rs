//! What admission's decisions cost, and what they are worth: figures for docs/admission-queues.md.
//!
//! `cargo run --release -p lb-bench --bin admission-bench`; needs neither root nor kernel.

mod classification;
mod cost;
mod plot;
mod tenants;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Measures admission (docs/admission-queues.md says what).
#[derive(Parser)]
#[command(name = "admission-bench")]
struct Arguments {
    /// Write the quiet tenant's waits as a plot (SVG) to this file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Connections of the large simulation
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    println!("queues   parked   enqueue   dispatch   release   ns each");
    for (queues, parked) in [(128, 1_000), (128, 100_000), (512, 1_000), (512, 100_000)] {
        let cost = cost::measure(queues, parked)?;
        println!(
            "{queues:>6}   {parked:>6}   {:>7.0}   {:>8.0}   {:>7.0}",
            cost.enqueue, cost.dispatch, cost.release
        );
    }

    println!("\nschemas   lookup   plain search   ns each");
    for schemas in [10, 100, 1_000] {
        let cost = classification::measure(schemas)?;
        println!(
            "{schemas:>7}   {:>6.0}   {:>12.0}",
            cost.lookup, cost.search
        );
    }

    println!(
        "\nload   hold      mode         wait p50      p99      max   refused   (quiet tenant)"
    );
    let outcomes = tenants::sweep()?;
    for outcome in &outcomes {
        println!("{outcome}");
    }
    if let Some(path) = &arguments.plot {
        plot::write(&outcomes, path)?;
    }

    let (connections, elapsed) = tenants::large(arguments.connections)?;
    println!("\n{connections} connections of 100000 flows simulated in {elapsed:.1?}");
    Ok(())
}
