//! Floods from spoofed sources to one or several Services, as fast as one CPU sends.
//!
//! Most of them arrive at TC, in a lab without XDP: there the CPU that sends a frame does all the
//! work for it. Devices with XDP have short rings, which another CPU may be emptying. If that CPU
//! is busy, frames of good clients are lost too, so the flood that arrives at XDP is slower.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use lb_tests::attack::{Flood, FloodKind};
use lb_tests::traffic::{Protocol, RunningLoad};
use lb_tests::{Family, Held, Host, Load, LoadReport, Request, Topology};

use super::support::{
    Findings, Ground, Source, TARGET, UNLUCKY, attack_time, cluster_ip, filter_input, within,
};

/// How long a flood lasts in CI: enough for the default source-NAT ports several times over.
const TIME: Duration = Duration::from_secs(5);
/// How many half-open flows a Service may have before the oldest gives way.
const HALF_OPEN: u64 = 16_384;
/// How soon the agent names the Services that a flood brings to a limit. It checks every five
/// seconds.
const NAMED_WITHIN: Duration = Duration::from_secs(15);
/// The part of an attacked Service's own new connections that must open at their first packet.
const OWN_CLIENTS: f64 = 0.99;
/// With fewer frames per second it is not a flood.
const SLOWEST: f64 = 5_000.0;
/// Connections of each kind that are open beforehand.
const HELD: usize = 10;

/// The most flows that good clients open during a scene.
const OWN_FLOWS: u64 = 3_000;

/// The Services: two with endpoints on the other node, one with an endpoint on the attacked node
/// that sees its clients' addresses, and one with an endpoint there that is not attacked.
const FIRST: u8 = 10;
const SECOND: u8 = 11;
const LOCAL: u8 = 12;
const NEIGHBOUR: u8 = 13;
const SERVICES: [u8; 4] = [FIRST, SECOND, LOCAL, NEIGHBOUR];
/// One more Service with the first one's endpoint.
const SHARING: u8 = 14;

const WITHOUT_XDP: Topology = Topology {
    far_ends_take_xdp: false,
    ..Topology::DEFAULT
};

#[test]
fn syns_to_one_service_with_source_nat() -> Result<()> {
    Scene::new(FloodKind::Syn, &[FIRST]).play()
}

#[test]
fn syns_to_one_service_by_xdp() -> Result<()> {
    Scene::new(FloodKind::Syn, &[FIRST]).xdp(20_000).play()
}

#[test]
fn syns_to_one_service_that_keeps_the_source() -> Result<()> {
    Scene::new(FloodKind::Syn, &[LOCAL]).play()
}

#[test]
fn syns_to_several_services() -> Result<()> {
    Scene::new(FloodKind::Syn, &[FIRST, SECOND, LOCAL]).play()
}

/// Together, their budgets of half-open flows exceed the node's ports towards the endpoint.
#[test]
fn syns_to_two_services_with_one_endpoint() -> Result<()> {
    Scene::new(FloodKind::Syn, &[FIRST, SHARING]).play()
}

#[test]
fn datagrams_to_two_services_with_one_endpoint() -> Result<()> {
    Scene::new(FloodKind::Udp, &[FIRST, SHARING]).play()
}

#[test]
fn syns_over_ipv6() -> Result<()> {
    Scene::new(FloodKind::Syn, &[FIRST]).ipv6().play()
}

#[test]
fn acks_of_no_connection() -> Result<()> {
    Scene::new(FloodKind::Ack, &[FIRST]).play()
}

#[test]
fn datagrams_with_source_nat() -> Result<()> {
    Scene::new(FloodKind::Udp, &[FIRST]).play()
}

#[test]
fn datagrams_over_ipv6() -> Result<()> {
    Scene::new(FloodKind::Udp, &[FIRST]).ipv6().play()
}

/// Without node-lb: a flood straight to a pod harms no client, so the lab and the endpoint's kernel
/// can bear it.
#[test]
fn the_lab_bears_floods() -> Result<()> {
    let mut findings = Findings::default();
    let kinds = [
        (FloodKind::Syn, Protocol::Tcp),
        (FloodKind::Ack, Protocol::Tcp),
        (FloodKind::Udp, Protocol::Udp),
    ];
    let ground = Scene::new(FloodKind::Syn, &[FIRST]).ground()?;
    for (kind, protocol) in kinds {
        let target = ground.pod("pod-2-1").at(Family::V4, TARGET);
        let (_, load) = fresh(Request::new(protocol, target), ground.client(), FIRST)?;
        let report =
            Flood::new(kind, [target]).run_for(Duration::from_secs(2), &ground.attacker)?;
        let load = load.stop()?;
        findings.note(
            load.failed == 0 && load.ok > 0,
            format!("{report}; clients: {load}"),
        );
    }
    findings.assert_good();
    Ok(())
}

/// A flood, and its target.
struct Scene {
    kind: FloodKind,
    family: Family,
    attacked: &'static [u8],
    /// Frames per second that arrive at XDP. Without it they arrive at TC, as fast as one CPU
    /// sends.
    xdp: Option<u32>,
}

