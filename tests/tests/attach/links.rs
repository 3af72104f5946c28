//! Attaching, replacing and detaching.

use std::{fs, sync::Arc};

use lb_datapath::{
    Attacher, Direction, Loaded, TcFlavor, XdpAttachment, XdpMode,
    attach::AttachError,
    bpf::{AttachPoint, Link},
    hooks::Framing,
    hooks::XDP_PROGRAM,
    pins::LinkPin,
};
use lb_tests::{
    PinRoot,
    namespace::Namespace,
    programs::{VERSION, attached, id, start},
};

use crate::traffic::{cable, lossless};

const REPLACEMENTS: usize = 100;
/// The programs for TC, of either direction.
const TC: [&str; 2] = [
    Direction::Ingress.program(Framing::Ethernet),
    Direction::Egress.program(Framing::Ethernet),
];

/// The TC flavors that this kernel supports.
fn flavors() -> Vec<TcFlavor> {
    let best = TcFlavor::detect();
    let others = [TcFlavor::Clsact].into_iter();
    [best]
        .into_iter()
        .chain(others.filter(|other| *other != best))
        .collect()
}

#[test]
fn native_xdp_is_replaced_under_load_without_loss() {
    let (near, far) = cable();
    let index = near.index("near0");
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    let (pins, mut generations) = near.run(move || {
        let generations = [start(&pins, &[XDP_PROGRAM]), start(&pins, &[XDP_PROGRAM])];
        let program = generations[0].program(XDP_PROGRAM).unwrap();
        let first = Attacher::new(&pins, TcFlavor::detect()).xdp(index, program, XdpMode::Native);
        assert_eq!(
            first.unwrap(),
            XdpAttachment {
                mode: XdpMode::Native,
                replaced: false,
                reason: None
            }
        );
        (pins, generations)
    });

    let path = root.path().to_owned();
    lossless(&near, &far, |rounds| {
        near.run(move || {
            let attacher = Attacher::new(&pins, TcFlavor::detect());
            for round in 0..REPLACEMENTS {
                let loaded = &mut generations[(round + 1) % 2];
                let program = loaded.program(XDP_PROGRAM).unwrap();
                let attachment = attacher.xdp(index, program, XdpMode::Native).unwrap();
                assert!(attachment.replaced, "{attachment:?}");
                let pin = LinkPin::Xdp {
                    mode: XdpMode::Native,
                    ifindex: index,
                };
                assert_eq!(attached(&path, pin), id(loaded, XDP_PROGRAM));
                rounds.go_on();
            }
        });
    });
}

#[test]
fn tc_is_replaced_under_load_without_loss() {
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    let generations = [start(&pins, &TC), start(&pins, &TC)];
    // For all flavors, because the verifier takes longest.
    let loaded = Arc::new((pins, generations));
    for flavor in flavors() {
        let (near, far) = cable();
        let index = near.index("near0");
        let attach = move |attacher: &Attacher<'_>, loaded: &Loaded| {
            [Direction::Ingress, Direction::Egress].map(|direction| {
                let program = loaded
                    .program(direction.program(Framing::Ethernet))
                    .unwrap();
                attacher.tc(index, direction, program).unwrap()
            })
        };
        let shared = Arc::clone(&loaded);
        near.run(move || {
            let (pins, generations) = &*shared;
            let first = attach(&Attacher::new(pins, flavor), &generations[0]);
            assert_eq!(first, [false, false], "{flavor:?}");
        });

        let shared = Arc::clone(&loaded);
        lossless(&near, &far, |rounds| {
            near.run(move || {
                let (pins, generations) = &*shared;
                let attacher = Attacher::new(pins, flavor);
                for round in 0..REPLACEMENTS {
                    let replaced = attach(&attacher, &generations[(round + 1) % 2]);
                    assert_eq!(replaced, [true, true], "{flavor:?}");
                    rounds.go_on();
                }
            });
        });

        // There is one filter per direction, however often it is replaced.
        if flavor == TcFlavor::Clsact {
            for direction in ["ingress", "egress"] {
                let filters = near.command("tc", &format!("filter show dev near0 {direction}"));
                let ours = filters.matches("handle 0x4c42").count();
                assert_eq!(ours, 1, "{filters}");
                assert!(filters.contains("direct-action"), "{filters}");
            }
        }
        let name = Direction::Ingress.program(Framing::Ethernet);
        let shared = Arc::clone(&loaded);
        near.run(move || {
            let (pins, generations) = &*shared;
            let attacher = Attacher::new(pins, flavor);
            // After an even number of replacements.
            let has = generations.each_ref().map(|loaded| {
                let program = loaded.program(name).unwrap();
                attacher.has_tc(index, Direction::Ingress, program).unwrap()
            });
            assert_eq!(has, [true, false], "{flavor:?}");
        });
        // Somebody detaches the program.
        if flavor == TcFlavor::Clsact {
            near.command("tc", "filter del dev near0 ingress");
        }
        let shared = Arc::clone(&loaded);
        near.run(move || {
            let (pins, generations) = &*shared;
            let attacher = Attacher::new(pins, flavor);
            let direction = Direction::Ingress;
            if flavor == TcFlavor::Tcx {
                let ifindex = index;
                let path = pins.link(LinkPin::Tcx { direction, ifindex });
                Link::open(&path).unwrap().detach().unwrap();
            }
            let program = generations[0].program(name).unwrap();
            assert!(!attacher.has_tc(index, direction, program).unwrap());
            assert!(!attacher.tc(index, direction, program).unwrap());
            assert!(attacher.has_tc(index, direction, program).unwrap());
            // The next device may have the same index.
            attacher.detach_device(index).unwrap();
        });
    }
}

