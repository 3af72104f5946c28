//! A TCP connection through the tables, with the numbers that its two sides would use.

use std::net::SocketAddr;

use lb_common::{
    addr::{Ip4, Ip6},
    flow::{
        Flow, Stage, deadline, flow_flag,
        record::{flags, read_tag, set},
        slots::Slots,
        tag,
    },
};
use lb_datapath::memory::Family;
use lb_objects::IpFamily;
use lb_packet::{
    Header, Read, TCP, Tcp,
    tcp_flag::{ACK, FIN, SYN},
};
use node_lb::memory::ProgrammedTables;

use crate::{
    hooks::{Outcome, ingress},
    scene::Scene,
};

/// The side that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Endpoint,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Client, Self::Endpoint];

    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Endpoint,
            Self::Endpoint => Self::Client,
        }
    }
}

/// A connection from one of the client's ports.
pub struct Conversation<'a> {
    scene: &'a Scene,
    tables: &'a ProgrammedTables,
    port: u16,
    /// What the endpoint sees: the source, and its own address.
    pub there: Option<(SocketAddr, SocketAddr)>,
    /// The next sequence number of each side.
    pub next: [u32; 2],
    pub window: u16,
    pub scale: Option<u8>,
    /// The timestamp of each side's segments.
    pub stamps: [Option<u32>; 2],
}

impl<'a> Conversation<'a> {
    pub fn new(scene: &'a Scene, tables: &'a ProgrammedTables, port: u16) -> Self {
        Self {
            scene,
            tables,
            port,
            there: None,
            // Both numbers wrap during the conversation.
            next: [u32::MAX - 7, u32::MAX - 3],
            window: 0x2000,
            scale: None,
            stamps: [None; 2],
        }
    }

    /// A connection with a complete handshake.
    pub fn established(scene: &'a Scene, tables: &'a ProgrammedTables, port: u16) -> Self {
        let mut conversation = Self::new(scene, tables, port);
        conversation.shake_hands();
        conversation
    }

    /// The handshake, and what becomes of its last segment.
    pub fn shake_hands(&mut self) -> Outcome {
        self.send(Side::Client, SYN, b"");
        self.send(Side::Endpoint, SYN | ACK, b"");
        self.send(Side::Client, ACK, b"")
    }

    /// The sequence number of a TCP segment in a frame.
    pub fn first_of(frame: &[u8]) -> u32 {
        let read = Read::frame(frame);
        u32::from_be_bytes(read.payload()[4..8].try_into().unwrap())
    }

    /// Both sides close, `first` first.
    pub fn close(&mut self, first: Side) {
        self.send(first, FIN | ACK, b"");
        self.send(first.other(), FIN | ACK, b"");
        self.send(first, ACK, b"");
    }

    /// A side's next segment. The side has received everything that the other one sent.
    pub fn send(&mut self, side: Side, flags: u8, data: &[u8]) -> Outcome {
        let outcome = self.deliver(side, self.segment(side, flags), data);
        let ends = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let next = &mut self.next[side as usize];
        *next = next.wrapping_add(data.len() as u32 + ends);
        outcome
    }

    /// The header of a side's next segment.
    pub fn segment(&self, side: Side, flags: u8) -> Tcp {
        let acknowledged = match flags & ACK {
            0 => 0,
            _ => self.next[side.other() as usize],
        };
        Tcp {
            window: self.window,
            scale: self.scale.filter(|_| flags & SYN != 0),
            stamp: self.stamps[side as usize],
            ..Tcp::new(self.next[side as usize], acknowledged, flags)
        }
    }

    /// Sends any segment as if from a side. Neither side takes note of it.
    pub fn deliver(&mut self, side: Side, segment: Tcp, data: &[u8]) -> Outcome {
        let outcome = ingress(self.tables, &self.frame(side, segment, data));
        if side == Side::Client && outcome.frame.len() > 14 {
            let read = outcome.read();
            self.there = Some((read.from(), read.to()));
        }
        outcome
    }