impl Scene {
    fn new(kind: FloodKind, attacked: &'static [u8]) -> Self {
        Self {
            kind,
            family: Family::V4,
            attacked,
            xdp: None,
        }
    }

    fn ipv6(self) -> Self {
        Self {
            family: Family::V6,
            ..self
        }
    }

    fn xdp(self, rate: u32) -> Self {
        Self {
            xdp: Some(rate),
            ..self
        }
    }

    fn flood(&self, ground: &Ground) -> Flood {
        let targets = self
            .attacked
            .iter()
            .map(|number| ground.outside(self.family, *number));
        let flood = Flood::new(self.kind, targets);
        match self.xdp {
            Some(rate) => flood.rate(rate),
            None => flood,
        }
    }

    /// The lab, in which no endpoint reads the flood's datagrams: they are shorter than clients'.
    fn ground(&self) -> Result<Ground> {
        let ground = match self.xdp {
            Some(_) => Ground::new(&[])?,
            None => Ground::with(WITHOUT_XDP, &["--xdp-mode=off"])?,
        };
        for pod in ground.balanced.lab.pods() {
            filter_input(pod, "udp length 16 drop")?;
        }
        ground.service(FIRST, Source::Translated, &[ground.pod("pod-2-1")])?;
        ground.service(SECOND, Source::Translated, &[ground.pod("pod-2-2")])?;
        ground.service(LOCAL, Source::Kept, &[ground.pod("pod-1-1")])?;
        ground.service(NEIGHBOUR, Source::Kept, &[ground.pod("pod-1-2")])?;
        ground.service(SHARING, Source::Translated, &[ground.pod("pod-2-1")])?;
        Ok(ground)
    }

    /// Services that so many frames bring to the limit of half-open flows. ACKs open flows only
    /// while there is room.
    fn at_limit(&self, frames: u64) -> BTreeSet<String> {
        let of_each = frames / self.attacked.len() as u64;
        let attacked = match self.kind {
            FloodKind::Syn | FloodKind::Udp if of_each > 2 * HALF_OPEN => self.attacked,
            _ => &[],
        };
        let names = attacked.iter().map(|number| format!("service-{number}"));
        names.collect()
    }

    /// Whether the agent's status and log say that these Services are at a limit, and name none
    /// that is not attacked.
    fn names(&self, at_limit: &BTreeSet<String>, ground: &Ground) -> Result<(), String> {
        let status = ground.balanced.status(1);
        let status = status.map_err(|error| format!("{error:#}"))?;
        let agent = &ground.balanced.agents[0];
        let log = agent.log().map_err(|error| format!("{error:#}"))?;
        let is_said = |name: &str| {
            let port = format!("/{name}:");
            let mut lines = log.lines().filter(|line| line.contains(&port));
            let mut ports = status.at_limit.iter();
            lines.any(|line| line.contains("is at its limit: no more half-open flows"))
                && ports.any(|found| found.service_port.contains(&port))
        };
        let unsaid: Vec<_> = at_limit.iter().filter(|name| !is_said(name)).collect();
        let is_attacked = |port: &str| {
            let mut attacked = self.attacked.iter();
            attacked.any(|number| port.contains(&format!("/service-{number}:")))
        };
        let mut ports = status.at_limit.iter();
        let wrong = ports.find(|port| !is_attacked(&port.service_port));
        match (unsaid.as_slice(), wrong) {
            ([], None) => Ok(()),
            _ => Err(format!("not said: {unsaid:?}; wrong: {wrong:?}")),
        }
    }

    /// Watches good clients before, during and after the flood.
    fn play(self) -> Result<()> {
        let ground = self.ground()?;
        let time = attack_time(TIME);
        let mut findings = Findings::default();

        let open = Opened::start(&ground, self.family)?;
        let before = Fresh::start(&ground, &self)?;
        thread::sleep(time);
        before.judge("before", 1.0, 1.0, &mut findings)?;
        let without = open.stop()?;

        let open = Opened::start(&ground, self.family)?;
        let fresh = Fresh::start(&ground, &self)?;
        let (flows_before, lost_before) = (flows(&ground)?, ground.lost_frames()?);
        let report = self.flood(&ground).run_for(time, &ground.attacker)?;
        findings.note(report.rate() > SLOWEST, format!("flood: {report}"));
        let flows_meanwhile = flows(&ground)?;
        let lost = ground.lost_frames()? - lost_before;
        let neighbours = match lost {
            0 => 1.0,
            _ => UNLUCKY,
        };
        fresh.judge("meanwhile", OWN_CLIENTS, neighbours, &mut findings)?;
        let with = open.stop()?;
        for ((number, without), (_, with)) in without.iter().zip(&with) {
            let few = with.retransmissions <= without.retransmissions || lost != 0;
            findings.note(
                few && with.failed == 0 && with.reconnects == 0,
                format!(
                    "open connections of service-{number}: without a flood {} retransmissions, \
                     with it {with}",
                    without.retransmissions
                ),
            );
        }

        let after = Fresh::start(&ground, &self)?;
        thread::sleep(Duration::from_secs(2));
        after.judge("afterwards", 1.0, 1.0, &mut findings)?;
        findings.note(
            true,
            format!(
                "{flows_before} flows before the flood, {flows_meanwhile} at its end; the lab \
                 itself lost {lost} frames"
            ),
        );
        let at_limit = self.at_limit(report.sent);
        let named = within(NAMED_WITHIN, || self.names(&at_limit, &ground));
        findings.note(
            named.is_ok(),
            format!("status and log name {at_limit:?}, and nobody who is not attacked: {named:?}"),
        );
        if self.kind == FloodKind::Ack {
            let gone = within(Duration::from_secs(15), || {
                let found = flows(&ground).map_err(|error| format!("{error:#}"))?;
                let most = flows_before + OWN_FLOWS;
                let problem = || format!("still {found} flows, not {most}");
                (found <= most).then_some(()).ok_or_else(problem)
            });
            findings.note(
                gone.is_ok(),
                format!("what the flood opened is gone: {gone:?}"),
            );
        }
        findings.assert_good();
        Ok(())
    }
}

