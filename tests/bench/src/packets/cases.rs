//! The cases, with their stable names.

use lb_common::parse::{SCTP, TCP, UDP};

use super::traffic::Destination;

const ONE: u32 = 1;
const K1: u32 = 1 << 10;
const K64: u32 = 1 << 16;
const M1: u32 = 1 << 20;

/// One thing that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    /// Flows that exist and are hit at random, or that exist already when others are opened.
    pub flows: u32,
    /// Packets per sample.
    pub repeat: u32,
    pub work: Work,
}

/// What every packet of a case does.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A simple program of the harness, for comparison.
    Floor(&'static str),
    /// Finds its flow.
    Established(Service, Direction),
    /// Opens a new flow, of a service with clients that complete their handshakes.
    New(Service),
    /// The same without completed handshakes: each flow ends the oldest of the service's budget.
    Flood(Service),
    /// Finds no seat for its connection, and is dropped.
    Refused(Service),
    /// Is not service traffic.
    Pass,
    /// Is refused by an answer.
    Reject,
}

/// The traffic of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    pub family: IpFamily,
    /// IP protocol number.
    pub protocol: u8,
    pub destination: Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    V4,
    V6,
}

/// The direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToEndpoint,
    ToClient,
}

const TCP4: Service = Service {
    family: IpFamily::V4,
    protocol: TCP,
    destination: Destination::Remote,
};
const TCP6: Service = Service {
    family: IpFamily::V6,
    ..TCP4
};
const UDP4: Service = Service {
    protocol: UDP,
    ..TCP4
};
const SCTP4: Service = Service {
    protocol: SCTP,
    ..TCP4
};
const LOCAL4: Service = Service {
    destination: Destination::Local,
    ..TCP4
};
const LOCAL6: Service = Service {
    destination: Destination::Local,
    ..TCP6
};

const LIMITED4: Service = Service {
    destination: Destination::Limited,
    ..TCP4
};

const LEVEL4: Service = Service {
    destination: Destination::Level,
    ..TCP4
};
const LEVEL_OF_SOURCE4: Service = Service {
    destination: Destination::LevelOfSource,
    ..TCP4
};
const LEVEL_OF_PARTIES4: Service = Service {
    destination: Destination::LevelOfParties,
    ..TCP4
};

const FULL_LEVEL4: Service = Service {
    destination: Destination::FullLevel,
    ..TCP4
};

/// All cases, in their order. Cases that share flows follow each other.
pub const CASES: &[Case] = &[
    floor("empty", ONE, 5_000_000, "empty"),
    floor("ktime", ONE, 2_000_000, "ktime"),
    floor("hash-hot", ONE, 5_000_000, "hash_lookup"),
    floor("hash-1m", M1, 2_000_000, "hash_lookup"),
    pass("tcp4-pass"),
    reject("tcp4-reject"),
    to_endpoint("tcp4-est-1", TCP4, ONE),
    to_client("tcp4-reply-1", TCP4, ONE),
    to_endpoint("tcp4-est-1k", TCP4, K1),
    to_client("tcp4-reply-1k", TCP4, K1),
    to_endpoint("tcp4-est-64k", TCP4, K64),
    to_client("tcp4-reply-64k", TCP4, K64),
    to_endpoint("tcp4-est-1m", TCP4, M1),
    to_client("tcp4-reply-1m", TCP4, M1),
    to_endpoint("tcp6-est-1", TCP6, ONE),
    to_client("tcp6-reply-1", TCP6, ONE),
    to_endpoint("tcp6-est-1k", TCP6, K1),
    to_client("tcp6-reply-1k", TCP6, K1),
    to_endpoint("tcp6-est-64k", TCP6, K64),
    to_client("tcp6-reply-64k", TCP6, K64),
    to_endpoint("tcp6-est-1m", TCP6, M1),
    to_client("tcp6-reply-1m", TCP6, M1),
    to_endpoint("tcp4-local-1", LOCAL4, ONE),
    to_endpoint("tcp4-local-1k", LOCAL4, K1),
    to_endpoint("tcp4-local-64k", LOCAL4, K64),
    to_endpoint("tcp4-local-1m", LOCAL4, M1),
    to_endpoint("tcp6-local-1", LOCAL6, ONE),
    to_endpoint("tcp6-local-1k", LOCAL6, K1),
    to_endpoint("tcp6-local-64k", LOCAL6, K64),
    to_endpoint("tcp6-local-1m", LOCAL6, M1),
    to_endpoint("udp4-est-1", UDP4, ONE),
    to_endpoint("udp4-est-1k", UDP4, K1),
    to_endpoint("udp4-est-64k", UDP4, K64),
    to_endpoint("udp4-est-1m", UDP4, M1),
    to_endpoint("sctp4-est-1", SCTP4, ONE),
    to_endpoint("sctp4-est-1k", SCTP4, K1),
    to_endpoint("sctp4-est-64k", SCTP4, K64),
    to_endpoint("sctp4-est-1m", SCTP4, M1),
    new("tcp4-new", TCP4, 0, M1),
    new("tcp4-new-1m", TCP4, M1, M1 / 8),
    new("tcp4-local-new", LOCAL4, 0, M1),
    new("tcp4-limited-new", LIMITED4, 0, M1),
    new("tcp4-level-new", LEVEL4, 0, M1),
    new("tcp4-source-level-new", LEVEL_OF_SOURCE4, 0, M1),
    new("tcp4-party-level-new", LEVEL_OF_PARTIES4, 0, M1),
    refused("tcp4-level-refused", FULL_LEVEL4),
    new("tcp6-new", TCP6, 0, M1),
    new("tcp6-new-1m", TCP6, M1, M1 / 8),
    new("udp4-new", UDP4, 0, M1),
    new("sctp4-new", SCTP4, 0, M1),
    flood("tcp4-flood", TCP4),
    flood("tcp6-flood", TCP6),
];

/// The case with this name.
pub fn find(name: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.name == name)
}

const fn floor(name: &'static str, flows: u32, repeat: u32, program: &'static str) -> Case {
    Case {
        name,
        flows,
        repeat,
        work: Work::Floor(program),
    }
}

const fn pass(name: &'static str) -> Case {
    Case {
        name,
        flows: ONE,
        repeat: 5_000_000,
        work: Work::Pass,
    }
}

const fn reject(name: &'static str) -> Case {
    Case {
        name,
        flows: ONE,
        repeat: 2_000_000,
        work: Work::Reject,
    }
}

const fn to_endpoint(name: &'static str, service: Service, flows: u32) -> Case {
    established(name, service, Direction::ToEndpoint, flows)
}

const fn to_client(name: &'static str, service: Service, flows: u32) -> Case {
    established(name, service, Direction::ToClient, flows)
}

const fn established(
    name: &'static str,
    service: Service,
    direction: Direction,
    flows: u32,
) -> Case {
    Case {
        name,
        flows,
        repeat: if flows <= K1 { 5_000_000 } else { 2_000_000 },
        work: Work::Established(service, direction),
    }
}

const fn new(name: &'static str, service: Service, flows: u32, repeat: u32) -> Case {
    Case {
        name,
        flows,
        repeat,
        work: Work::New(service),
    }
}

const fn refused(name: &'static str, service: Service) -> Case {
    Case {
        name,
        flows: 0,
        repeat: M1,
        work: Work::Refused(service),
    }
}

const fn flood(name: &'static str, service: Service) -> Case {
    Case {
        name,
        flows: 0,
        repeat: M1,
        work: Work::Flood(service),
    }
}
