//! The eBPF programs without an agent: how to load them, and which ones are attached.

use std::path::Path;

use lb_datapath::{Loaded, OBJECT, Pins, Settings, SocketHook, bpf::Link, load, pins::LinkPin};

/// Layout version for tests; any will do.
pub const VERSION: u32 = 7;

/// Loads some programs and all maps, as one start of an agent. They are not the programs of an
/// earlier start. The verifier takes its time for each, much of it in an emulated machine.
///
/// # Panics
///
/// If the kernel refuses them.
pub fn start(pins: &Pins, programs: &[&str]) -> Loaded {
    load(OBJECT, pins, programs, &Settings::default()).unwrap()
}

/// Id of a program in the kernel.
pub fn id(loaded: &mut Loaded, name: &str) -> u32 {
    let program = loaded.tested(name).unwrap();
    program.info().unwrap().id()
}

/// Id of the program in a link pinned under a `--bpf-root`.
pub fn attached(root: &Path, pin: LinkPin) -> u32 {
    let directory = match pin {
        LinkPin::Socket(SocketHook::Release) => "later-links",
        _ => "links",
    };
    let link = Link::open(&root.join(format!("v{VERSION}/{directory}/{pin}"))).unwrap();
    link.info().unwrap().program_id
}
