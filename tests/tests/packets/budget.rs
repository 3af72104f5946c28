//! What the programs cost the verifier, which gives up after a million instructions.

use std::collections::BTreeMap;

use super::world::{At, world};

/// Instructions that each program took, a line each. The verifier differs between kernels; these are
/// of Linux 6.18; that of 6.1 needs about twice as many.
const BUDGET: &str = include_str!("verifier-budget.txt");
/// What a program may take beyond its line, in percent.
const SLACK: u32 = 10;

#[test]
fn programs_stay_within_their_verifier_budget() {
    let budget: BTreeMap<&str, u32> = BUDGET
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (program, instructions) = line.split_once(' ').unwrap();
            (program, instructions.trim().parse().unwrap())
        })
        .collect();
    world(|world| {
        let found = At::ALL.map(|at| {
            let instructions = world.program_info(at).verified_instruction_count();
            (at.program(), instructions.unwrap())
        });
        let over: Vec<_> = found
            .iter()
            .filter(|(program, instructions)| {
                *instructions > budget[program] + budget[program] * SLACK / 100
            })
            .collect();
        assert!(
            over.is_empty(),
            "over the budget in verifier-budget.txt by more than {SLACK} %: {over:?}. If it is worth \
             it, raise the lines there; all programs: {found:?}"
        );
    });
}
