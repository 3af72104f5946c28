//! The alerts of `deploy/monitoring`, in a real Prometheus beside agents: none while nothing is wrong, and each while a
//! fault is staged. How long a fault has to last until somebody is called is for `promtool` to test.

use std::{
    collections::BTreeSet, fs, net::SocketAddr, os::unix::fs::symlink, thread, time::Duration,
};

use anyhow::{Context, Result, ensure};
use lb_tests::{
    Held, Load, Node, Pod, Prometheus, Request, Serve,
    faults::{FAULTS, Fault, Frozen, Meddler, PAUSE, Scene, Staged, TARGET, cluster_ip},
    patience::try_eventually,
    prometheus::{condition, rules},
    traffic::allow_many_files,
};

use crate::support::many_services;

/// A fault, and what is raised because of it.
struct Case {
    alerts: &'static [&'static str],
    stage: fn(&mut Scene) -> Result<Staged>,
}

/// In an order in which none hides another one.
const CASES: [Case; 18] = [
    // As long as the flow table has room.
    Case {
        alerts: &["NodeLbHalfOpenFlood"],
        stage: |scene| known("flood", scene),
    },
    Case {
        alerts: &["NodeLbEndpointsFail"],
        stage: |scene| known("dead-endpoint", scene),
    },
    Case {
        alerts: &["NodeLbServicesNotProgrammed"],
        stage: |scene| known("refused-service", scene),
    },
    Case {
        alerts: &["NodeLbServiceWithoutEndpoints"],
        stage: service_without_endpoints,
    },
    Case {
        alerts: &["NodeLbConnectionLimitReached"],
        stage: service_at_its_limit,
    },
    Case {
        alerts: &["NodeLbAdmissionRefuses"],
        stage: level_that_refuses,
    },
    Case {
        alerts: &["NodeLbAdmissionWaitsLong"],
        stage: level_with_queues,
    },
    Case {
        alerts: &["NodeLbHealthCheckServerFailed"],
        stage: taken_port,
    },
    Case {
        alerts: &["NodeLbSourceProblems"],
        stage: broken_manifest,
    },
    Case {
        alerts: &["NodeLbMapNearlyFull"],
        stage: many_addresses,
    },
    Case {
        alerts: &["NodeLbDeviceFellBack"],
        stage: device_without_native_xdp,
    },
    Case {
        alerts: &["NodeLbPinsMissing"],
        stage: no_place_for_pins,
    },
    Case {
        alerts: &[
            "NodeLbDataPlaneChanged",
            "NodeLbTestPacketsDiffer",
            "NodeLbAgentNotReady",
        ],
        stage: meddler,
    },
    Case {
        alerts: &["NodeLbAgentStuck"],
        stage: stuck_agent,
    },
    // Of the sync that was stuck, once it is over.
    Case {
        alerts: &["NodeLbProgrammingSlow"],
        stage: |_| Ok(Box::new(())),
    },
    Case {
        alerts: &["NodeLbSnatPortsExhausted"],
        stage: |scene| known("exhausted-ports", scene),
    },
    Case {
        alerts: &["NodeLbFlowTableFull"],
        stage: |scene| known("full-table", scene),
    },
    Case {
        alerts: &["NodeLbAgentDown", "NodeLbNoAgent"],
        stage: |scene| known("stopped-agent", scene),
    },
];

/// What is not raised here, and why.
const ELSEWHERE: [(&str, &str); 4] = [
    (
        "NodeLbServicePortFillsFlowTable",
        "it takes a smaller table: see below",
    ),
    (
        "NodeLbFlowTableNearlyFull",
        "it takes a smaller table: see below",
    ),
    (
        "NodeLbSourceOutOfDate",
        "manifests are never out of date: control_plane::monitoring asks for the same, but sooner",
    ),
    (
        "NodeLbCountersUnreadable",
        "without memory for it alone, a kernel does not read a map: see http::metrics of the agent's own tests",
    ),
];

