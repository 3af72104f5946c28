//! What the agent's loop publishes of its state.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Agent,
    admission::Admission,
    attachments,
    bulletin::Published,
    status::{self, Status},
};
use crate::{flows::Stats, map_writer::MapFill};

/// How old what is published may get while the loop handles one change after the other.
const INTERVAL: Duration = Duration::from_secs(1);

/// Logs a problem, if it is another one than before, and remembers it.
pub(super) fn tell_once(problem: Option<String>, known: &mut Option<String>) {
    if let Some(problem) = problem.as_ref().filter(|_| problem != *known) {
        tracing::warn!("{problem}");
    }
    *known = problem;
}

impl Agent {
    /// Publishes what the agent's state is by now, if that was not done just before.
    pub(super) async fn publish_in_time(&mut self) {
        if self.published.elapsed() >= INTERVAL {
            self.publish_state().await;
        }
    }

    /// Publishes what the agent's state is.
    pub(super) async fn publish_state(&mut self) {
        let devices = self.attachments.devices().values();
        let state = Published {
            status: self.status().await,
            devices: devices.filter_map(attachments::Attached::mode).collect(),
            maps: self.fill(),
            flows: self.flow_stats(),
            at: Instant::now(),
        };
        self.bulletin.publish(state);
        self.published = Instant::now();
    }

    /// What only the agent's loop knows of [`Status`].
    async fn status(&self) -> Status {
        let devices = self.attachments.devices().values();
        let (room, change) = self.kernel.flow_table_size();
        let problems = self.service_health.problems().await;
        let addresses = self.node.node().addresses.iter();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.config.node_name.clone(),
            node_addresses: addresses.copied().collect(),
            local_addresses_left_out: self.addresses_left_out,
            source: self.config.source.to_string(),
            api_server: self.feed.api_servers.last().map(|way| way.to_string()),
            in_sync_since: self.in_sync_since.map(status::timestamp),
            last_sync: self.syncer.last_sync().map(status::timestamp),
            not_programmed: self.syncer.not_programmed().collect(),
            left_to_node: self.syncer.left_to_node().collect(),
            maps: self.fill().iter().map(Into::into).collect(),
            at_limit: self.syncer.at_limit().collect(),
            devices: devices.map(Into::into).collect(),
            node_problems: self.node_problems(),
            source_problems: self.source_problems(),
            health_checks: status::HealthChecks {
                listening: self.service_health.listening().await.len(),
                problems: problems.iter().map(ToString::to_string).collect(),
            },
            flows: self
                .flow_stats()
                .map(|stats| status::FlowTable::both(&stats)),
            flow_table_size: status::FlowTableSize {
                flows: room,
                change: change.map(str::to_owned),
            },
            trace: self.tracer.running(),
            verification: self.verification.report(),
            test_packets: self.proof.report(),
            silent_nodes: self.silent_nodes.clone(),
            admission: self.config.admission.mode.name().to_owned(),
            admission_problems: self.admission_problems(),
            ..Status::default()
        }
    }

    /// How full the maps are.
    fn fill(&self) -> Vec<MapFill> {
        let mut fill = self.syncer.fill();
        fill.extend(self.kernel.fill());
        fill
    }

    /// What the source cannot follow, and which of its objects cannot be used.
    fn source_problems(&self) -> Vec<String> {
        let health = [&self.feed.health]
            .into_iter()
            .chain(&self.feed.service_cidrs);
        let resources = health.flat_map(|health| health.states());
        let behind =
            resources.filter_map(|state| Some(format!("{}: {}", state.name, state.error?)));
        let refused = self.store.problems().map(ToString::to_string);
        behind.chain(refused).collect()
    }

    /// What is wrong with the objects of connection admission, and why they cannot be followed.
    fn admission_problems(&self) -> Vec<String> {
        let pods = self.feed.pods.iter().map(|pods| &pods.health);
        let health = self.feed.admission.iter();
        let health = health.chain(&self.feed.namespaces).chain(pods);
        let behind = health.flat_map(|health| health.states());
        let behind = behind.filter_map(|state| Some(format!("{}: {}", state.name, state.error?)));
        let objects = self.admission.iter().flat_map(Admission::problems);
        behind.chain(objects).collect()
    }

    /// What of this node is in the way of the agent's work.
    fn node_problems(&self) -> Vec<String> {
        let of_object = self.node.problem().map(str::to_owned);
        of_object
            .into_iter()
            .chain(self.undetected.clone())
            .chain(self.unserved.clone())
            .chain(self.unpinned.clone())
            .chain(self.kernel.map_sizes_problem().map(str::to_owned))
            .collect()
    }

    /// What the latest pass over the flow tables found; `None` before the first pass.
    fn flow_stats(&self) -> Option<Arc<Stats>> {
        let stats = self.sweeper.as_ref()?.stats();
        (stats.passes > 0).then_some(stats)
    }
}
