//! The data plane's counters for metrics and `top`, read for each request.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use aya::maps::{Map, MapData, PerCpuArray};
use lb_common::verdict::{Hook, Reason};

use lb_objects::ObjectName;

use super::{
    bulletin::Bulletin,
    history::{Numbers, NumbersSource},
    local_api::traffic::{ServiceEndpoints, Traffic, TrafficSource},
    status::Status,
};
use crate::{
    config::ServiceSeries,
    metrics::{KernelSource, PacketCount, Sample},
};

/// How long what has been read for one caller is the answer to others as well.
const SHARED: Duration = Duration::from_millis(100);

/// Reads counters from the kernel; the bulletin has the rest.
pub struct Observer {
    counters: PerCpuArray<MapData, u64>,
    bulletin: Arc<Bulletin>,
    services: ServiceSeries,
    /// What was read last, and when.
    latest: Mutex<Option<(Instant, Arc<Traffic>)>>,
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
            latest: Mutex::default(),
        })
    }

    /// What `node-lb status` shows; that takes time.
    pub fn status(&self) -> Status {
        self.bulletin.status()
    }

    /// Packets that were refused or dropped, by reason.
    fn refusals(&self) -> impl Iterator<Item = anyhow::Result<(&'static str, u64)>> {
        let refusals = Reason::ALL.iter().filter(|reason| reason.is_refusal());
        refusals.map(|reason| Ok((reason.name(), self.at_all_hooks(*reason)?)))
    }

    /// Packets that were counted for a reason at all hooks.
    fn at_all_hooks(&self, reason: Reason) -> anyhow::Result<u64> {
        let at_hooks = Hook::ALL.iter().map(|hook| self.packets(*hook, reason));
        at_hooks.sum()
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

impl TrafficSource for Observer {
    fn traffic(&self) -> anyhow::Result<Arc<Traffic>> {
        // Held while reading, so that callers at the same time read once together. Whole at any
        // time, so that a panic has not spoiled it.
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, traffic)) = &*latest
            && at.elapsed() < SHARED
        {
            return Ok(traffic.clone());
        }
        let at = Instant::now();
        let mut traffic = self.bulletin.traffic();
        for refused in self.refusals() {
            let (reason, packets) = refused?;
            traffic.refused_packets.insert(reason.to_owned(), packets);
        }
        let traffic = Arc::new(traffic);
        *latest = Some((at, traffic.clone()));
        Ok(traffic)
    }

    fn endpoints(&self, service: &ObjectName) -> Option<ServiceEndpoints> {
        self.bulletin.endpoints(service)
    }
}

impl NumbersSource for Observer {
    fn numbers(&self) -> anyhow::Result<Numbers> {
        let opened = [Reason::Opened, Reason::SocketTranslated];
        let opened = opened.into_iter().map(|reason| self.at_all_hooks(reason));
        Ok(Numbers {
            refused: self.refusals().collect::<anyhow::Result<_>>()?,
            opened: opened.sum::<anyhow::Result<_>>()?,
            ..self.bulletin.numbers()
        })
    }
}