/// An alert that comes sooner here, because what it asks for takes a minute: its condition, and the one here.
const SOONER: (&str, &str, &str) = ("NodeLbAgentStuck", "> 60", "> 6");

/// More Services than an agent writes before anybody looks.
const MANY: u32 = 5_000;

#[test]
fn each_alert_is_raised_by_its_fault_and_none_without_one() -> Result<()> {
    let elsewhere = ELSEWHERE.iter().map(|(alert, _)| (*alert).to_owned());
    let mut raised: BTreeSet<_> = elsewhere.collect();
    let arguments = ["--test-packet-interval=1s", "--local-address-table-size=16"];
    // Room for all half-open flows that a Service may have.
    let mut site = Site::with(16_384, &arguments)?;
    for Case { alerts, stage } in &CASES {
        let staged = stage(&mut site.scene).with_context(|| format!("{alerts:?}"))?;
        for alert in *alerts {
            site.raises(alert)?;
            raised.insert((*alert).to_owned());
        }
        drop(staged);
    }
    let all: BTreeSet<_> = rules()?.into_iter().filter_map(|rule| rule.alert).collect();
    assert_eq!(raised, all);
    Ok(())
}

/// Of one family alone: the other one's table has room, and that is no help. A service port may have as much of it as is
/// free, so it takes several.
#[test]
fn a_table_is_told_before_it_is_full() -> Result<()> {
    const FLOWS: u32 = 4096;
    // No client reaches an endpoint by two Services, so that it can use a port for both.
    const WAYS: [(&str, &str); 6] = [
        ("pod-1-2", "pod-1-1"),
        ("pod-1-2", "pod-2-1"),
        ("pod-1-2", "pod-2-2"),
        ("pod-1-1", "pod-1-2"),
        ("pod-1-1", "pod-2-1"),
        ("pod-1-1", "pod-2-2"),
    ];
    let mut site = Site::with(FLOWS, &[])?;
    let scene = &site.scene;
    let mut held = Vec::new();
    for ((client, endpoint), number) in WAYS.into_iter().zip(21..) {
        let (client, pods) = (scene.pod(client), [scene.pod(endpoint)]);
        let name = format!("service-{number}");
        scene.service(&name, number, TARGET, &pods, |service| service)?;
        // There is room for twice as many flows.
        let wanted = (number - 20) as usize * 2 * FLOWS as usize * 82 / 100 / WAYS.len();
        open_until(&mut held, wanted, client, cluster_ip(number))?;
    }
    site.raises("NodeLbFlowTableNearlyFull")
}

/// A service port alone loses connections when half of the table is its own. That is told before.
#[test]
fn a_service_port_is_told_of_before_it_has_its_share() -> Result<()> {
    const FLOWS: u32 = 4096;
    // There is room for twice as many flows.
    const SOME: usize = FLOWS as usize * 85 / 100;
    let mut site = Site::with(FLOWS, &[])?;
    let scene = &site.scene;
    let (client, server) = (scene.pod("pod-1-2"), [scene.pod("pod-1-1")]);
    scene.service("busy", 21, TARGET, &server, |service| service)?;
    let mut held = Vec::new();
    open_until(&mut held, SOME, client, cluster_ip(21))?;
    site.raises("NodeLbServicePortFillsFlowTable")?;
    let (needs_attention, said) = site.scene.ground.status_as(1, "table")?;
    let names_it = said.contains("default/busy:lines TCP has ");
    ensure!(needs_attention && names_it, "{said}");
    Ok(())
}

/// Opens connections until so many are held. Those that have ended leave their room to others a moment later.
fn open_until(held: &mut Vec<Held>, wanted: usize, client: &Pod, target: SocketAddr) -> Result<()> {
    try_eventually(|| {
        let tries = wanted - held.len();
        held.extend(Held::open_all(client, target, tries));
        ensure!(held.len() == wanted, "{} of {wanted} are open", held.len());
        Ok(())
    })
}

/// A lab with agents at work, and a Prometheus that scrapes node 1's.
struct Site {
    prometheus: Prometheus,
    scene: Scene,
}

