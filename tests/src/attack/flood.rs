//! Floods: first packets of connections that are never completed, from addresses that no host has.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lb_packet::{Packet, tcp_flag};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::lab::address::SPOOFED;
use crate::lab::{Family, Host};
use crate::traffic::{Job, Running};

use super::{Forged, Wire};

/// The most batches that a flood at a rate is sent in.
const BATCHES_PER_SECOND: u32 = 100;

/// A flood that is being prepared, from random addresses in [`SPOOFED`] or from one, and random ports.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use = "call `start`"]
pub struct Flood {
    kind: FloodKind,
    targets: Vec<SocketAddr>,
    /// The address of the host that is said to flood.
    source: Option<IpAddr>,
    /// Frames per second; `None` means as fast as one CPU sends.
    rate: Option<u32>,
    /// The most frames.
    limit: u64,
}

/// What a flood is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FloodKind {
    /// SYNs without options.
    Syn,
    /// Segments of no connection, with random numbers.
    Ack,
    /// Datagrams.
    Udp,
}

impl Flood {
    /// A flood to `targets` in turn. They are of one family and have one next hop.
    pub fn new(kind: FloodKind, targets: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            kind,
            targets: targets.into_iter().collect(),
            source: None,
            rate: None,
            limit: 200_000_000,
        }
    }

    /// Forges the address of one host, of the targets' family.
    pub fn source(mut self, address: IpAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// Sends so many frames per second, over all targets.
    pub fn rate(mut self, rate: u32) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Ends after so many frames.
    pub fn limit(mut self, frames: u64) -> Self {
        self.limit = frames;
        self
    }

    /// Starts the flood from `host`.
    pub fn start(self, host: impl AsRef<Host>) -> Result<RunningFlood> {
        Ok(RunningFlood(Running::start(host.as_ref(), self)?))
    }

    /// Floods for a time from `host`.
    pub fn run_for(self, time: Duration, host: impl AsRef<Host>) -> Result<FloodReport> {
        let flood = self.start(host)?;
        thread::sleep(time);
        flood.stop()
    }

    /// One frame per place in a batch, each to its target.
    fn frames(&self, wire: &Wire) -> Vec<Forged> {
        let targets = self
            .targets
            .iter()
            .cycle()
            .take(Wire::BATCH.max(self.targets.len()));
        let frame = |target: &SocketAddr| {
            let from = match target {
                SocketAddr::V4(_) => SPOOFED.v4.addr().into(),
                SocketAddr::V6(_) => SPOOFED.v6.addr().into(),
            };
            let (from, to) = ((from, 1024), (target.ip(), target.port()));
            wire.forge(match self.kind {
                FloodKind::Syn => Packet::tcp(from, to, tcp_flag::SYN).payload(b""),
                FloodKind::Ack => Packet::tcp(from, to, tcp_flag::ACK).payload(b""),
                FloodKind::Udp => Packet::udp(from, to),
            })
        };
        targets.map(frame).collect()
    }
}

/// A running flood. Dropping it ends it.
#[derive(Debug)]
pub struct RunningFlood(Running<Flood>);

impl RunningFlood {
    /// Ends the flood.
    pub fn stop(self) -> Result<FloodReport> {
        self.0.stop(())
    }

    /// Waits until the flood has reached its limit.
    pub fn wait(self) -> Result<FloodReport> {
        self.0.wait()
    }
}

/// The result of a flood.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FloodReport {
    pub kind: FloodKind,
    /// Frames that the device took.
    pub sent: u64,
    pub elapsed: Duration,
}

impl FloodReport {
    /// Frames per second.
    pub fn rate(&self) -> f64 {
        self.sent as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

impl fmt::Display for FloodReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            sent,
            elapsed,
        } = self;
        let what = match kind {
            FloodKind::Syn => "SYNs",
            FloodKind::Ack => "ACKs",
            FloodKind::Udp => "datagrams",
        };
        write!(
            f,
            "{sent} spoofed {what} in {elapsed:.1?}, {:.0}/s",
            self.rate()
        )
    }
}

impl Job for Flood {
    const NAME: &str = "flood";
    type Stop = ();
    type Report = FloodReport;

    async fn run(
        self,
        ready: oneshot::Sender<()>,
        mut stop: oneshot::Receiver<()>,
    ) -> Result<FloodReport> {
        let first = self.targets.first().context("a flood needs a target")?;
        let family = Family::of(first.ip());
        let of_family = |target: &SocketAddr| Family::of(target.ip()) == family;
        ensure!(
            self.targets.iter().all(of_family),
            "targets are of one family"
        );
        let wire = Wire::towards(first.ip())?;
        let mut frames = self.frames(&wire);
        // At a low rate few at a time, so that no second has much more of them than another.
        let at_once = match self.rate {
            Some(rate) => (rate / BATCHES_PER_SECOND).clamp(1, Wire::BATCH as u32) as usize,
            None => Wire::BATCH,
        };
        let mut random = fastrand::Rng::new();
        let _ = ready.send(());

        let start = Instant::now();
        let mut sent = 0;
        'flood: loop {
            for batch in frames.chunks_mut(at_once) {
                if sent >= self.limit || stop.try_recv() != Err(TryRecvError::Empty) {
                    break 'flood;
                }
                for frame in &mut *batch {
                    let source = self.source.unwrap_or_else(|| spoofed(family, &mut random));
                    vary(frame, self.kind, source, &mut random);
                }
                sent += wire.send_all(batch).context("cannot send a flood")? as u64;
                if let Some(rate) = self.rate {
                    let due = Duration::from_secs_f64(sent as f64 / f64::from(rate));
                    thread::sleep(due.saturating_sub(start.elapsed()));
                }
            }
        }
        Ok(FloodReport {
            kind: self.kind,
            sent,
            elapsed: start.elapsed(),
        })
    }
}

/// An address that no host has.
fn spoofed(family: Family, random: &mut fastrand::Rng) -> IpAddr {
    match family {
        Family::V4 => {
            let host = random.u32(1..!u32::from(SPOOFED.v4.netmask()));
            Ipv4Addr::from(u32::from(SPOOFED.v4.addr()) | host).into()
        }
        Family::V6 => {
            let host = u128::from(random.u64(1..));
            Ipv6Addr::from(u128::from(SPOOFED.v6.addr()) | host).into()
        }
    }
}

/// Gives a frame this source, another port, and other numbers.
fn vary(frame: &mut Forged, kind: FloodKind, source: IpAddr, random: &mut fastrand::Rng) {
    frame.set_source(source, random.u16(1024..));
    match kind {
        FloodKind::Syn => frame.set_numbers(random.u32(..), 0),
        FloodKind::Ack => frame.set_numbers(random.u32(..), random.u32(..)),
        FloodKind::Udp => {}
    }
}
