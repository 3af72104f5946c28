//! Flows, counted in the kernel's flow tables by whom they have in common. This command reads the
//! tables itself, as `node-lb flows` does: that costs the agent and packets nothing.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use lb_common::{
    abi,
    addr::{Address, Ip4, Ip6},
    flow::{Flow, Stage, flow_flag, tag},
};

use crate::{
    cli::flows::pinned,
    flows::{Connection, Records, socket_addr},
};

/// The most sources that are kept, those with the most flows: more make no readable table.
const SOURCES: usize = 1000;

/// Which flows to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Those of these services, by their numbers in the maps; of all if `None`.
    pub services: Option<Vec<u32>>,
    /// Those to this endpoint, if there is one.
    pub endpoint: Option<SocketAddr>,
    pub by: By,
}

/// What flows are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Endpoint,
    Source,
}

/// What flows have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whose {
    Endpoint(SocketAddr),
    Source(IpAddr),
}

/// The flows of one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    pub open: u64,
    /// Those that have not proved themselves.
    pub half_open: u64,
    /// Those that have a port for source NAT.
    pub source_nat: u64,
    /// The service that they are of; `None` if they are of several.
    pub service: Option<u32>,
}

/// What a pass over the tables has found.
#[derive(Clone, Debug, Default)]
pub struct Count {
    pub ask: Option<Ask>,
    pub crowds: HashMap<Whose, Crowd>,
    /// How many there were.
    pub found: usize,
    /// The flows of all of them.
    pub flows: u64,
    /// Ports for source NAT towards each endpoint.
    pub snat_ports: u32,
    /// How long it took.
    pub took: Duration,
}

impl Count {
    /// Counts the flows in the tables that are pinned below `root`. Takes time.
    ///
    /// # Errors
    ///
    /// If they are not there, or cannot be read.
    pub fn take(root: &Path, ask: Ask) -> anyhow::Result<Self> {
        let began = Instant::now();
        let mut count = Self {
            snat_ports: pinned::<abi::Config>(root, "CONFIG")?.read(0).snat_count,
            ..Self::default()
        };
        count.add(&pinned::<Flow<Ip4>>(root, "FLOWS4")?, &ask);
        count.add(&pinned::<Flow<Ip6>>(root, "FLOWS6")?, &ask);
        count.keep_largest(SOURCES);
        count.ask = Some(ask);
        count.took = began.elapsed();
        Ok(count)
    }

    /// The flows of one of those that are told apart.
    pub fn of(&self, whose: Whose) -> Option<&Crowd> {
        self.crowds.get(&whose)
    }

    /// Adds the flows in a table.
    pub(super) fn add<A: Address>(&mut self, records: &impl Records<A>, ask: &Ask) {
        for index in 0..records.len() {
            // Most records are free.
            if !tag::in_use(records.tag(index).load(Ordering::Relaxed)) {
                continue;
            }
            let forward = records.read(index);
            if !tag::in_use(forward.tag) || forward.has(flow_flag::REPLY) {
                continue;
            }
            let service = forward.service_id();
            let services = ask.services.as_ref();
            if services.is_some_and(|services| !services.contains(&service)) {
                continue;
            }
            let Some(connection) = Connection::new(records, index, &forward) else {
                continue;
            };
            let endpoint = connection.endpoint();
            if ask.endpoint.is_some_and(|asked| asked != endpoint) {
                continue;
            }
            let whose = match ask.by {
                By::Endpoint => Whose::Endpoint(endpoint),
                By::Source => Whose::Source(socket_addr(forward.source, 0).ip()),
            };
            let first = Crowd {
                service: Some(service),
                ..Crowd::default()
            };
            let crowd = self.crowds.entry(whose).or_insert(first);
            let is_half_open = matches!(connection.stage(), Stage::Unreplied | Stage::Handshake);
            crowd.open += 1;
            crowd.half_open += u64::from(is_half_open);
            crowd.source_nat += u64::from(forward.has(flow_flag::SOURCE_NAT));
            crowd.service = crowd.service.filter(|known| *known == service);
        }
    }

    /// Sums up, and leaves so many sources, those with the most flows. Endpoints stay all: there are
    /// no more than the cluster has.
    pub(super) fn keep_largest(&mut self, most: usize) {
        self.found = self.crowds.len();
        self.flows = self.crowds.values().map(|crowd| crowd.open).sum();
        let is_source = |whose: &Whose| matches!(whose, Whose::Source(_));
        if self.found <= most || !self.crowds.keys().all(is_source) {
            return;
        }
        let mut largest: Vec<_> = self.crowds.drain().collect();
        largest.select_nth_unstable_by_key(most, |(whose, crowd)| (u64::MAX - crowd.open, *whose));
        largest.truncate(most);
        self.crowds.extend(largest);
    }
}
