//! Labs for the tests, and load from everywhere, of which no request may fail.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{mem, thread};

use lb_tests::deployment::{DATAGRAMS, HTTP, LINES};
use lb_tests::traffic::{LoadReports, Loads, Protocol};
use lb_tests::{
    Agent, Balanced, Deployment, Failure, FailureKind, Family, Held, Host, LOADED, Load, Reply,
    Request, Service, Topology, patient,
};
use nix::sys::signal::Signal;

/// The only Service that most tests need.
pub const SERVICE: &str = "web";
pub const NODE_PORT: u16 = 30080;
pub const NODE_PORT_LINES: u16 = 30081;
pub const HEALTH_CHECK_NODE_PORT: u16 = 32080;

/// The external traffic policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Cluster,
    Local,
}

/// Two nodes with agents, the Service, and two pods on node 1 and one on node 2.
pub fn ground(policy: Policy) -> (Balanced, Deployment) {
    ground_with(policy, &["--xdp-mode=native"])
}

/// The same with other arguments for the agents.
pub fn ground_with(policy: Policy, arguments: &[&str]) -> (Balanced, Deployment) {
    ground_on(Topology::default(), policy, arguments)
}

/// The same on nodes of another shape.
pub fn ground_on(topology: Topology, policy: Policy, arguments: &[&str]) -> (Balanced, Deployment) {
    let ground = Balanced::with(topology, arguments).unwrap();
    ground.change(|| service(&ground, policy).apply()).unwrap();
    let mut web = Deployment::new(SERVICE);
    web.add_all(&ground, &[1, 1, 2]).unwrap();
    (ground, web)
}

/// The Service.
pub fn service(ground: &Balanced, policy: Policy) -> Service<'_> {
    let service = ground
        .lab
        .service(SERVICE)
        .cluster_ip("10.96.0.10")
        .cluster_ip("fd00:10:96::10")
        .tcp(HTTP.0, 80, HTTP.1)
        .node_port(NODE_PORT)
        .tcp(LINES.0, 81, LINES.1)
        .node_port(NODE_PORT_LINES)
        .udp(DATAGRAMS.0, 53, DATAGRAMS.1)
        .load_balancer_ip("172.30.78.10")
        .load_balancer_ip("fd00:172:30:78::10");
    match policy {
        Policy::Cluster => service,
        Policy::Local => service
            .external_local()
            .set("healthCheckNodePort", HEALTH_CHECK_NODE_PORT),
    }
}

/// The ClusterIP with the port that speaks `protocol`.
pub fn cluster_ip(family: Family, protocol: Protocol) -> SocketAddr {
    let ip = match family {
        Family::V4 => "10.96.0.10",
        Family::V6 => "fd00:10:96::10",
    };
    SocketAddr::new(ip.parse().unwrap(), port(protocol))
}

/// The load balancer IP with the port that speaks `protocol`.
pub fn load_balancer_ip(family: Family, protocol: Protocol) -> SocketAddr {
    let ip = match family {
        Family::V4 => "172.30.78.10",
        Family::V6 => "fd00:172:30:78::10",
    };
    SocketAddr::new(ip.parse().unwrap(), port(protocol))
}

fn port(protocol: Protocol) -> u16 {
    match protocol {
        Protocol::Http => 80,
        Protocol::Tcp => 81,
        Protocol::Udp | Protocol::UdpUnconnected => 53,
    }
}

/// Load from outside, from a pod and from a node, over IPv4 and IPv6.
pub struct Everywhere(Loads);

