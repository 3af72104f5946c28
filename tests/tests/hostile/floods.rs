//! Floods from spoofed sources, as fast as one CPU sends, to one Service or to several.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use lb_tests::attack::{Flood, FloodKind};
use lb_tests::traffic::{Protocol, RunningLoad};
use lb_tests::{Family, Held, Host, Load, LoadReport, Request};

use super::support::{Findings, Ground, Source, attack_time, cluster_ip, within};

/// How long a flood lasts in CI: enough for the default source-NAT ports several times over.
const TIME: Duration = Duration::from_secs(5);
/// Share of an attacked Service's own new connections that open at their first packet.
const OWN_CLIENTS: f64 = 0.99;
/// Fewer frames per second are no flood.
const SLOWEST: f64 = 5_000.0;
/// Connections of each kind that are open already.
const HELD: usize = 10;

/// The Services: two with endpoints on the other node, one whose endpoint is on the node that is attacked
/// and sees its clients, one whose endpoint is there and which nobody attacks.
const FIRST: u8 = 10;
const SECOND: u8 = 11;
const LOCAL: u8 = 12;
const NEIGHBOUR: u8 = 13;

#[test]
fn syns_to_one_service_with_source_nat() -> Result<()> {
    flood(
        FloodKind::Syn,
        Family::V4,
        &[FIRST],
        &[SECOND, LOCAL, NEIGHBOUR],
    )
}

#[test]
fn syns_to_one_service_that_keeps_the_source() -> Result<()> {
    flood(
        FloodKind::Syn,
        Family::V4,
        &[LOCAL],
        &[FIRST, SECOND, NEIGHBOUR],
    )
}

#[test]
fn syns_to_several_services() -> Result<()> {
    flood(
        FloodKind::Syn,
        Family::V4,
        &[FIRST, SECOND, LOCAL],
        &[NEIGHBOUR],
    )
}

#[test]
fn syns_over_ipv6() -> Result<()> {
    flood(
        FloodKind::Syn,
        Family::V6,
        &[FIRST],
        &[SECOND, LOCAL, NEIGHBOUR],
    )
}

#[test]
fn acks_of_no_connection() -> Result<()> {
    flood(
        FloodKind::Ack,
        Family::V4,
        &[FIRST],
        &[SECOND, LOCAL, NEIGHBOUR],
    )
}

#[test]
fn datagrams_with_source_nat() -> Result<()> {
    flood(
        FloodKind::Udp,
        Family::V4,
        &[FIRST],
        &[SECOND, LOCAL, NEIGHBOUR],
    )
}

#[test]
fn datagrams_over_ipv6() -> Result<()> {
    flood(
        FloodKind::Udp,
        Family::V6,
        &[FIRST],
        &[SECOND, LOCAL, NEIGHBOUR],
    )
}

/// Floods the attacked Services and watches good clients before, meanwhile and afterwards.
fn flood(kind: FloodKind, family: Family, attacked: &[u8], neighbours: &[u8]) -> Result<()> {
    let ground = Ground::new(&[])?;
    ground.service(FIRST, Source::Translated, &[ground.pod("pod-2-1")])?;
    ground.service(SECOND, Source::Translated, &[ground.pod("pod-2-2")])?;
    ground.service(LOCAL, Source::Kept, &[ground.pod("pod-1-1")])?;
    ground.service(NEIGHBOUR, Source::Kept, &[ground.pod("pod-1-2")])?;
    let protocol = match kind {
        FloodKind::Udp => Protocol::Udp,
        FloodKind::Syn | FloodKind::Ack => Protocol::Tcp,
    };
    let time = attack_time(TIME);
    let all = [attacked, neighbours].concat();
    let mut findings = Findings::default();

    // What happens without a flood, in the same time.
    let open = Opened::start(&ground, family, &all)?;
    let before = Fresh::start(&ground, protocol, family, attacked, neighbours)?;
    thread::sleep(time);
    before.judge("before", 1.0, &mut findings)?;
    let without = open.stop()?;

    let open = Opened::start(&ground, family, &all)?;
    let fresh = Fresh::start(&ground, protocol, family, attacked, neighbours)?;
    let flows_before = flows(&ground)?;
    let targets = attacked
        .iter()
        .map(|number| ground.outside(family, *number));
    let report = Flood::new(kind, targets).run_for(time, &ground.attacker)?;
    findings.note(report.rate() > SLOWEST, format!("flood: {report}"));
    let flows_after = flows(&ground)?;
    fresh.judge("meanwhile", OWN_CLIENTS, &mut findings)?;
    let with = open.stop()?;
    for ((number, without), (_, with)) in without.iter().zip(&with) {
        let good = with.failed == 0
            && with.reconnects == 0
            && with.retransmissions <= without.retransmissions;
        findings.note(
            good,
            format!(
                "open connections of service-{number}: without a flood {} retransmissions, with it {with}",
                without.retransmissions
            ),
        );
    }

    let after = Fresh::start(&ground, protocol, family, attacked, neighbours)?;
    thread::sleep(Duration::from_secs(2));
    after.judge("afterwards", 1.0, &mut findings)?;
    println!("flows: {flows_before} before, {flows_after} at the end of the flood");
    if kind == FloodKind::Ack {
        // A segment of no connection opens nothing that lasts longer than a closed flow.
        let few = || -> Result<(), String> {
            let found = flows(&ground).map_err(|error| format!("{error:#}"))?;
            let most = flows_before + 1000;
            (found <= most)
                .then_some(())
                .ok_or_else(|| format!("still {found} flows, not {most}"))
        };
        let gone = within(Duration::from_secs(15), few);
        findings.note(
            gone.is_ok(),
            format!("flows that ACKs opened are gone: {gone:?}"),
        );
    }
    let (client, target) = (ground.client(), ground.outside(family, attacked[0]));
    let held = Held::open(client, target).and_then(|mut held| held.ask());
    findings.note(held.is_ok(), format!("a connection at the end: {held:?}"));
    findings.assert_good();
    Ok(())
}