impl Site {
    /// Builds it, and checks that no alert is raised while all is well.
    fn with(flows: u32, arguments: &[&str]) -> Result<Self> {
        allow_many_files()?;
        let scene = Scene::with(flows, arguments)?;
        scene.service("web", 20, TARGET, &[scene.pod("pod-1-1")], |service| {
            service
        })?;
        let node = scene.ground.lab.node(1);
        let target = SocketAddr::from(([127, 0, 0, 1], 10249));
        let directory = scene.ground.lab.id().dir();
        let mut prometheus = Prometheus::start(node, &directory, &[("node-lb", target)])?;

        let load = Load::new(Request::tcp(cluster_ip(20))).pause(PAUSE);
        let load = load.start(scene.pod("pod-1-2"))?;
        // Rates take two samples.
        try_eventually(|| {
            let asked = prometheus.query("rate(node_lb_packets_total[5m])")?;
            ensure!(!asked.is_empty(), "nothing has been scraped");
            Ok(())
        })?;
        thread::sleep(Duration::from_secs(3));
        assert_eq!(prometheus.alerts()?, [""; 0]);
        let report = load.stop()?;
        ensure!(report.failures.is_empty(), "{report}");
        Ok(Self { prometheus, scene })
    }

    /// Waits until an alert is raised.
    fn raises(&mut self, alert: &str) -> Result<()> {
        let condition = condition(alert)?;
        let found = try_eventually(|| is_raised(&mut self.prometheus, alert, &condition));
        found.with_context(|| format!("{alert}: {condition}"))
    }
}

/// Whether an alert is raised, be it to wait for some minutes.
fn is_raised(prometheus: &mut Prometheus, alert: &str, condition: &str) -> Result<()> {
    let (sooner, minute, moment) = SOONER;
    if alert == sooner {
        ensure!(condition.contains(minute), "it does not ask for {minute}");
        let found = prometheus.query(&condition.replace(minute, moment))?;
        ensure!(!found.is_empty(), "not yet");
        return Ok(());
    }
    let raised = prometheus.alerts()?;
    let is_it = raised.iter().any(|raised| raised == alert);
    ensure!(is_it, "only {raised:?} are");
    Ok(())
}

/// One of the faults of the documentation.
fn known(name: &str, scene: &mut Scene) -> Result<Staged> {
    Fault::find(name)
        .with_context(|| format!("none of the {} faults is {name}", FAULTS.len()))?
        .stage(scene)
}

fn service_without_endpoints(scene: &mut Scene) -> Result<Staged> {
    scene.service("nobody", 11, TARGET, &[], |service| service)?;
    let load = Load::new(Request::tcp(cluster_ip(11)).in_vain()).pause(PAUSE);
    Ok(Box::new(load.start(scene.pod("pod-1-2"))?))
}

fn service_at_its_limit(scene: &mut Scene) -> Result<Staged> {
    let pods = [scene.pod("pod-1-1")];
    scene.service("limited", 12, TARGET, &pods, |service| {
        service.annotation("node-lb.io/max-connections", "5")
    })?;
    crowd(scene, 12)
}

fn level_that_refuses(scene: &mut Scene) -> Result<Staged> {
    let staged = known("small-level", scene)?;
    // It is named after the fault.
    Ok(Box::new((staged, crowd(scene, 7)?)))
}

fn level_with_queues(scene: &mut Scene) -> Result<Staged> {
    let pods = [scene.pod("pod-1-1")];
    scene.service("queued", 13, TARGET, &pods, |service| service)?;
    const HOLD: Duration = Duration::from_millis(700);
    let request = Request::tcp(cluster_ip(13)).held_for(HOLD);
    let load = Load::new(request.deadline(10 * HOLD)).workers(10);
    Ok(Box::new(load.start(scene.pod("pod-1-2"))?))
}