#[test]
fn without_native_xdp_the_generic_kind_is_used_and_said() {
    let host = Namespace::new();
    host.ip("link add br0 type bridge");
    let index = host.index("br0");
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    host.run(move || {
        let loaded = start(&pins, &[XDP_PROGRAM]);
        let program = loaded.program(XDP_PROGRAM).unwrap();
        let attacher = Attacher::new(&pins, TcFlavor::detect());
        let attachment = attacher.xdp(index, program, XdpMode::Native).unwrap();
        assert_eq!(attachment.mode, XdpMode::Generic);
        assert!(!attachment.replaced);
        assert_eq!(
            attachment.reason.as_deref(),
            Some("native: the driver does not support it")
        );

        let again = attacher.xdp(index, program, XdpMode::Native).unwrap();
        assert_eq!((again.mode, again.replaced), (XdpMode::Generic, true));
        assert!(again.reason.is_some());

        let off = attacher.xdp(index, program, XdpMode::Off).unwrap();
        assert_eq!((off.mode, off.reason), (XdpMode::Off, None));
        assert!(pins.links().unwrap().is_empty());
    });
}

#[test]
fn a_mode_that_is_no_longer_allowed_is_left() {
    let (near, _far) = cable();
    let index = near.index("near0");
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    near.run(move || {
        let loaded = start(&pins, &[XDP_PROGRAM]);
        let program = loaded.program(XDP_PROGRAM).unwrap();
        let attacher = Attacher::new(&pins, TcFlavor::detect());
        let mode = |best| attacher.xdp(index, program, best).unwrap().mode;
        assert_eq!(mode(XdpMode::Native), XdpMode::Native);
        assert_eq!(mode(XdpMode::Generic), XdpMode::Generic);
        assert_eq!(pins.links().unwrap().len(), 1);
    });
}

#[test]
fn the_xdp_program_of_somebody_else_stays() {
    let (near, _far) = cable();
    let index = near.index("near0");
    let (theirs, ours) = (PinRoot::new(), PinRoot::new());
    let (their_pins, our_pins) = (theirs.pins(VERSION), ours.pins(VERSION));
    near.run(move || {
        let mut foreign = start(&their_pins, &[XDP_PROGRAM]);
        let link = Link::create(
            foreign.program(XDP_PROGRAM).unwrap(),
            AttachPoint::XdpNative { ifindex: index },
        )
        .unwrap();

        let loaded = start(&our_pins, &[XDP_PROGRAM]);
        let attachment = Attacher::new(&our_pins, TcFlavor::detect())
            .xdp(index, loaded.program(XDP_PROGRAM).unwrap(), XdpMode::Native)
            .unwrap();
        assert_eq!(
            attachment,
            XdpAttachment {
                mode: XdpMode::Off,
                replaced: false,
                reason: Some(
                    "native: another XDP program is attached; \
                     generic: another XDP program is attached"
                        .to_owned()
                ),
            }
        );
        let still = link.info().unwrap().program_id;
        assert_eq!(still, id(&mut foreign, XDP_PROGRAM));
    });
}

#[test]
fn a_device_made_again_under_its_name_and_index_gets_a_new_link() {
    let host = Namespace::new();
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    let make = "link add veth1 index 77 type veth peer name veth2";
    host.ip(make);
    let pins = host.run(move || {
        let loaded = start(&pins, &[XDP_PROGRAM, "tc_ingress"]);
        let program = loaded.program(XDP_PROGRAM).unwrap();
        let attacher = Attacher::new(&pins, TcFlavor::Tcx);
        attacher.xdp(77, program, XdpMode::Native).unwrap();
        let tc = loaded.program("tc_ingress").unwrap();
        attacher.tc(77, Direction::Ingress, tc).unwrap();
        drop(loaded);
        pins
    });
    host.ip("link del veth1");
    host.ip(make);
    let pins = host.run(move || {
        let loaded = start(&pins, &[XDP_PROGRAM, "tc_ingress"]);
        let attacher = Attacher::new(&pins, TcFlavor::Tcx);
        let program = loaded.program(XDP_PROGRAM).unwrap();
        let attachment = attacher.xdp(77, program, XdpMode::Native).unwrap();
        assert_eq!(
            (attachment.mode, attachment.replaced),
            (XdpMode::Native, false)
        );
        let tc = loaded.program("tc_ingress").unwrap();
        assert!(!attacher.tc(77, Direction::Ingress, tc).unwrap());
        assert!(attacher.tc(77, Direction::Ingress, tc).unwrap());
        drop(loaded);
        pins
    });
    host.ip("link del veth1");
    host.run(move || {
        let attacher = Attacher::new(&pins, TcFlavor::Tcx);
        let stale = attacher.sweep(|_| true).unwrap();
        assert_eq!(stale.len(), 2, "{stale:?}");
        assert!(pins.links().unwrap().is_empty());
    });
}

