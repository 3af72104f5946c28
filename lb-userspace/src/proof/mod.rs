//! Proof by test run: the programs themselves are asked what they would do with packets to a Service, and the
//! answers are compared with what fresh plans ask for.
//!
//! The programs are a [`Replica`] of those that are attached: they read the same maps, and leave nothing behind.
//! [`entrances`] says where packets come in and from whom, [`packet`] makes them, [`wanted()`] says what is to
//! become of them, and [`verdict`] compares. A [`Prover`] puts it together. `node-lb verify` asks for all Services
//! once, the agent for some after the others.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use lb_common::verdict::Reason;
use lb_datapath::{
    pins::MapPins,
    replica::{Replica, ReplicaError},
};
use lb_objects::{IpFamily, ObjectName, Protocol};

pub use self::entrance::{Entrance, entrances};
use self::{
    verdict::{Verdict, verdict},
    wanted::{Wanted, wanted},
};
use crate::{
    memory::ProgrammedTables,
    plan::{Frontend, FrontendKind, Plan},
};

mod entrance;
mod packet;
mod verdict;
mod wanted;

/// Ports of clients, from which one is as good as the other: they draw the endpoint.
const PORTS: std::ops::Range<u16> = 32_768..60_999;

/// A change of the source that is on its way to the maps is there after this time.
pub const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// So many clients ask where there are several endpoints, each by another port.
const CLIENTS: usize = 4;

/// Asks programs what they would do.
pub struct Prover {
    replica: Replica,
    entrances: Vec<Entrance>,
    /// The next client's port.
    port: u16,
    pub tally: Tally,
}

/// What has been asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets that programs have answered for.
    pub packets: u64,
    /// Those that the kernel would not take from where they came, so that nothing is known of them.
    pub not_taken: u64,
}

/// Devices of tables in memory, in the order of the prover's entrances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexes(Vec<u32>);

/// A packet with which something else happens than should.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Discrepancy {
    pub service: ObjectName,
    /// The address that it was sent to, and its protocol.
    pub to: String,
    /// Where the packet came from, and which program was asked.
    pub packet: String,
    pub found: String,
    pub wanted: String,
}

impl Prover {
    /// Loads the programs of these entrances. Takes about a second.
    ///
    /// # Errors
    ///
    /// As [`Replica::load`].
    pub fn load(pins: &MapPins, entrances: Vec<Entrance>) -> Result<Self, ReplicaError> {
        Ok(Self {
            replica: Replica::load(pins, &programs(&entrances))?,
            entrances,
            port: PORTS.start,
            tally: Tally::default(),
        })
    }

    /// Has packets come in elsewhere from now on, if the programs there are those that are loaded.
    pub fn entering_by(self, entrances: &[Entrance]) -> Option<Self> {
        let is_loaded = programs(entrances) == programs(&self.entrances);
        is_loaded.then(|| Self {
            entrances: entrances.to_vec(),
            ..self
        })
    }

    /// The names of the programs that are asked, with the kernel's hash of their instructions.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell.
    pub fn tags(&self) -> Result<Vec<(&'static str, u64)>, ReplicaError> {
        let programs = self
            .entrances
            .iter()
            .flat_map(|entrance| &entrance.programs);
        let tags = programs.map(|program| Ok((*program, self.replica.tag(program)?)));
        tags.collect()
    }

    /// Begins to count anew, and with the same clients as before.
    pub fn begin(&mut self) {
        self.port = PORTS.start;
        self.tally = Tally::default();
    }

    /// Adds the entrances' devices to tables that say what is to be.
    pub fn add_to(&self, tables: &mut ProgrammedTables) -> Indexes {
        let devices = self.entrances.iter();
        Indexes(
            devices
                .map(|entrance| tables.add_device(&entrance.device, 0))
                .collect(),
        )
    }

