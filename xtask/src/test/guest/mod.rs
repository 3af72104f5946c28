//! Tests in older kernels: each is booted in QEMU with an initial file system that holds the test
//! programs and what they call, and nothing else.

mod image;
mod machine;

use anyhow::{Result, ensure};
use xtask::ebpf::Places;

use super::{
    suite::{Suite, Suites},
    tally::Tally,
};
use crate::{
    cargo::Workspace,
    setup::kernels::{Kernel, SERIES},
};

use self::machine::Accelerator;

/// What runs in every kernel: a test program of crate `lb-tests`, and which of its tests. That every
/// program loads and is attached, by clsact where there is no tcx; the core of the traffic, with agents
/// on two nodes that have all of other people's rules; and that removing leaves nothing. Few, because
/// what loads programs takes a verifier that is emulated as well.
const SELECTION: [(&str, &[&str]); 2] = [
    ("attach", &["programs::", "links::this_kernel_has_tcx"]),
    (
        "traffic",
        &[
            "operation::cleanup_removes_everything",
            "singly::all_rules_at_once",
        ],
    ),
];

/// Boots each kernel and counts what the tests in it say. A kernel that set-up could not get is said
/// and counted as a test that did not run.
///
/// # Errors
///
/// If a file system cannot be built or QEMU cannot be run. That a kernel does not come up, or takes
/// too long, is a failed test.
pub fn run(workspace: &Workspace, suites: &mut Suites) -> Result<Tally> {
    workspace.run_cargo(["build"])?;
    let places = Places::from_env();
    let programs = suites
        .built()?
        .iter()
        .filter(|suite| suite.needs_kernel(workspace))
        .filter_map(|suite| {
            let arguments = SELECTION.iter().find(|(name, _)| suite.is_test(name))?.1;
            Some((suite, arguments))
        })
        .collect::<Vec<_>>();
    ensure!(
        programs.len() == SELECTION.len(),
        "not all of the test programs for older kernels were built"
    );

    let mut accelerator = None;
    let mut total = Tally::default();
    for series in SERIES {
        let Some(kernel) = Kernel::find(&places, series) else {
            println!("\nATTENTION: nothing was tested in Linux {series}: no package has it here");
            total.ignored += 1;
            continue;
        };
        println!("\nLinux {series}: {}", kernel.release);
        let image = image::build(workspace, &kernel, &programs)?;
        let accelerator = *accelerator.get_or_insert_with(|| Accelerator::detect(&kernel));
        let tally = machine::run(&kernel, &image, accelerator)?;
        total = [total, tally].into_iter().sum();
    }
    Ok(total)
}

/// A test program and its arguments.
type Selected<'a> = (&'a Suite, &'static [&'static str]);
