//! What the agent says of itself to whoever asks, while its loop is busy as well.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use lb_objects::{IpFamily, ObjectName};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use super::{
    catalog::Catalog,
    connections::Connections,
    history::Numbers,
    local_api::traffic::{ServiceEndpoints, Traffic},
    progress::Progress,
    status::{self, Busiest, FlowTable, Status},
    traffic::{endpoints, ports, traffic},
};
use crate::{
    config::ServiceSeries,
    explain::InUse,
    flows::Stats,
    latency,
    map_writer::{MapFill, Roster},
    metrics::{DeviceMode, FlowTableFill, Sample},
};

/// How long the loop has to publish what is asked for; if it is busy, what is there is the answer.
const PATIENCE: Duration = Duration::from_millis(100);

/// The agent's state as its loop last published it, and besides what can be read at any time: the
/// counters of the maps, and how far a sync has come. Who asks never waits until a loop that is
/// busy is done.
pub struct Bulletin {
    catalog: Arc<Catalog>,
    roster: Arc<Roster>,
    progress: Arc<Progress>,
    connections: Connections,
    published: Mutex<Arc<Published>>,
    renewed: Condvar,
    wanted: Notify,
}

/// What only the loop knows.
#[derive(Debug)]
pub struct Published {
    /// Without what the rest of the bulletin says.
    pub status: Status,
    pub devices: Vec<DeviceMode>,
    /// How full the maps are that Services are written to.
    pub maps: Vec<MapFill>,
    /// What the latest pass over the flow tables saw, if there has been one.
    pub flows: Option<Arc<Stats>>,
    pub at: Instant,
}

impl Published {
    /// How full both flow tables are; none before the first pass. Reads no counters, so it does not know of the
    /// busiest service ports.
    fn flow_tables(&self) -> Vec<FlowTableFill> {
        let Some(stats) = self.flows.as_deref() else {
            return Vec::new();
        };
        let tables = [(IpFamily::V4, &stats.v4), (IpFamily::V6, &stats.v6)];
        let fill = tables.map(|(family, table)| FlowTableFill {
            family,
            flows: table.flows.total(),
            room: u64::from(table.records / 2),
            busiest: 0,
            flows_of_one: table.flows_of_one(),
        });
        fill.into()
    }
}

impl Bulletin {
    /// Nothing is published yet.
    pub fn new(
        catalog: Arc<Catalog>,
        roster: Arc<Roster>,
        progress: Arc<Progress>,
        connections: Connections,
    ) -> Self {
        let nothing = Published {
            status: Status::default(),
            devices: Vec::new(),
            maps: Vec::new(),
            flows: None,
            at: Instant::now(),
        };
        Self {
            catalog,
            roster,
            progress,
            connections,
            published: Mutex::new(Arc::new(nothing)),
            renewed: Condvar::new(),
            wanted: Notify::new(),
        }
    }

    /// Replaces what was published before.
    pub fn publish(&self, state: Published) {
        *self.lock() = Arc::new(state);
        self.renewed.notify_all();
    }

    /// Waits until somebody asks for the present state, or has asked since the last call.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// What `node-lb status` shows. Has the loop publish it, if it is not busy, and reads counters:
    /// that takes time.
    pub fn status(&self) -> Status {
        let published = self.renewed();
        let traffic = traffic(&self.roster);
        let syncing = self.progress.syncing();
        let mut flows = published.status.flows.clone();
        let families = [IpFamily::V4, IpFamily::V6];
        for (table, family) in flows.iter_mut().flatten().zip(families) {
            let busiest = self.roster.busiest(family);
            table.busiest = busiest.map(|(key, flows)| Busiest {
                service_port: key.name.to_string(),
                protocol: key.name.protocol.to_string(),
                flows,
            });
        }
        Status {
            flows,
            age_ms: published.at.elapsed().as_millis() as u64,
            syncing: syncing.map(Into::into),
            services: self.catalog.services(),
            service_ports: self.roster.len(),
            pressed: traffic.iter().filter_map(status::Pressed::of).collect(),
            failing: traffic.iter().filter_map(status::Failing::of).collect(),
            connection_limits: self.connections.all().iter().map(Into::into).collect(),
            priority_levels: self.connections.levels().iter().map(Into::into).collect(),
            flow_schemas: self.connections.schemas().iter().map(Into::into).collect(),
            ..published.status.clone()
        }
    }

    /// What metrics say of the data plane, but for packets. Reads counters, which takes time; those
    /// of single service ports only if they have series.
    pub fn sample(&self, series: ServiceSeries) -> Sample {
        let published = self.published();
        let syncing = self.progress.syncing();
        let mut flow_tables = published.flow_tables();
        for table in &mut flow_tables {
            let busiest = self.roster.busiest(table.family);
            table.busiest = busiest.map_or(0, |(_, flows)| flows);
        }
        Sample {
            packets: Vec::new(),
            services: match series {
                ServiceSeries::Off => Vec::new(),
                _ => traffic(&self.roster),
            },
            limits: match series {
                ServiceSeries::Off => self.connections.node().into_iter().collect(),
                _ => self.connections.all(),
            },
            levels: self.connections.levels(),
            schemas: self.connections.schemas(),
            unclassified: self.connections.unclassified() as u64,
            limits_corrected: self.connections.corrected(),
            devices: published.devices.clone(),
            maps: published.maps.clone(),
            flow_tables,
            sync_running: syncing.map(|syncing| syncing.age).unwrap_or_default(),
            state_age: published.at.elapsed(),
        }
    }