    /// Sends packets to an address of a service port, from all entrances and through all programs there. Where only
    /// some sources are let in, one of these asks and one of the others. `tables` say what is to become of the packets.
    ///
    /// # Errors
    ///
    /// If the kernel does not run a program.
    pub fn prove(
        &mut self,
        tables: &ProgrammedTables,
        Indexes(devices): &Indexes,
        plan: &Plan,
        frontend: &Frontend,
    ) -> Result<Vec<Discrepancy>, ReplicaError> {
        let mut found = Vec::new();
        // Only sockets reach these: see `FrontendKey::sockets`.
        if frontend.address.ip().is_loopback() {
            return Ok(found);
        }
        self.replica.follow_settings();
        for (index, device) in devices.iter().enumerate() {
            let entrance = self.entrances[index].clone();
            for source in sources(&entrance, plan, frontend) {
                let (to, protocol) = (frontend.address, plan.name.protocol);
                // Its port decides nothing but which endpoint of the set it is.
                let any_port = SocketAddr::new(source, PORTS.start);
                let Some(wanted) = wanted(tables, *device, any_port, to, protocol) else {
                    continue;
                };
                for program in &entrance.programs {
                    let mut clients = wanted.endpoints().clamp(1, CLIENTS);
                    let mut discrepancy = None;
                    while clients > 0 && discrepancy.is_none() {
                        clients -= 1;
                        let question = Question {
                            entrance: &entrance,
                            program,
                            source: SocketAddr::new(source, self.next_port()),
                            to,
                            protocol,
                        };
                        discrepancy = self.ask(&question, &wanted)?;
                    }
                    found.extend(discrepancy.map(|(packet, found)| Discrepancy {
                        service: plan.name.service.clone(),
                        to: format!("{to} {protocol}"),
                        packet,
                        found,
                        wanted: wanted.to_string(),
                    }));
                }
            }
        }
        Ok(found)
    }

    /// If something else becomes of a packet: which packet it was, and what has become of it.
    fn ask(
        &mut self,
        question: &Question<'_>,
        wanted: &Wanted,
    ) -> Result<Option<(String, String)>, ReplicaError> {
        let Question {
            entrance,
            program,
            source,
            to,
            protocol,
        } = *question;
        let frame = packet::first(entrance.mac, source, to, protocol);
        let likely = match wanted {
            Wanted::Passed => Reason::NotService,
            Wanted::Refused(reason) => *reason,
            Wanted::ToOneOf(_) => Reason::Opened,
        };
        let outcome = self
            .replica
            .run(program, entrance.ifindex, &frame, likely)?;
        self.tally.packets += 1;
        Ok(match verdict(&outcome, wanted, &frame) {
            Verdict::AsWanted => None,
            // It is the source of a test packet that is wrong.
            Verdict::NotTaken if entrance.asks_way_back => {
                self.tally.not_taken += 1;
                None
            }
            Verdict::NotTaken | Verdict::Differs => Some((
                format!("a test packet from {entrance} in {program}"),
                verdict::found(&outcome),
            )),
        })
    }

    fn next_port(&mut self) -> u16 {
        let port = self.port;
        self.port = match port + 1 {
            next if PORTS.contains(&next) => next,
            _ => PORTS.start,
        };
        port
    }
}

impl Discrepancy {
    /// Whether this is what was found `before`, and should have been otherwise then as well. What is found there may
    /// have changed: it is drawn to which endpoint a packet goes.
    pub fn repeats(&self, before: &Self) -> bool {
        (&self.service, &self.to) == (&before.service, &before.to)
            && (&self.packet, &self.wanted) == (&before.packet, &before.wanted)
    }
}

impl fmt::Display for Discrepancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            service,
            to,
            packet,
            found,
            wanted,
        } = self;
        write!(
            f,
            "{to} of {service}: {packet}: found {found}, wanted {wanted}"
        )
    }
}

/// The programs that see packets at these entrances, each once.
fn programs(entrances: &[Entrance]) -> Vec<&'static str> {
    let programs = entrances.iter().flat_map(|entrance| &entrance.programs);
    let mut programs: Vec<_> = programs.copied().collect();
    programs.sort_unstable();
    programs.dedup();
    programs
}

/// A packet to ask about.
struct Question<'a> {
    entrance: &'a Entrance,
    program: &'a str,
    source: SocketAddr,
    to: SocketAddr,
    protocol: Protocol,
}

/// Who asks for an address: one of those that are not let in, if some are not, and one of those that are.
fn sources(entrance: &Entrance, plan: &Plan, frontend: &Frontend) -> Vec<IpAddr> {
    let family = IpFamily::of(frontend.address.ip());
    let ranges: &[IpNet] = match frontend.kind {
        FrontendKind::LoadBalancerIp => &plan.source_ranges,
        _ => &[],
    };
    let is_within = |ip: IpAddr| ranges.iter().any(|range| range.contains(&ip));
    let outside = entrance.source(family, |ip| !is_within(ip));
    let of_range = || {
        let mut free = ranges
            .iter()
            .filter(|range| IpFamily::of_net(**range) == family);
        free.find_map(|range| entrance::free(*range, &Default::default()))
    };
    let inside = match ranges.is_empty() {
        true => None,
        false => entrance.source(family, is_within).or_else(of_range),
    };
    outside.into_iter().chain(inside).collect()
}
