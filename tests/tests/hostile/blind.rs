//! Segments from an attacker who knows a connection's addresses and ports, but not its sequence
//! numbers.

use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use lb_packet::{Packet, tcp_flag};
use lb_tests::{Family, Held, Host, attack::Wire, traffic::Numbers};
use node_lb::flows::FlowReport;

use super::support::{Findings, Ground, SMALL_TABLE, Source, cluster_ip, within};

const SERVICE: u8 = 10;
/// Longer than a closed flow is kept, and longer than a port is held under pressure.
const IDLE: Duration = Duration::from_secs(10);
/// How soon a flow is gone after its connection has ended.
const SECONDS: Duration = Duration::from_secs(12);
const ESTABLISHED: &str = "established";
/// How many random numbers of each kind are tried.
const TRIES: usize = 25;

/// The attempts, in this order: the name, and the flags of the segments.
const ATTEMPTS: [(&str, &[u8]); 7] = [
    ("data", &[tcp_flag::PSH | tcp_flag::ACK]),
    ("SYN", &[tcp_flag::SYN]),
    ("SYN and ACK", &[tcp_flag::SYN | tcp_flag::ACK]),
    ("FIN", &[tcp_flag::FIN | tcp_flag::ACK]),
    (
        "FIN, then SYN",
        &[tcp_flag::FIN | tcp_flag::ACK, tcp_flag::SYN],
    ),
    ("RST", &[tcp_flag::RST]),
    ("RST and ACK", &[tcp_flag::RST | tcp_flag::ACK]),
];

#[test]
fn blind_segments_change_nothing() -> Result<()> {
    blind_segments(Family::V4, |_| Ok(()))
}

#[test]
fn blind_segments_change_nothing_over_ipv6() -> Result<()> {
    blind_segments(Family::V6, |_| Ok(()))
}

#[test]
fn blind_segments_change_nothing_after_a_restart_of_the_agent() -> Result<()> {
    blind_segments(Family::V4, |ground| {
        ground.balanced.kill_agents()?;
        ground.balanced.start_agents()
    })
}

/// Opens connections, lets `between` happen, and attacks each connection in one way.
fn blind_segments(family: Family, between: impl FnOnce(&mut Ground) -> Result<()>) -> Result<()> {
    let mut ground = Ground::new(&SMALL_TABLE)?;
    ground.service(SERVICE, Source::Translated, &[ground.pod("pod-2-1")])?;
    let wires = Wires::open(&ground, family)?;
    let mut victims = Vec::new();
    for attempt in ATTEMPTS {
        for side in [Side::Client, Side::Endpoint] {
            for busy in [false, true] {
                let outside = Victim::outside(&ground, &wires, family)?;
                let inside = Victim::inside(&ground, &wires, family)?;
                victims.extend([outside, inside].map(|victim| (attempt, side, busy, victim)));
            }
        }
    }
    between(&mut ground)?;

    let mut outcomes = Vec::new();
    for ((attempt, flags), side, busy, victim) in &mut victims {
        let mut failed = None;
        for _ in 0..TRIES {
            victim.strike(*side, flags)?;
            if *busy {
                failed = failed.or(victim.connection.ask().err());
            }
        }
        let load = if *busy { "busy" } else { "idle" };
        let what = format!("{attempt} as if from the {side:?}, {load}, {}", victim.way);
        outcomes.push((what, victim.stage(&ground)?, failed));
    }
    thread::sleep(IDLE);
    let mut findings = Findings::default();
    for ((what, at_once, failed), (.., victim)) in outcomes.into_iter().zip(&mut victims) {
        let later = victim.stage(&ground)?;
        let failed = failed.or(match victim.connection.ask() {
            Ok(answer) if answer.peer == victim.peer => None,
            Ok(answer) => Some(anyhow!("{} has become {}", victim.peer, answer.peer)),
            Err(error) => Some(error),
        });
        let good = at_once == ESTABLISHED && later == ESTABLISHED && failed.is_none();
        let works = failed.map_or("works".to_owned(), |error| format!("{error:#}"));
        let what = format!("{what}: {at_once}, after {IDLE:?} of silence {later}; {works}");
        findings.note(good, what);
    }
    findings.assert_good();
    Ok(())
}

/// The end of a connection that a forged segment claims to come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Endpoint,
}

/// Interfaces from which forged segments are sent.
struct Wires {
    /// The node network.
    outside: Rc<Wire>,
    /// A pod beside the client, on its node.
    inside: Rc<Wire>,
}

impl Wires {
    fn open(ground: &Ground, family: Family) -> Result<Self> {
        let node = ground.balanced.lab.node(1).ip(family);
        let service = cluster_ip(family, SERVICE).ip();
        let from = |host: &Host, to| host.netns().run(|| Wire::towards(to))?.map(Rc::new);
        Ok(Self {
            outside: from(&ground.attacker, node)?,
            inside: from(ground.pod("pod-1-2"), service)?,
        })
    }
}

/// A connection under attack.
struct Victim {
    way: &'static str,
    connection: Held,
    flow: FlowReport,
    /// The client's address as the endpoint sees it.
    peer: SocketAddr,
    /// Where segments are sent from that claim to be the client's, and those that claim to be the
    /// endpoint's.
    wires: [Rc<Wire>; 2],
}

impl Victim {
    /// From outside to the node port, with source NAT.
    fn outside(ground: &Ground, wires: &Wires, family: Family) -> Result<Self> {
        let connection = Held::open(ground.client(), ground.outside(family, SERVICE))?;
        let wires = [&wires.outside, &wires.outside].map(Rc::clone);
        Self::new(ground, "node port", connection, wires)
    }