#[test]
fn attaching_to_a_device_that_is_gone_says_so() {
    let host = Namespace::new();
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    host.run(move || {
        let loaded = start(&pins, &[XDP_PROGRAM, "tc_egress"]);
        for flavor in flavors() {
            let attacher = Attacher::new(&pins, flavor);
            let program = loaded.program(XDP_PROGRAM).unwrap();
            let error = attacher.xdp(999, program, XdpMode::Native).unwrap_err();
            assert!(
                matches!(error, AttachError::DeviceGone { ifindex: 999 }),
                "{error}"
            );
            let program = loaded.program("tc_egress").unwrap();
            let error = attacher.tc(999, Direction::Egress, program).unwrap_err();
            assert!(
                matches!(error, AttachError::DeviceGone { ifindex: 999 }),
                "{error}"
            );
            attacher.detach_device(999).unwrap();
        }
    });
}

#[test]
fn unwanted_devices_are_swept() {
    let (near, _far) = cable();
    near.ip("link add other0 type veth peer name other1");
    let (index, other) = (near.index("near0"), near.index("other0"));
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    near.run(move || {
        let loaded = start(&pins, &["tc_ingress"]);
        let attacher = Attacher::new(&pins, TcFlavor::Tcx);
        for index in [index, other] {
            let program = loaded.program("tc_ingress").unwrap();
            attacher.tc(index, Direction::Ingress, program).unwrap();
        }
        let swept = attacher.sweep(|wanted| wanted == index).unwrap();
        let pin = |ifindex| LinkPin::Tcx {
            direction: Direction::Ingress,
            ifindex,
        };
        assert_eq!(swept, [pin(other)]);
        assert_eq!(pins.links().unwrap(), [pin(index)]);
        attacher.detach_device(index).unwrap();
        assert!(pins.links().unwrap().is_empty());
    });
}

#[test]
fn unwanted_filters_are_swept() {
    let (near, _far) = cable();
    near.ip("link add other0 type veth peer name other1");
    let (index, other) = (near.index("near0"), near.index("other0"));
    let root = PinRoot::new();
    let pins = root.pins(VERSION);
    near.run(move || {
        let loaded = start(&pins, &["tc_ingress"]);
        let attacher = Attacher::new(&pins, TcFlavor::Clsact);
        for index in [index, other] {
            let program = loaded.program("tc_ingress").unwrap();
            attacher.tc(index, Direction::Ingress, program).unwrap();
        }
        attacher.sweep(|wanted| wanted == index).unwrap();
    });
    assert_eq!(near.command("tc", "filter show dev other0 ingress"), "");
    let kept = near.command("tc", "filter show dev near0 ingress");
    assert!(kept.contains("tc_ingress"), "{kept}");
}

#[test]
fn tcx_runs_first_on_ingress_and_last_on_egress() {
    let (near, _far) = cable();
    let index = near.index("near0");
    let (theirs, ours) = (PinRoot::new(), PinRoot::new());
    let (their_pins, our_pins) = (theirs.pins(VERSION), ours.pins(VERSION));
    near.run(move || {
        use aya::programs::{SchedClassifier, TcAttachType};

        let foreign = start(&their_pins, &TC);
        let points = [
            (
                "tc_ingress",
                AttachPoint::TcxIngressFirst { ifindex: index },
            ),
            ("tc_egress", AttachPoint::TcxEgressLast { ifindex: index }),
        ];
        let _links =
            points.map(|(name, at)| Link::create(foreign.program(name).unwrap(), at).unwrap());

        let mut loaded = start(&our_pins, &TC);
        let attacher = Attacher::new(&our_pins, TcFlavor::Tcx);
        for direction in [Direction::Ingress, Direction::Egress] {
            let program = loaded
                .program(direction.program(Framing::Ethernet))
                .unwrap();
            attacher.tc(index, direction, program).unwrap();
        }
        let order = |attach_type| {
            let (_, programs) = SchedClassifier::query_tcx("near0", attach_type).unwrap();
            programs
                .iter()
                .map(|program| program.id())
                .collect::<Vec<_>>()
        };
        let (ingress, egress) = (order(TcAttachType::Ingress), order(TcAttachType::Egress));
        assert_eq!((ingress.len(), egress.len()), (2, 2));
        assert_eq!(ingress[0], id(&mut loaded, "tc_ingress"));
        assert_eq!(egress[1], id(&mut loaded, "tc_egress"));
    });
}

#[test]
fn this_kernel_has_tcx() {
    let host = Namespace::new();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap_or(0));
    let expected = match version >= (6, 6) {
        true => TcFlavor::Tcx,
        false => TcFlavor::Clsact,
    };
    assert_eq!(host.run(TcFlavor::detect), expected);
}
