//! An uplink that fails and recovers, in three ways, while traffic flows.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::traffic::Loads;
use lb_tests::{
    Balanced, Endpoint, Family, Host, Load, Node, Pod, PodNetwork, Request, SILENCE, Serve,
    Topology, eventually, patient,
};

use super::support::{NODE_PORT, Policy, ground_on};

/// How long an outage lasts.
const OUTAGE: Duration = Duration::from_millis(500);
/// How long TCP may take after an outage to try again.
const RETRY: Duration = Duration::from_secs(3);
/// How long clients wait: longer than any outage here with TCP's retransmission timers.
const ACROSS: Duration = Duration::from_secs(10);

#[test]
fn a_cable_pulled_and_plugged_in() {
    flap(|ground, node| {
        let set = |state| {
            let line = format!("ip link set {} {state}", node.name());
            ground.lab.router().run(&line).map(drop)
        };
        set("down")?;
        thread::sleep(OUTAGE);
        set("up")
    });
}

#[test]
fn an_uplink_set_down_and_up() {
    flap(|ground, node| {
        node.run("ip link set eth0 down")?;
        thread::sleep(OUTAGE);
        // Its default route is gone, but its programs are not.
        let devices = ground.status(1)?.devices;
        let has_programs = devices.iter().any(|device| device.name == Node::UPLINK);
        ensure!(has_programs, "{devices:?}");
        ground.lab.configure_uplink(node)
    });
}

#[test]
fn an_uplink_removed_and_added() {
    flap(|ground, node| {
        let (lab, before) = (&ground.lab, attached(ground)?);
        lab.unplug(node)?;
        thread::sleep(OUTAGE);
        // Until the agent has seen the new device, packets that arrive there go to the host, which
        // refuses connections that it does not know. So nothing may arrive until then.
        lab.router().feed("nft -f -", HOLD)?;
        lab.plug_in(node)?;
        eventually(|| {
            ensure!(attached(ground)? > before, "no programs on the new device");
            Ok(())
        });
        lab.router().run("nft delete table inet hold").map(drop)
    });
}

/// A rule with which a router forwards nothing.
const HOLD: &str = "
    table inet hold {
        chain forward {
            type filter hook forward priority filter; policy drop;
        }
    }
";

/// How often the agent on node 1 has attached programs to the uplink.
fn attached(ground: &Balanced) -> Result<usize> {
    let log = ground.agents[0].log()?;
    let line = format!("programs attached device={:?}", Node::UPLINK);
    Ok(log.matches(&line).count())
}

/// Interrupts node 1's uplink twice. Traffic that does not need it is not disturbed. Connections
/// across it go on, and new ones are served, once it is back.
fn flap(outage: impl Fn(&Balanced, &Node) -> Result<()>) {
    // With pods on a bridge, routes to single pods prefer the uplink's address, and vanish with it.
    let topology = Topology {
        pod_network: PodNetwork::Bridge,
        ..Topology::default()
    };
    let (ground, _web) = ground_on(topology, Policy::Cluster, &["--xdp-mode=native"]);
    let (lab, node) = (&ground.lab, ground.lab.node(1));
    let pod = lab.pod("pod-1-2");
    let _server = Serve::new("nearby").tcp(9090).start(pod).unwrap();
    serve_nearby(&ground, pod);
    let mut inside = Loads::beside(pod).unwrap();
    let mut across = Vec::new();
    for family in Family::BOTH {
        let request = Request::tcp(nearby(family));
        let mut near = |load: Load, host: &Host| inside.start(host, slowly(load)).unwrap();
        near(Load::new(request).persistent(), lab.pod("pod-1-1"));
        near(Load::new(request), lab.pod("pod-1-1"));
        near(Load::new(request), node);
        let outside = Request::http(node.at(family, NODE_PORT)).deadline(patient(ACROSS));
        let outside = slowly(Load::new(outside).persistent());
        across.push(outside.start(lab.client()).unwrap());
    }

    for _ in 0..2 {
        outage(&ground, node).unwrap();
        let back = Instant::now();
        for family in Family::BOTH {
            let request = Request::http(node.at(family, NODE_PORT));
            let request = request.deadline(patient(SILENCE));
            eventually(|| request.send(lab.client()));
        }
        println!("served again after {:?}", back.elapsed());
        thread::sleep(RETRY);
    }

    let devices = ground.status(1).unwrap().devices;
    let uplink = devices.iter().find(|device| device.name == Node::UPLINK);
    assert!(
        uplink.is_some_and(|uplink| uplink.mode == "native" && uplink.reason.is_none()),
        "{devices:?}"
    );
    let inside = inside.stop().unwrap();
    inside.assert_flawless();
    inside.assert_no_reconnects();
    for load in across {
        let report = load.stop().unwrap();
        assert!(report.failed == 0 && report.ok > 0, "{report}");
        assert_eq!(report.reconnects, 0, "{report}");
    }
}

/// A Service behind a pod on node 1, for which the uplink is not needed.
fn serve_nearby(ground: &Balanced, pod: &Pod) {
    let lab = &ground.lab;
    ground
        .change(|| {
            let mut service = lab.service("nearby");
            for family in Family::BOTH {
                service = service.cluster_ip(&nearby(family).ip().to_string());
            }
            service.tcp("lines", 80, 9090).apply()?;
            let slices = lab.endpoints("nearby").tcp("lines", 9090);
            slices.with(Endpoint::ready(pod)).apply()
        })
        .unwrap();
}

fn nearby(family: Family) -> SocketAddr {
    let text = match family {
        Family::V4 => "10.96.0.30:80",
        Family::V6 => "[fd00:10:96::30]:80",
    };
    text.parse().expect("an address")
}

fn slowly(load: Load) -> Load {
    load.workers(1).pause(Duration::from_millis(20))
}
