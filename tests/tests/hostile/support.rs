//! The lab for attacks, and measures of whether good clients are affected.

use std::env;
use std::fmt::Display;
use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use lb_tests::traffic::RunningServer;
use lb_tests::{Balanced, Endpoint, Family, Held, Host, Pod, Serve, Service, Topology};
use serde_json::Value;

/// The port at which pods serve lines over TCP, and datagrams.
pub const TARGET: u16 = 9090;
/// The port of Services' ClusterIPs.
pub const PORT: u16 = 80;

/// A small flow table, so that reading it takes no time.
pub const SMALL_TABLE: [&str; 1] = ["--flow-table-size=4096"];

/// A node with two pods.
pub const ONE_NODE: Topology = Topology {
    nodes: 1,
    pods_per_node: 2,
    ..Topology::DEFAULT
};

/// How long a flood or churn lasts, unless `LAB_ATTACK_SECONDS` says otherwise.
pub fn attack_time(default: Duration) -> Duration {
    let seconds = env::var("LAB_ATTACK_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("LAB_ATTACK_SECONDS is a number"));
    seconds.map_or(default, Duration::from_secs)
}

/// Services that are identified by number, and pods that serve them.
pub struct Ground {
    // Dropped first.
    servers: Vec<RunningServer>,
    pub balanced: Balanced,
    /// A host on the node network that does not belong to the cluster.
    pub attacker: Host,
}

/// The agent looks at all flows every second or two, and corrects what it has seen twice.
pub const SOON: Duration = Duration::from_secs(30);
/// Spoofed SYNs in a second.
pub const FLOOD: u32 = 20_000;

/// The part of good clients' connections that must open at their first packet even if the lab or the
/// machine has lost frames, theirs among them.
pub const UNLUCKY: f64 = 0.95;

/// Of so many connections of good clients, those that may need a second SYN if the lab itself has lost
/// so many frames: none if it has lost none.
pub fn unlucky(connections: u64, lost: u64) -> usize {
    let few = (connections as f64 * (1.0 - UNLUCKY)) as usize;
    few.min(lost as usize)
}

/// Whether a Service keeps its clients' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// No: any endpoint may serve clients outside, which have the node's address then.
    Translated,
    /// `externalTrafficPolicy: Local`.
    Kept,
}

impl Ground {
    /// Two nodes with two pods each, which all serve, and an attacker.
    pub fn new(arguments: &[&str]) -> Result<Self> {
        Self::with(Topology::DEFAULT, arguments)
    }

    /// The same with nodes of another shape.
    pub fn with(topology: Topology, arguments: &[&str]) -> Result<Self> {
        let mode = match arguments
            .iter()
            .any(|argument| argument.starts_with("--xdp-mode"))
        {
            true => &[][..],
            false => &["--xdp-mode=native"],
        };
        let balanced = Balanced::with(topology, &[mode, arguments].concat())?;
        let attacker = balanced.lab.add_host("attacker", 2)?;
        let mut ground = Self {
            servers: Vec::new(),
            balanced,
            attacker,
        };
        for pod in ground.balanced.lab.pods().to_vec() {
            ground.serve(&pod)?;
        }
        Ok(ground)
    }

    /// The pod the lab started with.
    pub fn pod(&self, name: &str) -> &Pod {
        self.balanced.lab.pod(name)
    }

    /// The host outside the cluster.
    pub fn client(&self) -> &Host {
        self.balanced.lab.client()
    }

    /// Lets a pod serve until the end. Its kernel answers SYNs with cookies once its backlog is
    /// full, so that a flood does not overwhelm it.
    pub fn serve(&mut self, pod: &Pod) -> Result<()> {
        let server = serve(pod)?;
        self.servers.push(server);
        Ok(())
    }

    /// Adds Service number `number`, over TCP and UDP, and waits until agents have it.
    pub fn service(&self, number: u8, source: Source, pods: &[&Pod]) -> Result<()> {
        self.service_that(number, source, pods, |service| service)
    }

    /// The same for a Service with other properties.
    pub fn service_that<'a>(
        &'a self,
        number: u8,
        source: Source,
        pods: &[&Pod],
        says: impl FnOnce(Service<'a>) -> Service<'a>,
    ) -> Result<()> {
        let endpoints = pods.iter().map(|pod| Endpoint::ready(pod)).collect();
        self.balanced.change(|| {
            let lab = &self.balanced.lab;
            let mut service = lab.service(&name(number));
            for family in Family::BOTH {
                service = service.cluster_ip(&cluster_ip(family, number).ip().to_string());
            }
            service = service
                .tcp("lines", PORT, TARGET)
                .node_port(node_port(number));
            service = service
                .udp("datagrams", PORT, TARGET)
                .node_port(node_port(number));
            if source == Source::Kept {
                service = service.external_local();
            }
            says(service).apply()?;
            self.write_endpoints(number, endpoints)
        })
    }

    /// Replaces the endpoints of Service number `number`, and waits until agents have them.
    pub fn endpoints(&self, number: u8, endpoints: Vec<Endpoint>) -> Result<()> {
        self.balanced
            .change(|| self.write_endpoints(number, endpoints))
    }

    fn write_endpoints(&self, number: u8, endpoints: Vec<Endpoint>) -> Result<()> {
        let slices = self.balanced.lab.endpoints(&name(number));
        let slices = slices.tcp("lines", TARGET).udp("datagrams", TARGET);
        slices.with_all(endpoints).apply()
    }

