//! Tests in older kernels, and in those of another architecture: each is booted in QEMU with an
//! initial file system that contains only the test programs and what they call.

mod image;
mod machine;
mod report;
mod selection;

use std::thread;

use anyhow::Result;
use xtask::ebpf::Places;

pub use self::{image::PROGRAMS, selection::of as selected};
use self::{
    machine::{Accelerator, Guest},
    selection::left_out,
};
use super::{options::Part, outcome::Outcome, stage::Tallies, suite::Test};
use crate::{
    cargo::Workspace,
    setup::kernels::{Kernel, Series},
};

/// Boots these series of kernels, of one architecture, all at the same time, and counts the results
/// of their tests. If a kernel is missing, does not boot or hangs, its tests have failed.
///
/// # Errors
///
/// If a selection of tests is wrong, a file system cannot be built or QEMU cannot be run.
pub fn run(workspace: &Workspace, kernels: &[Series], tests: &[Test]) -> Result<Tallies> {
    let places = Places::from_env();
    let mut accelerator = None;
    let mut guests = Vec::new();
    for series in kernels.iter().copied() {
        let tests = selected(series, tests)?;
        let names: Vec<_> = tests.iter().map(Test::name).collect();
        for (test, reason) in left_out(series) {
            println!("Linux {series} does without {test}: {reason}");
        }
        let guest = match Kernel::find(&places, series) {
            Some(kernel) => {
                println!("Linux {series}: {}", kernel.release);
                accelerator.get_or_insert_with(|| Accelerator::detect(&kernel));
                let image = image::build(workspace, &places, &kernel, &tests)?;
                Some(Guest {
                    series,
                    console: workspace
                        .target
                        .join(format!("guest/{}.console", series.file_name())),
                    kernel,
                    image,
                    tests: names.clone(),
                })
            }
            None => {
                let remedy = series.remedy(Part::Kernel(series));
                println!("There is no Linux {series} to test in. {remedy}.");
                None
            }
        };
        guests.push((series, names, guest));
    }
    // Most of the time one test computes in each, on one processor.
    thread::scope(|scope| {
        let started: Vec<_> = guests
            .iter()
            .map(|(series, names, guest)| {
                let run = move || match (guest, accelerator) {
                    (Some(guest), Some(accelerator)) => guest.run(accelerator),
                    _ => Ok(machine::all_lost(*series, names)),
                };
                (*series, scope.spawn(run))
            })
            .collect();
        let mut tallies = Tallies::new();
        for (series, guest) in started {
            let outcomes: Vec<Outcome> =
                guest.join().expect("a guest's follower does not panic")?;
            tallies.push((Part::Kernel(series), outcomes.iter().collect()));
        }
        Ok(tallies)
    })
}