/// Number of flows in both tables of node 1, as the sweeper last saw them.
fn flows(ground: &Ground) -> Result<u64> {
    let flows = ground.balanced.status(1)?.flows.into_iter().flatten();
    Ok(flows.map(|table| table.flows).sum())
}

/// Load of new connections, or datagrams from new ports: to attacked Services, and to their
/// neighbours.
struct Fresh {
    own: Vec<(String, RunningLoad)>,
    neighbours: Vec<(String, RunningLoad)>,
}

impl Fresh {
    fn start(ground: &Ground, scene: &Scene) -> Result<Self> {
        let protocol = match scene.kind {
            FloodKind::Udp => Protocol::Udp,
            FloodKind::Syn | FloodKind::Ack => Protocol::Tcp,
        };
        let outside = |number: &u8| {
            let request = Request::new(protocol, ground.outside(scene.family, *number));
            fresh(request, ground.client(), *number)
        };
        // A client in a pod uses neither node ports nor source NAT.
        let inside = |number: &u8| {
            let request = Request::new(protocol, cluster_ip(scene.family, *number));
            fresh(request, ground.pod("pod-1-2"), *number)
        };
        let is_neighbour = |number: &&u8| !scene.attacked.contains(number);
        let neighbours = || SERVICES.iter().filter(is_neighbour);
        let others = neighbours().map(outside).chain(neighbours().map(inside));
        Ok(Self {
            own: scene.attacked.iter().map(outside).collect::<Result<_>>()?,
            neighbours: others.collect::<Result<_>>()?,
        })
    }

    /// Ends the load. These shares of the attacked Services' clients, and of the others, must have
    /// been served at their first packet.
    fn judge(self, when: &str, own: f64, neighbours: f64, findings: &mut Findings) -> Result<()> {
        let own = self.own.into_iter().map(|load| (load, own, "own"));
        let others = self.neighbours.into_iter();
        let neighbours = others.map(|load| (load, neighbours, "neighbour's"));
        for ((name, load), least, whose) in own.chain(neighbours) {
            let report = load.stop()?;
            let total = report.ok + report.failed;
            let served = report.ok as f64 / total.max(1) as f64;
            findings.note(
                total > 0 && served >= least,
                format!(
                    "{when}, {whose} clients, {name}: {:.2} % of {total}: {report}",
                    served * 100.0
                ),
            );
        }
        Ok(())
    }
}

/// A few new clients per second. Each counts only if it is served before it asks again.
fn fresh(request: Request, host: &Host, number: u8) -> Result<(String, RunningLoad)> {
    let load = Load::new(request.deadline(Held::PATIENCE)).workers(2);
    let load = load.pause(Duration::from_millis(20));
    Ok((format!("{host} to service-{number}"), load.start(host)?))
}

/// Busy connections to each Service that are open all the time.
struct Opened(Vec<(u8, RunningLoad)>);

impl Opened {
    fn start(ground: &Ground, family: Family) -> Result<Self> {
        let start = |number: &u8| -> Result<_> {
            let request = Request::tcp(ground.outside(family, *number));
            let load = Load::new(request).workers(HELD).persistent();
            let load = load.pause(Duration::from_millis(50));
            Ok((*number, load.start(ground.client())?))
        };
        let opened = SERVICES.iter().map(start).collect::<Result<_>>()?;
        // `start` waits for the first of them.
        thread::sleep(Duration::from_millis(300));
        Ok(Self(opened))
    }

    fn stop(self) -> Result<Vec<(u8, LoadReport)>> {
        let stop = |(number, load): (u8, RunningLoad)| Ok((number, load.stop()?));
        self.0.into_iter().map(stop).collect()
    }
}
