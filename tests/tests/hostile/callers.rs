//! Callers that take up the connections of the agent's own servers. The kubelet and load balancers
//! are answered all the same.

use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{Agent, Family, Host, http_get, patient};
use node_lb::http::raise_descriptor_limit;

use super::support::{Findings, Ground, SMALL_TABLE, Source};

const SERVICE: u8 = 10;
const HEALTH_CHECK_NODE_PORT: u16 = 32010;
const HEALTHZ: u16 = 10256;
/// Connections of each caller to each server.
const CONNECTIONS: usize = 600;
/// What all of them may cost the agent.
const MEMORY: u64 = 48 << 20;
/// Half of all probes have to be answered within that: they take milliseconds.
const SOON: Duration = Duration::from_secs(1);
/// Probes from each place of each server.
const PROBES: usize = 10;

const SILENT: &[u8] = b"";
const HALF: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: node\r\nHalf: a";

#[test]
fn crowds_of_connections_do_not_keep_probes_out() -> Result<()> {
    let ground = ground()?;
    let agent = &ground.balanced.agents[0];
    let before = resident(agent)?;
    let mut findings = Findings::default();
    probe_everywhere(&ground, "before", &mut findings)?;
    let mut crowd = Vec::new();
    for (kind, bytes) in [("silent", SILENT), ("half requests", HALF)] {
        for caller in callers(&ground) {
            for server in servers(&ground, Family::V4) {
                crowd.extend(hold(caller, server, bytes)?);
            }
        }
        probe_everywhere(&ground, kind, &mut findings)?;
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        for caller in callers(&ground) {
            let (stop, server) = (&stop, servers(&ground, Family::V4)[1]);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    drop(hold(caller, server, HALF));
                }
            });
        }
        let probed = probe_everywhere(&ground, "callers that keep coming", &mut findings);
        stop.store(true, Ordering::Relaxed);
        probed
    })?;
    let grown = resident(agent)?.saturating_sub(before);
    findings.note(
        grown < MEMORY,
        format!("the agent has grown by {grown} bytes"),
    );
    findings.assert_good();
    Ok(())
}

/// The agent has a few descriptors left, and connections take all of them.
#[test]
fn an_agent_out_of_descriptors_answers_probes() -> Result<()> {
    let ground = ground()?;
    let agent = &ground.balanced.agents[0];
    let open = fs::read_dir(format!("/proc/{}/fd", agent.pid()))?.count();
    let limit = open + 20;
    let set = format!("prlimit --pid {} --nofile={limit}:{limit}", agent.pid());
    ground.balanced.lab.node(1).run(&set)?;
    let mut findings = Findings::default();
    let mut crowd = Vec::new();
    for caller in callers(&ground) {
        crowd.extend(hold(caller, servers(&ground, Family::V4)[0], SILENT)?);
    }
    probe_everywhere(&ground, "no descriptors", &mut findings)?;
    let errors = r#"node_lb_http_accept_errors_total{server="healthz"}"#;
    let errors = ground.balanced.metric(1, errors)?;
    ensure!(errors > 0.0, "there were descriptors left");
    findings.assert_good();
    Ok(())
}

/// A Service with a healthCheckNodePort, whose endpoint is on node 1.
fn ground() -> Result<Ground> {
    raise_descriptor_limit();
    let ground = Ground::new(&SMALL_TABLE)?;
    ground.service_that(SERVICE, Source::Kept, &[ground.pod("pod-1-1")], |service| {
        let service = service.load_balancer_ip("172.30.78.10");
        let service = service.load_balancer_ip("fd00:172:30:78::10");
        service.set("healthCheckNodePort", HEALTH_CHECK_NODE_PORT)
    })?;
    Ok(ground)
}

/// A pod on the node, one elsewhere, and a host outside.
fn callers(ground: &Ground) -> [&Host; 3] {
    let pods = [ground.pod("pod-1-2"), ground.pod("pod-2-1")];
    let [here, there] = pods.map(AsRef::as_ref);
    [here, there, &ground.attacker]
}

fn servers(ground: &Ground, family: Family) -> [SocketAddr; 2] {
    let node = ground.balanced.lab.node(1);
    [HEALTHZ, HEALTH_CHECK_NODE_PORT].map(|port| node.at(family, port))
}

/// Opens connections that send `bytes` and do nothing after that. Some are closed before.
fn hold(caller: &Host, server: SocketAddr, bytes: &[u8]) -> Result<Vec<TcpStream>> {
    let open = || -> io::Result<_> {
        let mut stream = TcpStream::connect_timeout(&server, patient(Duration::from_secs(10)))?;
        let _ = stream.write_all(bytes);
        Ok(stream)
    };
    let open = || (0..CONNECTIONS).map(|_| open()).collect::<io::Result<_>>();
    let streams = caller.netns().run(open)?;
    streams.with_context(|| format!("{caller} cannot connect to {server}"))
}

/// Asks both servers as the node's kubelet does and as a load balancer does.
fn probe_everywhere(ground: &Ground, when: &str, findings: &mut Findings) -> Result<()> {
    let node: &Host = ground.balanced.lab.node(1).as_ref();
    for host in [node, ground.client()] {
        for family in Family::BOTH {
            for server in servers(ground, family) {
                probe(host, server, when, findings)?;
            }
        }
    }
    Ok(())
}

fn probe(host: &Host, server: SocketAddr, when: &str, findings: &mut Findings) -> Result<()> {
    let mut took = Vec::new();
    for _ in 0..PROBES {
        let start = Instant::now();
        let answer = http_get::get(host, server, "/healthz");
        match answer {
            Ok(answer) if answer.status == 200 => took.push(start.elapsed()),
            other => {
                findings.note(false, format!("{when}: {host} at {server}: {other:?}"));
                return Ok(());
            }
        }
    }
    took.sort_unstable();
    let (median, most) = (took[PROBES / 2], took[PROBES - 1]);
    let good = median < patient(SOON);
    let what = format!("{when}: {host} at {server}: median {median:?}, at most {most:?}");
    findings.note(good, what);
    Ok(())
}

/// Bytes of memory that a process has for itself.
fn resident(agent: &Agent) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kilobytes: u64 = kilobytes.context("no RssAnon")?.parse()?;
    Ok(kilobytes << 10)
}
