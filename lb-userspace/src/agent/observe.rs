//! The data plane's counters for metrics, read for each request.

use anyhow::Context as _;
use aya::maps::{Map, MapData, PerCpuArray};
use lb_common::verdict::{Hook, Reason};
use tokio::sync::{mpsc, oneshot};

use crate::metrics::{KernelSource, PacketCount, Sample};

/// Reads counters from the kernel, and asks the agent for the rest.
pub struct Observer {
    counters: PerCpuArray<MapData, u64>,
    agent: mpsc::Sender<oneshot::Sender<Sample>>,
}

impl Observer {
    /// `counters` is the map `PACKETS`. Everything but packets is answered by the agent.
    ///
    /// # Errors
    ///
    /// If the map is of another type.
    pub fn new(
        counters: MapData,
        agent: mpsc::Sender<oneshot::Sender<Sample>>,
    ) -> anyhow::Result<Self> {
        let counters = PerCpuArray::try_from(Map::PerCpuArray(counters))?;
        Ok(Self { counters, agent })
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
        let (reply, answer) = oneshot::channel();
        self.agent.blocking_send(reply)?;
        let mut sample = answer.blocking_recv()?;
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
