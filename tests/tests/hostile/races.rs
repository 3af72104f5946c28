//! Two first packets of a connection at once, on two CPUs: neither is lost, and they open one flow.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use lb_common::verdict::Reason;
use lb_packet::{Packet, tcp_flag};
use lb_tests::{
    Family, Host,
    attack::{Forged, Wire},
    patient,
    traffic::Answer,
};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::support::{Findings, Ground, Source, cluster_ip, filter_input};

const SERVICE: u8 = 10;
const CPUS: usize = 2;
const FIRST_CLIENT_PORT: u16 = 20_000;
/// Number of pairs of packets.
const ROUNDS: u16 = 1500;
/// How many of the pairs may lose a packet: a hypervisor may stop a processor that holds a claim
/// for longer than the other one waits.
const OVERTAKEN: usize = 2;

/// The pause between two pairs of datagrams, so that servers keep up.
const PAUSE: Duration = Duration::from_millis(2);
/// How long after the last datagram its answer may come.
const LAST_ANSWER: Duration = Duration::from_millis(500);

/// Both CPUs receive at once only if no device has a single queue: from a pod, or without XDP.
const ARGUMENTS: [&str; 2] = ["--xdp-mode=off", "--flow-table-size=16384"];

#[test]
fn a_syn_that_comes_twice_at_once_with_the_source_kept() -> Result<()> {
    let ground = ground()?;
    let pod = ground.pod("pod-1-1");
    doubled_syns(&ground, pod, cluster_ip(Family::V4, SERVICE))
}

#[test]
fn a_syn_that_comes_twice_at_once_with_source_nat() -> Result<()> {
    let ground = ground()?;
    doubled_syns(
        &ground,
        ground.client(),
        ground.outside(Family::V4, SERVICE),
    )
}

#[test]
fn the_first_datagrams_of_a_socket_at_once_with_the_source_kept() -> Result<()> {
    let ground = ground()?;
    let pod = ground.pod("pod-1-1");
    doubled_datagrams(&ground, pod, cluster_ip(Family::V4, SERVICE), true)
}

#[test]
fn the_first_datagrams_of_a_socket_at_once_with_source_nat() -> Result<()> {
    let ground = ground()?;
    let target = ground.outside(Family::V4, SERVICE);
    doubled_datagrams(&ground, ground.client(), target, false)
}

fn ground() -> Result<Ground> {
    let ground = Ground::new(&ARGUMENTS)?;
    let pods = ["pod-1-2", "pod-2-1", "pod-2-2"].map(|pod| ground.pod(pod));
    ground.service(SERVICE, Source::Translated, &pods)?;
    Ok(ground)
}

/// Sends each of many SYNs twice at the same time. There are no sockets for the answers: what
/// counts is the flow that each SYN leaves.
fn doubled_syns(ground: &Ground, from: &Host, to: SocketAddr) -> Result<()> {
    // A reset in reply to a SYN-ACK would end the flow.
    filter_input(from, "tcp flags & (syn | ack) == syn | ack drop")?;
    let ip = from.ip(Family::V4);
    let ports = FIRST_CLIENT_PORT..FIRST_CLIENT_PORT + ROUNDS;
    let syns = |wire: &Wire| -> Vec<Forged> {
        let syn = |port| Packet::tcp((ip, port), (to.ip(), to.port()), tcp_flag::SYN).payload(b"");
        ports.clone().map(|port| wire.forge(syn(port))).collect()
    };
    let meet = Meeting::new();
    let sender = |cpu| -> Result<JoinHandle<Result<()>>> {
        let wire = from.netns().run(|| Wire::towards(to.ip()))??;
        let (syns, meet) = (syns(&wire), meet.clone());
        Ok(thread::spawn(move || {
            pin(cpu)?;
            for (round, syn) in syns.iter().enumerate() {
                meet.at(round);
                wire.send(syn)?;
            }
            Ok(())
        }))
    };
    let senders = (0..CPUS).map(sender).collect::<Result<Vec<_>>>()?;
    for sender in senders {
        sender.join().expect("a sender does not panic")?;
    }

    let flows = ground.balanced.flows(1)?;
    let mut found = BTreeMap::<u16, usize>::new();
    for flow in flows
        .iter()
        .filter(|flow| flow.frontend == to && flow.client.ip() == ip)
    {
        *found.entry(flow.client.port()).or_default() += 1;
    }
    let lost = ports
        .clone()
        .filter(|port| !found.contains_key(port))
        .count();
    let doubled = found.values().filter(|flows| **flows > 1).count();
    let mut findings = Findings::default();
    let what = format!("of {ROUNDS} SYNs that came twice, {lost} opened no flow, {doubled} two");
    findings.note(lost == 0 && doubled == 0, what);
    findings.assert_good();
    Ok(())
}

