//! Short connections through source NAT to one endpoint, without end.

use std::time::Duration;
use std::{iter, thread};

use anyhow::Result;
use lb_tests::traffic::RunningLoad;
use lb_tests::{Family, Host, Load, LoadReport, Request};

use super::support::{Findings, Ground, Source, attack_time};

const SERVICE: u8 = 10;
/// So few that all of them are used within a second or two, long before an endpoint has forgotten
/// them.
const PORTS: &str = "--snat-ports=10000-10999";
const TIME: Duration = Duration::from_secs(15);
/// If the last third is slower than the first, so many more thirds are measured: ports that have
/// run out stay so, whereas a busy machine becomes free again.
const MORE: usize = 3;
/// With so long a run, chance hardly matters in a third of it.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_client_closes_first() -> Result<()> {
    short_connections(|request| request)
}

#[test]
fn the_server_closes_first() -> Result<()> {
    short_connections(Request::server_closes)
}

/// Four clients, each on its own host.
fn short_connections(kind: impl Fn(Request) -> Request) -> Result<()> {
    let ground = Ground::new(&[PORTS])?;
    let pod = ground.pod("pod-2-1");
    // To create a connection's socket, Linux (6.18) removes the handshake's socket from its table
    // and then inserts the new one. If another CPU handles the first data in between, it finds
    // neither and answers by a reset. This happens without a load balancer too.
    pod.receive_on_one_cpu()?;
    ground.service(SERVICE, Source::Translated, &[pod])?;
    let clients = (0..4)
        .map(|number| client(&ground, number))
        .collect::<Result<Vec<_>>>()?;
    let request = kind(Request::tcp(ground.outside(Family::V4, SERVICE)));
    let time = attack_time(TIME);
    let mut findings = Findings::default();
    let mut rates = Vec::new();
    let least = if time < LONG { 0.8 } else { 0.95 };
    let thirds = ["first", "second", "last"].into_iter();
    for third in thirds.chain(iter::repeat_n("another", MORE)) {
        if rates.len() >= 3 && rates[rates.len() - 1] >= least * rates[0] {
            break;
        }
        let start = |client| Load::new(request).workers(1).start(client);
        let loads = clients.iter().map(start).collect::<Result<Vec<_>>>()?;
        thread::sleep(time / 3);
        let reports = loads.into_iter().map(RunningLoad::stop);
        let reports = reports.collect::<Result<Vec<_>>>()?;
        let rate: f64 = reports.iter().map(LoadReport::rate).sum();
        let done: u64 = reports.iter().map(|report| report.ok).sum();
        let failed: u64 = reports.iter().map(|report| report.failed).sum();
        let repeated: u64 = reports.iter().map(|report| report.retransmissions).sum();
        let slowest = reports
            .iter()
            .map(|report| report.max)
            .max()
            .unwrap_or_default();
        findings.note(
            failed == 0,
            format!(
                "{third} third of {time:?}: {done} done, {failed} failed, {rate:.0}/s, \
                 {repeated} retransmissions, slowest {slowest:?}"
            ),
        );
        for (at, failure) in reports.iter().flat_map(|report| &report.failures) {
            eprintln!("    after {at:?}: {failure}");
        }
        rates.push(rate);
    }
    let share = rates[rates.len() - 1] / rates[0];
    findings.note(
        share >= least,
        format!("rate of the last third / first: {share:.2}, at least {least}"),
    );
    findings.assert_good();
    Ok(())
}

/// A host outside the cluster that may use its ports as fast as it can.
fn client(ground: &Ground, number: u8) -> Result<Host> {
    let host = ground
        .balanced
        .lab
        .add_host(&format!("busy-{number}"), 3 + number)?;
    host.set_sysctl("net/ipv4/ip_local_port_range", "10240 65535")?;
    host.set_sysctl("net/ipv4/tcp_tw_reuse", "1")?;
    Ok(host)
}