    /// As many connections of the attacker as are let in, of so many that are tried; and the number of
    /// those that were refused by a reset, and not by silence.
    pub fn open(&self, target: SocketAddr, tries: usize) -> (Vec<Held>, usize) {
        let mut refused = 0;
        let mut held = Vec::new();
        for _ in 0..tries {
            match Held::open(&self.attacker, target) {
                Ok(connection) => held.push(connection),
                Err(error) => match format!("{error:#}") {
                    text if text.contains("refused") => refused += 1,
                    text => println!("connection {}: {text}", held.len() + refused),
                },
            }
            await_server(&mut held);
        }
        (held, refused)
    }

    /// Waits until node 1's agent has noticed that a limit is full of handshakes which nobody completes,
    /// so that they hold no places. Returns how long that took.
    pub fn relieved(&self) -> Result<Duration, String> {
        within(SOON, || match self.balanced.status(1) {
            Ok(status) if status.connection_limits.iter().any(|limit| limit.pressed) => Ok(()),
            other => Err(format!(
                "{:?}",
                other.map(|status| status.connection_limits)
            )),
        })
    }

    /// Frames that devices of the lab, and processors before devices' hooks, have dropped for lack of
    /// room. Those of good clients may be among them.
    pub fn lost_frames(&self) -> Result<u64> {
        let lab = &self.balanced.lab;
        let nodes = lab.nodes().iter().map(AsRef::as_ref);
        let pods = lab.pods().iter().map(AsRef::as_ref);
        let hosts = [lab.client(), lab.router(), &self.attacker];
        let mut lost = 0;
        for host in hosts.into_iter().chain(nodes).chain(pods) {
            let links: Vec<Value> = serde_json::from_str(&host.run("ip -statistics -json link")?)?;
            let dropped = |link: &Value, way| link["stats64"][way]["dropped"].as_u64().unwrap_or(0);
            let of_link = |link| dropped(link, "rx") + dropped(link, "tx");
            lost += links.iter().map(of_link).sum::<u64>();
        }
        let of_processors = fs::read_to_string("/proc/net/softnet_stat")?;
        for of_processor in of_processors.lines() {
            let dropped = of_processor.split_whitespace().nth(1).unwrap_or("0");
            lost += u64::from_str_radix(dropped, 16)?;
        }
        Ok(lost)
    }

    /// Node 1's address with the node port of Service number `number`.
    pub fn outside(&self, family: Family, number: u8) -> SocketAddr {
        self.balanced.lab.node(1).at(family, node_port(number))
    }
}

/// Waits, after every few connections, until their server has accepted them. It may have to wait for a
/// processor itself, and then the SYNs beyond its backlog (128 in Rust's library) are lost in its kernel.
fn await_server(held: &mut [Held]) {
    const FEW: usize = 32;
    let is_one_of_few = held.len().is_multiple_of(FEW);
    if let Some(latest) = held.last_mut().filter(|_| is_one_of_few)
        && let Err(error) = latest.ask()
    {
        println!("no answer: {error:#}");
    }
}

/// Starts a server in a pod.
pub fn serve(pod: &Pod) -> Result<RunningServer> {
    pod.set_sysctl("net/ipv4/tcp_syncookies", "1")?;
    pod.set_sysctl("net/ipv4/tcp_max_syn_backlog", "65536")?;
    pod.set_sysctl("net/core/somaxconn", "65535")?;
    Serve::new(pod.name()).tcp(TARGET).udp(TARGET).start(pod)
}

/// Applies a rule to what arrives for a host, until the table `inet input` is deleted.
pub fn filter_input(host: &Host, rule: &str) -> Result<()> {
    let rules = format!(
        "table inet input {{
            chain input {{
                type filter hook input priority filter
                {rule}
            }}
        }}"
    );
    host.feed("nft -f -", &rules).map(drop)
}

/// The ClusterIP of Service number `number`, with its port.
pub fn cluster_ip(family: Family, number: u8) -> SocketAddr {
    let text = match family {
        Family::V4 => format!("10.96.0.{number}:{PORT}"),
        Family::V6 => format!("[fd00:10:96::{number}]:{PORT}"),
    };
    text.parse().expect("an address")
}

fn node_port(number: u8) -> u16 {
    30_000 + u16::from(number)
}

fn name(number: u8) -> String {
    format!("service-{number}")
}

/// What was measured, and whether it is good enough.
#[derive(Debug, Default)]
pub struct Findings {
    lines: Vec<String>,
    bad: usize,
}

impl Findings {
    /// Records a measure, and whether it is good enough.
    pub fn note(&mut self, good: bool, what: impl Display) {
        let mark = if good { "  " } else { "! " };
        self.bad += usize::from(!good);
        println!("{mark}{what}");
        self.lines.push(format!("{mark}{what}"));
    }

    /// Panics with all measures unless all were good enough.
    #[track_caller]
    pub fn assert_good(self) {
        let lines = self.lines.join("\n");
        assert!(self.bad == 0, "{} measures are bad:\n{lines}", self.bad);
    }
}

/// Repeats a question until the answer is as wanted, for at most `limit`. Returns how long that
/// took, or the last answer.
pub fn within(
    limit: Duration,
    mut probe: impl FnMut() -> Result<(), String>,
) -> Result<Duration, String> {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(()) => return Ok(start.elapsed()),
            Err(problem) if start.elapsed() > limit => return Err(problem),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
