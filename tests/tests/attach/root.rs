//! A `--bpf-root` of a test's own, removed with it.

use std::{
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use node_lb::datapath::{
    Loaded, OBJECT, Pins, Settings, SocketHook, bpf::Link, cleanup, hooks, load, pins::LinkPin,
    preflight,
};

/// Layout version for tests; any will do.
pub const VERSION: u32 = 7;

/// All programs that are attached to something.
pub fn programs() -> Vec<&'static str> {
    let mut programs = vec![
        hooks::XDP_PROGRAM,
        hooks::XDP_VIRTUAL_PROGRAM,
        "tc_ingress",
        "tc_egress",
    ];
    programs.extend(SocketHook::ALL.map(SocketHook::name));
    programs
}

pub struct Root(PathBuf);

impl Root {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "/sys/fs/bpf/node-lb-test-{}-{}",
            process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        preflight::check(Path::new(&name), true).expect("this machine can run the data plane");
        Self(name.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn pins(&self) -> Pins {
        Pins::open(&self.0, VERSION).unwrap()
    }
}

/// One start of an agent: its programs are other ones than those of the start before.
pub fn start(pins: &Pins) -> Loaded {
    load(OBJECT, pins, &programs(), &Settings::default()).unwrap()
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Err(error) = cleanup(&self.0) {
            eprintln!("{error}");
        }
    }
}

/// Id of a program in the kernel.
pub fn id(loaded: &mut Loaded, name: &str) -> u32 {
    let program = loaded.program_mut(name).unwrap();
    program.info().unwrap().id()
}

/// Id of the program in a link pinned under a `--bpf-root`.
pub fn attached(root: &Path, pin: LinkPin) -> u32 {
    let link = Link::open(&root.join(format!("v{VERSION}/links/{pin}"))).unwrap();
    link.info().unwrap().program_id
}
