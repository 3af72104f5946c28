//! Staged faults: one command names the cause of each, as `docs/faults.md` says.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use lb_tests::{
    faults::{FAULTS, Scene},
    traffic::allow_many_files,
};

use lb_tests::patience::eventually;

#[test]
fn one_command_names_the_cause_of_each_staged_fault() -> Result<()> {
    allow_many_files()?;
    let mut scene = Scene::up()?;
    for fault in &FAULTS {
        let before = scene.ask(fault.command)?;
        assert!(!fault.is_named_by(&before), "{}: {before}", fault.name);
        let staged = fault.stage(&mut scene)?;
        let output = eventually(|| {
            let output = scene.ask(fault.command)?;
            ensure!(fault.is_named_by(&output), "{}: {output}", fault.name);
            anyhow::Ok(output)
        });
        println!("{}$ {}\n{output}", fault.name, fault.command);
        drop(staged);
    }
    Ok(())
}

#[test]
fn the_page_lists_each_fault_with_its_command_and_answer() -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/faults.md");
    let page = fs::read_to_string(page)?;
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let row = |fault: &lb_tests::faults::Fault| {
        let answer = fault.answer.replace('*', "…");
        format!(
            "| `{}` | {} | `{}` | `{answer}` |",
            fault.name, fault.what, fault.command
        )
    };
    assert_eq!(rows, FAULTS.iter().map(row).collect::<Vec<_>>());
    Ok(())
}