    /// From a pod to the ClusterIP. Its neighbour on the node sends in its name.
    fn inside(ground: &Ground, wires: &Wires, family: Family) -> Result<Self> {
        let connection = Held::open(ground.pod("pod-1-1"), cluster_ip(family, SERVICE))?;
        let wires = [&wires.inside, &wires.outside].map(Rc::clone);
        Self::new(ground, "ClusterIP", connection, wires)
    }

    fn new(
        ground: &Ground,
        way: &'static str,
        mut connection: Held,
        wires: [Rc<Wire>; 2],
    ) -> Result<Self> {
        let peer = connection.ask()?.peer;
        let flow = ground
            .balanced
            .flow_of(1, connection.local(), connection.peer()?)?;
        Ok(Self {
            way,
            flow: flow.context("an open connection has no flow")?,
            connection,
            peer,
            wires,
        })
    }

    /// Sends segments with wrong numbers, far from the connection's present ones.
    fn strike(&self, side: Side, flags: &[u8]) -> Result<()> {
        const FAR: u32 = 1 << 26;
        let wrong = |number: u32| number.wrapping_add(fastrand::u32(FAR..u32::MAX - FAR));
        let Numbers {
            to_send,
            to_receive,
        } = self.connection.numbers()?;
        for flags in flags {
            let (sequence, acknowledgement) = match side {
                Side::Client => (wrong(to_send), wrong(to_receive)),
                Side::Endpoint => (wrong(to_receive), wrong(to_send)),
            };
            self.send(side, *flags, sequence, acknowledgement)?;
        }
        Ok(())
    }

    /// Sends a segment in the name of one side.
    fn send(&self, side: Side, flags: u8, sequence: u32, acknowledgement: u32) -> Result<()> {
        let flow = &self.flow;
        let hidden_behind = flow.source_nat.unwrap_or(flow.client);
        let (wire, from, to) = match side {
            Side::Client => (&self.wires[0], flow.client, flow.frontend),
            Side::Endpoint => (&self.wires[1], flow.endpoint, hidden_behind),
        };
        let payload = if flags & tcp_flag::PSH != 0 {
            &b"forged\n"[..]
        } else {
            b""
        };
        let packet = Packet::tcp((from.ip(), from.port()), (to.ip(), to.port()), flags);
        let mut segment = wire.forge(packet.payload(payload));
        // A SYN that opens a connection acknowledges nothing.
        let acknowledges = flags & tcp_flag::ACK != 0;
        segment.set_numbers(sequence, if acknowledges { acknowledgement } else { 0 });
        wire.send(&segment)
    }

    /// The stage of the flow, if it is still the original flow.
    fn stage(&self, ground: &Ground) -> Result<String> {
        let before = &self.flow;
        let flow = ground.balanced.flow_of(1, before.client, before.frontend)?;
        Ok(match flow {
            None => "no flow".to_owned(),
            Some(flow)
                if (flow.endpoint, flow.source_nat) != (before.endpoint, before.source_nat) =>
            {
                format!("another flow, {flow:?}")
            }
            Some(flow) => flow.stage.to_owned(),
        })
    }
}

#[test]
fn a_right_reset_ends_a_flow() -> Result<()> {
    ends_within_seconds(|victim| {
        let Numbers { to_send, .. } = victim.connection.numbers()?;
        victim.send(Side::Client, tcp_flag::RST, to_send, 0)
    })
}

#[test]
fn the_right_reset_of_an_endpoint_ends_a_flow() -> Result<()> {
    ends_within_seconds(|victim| {
        let Numbers { to_receive, .. } = victim.connection.numbers()?;
        victim.send(Side::Endpoint, tcp_flag::RST, to_receive, 0)
    })
}

/// The client closes first, so no endpoint remembers anything.
#[test]
fn both_fins_end_a_flow() -> Result<()> {
    let ground = Ground::new(&SMALL_TABLE)?;
    ground.service(SERVICE, Source::Translated, &[ground.pod("pod-2-1")])?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let ways = [
            (ground.client(), ground.outside(family, SERVICE)),
            (ground.pod("pod-1-1"), cluster_ip(family, SERVICE)),
        ];
        for (from, to) in ways {
            let mut connection = Held::open(from, to)?;
            connection.ask()?;
            let client = connection.local();
            drop(connection);
            let gone = gone(&ground, client, to);
            findings.note(
                gone.is_ok(),
                format!("{to}, closed by the client: {gone:?}"),
            );
        }
    }
    findings.assert_good();
    Ok(())
}

fn ends_within_seconds(end: impl Fn(&Victim) -> Result<()>) -> Result<()> {
    let ground = Ground::new(&SMALL_TABLE)?;
    ground.service(SERVICE, Source::Translated, &[ground.pod("pod-2-1")])?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let wires = Wires::open(&ground, family)?;
        for victim in [
            Victim::outside(&ground, &wires, family)?,
            Victim::inside(&ground, &wires, family)?,
        ] {
            end(&victim)?;
            let gone = gone(&ground, victim.flow.client, victim.flow.frontend);
            let what = format!("{family:?}, {}: {gone:?}", victim.way);
            findings.note(gone.is_ok(), what);
            victim.connection.vanish()?;
        }
    }
    findings.assert_good();
    Ok(())
}

/// How long a flow remained, or its state after [`SECONDS`].
fn gone(ground: &Ground, client: SocketAddr, frontend: SocketAddr) -> Result<Duration, String> {
    within(SECONDS, || {
        match ground.balanced.flow_of(1, client, frontend) {
            Ok(None) => Ok(()),
            Ok(Some(flow)) => Err(format!("after {SECONDS:?} still {flow:?}")),
            Err(error) => Err(format!("{error:#}")),
        }
    })
}
