//! New connections: how many per second, and how long their set-up takes.

use std::{
    net::{Ipv4Addr, SocketAddrV4, TcpListener},
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::sys::{
    socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, connect, listen, setsockopt,
        socket, sockopt,
    },
    time::{TimeVal, TimeValLike},
};

use super::Cpus;
use crate::{
    cluster::{
        Cluster,
        services::{ENDPOINTS, TARGET_PORT},
    },
    machine::pin,
    statistics::{Random, quantile},
};

/// The first source port. Each client address is used for one sample, so no connection resembles an
/// earlier one.
const FIRST_PORT: u16 = 1024;
/// Connections before those that are measured.
const WARM_UP: u16 = 100;
/// Long enough for a packet that is lost several times. This shows in the sample, and does not end
/// the run.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// Connections opened and closed, per second.
    pub rate: f64,
    /// Time from SYN to established, in microseconds.
    pub p50: f64,
    pub p99: f64,
}

/// Opens and closes `count` connections, one after the other, each to a random Service.
///
/// # Errors
///
/// If one of them fails, or the pod does not get all.
pub fn sample(
    cluster: &mut Cluster,
    count: u16,
    cpus: Cpus,
    random: &mut Random,
) -> Result<Connections> {
    let client = cluster.new_client();
    let all = WARM_UP + count;
    let targets: Vec<_> = (0..all)
        .map(|_| cluster.target(random.below(cluster.services), random.below(ENDPOINTS)))
        .collect();
    let listener = cluster.server().netns().run(listen_for_many)??;
    thread::scope(|scope| {
        let server = scope.spawn(|| accept(&listener, all, cpus.server));
        let connections = cluster.client().netns().run(|| {
            pin(cpus.client)?;
            connect_to_all(client, &targets)
        })?;
        let accepted = server.join().expect("accepting does not panic");
        let connections = connections?;
        accepted?;
        Ok(connections)
    })
}

fn connect_to_all(client: Ipv4Addr, targets: &[SocketAddrV4]) -> Result<Connections> {
    let (warm_up, measured) = targets.split_at(usize::from(WARM_UP));
    for (target, port) in warm_up.iter().zip(FIRST_PORT..) {
        open(SocketAddrV4::new(client, port), *target)?;
    }
    let mut times = Vec::with_capacity(measured.len());
    let since = Instant::now();
    for (target, port) in measured.iter().zip(FIRST_PORT + WARM_UP..) {
        times.push(open(SocketAddrV4::new(client, port), *target)?);
    }
    let took = since.elapsed();
    times.sort_unstable();
    let micros = |share| quantile(&times, share).as_secs_f64() * 1e6;
    Ok(Connections {
        rate: times.len() as f64 / took.as_secs_f64(),
        p50: micros(0.5),
        p99: micros(0.99),
    })
}

/// Opens and closes a connection. Returns how long opening took.
fn open(from: SocketAddrV4, to: SocketAddrV4) -> Result<Duration> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::SendTimeout, &patience())?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(from))
        .with_context(|| format!("cannot connect from {from}"))?;
    let since = Instant::now();
    connect(socket.as_raw_fd(), &SockaddrIn::from(to))
        .with_context(|| format!("no connection from {from} to {to}"))?;
    Ok(since.elapsed())
}

/// A listener in the pod with room for all connections that are not accepted yet.
fn listen_for_many() -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TARGET_PORT))?;
    listen(&listener, Backlog::MAXCONN)?;
    setsockopt(&listener, sockopt::ReceiveTimeout, &patience())?;
    Ok(listener)
}

/// Accepts `count` connections, and closes each after its client has. So ports of the client have
/// to wait before they are reused (TIME-WAIT, RFC 9293), and never ports of the pod: the client
/// opens a connection after it has closed the previous one.
fn accept(listener: &TcpListener, count: u16, cpu: usize) -> Result<()> {
    pin(cpu)?;
    let mut last = None;
    for accepted in 0..count {
        let Ok((stream, _)) = listener.accept() else {
            bail!("the pod got {accepted} of {count} connections");
        };
        drop(last.replace(stream));
    }
    Ok(())
}

fn patience() -> TimeVal {
    TimeVal::seconds(PATIENCE.as_secs() as i64)
}
