//! What the agent reports about itself: its status, and metrics of the data plane.

use std::sync::Arc;

use super::{
    Agent, attachments,
    status::{self, Status},
};
use crate::{flows::Stats, metrics::Sample};

impl Agent {
    /// What `node-lb status` shows.
    pub(super) async fn status(&mut self) -> Status {
        let devices = self.attachments.devices().values();
        let traffic = self.syncer.traffic();
        let (room, change) = self.kernel.flow_table_size();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.config.node_name.clone(),
            source: self.config.source.to_string(),
            in_sync_since: self.in_sync_since.map(status::timestamp),
            last_sync: self.syncer.last_sync().map(status::timestamp),
            services: self.syncer.services(),
            service_ports: self.syncer.writer().len(),
            not_programmed: self.syncer.not_programmed().collect(),
            pressed: traffic.iter().filter_map(status::Pressed::of).collect(),
            at_limit: self.syncer.at_limit().collect(),
            failing: traffic.iter().filter_map(status::Failing::of).collect(),
            devices: devices.map(Into::into).collect(),
            source_problems: self.source_problems(),
            health_checks: status::HealthChecks {
                listening: self.service_health.listening().await.len(),
                problems: self
                    .service_health
                    .problems()
                    .await
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            },
            flows: self
                .flow_stats()
                .map(|stats| status::FlowTable::both(&stats)),
            flow_table_size: status::FlowTableSize {
                flows: room,
                change: change.map(str::to_owned),
            },
        }
    }

    /// What the source cannot follow, and which of its objects cannot be used.
    fn source_problems(&self) -> Vec<String> {
        let resources = self.source_health.states().into_iter();
        let behind =
            resources.filter_map(|state| Some(format!("{}: {}", state.name, state.error?)));
        let refused = self.store.problems().map(ToString::to_string);
        behind.chain(refused).collect()
    }

    /// The metrics of the data plane, without packets.
    pub(super) fn sample(&mut self) -> Sample {
        let flows = self.flow_stats();
        let devices = self.attachments.devices().values();
        Sample {
            packets: Vec::new(),
            services: self.syncer.traffic(),
            devices: devices.filter_map(attachments::Attached::mode).collect(),
            flows: flows
                .as_ref()
                .map(|stats| stats.v4.flows.total() + stats.v6.flows.total()),
            flow_table_size: flows
                .as_ref()
                .map(|stats| u64::from(stats.v4.records / 2 + stats.v6.records / 2)),
        }
    }

    /// What the latest pass over the flow tables found; `None` before the first pass.
    fn flow_stats(&self) -> Option<Arc<Stats>> {
        let stats = self.sweeper.as_ref()?.stats();
        (stats.passes > 0).then_some(stats)
    }
}
