//! Tests in older kernels: each is booted in QEMU with an initial file system that contains only
//! the test programs and what they call.

mod image;
mod machine;
mod report;

use anyhow::{Result, ensure};
use xtask::ebpf::Places;

use self::machine::{Accelerator, Guest};
use super::{options::Part, stage::Tallies, suite::Test};
use crate::{cargo::Workspace, setup::kernels::Kernel};

/// The tests that run in every kernel, by the beginnings of their names: every program loads and is
/// attached, by clsact where there is no tcx; the core of the traffic, with agents on two nodes
/// that have all foreign rules; and removal leaves nothing. They are few, because the verifier is
/// emulated as well, which takes long.
const SELECTION: [&str; 4] = [
    "attach::programs::",
    "attach::links::this_kernel_has_tcx",
    "traffic::operation::cleanup_removes_everything",
    "traffic::singly::all_rules_at_once",
];

/// Boots these series of kernels, and counts the results of their tests. If a kernel is missing,
/// does not boot or hangs, its tests have failed.
///
/// # Errors
///
/// If a file system cannot be built or QEMU cannot be run.
pub fn run(workspace: &Workspace, kernels: &[&'static str], tests: &[Test]) -> Result<Tallies> {
    let places = Places::from_env();
    let mut accelerator = None;
    let mut tallies = Tallies::new();
    for series in kernels {
        let names = tests.iter().map(Test::name).collect::<Vec<_>>();
        let outcomes = match Kernel::find(&places, series) {
            Some(kernel) => {
                println!("\nLinux {series}: {}", kernel.release);
                let image = image::build(workspace, &kernel, tests)?;
                let guest = Guest {
                    series,
                    kernel: &kernel,
                    image: &image,
                    console: workspace.target.join(format!("guest/{series}.console")),
                    tests: names,
                };
                let accelerator = *accelerator.get_or_insert_with(|| Accelerator::detect(&kernel));
                guest.run(accelerator)?
            }
            None => {
                println!(
                    "\nThere is no Linux {series} to test in. {}.",
                    Kernel::REMEDY
                );
                machine::all_lost(series, &names)
            }
        };
        tallies.push((Part::Kernel(series), outcomes.iter().collect()));
    }
    Ok(tallies)
}

/// Those tests that run in every kernel, out of all that need a kernel.
///
/// # Errors
///
/// If a part of the selection matches no test.
pub fn selected(tests: Vec<Test>) -> Result<Vec<Test>> {
    for selection in SELECTION {
        ensure!(
            tests.iter().any(|test| test.name().starts_with(selection)),
            "{selection:?} is to run in older kernels, and no test's name begins so: correct {}",
            file!()
        );
    }
    let wanted = |test: &Test| {
        let name = test.name();
        SELECTION
            .iter()
            .any(|selection| name.starts_with(selection))
    };
    Ok(tests.into_iter().filter(wanted).collect())
}