/// Flows in both tables of node 1, as the sweeper last saw it.
fn flows(ground: &Ground) -> Result<u64> {
    let flows = ground.balanced.status(1)?.flows.into_iter().flatten();
    Ok(flows.map(|table| table.flows).sum())
}

/// New connections, or datagrams from new ports: to attacked Services, and to their neighbours.
struct Fresh {
    own: Vec<(String, RunningLoad)>,
    neighbours: Vec<(String, RunningLoad)>,
}

impl Fresh {
    fn start(
        ground: &Ground,
        protocol: Protocol,
        family: Family,
        attacked: &[u8],
        neighbours: &[u8],
    ) -> Result<Self> {
        let outside = |number: &u8| {
            let request = Request::new(protocol, ground.outside(family, *number));
            fresh(request, ground.client(), *number)
        };
        // A pod's client meets no node port and no source NAT.
        let inside = |number: &u8| {
            let request = Request::new(protocol, cluster_ip(family, *number));
            fresh(request, ground.pod("pod-1-2"), *number)
        };
        let others = neighbours.iter().map(outside);
        Ok(Self {
            own: attacked.iter().map(outside).collect::<Result<_>>()?,
            neighbours: others
                .chain(neighbours.iter().map(inside))
                .collect::<Result<_>>()?,
        })
    }

    /// Ends the load. Of an attacked Service's clients this share must be served at their first packet; of
    /// the others, all.
    fn judge(self, when: &str, share: f64, findings: &mut Findings) -> Result<()> {
        let own = self.own.into_iter().map(|load| (load, share, "own"));
        let neighbours = self
            .neighbours
            .into_iter()
            .map(|load| (load, 1.0, "neighbour's"));
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

/// A few new clients a second; each counts only if it is served before it asks for the second time.
fn fresh(request: Request, host: &Host, number: u8) -> Result<(String, RunningLoad)> {
    let load = Load::new(request.deadline(Held::PATIENCE)).workers(2);
    let load = load.pause(Duration::from_millis(20));
    Ok((format!("{host} to service-{number}"), load.start(host)?))
}

/// Connections that are open all the time, and busy, to each Service.
struct Opened(Vec<(u8, RunningLoad)>);

impl Opened {
    fn start(ground: &Ground, family: Family, services: &[u8]) -> Result<Self> {
        let start = |number: &u8| -> Result<_> {
            let request = Request::tcp(ground.outside(family, *number));
            let load = Load::new(request).workers(HELD).persistent();
            let load = load.pause(Duration::from_millis(50));
            Ok((*number, load.start(ground.client())?))
        };
        let opened = services.iter().map(start).collect::<Result<_>>()?;
        // `start` waits for the first of them.
        thread::sleep(Duration::from_millis(300));
        Ok(Self(opened))
    }

    fn stop(self) -> Result<Vec<(u8, LoadReport)>> {
        let stop = |(number, load): (u8, RunningLoad)| Ok((number, load.stop()?));
        self.0.into_iter().map(stop).collect()
    }
}