impl Everywhere {
    /// Starts load with new connections and with persistent ones.
    pub fn start(ground: &Balanced) -> Self {
        let lab = &ground.lab;
        let mut loads = Loads::beside(lab.router()).unwrap();
        let mut start = |host: &Host, load: Load| loads.start(host, load.pause(PAUSE)).unwrap();
        let fresh = |request| Load::new(request).workers(1);
        let persistent = |request| Load::new(request).workers(2).persistent();
        for family in Family::BOTH {
            let node_port = |port| lab.node(1).at(family, port);
            let (pod, node) = (lab.pod("pod-2-1"), lab.node(2));
            let vip = |protocol| load_balancer_ip(family, protocol);
            let inside = |protocol| cluster_ip(family, protocol);
            start(lab.client(), fresh(Request::http(vip(Protocol::Http))));
            start(lab.client(), fresh(Request::http(node_port(NODE_PORT))));
            start(lab.client(), fresh(Request::udp(vip(Protocol::Udp))));
            start(pod, fresh(Request::tcp(inside(Protocol::Tcp))));
            start(pod, fresh(Request::udp(inside(Protocol::Udp))));
            start(node, fresh(Request::http(inside(Protocol::Http))));
            start(node, fresh(Request::udp(inside(Protocol::Udp))));
            start(lab.client(), persistent(Request::http(vip(Protocol::Http))));
            start(
                lab.client(),
                persistent(Request::tcp(node_port(NODE_PORT_LINES))),
            );
            start(pod, persistent(Request::http(inside(Protocol::Http))));
            start(node, persistent(Request::http(inside(Protocol::Http))));
        }
        Self(loads)
    }

    /// Ends the load; no request may have failed, and no SYN may have been lost.
    #[track_caller]
    pub fn assert_no_failures(self) {
        self.finish();
    }

    /// Ends the load; no request may have failed, no SYN may have been lost, and no connection may
    /// have been cut.
    #[track_caller]
    pub fn assert_nothing_noticed(self) {
        self.finish().assert_no_reconnects();
    }

    #[track_caller]
    fn finish(self) -> LoadReports {
        thread::sleep(AFTERWARDS);
        let reports = self.0.stop().unwrap();
        reports.assert_flawless();
        reports
    }
}

/// The pause between two requests of a worker. There are thirty workers: with shorter pauses, a few
/// labs at the same time would keep two processors busy, and wait for each other.
const PAUSE: Duration = Duration::from_millis(50);
/// How long load goes on after the last change.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// Connections without traffic, which must still be alive when they are used again.
pub struct Idle(Vec<Held>);

impl Idle {
    /// From outside, from a pod and from a node, over IPv4 and IPv6.
    pub fn open(ground: &Balanced) -> Self {
        let lab = &ground.lab;
        let both = Family::BOTH.into_iter().flat_map(|family| {
            let inside = cluster_ip(family, Protocol::Tcp);
            [
                Held::open(lab.client(), lab.node(1).at(family, NODE_PORT_LINES)),
                Held::open(lab.client(), load_balancer_ip(family, Protocol::Tcp)),
                Held::open(lab.pod("pod-2-1"), inside),
                Held::open(lab.node(2), inside),
            ]
        });
        let mut idle: Vec<_> = both.map(Result::unwrap).collect();
        idle.iter_mut().for_each(|held| _ = held.ask().unwrap());
        Self(idle)
    }

    #[track_caller]
    pub fn assert_alive(self) {
        for mut connection in self.0 {
            connection.ask().unwrap();
        }
    }
}

/// Starts agents of another build beside those that run, then ends the old ones.
///
/// The agents before have the thirty seconds of their pods: they answer until the next ones serve.
/// They are told to end at the same time, because an older version waits for its place only some
/// seconds.
pub fn take_over(ground: &mut Balanced, build: &Path) {
    let first = mem::take(&mut ground.agents);
    ground.launch_agents_of(build).unwrap();
    for agent in &first {
        agent.signal(Signal::SIGTERM).unwrap();
    }
    for agent in first {
        agent.stop(Duration::from_secs(30)).unwrap();
    }
    ground.wait_until_ready().unwrap();
}

/// Waits until the log of one of the agents is such.
#[track_caller]
pub fn wait_for_log(agents: &[Agent], is_such: impl Fn(&str) -> bool) {
    let says_so = |agent: &Agent| is_such(&agent.log().unwrap());
    wait_for_programs("such a log", || agents.iter().any(says_so));
}

/// Waits for what comes when an agent has loaded programs, which takes long on a busy machine.
#[track_caller]
pub fn wait_for_programs(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patient(LOADED), "no sign of {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that a request was refused, as opposed to unanswered.
#[track_caller]
pub fn assert_refused(result: &Result<Reply, Failure>) {
    assert!(
        matches!(result, Err(failure) if failure.kind == FailureKind::Refused),
        "{result:?}"
    );
}
