//! Clean-up leaves nothing behind; and programs on cgroups.

use std::{fs, path::PathBuf};

use lb_datapath::{
    Attacher, Cgroup, Direction, SocketHook, TcFlavor, XdpMode, cleanup,
    hooks::XDP_PROGRAM,
    pins::{DEFAULT_ROOT, LinkPin},
    preflight,
};
use lb_tests::{
    PinRoot,
    programs::{VERSION, attached, id, start},
};

use crate::traffic::cable;

/// A cgroup that belongs to one test.
struct TestCgroup(PathBuf);

impl TestCgroup {
    fn new(name: &str) -> Self {
        let ready = preflight::check(DEFAULT_ROOT.as_ref(), true).unwrap();
        let name = format!("node-lb-test-{}-{name}", std::process::id());
        let path = ready.cgroup2.unwrap().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn cgroup_programs_are_replaced_in_their_links() {
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    let (first, second) = (TestCgroup::new("first"), TestCgroup::new("second"));
    let attacher = Attacher::new(&pins, TcFlavor::detect());
    let attach = |cgroup: &TestCgroup| {
        let mut loaded = start(&pins, &SocketHook::ALL.map(SocketHook::name));
        let cgroup = Cgroup::open(&cgroup.0).unwrap();
        SocketHook::ALL.map(|hook| {
            let program = loaded.program(hook.name()).unwrap();
            let replaced = attacher.socket(&cgroup, hook, program).unwrap();
            let program = id(&mut loaded, hook.name());
            assert_eq!(
                attached(root.path(), LinkPin::Socket(hook)),
                program,
                "{hook}"
            );
            replaced
        })
    };
    assert_eq!(attach(&first), [false; SocketHook::ALL.len()]);
    assert_eq!(attach(&first), [true; SocketHook::ALL.len()]);
    // Another --cgroup-path: the links on the first one are not kept.
    assert_eq!(attach(&second), [false; SocketHook::ALL.len()]);
    assert_eq!(pins.links().unwrap().len(), SocketHook::ALL.len());

    attacher.detach_sockets().unwrap();
    assert!(pins.links().unwrap().is_empty());
}

#[test]
fn cleanup_leaves_nothing_of_ours_and_all_of_others() {
    let (near, _far) = cable();
    near.ip("link add other0 type veth peer name other1");
    near.command("tc", "qdisc add dev other0 clsact");
    let theirs = PinRoot::new();
    let program = theirs.path().join("program");
    near.run({
        let (pins, program) = (theirs.pins(VERSION), program.clone());
        move || {
            let mut foreign = start(&pins, &["tc_ingress"]);
            let classifier = foreign.program_mut("tc_ingress").unwrap();
            classifier.pin(program).unwrap();
        }
    });
    near.command(
        "tc",
        &format!(
            "filter add dev other0 ingress bpf direct-action object-pinned {}",
            program.display()
        ),
    );
    fs::remove_file(program).unwrap();
    let (index, other) = (near.index("near0"), near.index("other0"));
    let root = PinRoot::new();
    let path = root.path().to_owned();
    let pins = root.pins(VERSION);
    let cgroup = TestCgroup::new("cleanup");
    let cgroup_path = cgroup.0.clone();
    // One of them is a link or a filter, depending on what this kernel has for TC.
    let (links, filters) = match TcFlavor::detect() {
        TcFlavor::Tcx => (3, 2),
        TcFlavor::Clsact => (2, 3),
    };
    let removed = near.run(move || {
        let programs = [XDP_PROGRAM, "tc_ingress", "tc_egress", "connect4"];
        let loaded = start(&pins, &programs);
        let maps = pins.maps().unwrap().len();
        let best = Attacher::new(&pins, TcFlavor::detect());
        let program = |name| loaded.program(name).unwrap();
        best.xdp(index, program(XDP_PROGRAM), XdpMode::Native)
            .unwrap();
        best.tc(index, Direction::Ingress, program("tc_ingress"))
            .unwrap();
        let cgroup = Cgroup::open(&cgroup_path).unwrap();
        best.socket(&cgroup, SocketHook::Connect4, program("connect4"))
            .unwrap();
        let clsact = Attacher::new(&pins, TcFlavor::Clsact);
        for device in [index, other] {
            clsact
                .tc(device, Direction::Egress, program("tc_egress"))
                .unwrap();
        }

        let busy = cleanup(&path).unwrap_err().to_string();
        assert!(busy.contains("in use by another node-lb"), "{busy}");
        drop(pins);
        drop(loaded);
        let removed = cleanup(&path).unwrap();
        assert_eq!((removed.links, removed.maps), (links, maps));
        assert!(!path.exists());
        assert_eq!(cleanup(&path).unwrap(), Default::default());
        removed
    });
    assert_eq!(removed.filters, filters);

    let links = near.command("ip", "-details link show dev near0");
    assert!(!links.contains("xdp"), "{links}");
    assert_eq!(near.command("tc", "filter show dev near0 egress"), "");
    let qdiscs = near.command("tc", "qdisc show dev near0");
    assert!(!qdiscs.contains("clsact"), "{qdiscs}");
    let kept = near.command("tc", "filter show dev other0 ingress");
    assert!(kept.contains("direct-action"), "{kept}");
    assert_eq!(near.command("tc", "filter show dev other0 egress"), "");
}
