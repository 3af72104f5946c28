//! Datagrams that a program hands to the kernel in one piece, to be cut as late as possible
//! (`UDP_SEGMENT`): so QUIC sends.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lb_tests::{Endpoint, Family, SILENCE, Topology, eventually, lab::Host, patient};
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};

use crate::ground::{Frontend, Ground, Vips};

/// A Service with an endpoint on node 1, and one with an endpoint on node 2.
const BOTH: [(Vips, &str); 2] = [(Vips(1), "pod-1-1"), (Vips(2), "pod-2-1")];
/// The port of the endpoints.
const PORT: u16 = 9443;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(2);
/// Datagrams in one piece.
const PIECE: u8 = 3;

#[test]
fn full_size_datagrams_arrive_both_ways() -> Result<()> {
    // Only without XDP do super-packets come in from outside.
    let offloads = Topology {
        wire_checksums: false,
        ..Topology::default()
    };
    for (topology, mode) in [
        (Topology::default(), "--xdp-mode=native"),
        (offloads, "--xdp-mode=off"),
    ] {
        let ground = ground(topology, mode)?;
        each_way(&ground, |client, server, target| {
            let most = most(target, topology.wire_mtu);
            // Up to 12 bytes less they also fit with a header of TCP's length.
            for size in [most, most - 11, most - 12] {
                exchange(client, server, target, size)
                    .with_context(|| format!("{mode}: {size} bytes to {target}"))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A sender that hands over many at once does not set IPv4's don't-fragment bit, unless it asks for that.
#[test]
fn datagrams_that_are_too_big_are_fragmented_or_refused_with_the_size_that_fits() -> Result<()> {
    let narrow = Topology {
        wire_mtu: 1300,
        ..Topology::default()
    };
    let ground = ground(narrow, "--xdp-mode=native")?;
    let (client, server) = (ground.lab().pod("pod-1-2"), ground.lab().pod("pod-2-1"));
    for family in Family::BOTH {
        let target = Vips(2).at(Frontend::ClusterIp, family, ground.lab().node(1));
        let server = socket(server, server.at(family, PORT))?;
        let client = socket(client, client.at(family, 0))?;
        client.connect(target)?;
        let most = most(target, narrow.wire_mtu);
        exchange(&client, &server, target, most)?;
        if family == Family::V4 {
            exchange(&client, &server, target, most + 1)?;
            continue;
        }
        // The first ones go to the link that they do not fit; then the sender knows.
        eventually(|| match send(&client, most + 1) {
            Ok(()) => Err("the client may still send more than the link takes"),
            Err(_) => Ok(()),
        });
        exchange(&client, &server, target, most)?;
        server.set_read_timeout(Some(patient(SILENCE)))?;
        let stray = server.recv(&mut [0; 2000]);
        ensure!(stray.is_err(), "{target}: a datagram too big has arrived");
    }
    Ok(())
}

fn ground(topology: Topology, mode: &str) -> Result<Ground> {
    let ground = Ground::with(topology, &[mode])?;
    let lab = ground.lab();
    for (vips, pod) in BOTH {
        vips.service(lab.manifests()).apply()?;
        let slices = lab.endpoints(&vips.name()).udp("datagrams", PORT);
        slices.with(Endpoint::ready(lab.pod(pod))).apply()?;
    }
    ground.settle()?;
    Ok(ground)
}

/// Calls `check` with the sockets of a client and of an endpoint, and the address by which the client
/// reaches it, for each way from one to the other.
fn each_way(
    ground: &Ground,
    check: impl Fn(&UdpSocket, &UdpSocket, SocketAddr) -> Result<()>,
) -> Result<()> {
    let lab = ground.lab();
    let clients: [&Host; 2] = [lab.client(), lab.pod("pod-1-2").as_ref()];
    for (vips, pod) in BOTH {
        for family in Family::BOTH {
            let server = socket(lab.pod(pod), lab.pod(pod).at(family, PORT))?;
            for client in clients {
                for frontend in [Frontend::ClusterIp, Frontend::NodePort] {
                    let target = vips.at(frontend, family, lab.node(1));
                    let socket = socket(client, client.at(family, 0))?;
                    socket.connect(target)?;
                    check(&socket, &server, target).with_context(|| format!("from {client}"))?;
                }
            }
        }
    }
    Ok(())
}

fn socket(host: impl AsRef<Host>, address: SocketAddr) -> Result<UdpSocket> {
    let bind = || UdpSocket::bind(address);
    let socket = host.as_ref().netns().run(bind)??;
    socket.set_read_timeout(Some(patient(ANSWER)))?;
    Ok(socket)
}

/// Most bytes of a datagram on a link.
fn most(target: SocketAddr, mtu: u16) -> usize {
    let headers = if target.is_ipv4() { 28 } else { 48 };
    usize::from(mtu) - headers
}

/// A connected client sends datagrams in one piece, and the server answers each with as many bytes,
/// also in one piece.
fn exchange(client: &UdpSocket, server: &UdpSocket, target: SocketAddr, size: usize) -> Result<()> {
    send(client, size).context("the client cannot send")?;
    let mut peer = target;
    for number in 0..PIECE {
        let mut found = vec![0; size + 1];
        let (length, from) = server.recv_from(&mut found).context("none has arrived")?;
        ensure!(
            found[..length] == datagram(number, size),
            "{length} bytes of another datagram"
        );
        peer = from;
    }
    in_segments_of(server, size)?;
    server.send_to(&piece(size), peer)?;
    for number in 0..PIECE {
        let mut found = vec![0; size + 1];
        let length = client.recv(&mut found).context("no answer has arrived")?;
        ensure!(
            found[..length] == datagram(number, size),
            "{length} bytes of another answer"
        );
    }
    Ok(())
}

fn send(socket: &UdpSocket, size: usize) -> io::Result<()> {
    in_segments_of(socket, size)?;
    socket.send(&piece(size)).map(drop)
}

fn in_segments_of(socket: &UdpSocket, size: usize) -> io::Result<()> {
    Ok(setsockopt(socket, UdpGsoSegment, &(size as i32))?)
}

fn piece(size: usize) -> Vec<u8> {
    (0..PIECE)
        .flat_map(|number| datagram(number, size))
        .collect()
}

/// Its number tells a datagram apart, and each byte its place.
fn datagram(number: u8, size: usize) -> Vec<u8> {
    (0..size)
        .map(|at| (at as u8).wrapping_mul(7).wrapping_add(number))
        .collect()
}
