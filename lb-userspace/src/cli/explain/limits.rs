//! The limits of connections that a packet's connection counts against, and how many there are.

use std::{os::unix::net::UnixStream, path::Path, time::Duration};

use lb_common::{
    abi::{Plan, plan_flag},
    flow::{Seats, limit::NODE},
    pipeline,
};
use lb_datapath::memory::MemoryTables;

use crate::{agent::status::Status, http::get, map_writer::Limited};

/// How long an agent may take to say how many connections there are.
const DEADLINE: Duration = Duration::from_secs(2);

/// A limit that a connection counts against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// `None` for the node's.
    pub service: Option<String>,
    /// The most connections; 0 means that they are only counted.
    pub most: u32,
    /// How many there are now; `None` if no agent says.
    pub in_use: Option<u32>,
    /// Whether connections are let in when there are as many.
    pub exempt: bool,
}

/// How many connections there are within limits now, as the agent on this node says.
#[derive(Debug, Default)]
pub struct InUse(Option<Status>);

impl InUse {
    /// Asks the agent that listens at a socket. No agent is no error.
    pub fn ask(socket: &Path) -> Self {
        let answer = || -> anyhow::Result<Status> {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.set_write_timeout(Some(DEADLINE))?;
            let (_, body) = get(stream, "/status")?;
            Ok(serde_json::from_str(&body)?)
        };
        Self(answer().ok())
    }

    /// Of the node, or of a Service.
    fn of(&self, service: Option<&str>) -> Option<u32> {
        let mut limits = self.0.as_ref()?.connection_limits.iter();
        let found = limits.find(|limit| limit.service.as_deref() == service);
        // A limit that the agent does not know has let nobody in.
        Some(found.map_or(0, |limit| limit.in_use))
    }

    /// Writes the numbers, and the node's limit, where the pipeline looks for them.
    pub fn write(&self, tables: &MemoryTables, node_limit: u32, limited: &Limited) {
        let used = |service: Option<&str>| u64::from(self.of(service).unwrap_or(0));
        tables.set_seats(
            NODE,
            &Seats {
                word: used(None),
                limit: node_limit,
                ..tables.seats(NODE)
            },
        );
        for (name, limit) in limited.all() {
            let seats = Seats {
                word: used(Some(&name.to_string())),
                ..tables.seats(limit.index)
            };
            tables.set_seats(limit.index, &seats);
        }
    }

    /// The limits that a new connection counts against; `service` is `namespace/name`.
    pub fn limits(&self, tables: &MemoryTables, plan: &Plan, service: &str) -> Vec<Limit> {
        let place = pipeline::asks(&tables.config, plan, false).place();
        let exempt = plan.has(plan_flag::EXEMPT);
        let limit = |service: Option<&str>, index| Limit {
            service: service.map(str::to_owned),
            most: tables.seats(index).limit,
            in_use: self.of(service),
            exempt,
        };
        let of_service = (place.service() != 0).then(|| limit(Some(service), place.service()));
        let of_node = place.has_node().then(|| limit(None, NODE));
        of_service.into_iter().chain(of_node).collect()
    }
}
