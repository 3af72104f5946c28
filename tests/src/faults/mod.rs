//! Faults that operators meet, staged in a lab, and for each the one command that names its cause.
//! `docs/faults.md` lists them, `cargo xtask faults NAME` stages one, and a test stages them all.

mod frozen;
mod meddler;
mod scene;
mod staging;

use std::any::Any;

use anyhow::Result;

pub use self::{
    frozen::Frozen,
    meddler::Meddler,
    scene::{Scene, TARGET, cluster_ip},
    staging::PAUSE,
};

/// A fault, and how its cause is found.
pub struct Fault {
    pub name: &'static str,
    /// What is wrong.
    pub what: &'static str,
    /// What to run on the node. `CLIENT` and `NODE` stand for addresses.
    pub command: &'static str,
    /// What that prints of the cause; `*` stands for what differs from one time to the next.
    pub answer: &'static str,
    stage: fn(&mut Scene) -> Result<Staged>,
}

/// What keeps a fault up: traffic, above all. Dropped, it ends.
pub type Staged = Box<dyn Any>;

/// In an order in which none hides another one.
pub const FAULTS: [Fault; 10] = [
    Fault {
        name: "dead-endpoint",
        what: "an endpoint is ready, but nothing listens on its port",
        command: "node-lb status",
        answer: "endpoints of default/dead-endpoint:lines TCP refuse connections or do not answer: *",
        stage: staging::dead_endpoint,
    },
    Fault {
        name: "blackholed-node",
        what: "another node swallows what is sent to its pods",
        command: "node-lb status",
        answer: "none of the * endpoints on node * that were tried answers: the node is gone, or the way to it is broken",
        stage: staging::blackholed_node,
    },
    Fault {
        name: "wrong-policy",
        what: "`externalTrafficPolicy: Local` on a node without an endpoint",
        command: "node-lb explain --from CLIENT --to NODE:30083",
        answer: "is Local, and no endpoint on this node is usable, but others are",
        stage: staging::wrong_policy,
    },
    Fault {
        name: "missing-route",
        what: "the node has no route to an endpoint",
        command: "node-lb trace --service default/missing-route --limit 1 --seconds 5",
        answer: "no-route",
        stage: staging::missing_route,
    },
    Fault {
        name: "refused-service",
        what: "two Services claim the same external IP",
        command: "node-lb status",
        answer: "default/refused-service:lines TCP IPv4 is not served as it should be: *",
        stage: staging::refused_service,
    },
    Fault {
        name: "small-level",
        what: "a priority level has too few seats",
        command: "node-lb status",
        answer: "priority level small-level has no seat left of *",
        stage: staging::small_level,
    },
    Fault {
        name: "exhausted-ports",
        what: "all ports for source NAT towards an endpoint are in use",
        command: "node-lb status",
        answer: "default/exhausted-ports:lines TCP IPv4 has no more *",
        stage: staging::exhausted_ports,
    },
    Fault {
        name: "flood",
        what: "SYNs with spoofed sources",
        command: "node-lb status",
        answer: "default/flood:lines TCP has * half-open flows: spoofed SYNs, or endpoints that do not answer",
        stage: staging::flood,
    },
    Fault {
        name: "full-table",
        what: "more flows than the flow table has room for",
        command: "node-lb status",
        answer: "default/full-table:datagrams UDP IPv4 has no more *",
        stage: staging::full_table,
    },
    Fault {
        name: "stopped-agent",
        what: "no agent runs; Services are served as they were last",
        command: "node-lb status",
        answer: "cannot ask the agent at *: is it running",
        stage: staging::stopped_agent,
    },
];

impl Fault {
    /// The fault of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        FAULTS.iter().find(|fault| fault.name == name)
    }

    /// Brings it about.
    ///
    /// # Errors
    /// If the lab does not let it.
    pub fn stage(&self, scene: &mut Scene) -> Result<Staged> {
        (self.stage)(scene)
    }

    /// Whether its command has named the cause.
    pub fn is_named_by(&self, output: &str) -> bool {
        output.lines().any(|line| has_parts(line, self.answer))
    }
}

/// Whether a line has all parts of the pattern between `*`, in their order.
fn has_parts(line: &str, pattern: &str) -> bool {
    let mut rest = line;
    pattern.split('*').all(|part| {
        let found = rest.find(part);
        rest = found.map_or("", |at| &rest[at + part.len()..]);
        found.is_some()
    })
}