    pub fn frame(&self, side: Side, segment: Tcp, data: &[u8]) -> Vec<u8> {
        let (from, to) = match side {
            Side::Client => (self.scene.client(self.port), self.scene.target()),
            Side::Endpoint => {
                let (source, endpoint) = self.there.expect("the client sends first");
                (endpoint, source)
            }
        };
        let bytes = segment.segment(from, to, data);
        Header::new(from.ip(), to.ip()).frame(TCP, &bytes)
    }

    /// Where the connection stands; `None` if it has no flow.
    pub fn stage(&self) -> Option<Stage> {
        match self.scene.family {
            IpFamily::V4 => self.stage_of::<Ip4>(),
            IpFamily::V6 => self.stage_of::<Ip6>(),
        }
    }

    /// Whether its client waits for its endpoint, and not the other way round.
    pub fn awaits_endpoint(&self) -> bool {
        fn awaits<A: Family>(talk: &Conversation<'_>) -> bool {
            let (there, back) = talk.records::<A>().expect("a flow");
            deadline::awaits_endpoint(&there, &back)
        }
        match self.scene.family {
            IpFamily::V4 => awaits::<Ip4>(self),
            IpFamily::V6 => awaits::<Ip6>(self),
        }
    }

    fn stage_of<A: Family>(&self) -> Option<Stage> {
        let (there, back) = self.records::<A>()?;
        Some(Stage::of(there.tag, there.flags, back.flags))
    }

    fn records<A: Family>(&self) -> Option<(Flow<A>, Flow<A>)> {
        let flows = self.tables.flows::<A>();
        let mut live = flows.live();
        let there =
            live.find(|flow| !flow.has(flow_flag::REPLY) && flow.source_port == self.port)?;
        let back = flows.slot(there.peer)?;
        assert!(tag::in_use(read_tag(back)), "half a flow");
        // SAFETY: only this thread uses the tables.
        Some((there, unsafe { *back.as_ref() }))
    }
}

/// Sets flags of the client's and the endpoint's direction of all flows, as the agent does.
pub fn mark(scene: &Scene, tables: &ProgrammedTables, there: u32, back: u32) {
    fn mark<A: Family>(tables: &ProgrammedTables, there: u32, back: u32) {
        let flows = tables.flows::<A>();
        let records = (0..=flows.mask()).filter_map(|index| flows.slot(index));
        for record in records.filter(|record| tag::in_use(read_tag(*record))) {
            let flags = match flags(record) & flow_flag::REPLY {
                0 => there,
                _ => back,
            };
            if flags != 0 {
                set(record, flags | flow_flag::WATCH);
            }
        }
    }
    match scene.family {
        IpFamily::V4 => mark::<Ip4>(tables, there, back),
        IpFamily::V6 => mark::<Ip6>(tables, there, back),
    }
}

fn is_half<A: Family>(there: &Flow<A>) -> bool {
    tag::state(there.tag) == tag::HALF && !there.has(flow_flag::REPLY)
}

/// Flows in a table.
pub fn flows(tables: &ProgrammedTables, scene: &Scene) -> usize {
    fn count<A: Family>(tables: &ProgrammedTables) -> usize {
        let live = tables.flows::<A>().live();
        live.filter(|flow| !flow.has(flow_flag::REPLY)).count()
    }
    match scene.family {
        IpFamily::V4 => count::<Ip4>(tables),
        IpFamily::V6 => count::<Ip6>(tables),
    }
}

/// Those of them that have not proved themselves.
pub fn half_open(tables: &ProgrammedTables, scene: &Scene) -> usize {
    fn count<A: Family>(tables: &ProgrammedTables) -> usize {
        tables.flows::<A>().live().filter(is_half).count()
    }
    match scene.family {
        IpFamily::V4 => count::<Ip4>(tables),
        IpFamily::V6 => count::<Ip6>(tables),
    }
}
