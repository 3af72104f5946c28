//! What the agent says of itself to whoever asks, while its loop is busy as well.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Instant,
};

use super::{
    catalog::Catalog,
    progress::Progress,
    status::{self, Status},
    traffic::traffic,
};
use crate::{
    flows::Stats,
    map_writer::Roster,
    metrics::{DeviceMode, Sample},
};

/// The agent's state as its loop last published it, and besides what can be read at any time: the
/// counters of the maps, and how far a sync has come. Asking never waits for the loop.
pub struct Bulletin {
    catalog: Arc<Catalog>,
    roster: Arc<Roster>,
    progress: Arc<Progress>,
    published: RwLock<Arc<Published>>,
}

/// What only the loop knows.
#[derive(Debug)]
pub struct Published {
    /// Without what the rest of the bulletin says.
    pub status: Status,
    pub devices: Vec<DeviceMode>,
    /// What the latest pass over the flow tables saw, if there has been one.
    pub flows: Option<Arc<Stats>>,
    pub at: Instant,
}

impl Bulletin {
    /// Nothing is published yet.
    pub fn new(catalog: Arc<Catalog>, roster: Arc<Roster>, progress: Arc<Progress>) -> Self {
        let nothing = Published {
            status: Status::default(),
            devices: Vec::new(),
            flows: None,
            at: Instant::now(),
        };
        Self {
            catalog,
            roster,
            progress,
            published: RwLock::new(Arc::new(nothing)),
        }
    }

    /// Replaces what was published before.
    pub fn publish(&self, state: Published) {
        // Whole at any time, so that a panic elsewhere has not spoiled it.
        let mut published = self
            .published
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *published = Arc::new(state);
    }

    /// What `node-lb status` shows. Reads counters, which takes time.
    pub fn status(&self) -> Status {
        let published = self.published();
        let traffic = traffic(&self.roster);
        let syncing = self.progress.syncing();
        Status {
            age_ms: published.at.elapsed().as_millis() as u64,
            syncing: syncing.map(Into::into),
            services: self.catalog.services(),
            service_ports: self.roster.len(),
            pressed: traffic.iter().filter_map(status::Pressed::of).collect(),
            failing: traffic.iter().filter_map(status::Failing::of).collect(),
            ..published.status.clone()
        }
    }

    /// What metrics say of the data plane, but for packets. Reads counters, which takes time.
    pub fn sample(&self) -> Sample {
        let published = self.published();
        let tables = published.flows.as_ref().map(|stats| [&stats.v4, &stats.v6]);
        let syncing = self.progress.syncing();
        Sample {
            packets: Vec::new(),
            services: traffic(&self.roster),
            devices: published.devices.clone(),
            flows: tables.map(|tables| tables.map(|table| table.flows.total()).iter().sum()),
            flow_table_size: tables.map(|tables| {
                tables
                    .map(|table| u64::from(table.records / 2))
                    .iter()
                    .sum()
            }),
            sync_running: syncing.map(|syncing| syncing.age).unwrap_or_default(),
            state_age: published.at.elapsed(),
        }
    }

    fn published(&self) -> Arc<Published> {
        let published = self.published.read();
        published.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