/// Sends the first two datagrams of many sockets at the same time. Both must be answered by the
/// same pod.
fn doubled_datagrams(
    ground: &Ground,
    from: &Host,
    to: SocketAddr,
    is_source_kept: bool,
) -> Result<()> {
    let bind = |port| -> Result<Arc<UdpSocket>> {
        let socket = UdpSocket::bind(("0.0.0.0", port))?;
        socket.connect(to)?;
        Ok(Arc::new(socket))
    };
    let ports = FIRST_CLIENT_PORT..FIRST_CLIENT_PORT + ROUNDS;
    let sockets = from
        .netns()
        .run(|| ports.map(bind).collect::<Result<Vec<_>>>())??;
    let meet = Meeting::new();
    let sender = |cpu| {
        let (sockets, meet) = (sockets.clone(), meet.clone());
        thread::spawn(move || -> Result<()> {
            pin(cpu)?;
            for (round, socket) in sockets.iter().enumerate() {
                thread::sleep(PAUSE);
                meet.at(round);
                socket.send(b"payload=0 delay=0 \n")?;
            }
            Ok(())
        })
    };
    let senders: Vec<_> = (0..CPUS).map(sender).collect();
    for sender in senders {
        sender.join().expect("a sender does not panic")?;
    }
    thread::sleep(patient(LAST_ANSWER));
    let (mut lost, mut split, mut moved) = (0, 0, 0);
    for socket in &sockets {
        let mut servers = BTreeSet::new();
        let mut buffer = [0; 1024];
        socket.set_nonblocking(true)?;
        for _ in 0..CPUS {
            let Ok(size) = socket.recv(&mut buffer) else {
                lost += 1;
                break;
            };
            let answer: Answer = serde_json::from_slice(&buffer[..size])?;
            moved += usize::from(is_source_kept && answer.peer != socket.local_addr()?);
            servers.insert(answer.server);
        }
        split += usize::from(servers.len() > 1);
    }
    let mut overrun = 0;
    for pod in ground.balanced.lab.pods() {
        let counters = pod.run("nstat -asz UdpRcvbufErrors")?;
        let errors = counters.split_whitespace().nth(2).map(str::parse::<u64>);
        overrun += errors.context("no counter of UDP")??;
    }
    let mut findings = Findings::default();
    let what = format!(
        "of {ROUNDS} pairs of first datagrams, {lost} lost one or both, {split} went to two pods, \
         {moved} got another source port; {} datagrams were dropped as insert-race, servers had no room \
         for {overrun}",
        ground.balanced.packets(1, Reason::InsertRace)?
    );
    findings.note(lost <= OVERTAKEN && split == 0 && moved == 0, what);
    findings.assert_good();
    Ok(())
}

/// Lets the senders wait for each other before every round, without sleeping.
#[derive(Clone, Default)]
struct Meeting(Arc<AtomicUsize>);

impl Meeting {
    fn new() -> Self {
        Self::default()
    }

    /// Returns on all CPUs at about the same time.
    fn at(&self, round: usize) {
        self.0.fetch_add(1, Ordering::SeqCst);
        while self.0.load(Ordering::SeqCst) < CPUS * (round + 1) {
            std::hint::spin_loop();
        }
    }
}

fn pin(cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}
