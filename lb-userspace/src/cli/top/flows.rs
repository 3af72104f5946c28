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

use super::bytes::{Bytes, Marks};
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

impl Ask {
    /// All flows, by service.
    pub fn services() -> Self {
        Self {
            services: None,
            endpoint: None,
            by: By::Service,
        }
    }
}

/// What flows are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By their service's number in the maps.
    Service,
    Endpoint,
    Source,
}

/// What flows have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whose {
    Service(u32),
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
    /// What those of them have carried that the count before has seen, too; `None` if there are none.
    pub bytes: Option<Bytes>,
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
    /// The time in which flows have carried their bytes: since the count before, if it asked for the same.
    pub span: Option<Duration>,
}

/// Counts flows again and again.
#[derive(Debug, Default)]
pub struct Counter {
    /// What was asked for last, and when.
    last: Option<(Ask, Instant)>,
    v4: Marks,
    v6: Marks,
}

impl Counter {
    /// Counts the flows in the tables that are pinned below `root`. Takes time.
    ///
    /// # Errors
    ///
    /// If they are not there, or cannot be read.
    pub fn count(&mut self, root: &Path, ask: &Ask) -> anyhow::Result<Count> {
        let began = Instant::now();
        let last = self.last.take().filter(|(asked, _)| asked == ask);
        if last.is_none() {
            // Of other flows, only some may have been seen.
            (self.v4, self.v6) = Default::default();
        }
        let mut count = Count {
            ask: Some(ask.clone()),
            snat_ports: pinned::<abi::Config>(root, "CONFIG")?.read(0).snat_count,
            span: last.map(|(_, at)| began.duration_since(at)),
            ..Count::default()
        };
        count.add(&pinned::<Flow<Ip4>>(root, "FLOWS4")?, ask, &mut self.v4);
        count.add(&pinned::<Flow<Ip6>>(root, "FLOWS6")?, ask, &mut self.v6);
        count.keep_largest(SOURCES);
        count.took = began.elapsed();
        self.last = Some((ask.clone(), began));
        Ok(count)
    }
}

impl Count {
    /// The flows of one of those that are told apart.
    pub fn of(&self, whose: Whose) -> Option<&Crowd> {
        self.crowds.get(&whose)
    }

    /// What some of them carry per second, together: from clients, and to them. `None` if that is not known.
    pub fn rates<'a>(&self, crowds: impl IntoIterator<Item = &'a Crowd>) -> [Option<f64>; 2] {
        let seconds = self.span.map(|span| span.as_secs_f64());
        let bytes = crowds
            .into_iter()
            .filter_map(|crowd| crowd.bytes)
            .reduce(Bytes::and);
        let (Some(seconds), Some(bytes)) = (seconds.filter(|seconds| *seconds > 0.0), bytes) else {
            return [None; 2];
        };
        [bytes.from_clients, bytes.to_clients].map(|bytes| Some(bytes as f64 / seconds))
    }

    /// Adds the flows in a table, and marks where they are.
    pub(super) fn add<A: Address>(
        &mut self,
        records: &impl Records<A>,
        ask: &Ask,
        marks: &mut Marks,
    ) {
        marks.look(records.len());
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
                By::Service => Whose::Service(service),
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
            if let Some(bytes) = marks.pass(index, &connection) {
                crowd.bytes = Some(crowd.bytes.unwrap_or_default().and(bytes));
            }
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
