//! The programs in this kernel's verifier.

use std::{collections::BTreeMap, time::Instant};

use aya::{
    Btf, EbpfLoader, VerifierLogLevel,
    programs::{Iter, Program, ProgramError},
};
use lb_datapath::{OBJECT, hooks};

use crate::budget::{self, RESIZE};

/// Each program is loaded alone, so that the kernel's refusal names it. Their costs are shown with
/// `--nocapture`.
#[test]
fn every_program_passes_the_verifier_within_its_budget() {
    let mut always = hooks::programs();
    always.push("end_wait");
    let mut verified = verify(EbpfLoader::new(), &always);
    verified.extend(lists_sockets().map(|instructions| ("list_seats".to_owned(), instructions)));
    // Programs that run while flow tables change their size use another table too.
    let mut loader = EbpfLoader::new();
    for mask in ["OTHER_MASK4", "OTHER_MASK6"] {
        loader.override_global(mask, &1023_u32, true);
    }
    for table in ["OTHER_FLOWS4", "OTHER_FLOWS6"] {
        loader.map_max_entries(table, 1024);
    }
    let mut resizing = hooks::programs();
    resizing.retain(|name| !SOCKETS.iter().any(|hook| name.starts_with(hook)));
    resizing.extend(["copy_flows", "end_wait"]);
    let resizing = verify(loader, &resizing).into_iter();
    verified.extend(resizing.map(|(name, instructions)| (format!("{name}{RESIZE}"), instructions)));
    // And those for the time in which packets are traced.
    verified.extend(verify(EbpfLoader::new(), &hooks::tracing_programs()));
    budget::check(&verified);
}

/// Loads the program that lists what sockets hold. `None` if this kernel lets nobody list that, whatever the program
/// is: some are built so, and the agent says then what it cannot do.
fn lists_sockets() -> Option<u32> {
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(VerifierLogLevel::STATS);
    let mut object = loader.load(OBJECT).unwrap();
    let program: &mut Iter = object
        .program_mut("list_seats")
        .unwrap()
        .try_into()
        .unwrap();
    match program.load("bpf_sk_storage_map", &Btf::from_sys_fs().unwrap()) {
        Ok(()) => program.info().unwrap().verified_instruction_count(),
        // Not what a verifier says that dislikes a program.
        Err(ProgramError::LoadError { io_error, .. })
            if io_error.raw_os_error() == Some(libc::EPERM) =>
        {
            println!("list_seats: this kernel has no programs for the values of sockets");
            None
        }
        Err(error) => panic!("list_seats: {error}"),
    }
}

/// Beginnings of the names of programs that use no flows.
const SOCKETS: [&str; 5] = ["connect", "getpeername", "recvmsg", "sendmsg", "sock"];

/// Loads programs. Returns how many instructions the verifier looked at for each.
fn verify(mut loader: EbpfLoader<'_>, programs: &[&str]) -> BTreeMap<String, u32> {
    // Nothing is attached, so small flow tables are enough.
    for table in ["FLOWS4", "FLOWS6"] {
        loader.map_max_entries(table, 1024);
    }
    // Without this, a refused program is verified again and again, with more room for the log.
    loader.verifier_log_level(VerifierLogLevel::STATS);
    let mut object = loader.load(OBJECT).unwrap();
    let mut refused = Vec::new();
    let mut verified = BTreeMap::new();
    for name in programs {
        let start = Instant::now();
        let loaded = match object.program_mut(name).unwrap() {
            Program::Xdp(program) => program.load().and_then(|()| program.info()),
            Program::SchedClassifier(program) => program.load().and_then(|()| program.info()),
            Program::CgroupSockAddr(program) => program.load().and_then(|()| program.info()),
            Program::CgroupSock(program) => program.load().and_then(|()| program.info()),
            other => panic!("{name} is of a kind that node-lb has not: {other:?}"),
        };
        let took = start.elapsed();
        match loaded {
            Ok(info) => {
                let instructions = info.verified_instruction_count();
                let instructions = instructions.expect("kernels since 5.16 tell it");
                println!("{name}: {instructions} instructions verified in {took:?}");
                verified.insert((*name).to_owned(), instructions);
            }
            Err(error) => {
                println!("{name}: refused after {took:?}: {error}");
                refused.push(name);
            }
        }
    }
    assert!(refused.is_empty(), "the verifier refuses {refused:?}");
    verified
}
