//! Small UDP datagrams of one flow: how many arrive per second.

use std::{
    fs,
    io::IoSlice,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg, setsockopt, sockopt};

use super::Cpus;
use crate::{
    cluster::{Cluster, services::TARGET_PORT},
    machine::pin,
};

/// The payload of the shortest Ethernet frame.
const PAYLOAD: [u8; 18] = [0; 18];
/// Datagrams per system call.
const BATCH: usize = 64;

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams {
    /// Datagrams that arrived, per second.
    pub rate: f64,
    /// The part of the sent datagrams that did not arrive.
    pub lost: f64,
}

/// Sends for a while, as fast as one CPU can. The same CPU does all the work up to the pod's
/// socket.
///
/// # Errors
///
/// If nothing can be sent, or almost nothing arrives.
pub fn sample(cluster: &Cluster, duration: Duration, cpus: Cpus) -> Result<Datagrams> {
    let pod = cluster.server();
    let target = cluster.target(0, 0);
    // Nothing is read: a datagram has arrived when it is counted, even if there is no room for it.
    let socket = pod.netns().run(|| -> Result<_> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, TARGET_PORT))?;
        setsockopt(&socket, sockopt::RcvBuf, &0)?;
        Ok(socket)
    })??;
    let before = pod.netns().run(arrived)??;
    let (sent, took) = cluster.client().netns().run(|| {
        pin(cpus.client)?;
        send(target, duration)
    })??;
    let arrived = pod.netns().run(arrived)?? - before;
    drop(socket);
    ensure!(
        arrived > sent / 10,
        "{arrived} of {sent} datagrams arrived at the pod"
    );
    Ok(Datagrams {
        rate: arrived as f64 / took.as_secs_f64(),
        lost: 1.0 - arrived as f64 / sent as f64,
    })
}

fn send(target: SocketAddrV4, duration: Duration) -> Result<(u64, Duration)> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(target)?;
    let slices = [[IoSlice::new(&PAYLOAD)]; BATCH];
    let nowhere = [const { None::<SockaddrIn> }; BATCH];
    let mut headers = MultiHeaders::preallocate(BATCH, None);
    let mut batch = || -> Result<u64> {
        let flags = MsgFlags::empty();
        let fd = socket.as_raw_fd();
        let sent = sendmmsg(fd, &mut headers, &slices, nowhere, [], flags)?;
        Ok(sent.count() as u64)
    };
    let since = Instant::now();
    let mut sent = 0;
    while since.elapsed() < duration {
        sent += batch().with_context(|| format!("cannot send to {target}"))?;
    }
    Ok((sent, since.elapsed()))
}

/// Datagrams that this thread's network namespace has received for open ports.
fn arrived() -> Result<u64> {
    // Not `/proc/net`, which shows the main thread's namespace.
    let path = "/proc/thread-self/net/snmp";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next(), lines.next());
    let (names, values) = names
        .zip(values)
        .with_context(|| format!("no Udp in {path}"))?;
    let counters = names.split(' ').zip(values.split(' '));
    let wanted = counters.filter(|(name, _)| matches!(*name, "InDatagrams" | "RcvbufErrors"));
    let values = wanted.map(|(_, value)| value.parse::<u64>());
    Ok(values.sum::<Result<u64, _>>()?)
}