    /// What `node-lb top` shows, but for packets. Reads counters, which takes time.
    pub fn traffic(&self) -> Traffic {
        let published = self.published();
        Traffic {
            at_ms: now_ms(),
            node: published.status.node.clone(),
            service_ports: ports(&self.roster),
            answered_within_us: latency::ends().into(),
            connection_limits: self.connections.all().iter().map(Into::into).collect(),
            priority_levels: self.connections.levels().iter().map(Into::into).collect(),
            refused_packets: BTreeMap::new(),
            flow_tables: published.flows.as_ref().map(|flows| FlowTable::both(flows)),
            maps: published.maps.iter().map(Into::into).collect(),
        }
    }

    /// What the last hour shows, but for packets.
    pub fn numbers(&self) -> Numbers {
        let tables = self.published().flow_tables();
        let levels = self.connections.levels();
        Numbers {
            flows: (!tables.is_empty()).then(|| tables.iter().map(|table| table.flows).sum()),
            room: tables.iter().map(|table| table.room).sum(),
            waiting: levels.iter().map(|level| level.waiting).sum(),
            seats: levels.iter().map(|level| level.in_use).sum(),
            ..Numbers::default()
        }
    }

    /// How many connections there are within limits. Reads counters, which takes time.
    pub fn in_use(&self) -> InUse {
        let counted = Status {
            connection_limits: self.connections.all().iter().map(Into::into).collect(),
            priority_levels: self.connections.levels().iter().map(Into::into).collect(),
            ..Status::default()
        };
        counted.in_use()
    }

    /// The endpoints of a Service, if it is in the maps.
    pub fn endpoints(&self, service: &ObjectName) -> Option<ServiceEndpoints> {
        let plan = self.catalog.get(service)?;
        Some(ServiceEndpoints {
            at_ms: now_ms(),
            endpoints: endpoints(&self.roster, &plan),
        })
    }

    fn published(&self) -> Arc<Published> {
        self.lock().clone()
    }

    /// What is published once the loop has been asked.
    fn renewed(&self) -> Arc<Published> {
        let published = self.lock();
        let before = published.at;
        self.wanted.notify_one();
        let is_old = |published: &mut Arc<Published>| published.at == before;
        let renewed = self.renewed.wait_timeout_while(published, PATIENCE, is_old);
        renewed.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    // Whole at any time, so that a panic elsewhere has not spoiled it.
    fn lock(&self) -> MutexGuard<'_, Arc<Published>> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel's monotonic clock, which is the same for every agent until the node starts anew.
fn now_ms() -> u64 {
    // Every kernel has it.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| Duration::from(now).as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use lb_common::abi::Config;
    use lb_datapath::memory::MemoryTables;

    use super::*;
    use crate::map_writer::MapWriter;

    /// Nobody publishes anything any more: the loop is busy.
    #[test]
    fn a_busy_loop_leaves_no_question_without_an_answer() {
        let tables = MemoryTables::new(Config::default(), <_>::default(), 64);
        let writer = MapWriter::empty(tables.maps(), <_>::default());
        let progress = Arc::<Progress>::default();
        let connections = Connections::in_memory();
        let bulletin = Bulletin::new(
            Arc::default(),
            writer.roster(),
            progress.clone(),
            connections,
        );
        bulletin.publish(Published {
            status: Status {
                node: "node-1".to_owned(),
                ..Status::default()
            },
            devices: Vec::new(),
            maps: Vec::new(),
            flows: None,
            at: Instant::now(),
        });

        progress.begin(10_000);
        progress.advance();
        let status = bulletin.status();
        let syncing = status.syncing.unwrap();
        assert_eq!((syncing.services, syncing.done), (10_000, 1));
        assert_eq!(status.node, "node-1");
        assert!(u128::from(status.age_ms) >= PATIENCE.as_millis());
        let sample = bulletin.sample(ServiceSeries::All);
        assert!(sample.state_age >= PATIENCE && !sample.sync_running.is_zero());
        progress.end();
        assert_eq!(bulletin.status().syncing, None);
    }

    #[test]
    fn who_asks_a_loop_that_is_not_busy_gets_the_present_state() {
        let tables = MemoryTables::new(Config::default(), <_>::default(), 64);
        let writer = MapWriter::empty(tables.maps(), <_>::default());
        let connections = Connections::in_memory();
        let bulletin = Bulletin::new(Arc::default(), writer.roster(), Arc::default(), connections);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| bulletin.status());
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.unwrap().block_on(bulletin.wanted());
            bulletin.publish(Published {
                status: Status {
                    node: "present".to_owned(),
                    ..Status::default()
                },
                devices: Vec::new(),
                maps: Vec::new(),
                flows: None,
                at: Instant::now(),
            });
            let found = asked.join().unwrap().node;
            // On a machine that is busy itself, it may have come late.
            assert!(["present", ""].contains(&&*found), "{found}");
        });
        assert_eq!(bulletin.published().status.node, "present");
    }
}
