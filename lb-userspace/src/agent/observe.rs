//! The data plane's counters for metrics, read for each request.

use std::sync::Arc;

use anyhow::Context as _;
use aya::maps::{Map, MapData, PerCpuArray};
use lb_common::verdict::{Hook, Reason};

use super::bulletin::Bulletin;
use crate::{
    config::ServiceSeries,
    metrics::{KernelSource, PacketCount, Sample},
};

/// Reads counters from the kernel; the bulletin has the rest.
pub struct Observer {
    counters: PerCpuArray<MapData, u64>,
    bulletin: Arc<Bulletin>,
    services: ServiceSeries,
}

impl Observer {
    /// `counters` is the map `PACKETS`; `services` says which service ports have series.
    ///
    /// # Errors
    ///
    /// If the map is of another type.
    pub fn new(
        counters: MapData,
        bulletin: Arc<Bulletin>,
        services: ServiceSeries,
    ) -> anyhow::Result<Self> {
        let counters = PerCpuArray::try_from(Map::PerCpuArray(counters))?;
        Ok(Self {
            counters,
            bulletin,
            services,
        })
    }

    /// Packets that were counted at a hook for a reason, on all CPUs.
    fn packets(&self, hook: Hook, reason: Reason) -> anyhow::Result<u64> {
        let counts = self.counters.get(&hook.counter(reason), 0);
        let counts = counts.context("cannot read map PACKETS")?;
        Ok(counts.iter().sum())
    }
}

impl KernelSource for Observer {
    fn sample(&self) -> anyhow::Result<Sample> {
        let mut sample = self.bulletin.sample(self.services);
        for hook in Hook::ALL {
            for reason in Reason::ALL {
                sample.packets.push(PacketCount {
                    hook: hook.name(),
                    reason: reason.name(),
                    packets: self.packets(*hook, *reason)?,
                });
            }
        }
        Ok(sample)
    }
}