/// Clients that keep all seats, and one more.
fn crowd(scene: &Scene, number: u8) -> Result<Staged> {
    let (client, target) = (scene.pod("pod-1-2"), cluster_ip(number));
    let held = Held::open_all(client, target, 10);
    let load = Load::new(Request::tcp(target).in_vain()).pause(PAUSE);
    Ok(Box::new((held, load.start(client)?)))
}

fn taken_port(scene: &mut Scene) -> Result<Staged> {
    const PORT: u16 = 32100;
    let squatter = Serve::new("squatter")
        .tcp(PORT)
        .start(scene.ground.lab.node(1))?;
    let pods = [scene.pod("pod-1-1")];
    scene.service("squatted", 14, TARGET, &pods, |service| {
        let service = service.load_balancer_ip("172.30.79.14").external_local();
        service.set("healthCheckNodePort", PORT)
    })?;
    Ok(Box::new(squatter))
}

fn broken_manifest(scene: &mut Scene) -> Result<Staged> {
    scene
        .ground
        .lab
        .manifests()
        .write("broken.json", b"{ not JSON")?;
    Ok(Box::new(()))
}

/// Nine of them are the node's anyway.
fn many_addresses(scene: &mut Scene) -> Result<Staged> {
    let node = scene.ground.lab.node(1).clone();
    for number in 1..=5 {
        node.run(&format!("ip address add 10.99.0.{number}/32 dev lo"))?;
    }
    Ok(undo(move || {
        let flush = "ip address flush dev lo to 10.99.0.0/24";
        node.run(flush).map(drop)
    }))
}

/// A default route makes it an external one.
fn device_without_native_xdp(scene: &mut Scene) -> Result<Staged> {
    let node = scene.ground.lab.node(1);
    node.run(&format!(
        "ip link add link {} name slow0 type macvlan",
        Node::UPLINK
    ))?;
    node.run("ip link set slow0 up")?;
    node.run("ip route add default dev slow0 metric 5000")?;
    let node = node.clone();
    Ok(undo(move || node.run("ip link delete slow0").map(drop)))
}

/// What is in the way of the directory of pins leads nowhere.
fn no_place_for_pins(scene: &mut Scene) -> Result<Staged> {
    let place = scene.ground.lab.node(1).pin_root.clone();
    // The agent makes it again at any moment.
    try_eventually(|| {
        fs::remove_dir_all(&place)?;
        symlink("/nowhere", &place)
    })?;
    Ok(undo(move || Ok(fs::remove_file(&place)?)))
}

fn meddler(scene: &mut Scene) -> Result<Staged> {
    scene.ground.agents[0].expect_differences();
    // After a fault before, the pins may not be there again yet.
    let maps = try_eventually(|| scene.ground.map_dir(1))?;
    Ok(Box::new(try_eventually(|| Meddler::start(&maps))?))
}

/// While it writes Services.
fn stuck_agent(scene: &mut Scene) -> Result<Staged> {
    let pid = scene.ground.agents[0].pid();
    let is_writing = |scene: &Scene| {
        let running = scene.ground.metric(1, "node_lb_sync_running_seconds")?;
        ensure!(running > 0.0, "nothing is written");
        anyhow::Ok(())
    };
    let mut ports = 80..;
    // It may have written all of them before it is stopped.
    try_eventually(|| {
        let port = ports.next().context("no port is left")?;
        let services = many_services(MANY, port);
        scene
            .ground
            .lab
            .manifests()
            .apply_list("many.json", &services)?;
        try_eventually(|| is_writing(scene))?;
        let frozen = Frozen::process(pid)?;
        is_writing(scene)?;
        anyhow::Ok(Box::new(frozen) as Staged)
    })
}

/// Ends a fault when it is dropped.
struct Undo<F: FnMut() -> Result<()>>(F);

fn undo(end: impl FnMut() -> Result<()> + 'static) -> Staged {
    Box::new(Undo(end))
}

impl<F: FnMut() -> Result<()>> Drop for Undo<F> {
    fn drop(&mut self) {
        // What the lab takes away with itself may be gone.
        let _ = (self.0)();
    }
}
