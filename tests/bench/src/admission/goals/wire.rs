//! How connections begin and end at an endpoint's device.

use std::{
    io,
    net::SocketAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use lb_packet::{ETHERNET, Read, TCP, tcp_flag};
use lb_tests::{PacketSocket, Pod};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How much of a frame is read: all headers.
const START: usize = 128;
/// EtherType of IPv4.
const IPV4: [u8; 2] = [0x08, 0x00];
/// Headers without options.
const SHORTEST: usize = ETHERNET + 40;
/// How long to wait for a frame before looking whether there is to be an end.
const LOOK: u16 = 50;

/// A segment that begins or ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When the endpoint's kernel took or sent it, since the Unix epoch.
    pub at: Duration,
    pub client: SocketAddr,
    pub what: What,
}

/// What a segment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The client's SYN.
    Begins,
    /// A FIN, of the client or of the endpoint.
    Closes { by_client: bool },
    /// A RST, of the client or of the endpoint.
    Resets { by_client: bool },
}

/// A running record of a pod's connections to a port, over IPv4.
pub struct Recording {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Event>>>,
}

impl Recording {
    /// Begins.
    ///
    /// # Errors
    ///
    /// Without root.
    pub fn start(pod: &Pod, port: u16) -> Result<Self> {
        let socket = pod.netns().run(|| PacketSocket::open("eth0"))??;
        socket.record()?;
        let stop = Arc::<AtomicBool>::default();
        let told = stop.clone();
        let thread = thread::Builder::new().name("recording".to_owned());
        let thread = thread.spawn(move || record(&socket, port, &told));
        Ok(Self {
            stop,
            thread: thread.context("cannot start a thread")?,
        })
    }

    /// Ends. Returns what happened, in order.
    ///
    /// # Errors
    ///
    /// If frames could not be received.
    pub fn stop(self) -> Result<Vec<Event>> {
        self.stop.store(true, Relaxed);
        let events = self.thread.join();
        let mut events = events.map_err(|_| anyhow!("the recording panicked"))??;
        // Two processors may have taken them.
        events.sort_by_key(|event| event.at);
        Ok(events)
    }
}

fn record(socket: &PacketSocket, port: u16, stop: &AtomicBool) -> Result<Vec<Event>> {
    let (mut events, mut frame) = (Vec::new(), [0; START]);
    loop {
        let is_last = stop.load(Relaxed);
        loop {
            match socket.receive_start(&mut frame) {
                Ok((length, at)) => events.extend(event(&frame[..length], at, port)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("cannot record frames"),
            }
        }
        if is_last {
            return Ok(events);
        }
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(LOOK)).context("cannot wait for frames")?;
    }
}

/// What a frame does, if it belongs to a connection to this port.
fn event(frame: &[u8], at: Duration, port: u16) -> Option<Event> {
    if frame.len() < SHORTEST || frame[12..ETHERNET] != IPV4 || frame[ETHERNET + 9] != TCP {
        return None;
    }
    let packet = Read::frame(frame);
    let by_client = packet.to().port() == port;
    let client = match by_client {
        true => packet.from(),
        false if packet.from().port() == port => packet.to(),
        false => return None,
    };
    let flags = *packet.payload().get(13)?;
    let what = match flags {
        _ if flags & tcp_flag::RST != 0 => What::Resets { by_client },
        _ if flags & tcp_flag::FIN != 0 => What::Closes { by_client },
        _ if flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN => What::Begins,
        _ => return None,
    };
    Some(Event { at, client, what })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use lb_packet::Packet;

    use super::*;

    const PORT: u16 = 8080;
    const MACS: [lb_packet::Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

    fn seen(from: (&str, u16), to: (&str, u16), flags: u8) -> Option<(String, What)> {
        let end = |(ip, port): (&str, u16)| (ip.parse::<IpAddr>().unwrap(), port);
        let packet = Packet::tcp(end(from), end(to), flags).payload(b"");
        let frame = packet.macs(MACS[0], MACS[1]).bytes();
        let event = event(&frame, Duration::ZERO, PORT);
        event.map(|event| (event.client.to_string(), event.what))
    }

    #[test]
    fn segments_that_begin_and_end_connections_are_told_from_others() {
        let (client, pod) = (("172.30.77.2", 40_000), ("10.244.1.10", PORT));
        let told = |what| Some(("172.30.77.2:40000".to_owned(), what));
        let [fin, ack] = [tcp_flag::FIN, tcp_flag::ACK];
        assert_eq!(seen(client, pod, tcp_flag::SYN), told(What::Begins));
        assert_eq!(seen(pod, client, tcp_flag::SYN | ack), None);
        assert_eq!(seen(client, pod, ack), None);
        let closes = |by_client| told(What::Closes { by_client });
        assert_eq!(seen(client, pod, fin | ack), closes(true));
        assert_eq!(seen(pod, client, fin | ack), closes(false));
        let resets = |by_client| told(What::Resets { by_client });
        assert_eq!(seen(client, pod, tcp_flag::RST), resets(true));
        assert_eq!(seen(pod, client, tcp_flag::RST | ack), resets(false));
        assert_eq!(seen(client, ("10.244.1.10", 81), tcp_flag::SYN), None);
        let (v6, to) = (("2001:db8::1", 1), ("2001:db8::2", PORT));
        assert_eq!(seen(v6, to, tcp_flag::SYN), None);
        assert_eq!(event(&[0; 20], Duration::ZERO, PORT), None);
    }
}
