//! The kernel's flow tables for the local API.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError, Weak, atomic::Ordering},
};

use anyhow::Context as _;
use aya::maps::MapData;
use lb_common::{
    abi,
    addr::{Address, Ip4, Ip6},
    flow::Flow,
};
use lb_datapath::{Jiffies, TickRate, bpf::MappedArray};

use super::local_api::flows::{FlowSource, NewFlows};
use crate::flows::{
    FlowReport, Records,
    holders::{Held, Holder, Holders},
    records::which,
};

/// Both tables, and the clock that dates their records.
pub struct KernelFlows {
    v4: MapData,
    v6: MapData,
    config: MappedArray<abi::Config>,
    schemas: MappedArray<abi::FlowSchema>,
    jiffies: Arc<Jiffies>,
    /// Mapped for those who read them now.
    mapped: Mutex<Weak<Tables>>,
}

/// The tables mapped into memory, once for all who read them at the same time. They stay mapped only
/// while somebody does.
struct Tables {
    v4: MappedArray<Flow<Ip4>>,
    v6: MappedArray<Flow<Ip6>>,
    rate: TickRate,
    jiffies: Arc<Jiffies>,
}

impl KernelFlows {
    /// The maps `FLOWS4`, `FLOWS6`, `CONFIG` and `FLOW_SCHEMAS`.
    ///
    /// # Errors
    ///
    /// If the kernel's clock cannot be read.
    pub fn new(
        v4: MapData,
        v6: MapData,
        config: MappedArray<abi::Config>,
        schemas: MappedArray<abi::FlowSchema>,
    ) -> anyhow::Result<Self> {
        let jiffies = Jiffies::open().context("cannot read the kernel's clock")?;
        Ok(Self {
            v4,
            v6,
            config,
            schemas,
            jiffies: Arc::new(jiffies),
            mapped: Mutex::default(),
        })
    }

    fn tables(&self) -> anyhow::Result<Arc<Tables>> {
        // Whole at any time, so that a panic has not spoiled it.
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tables) = mapped.upgrade() {
            return Ok(tables);
        }
        let tables = Arc::new(Tables {
            v4: MappedArray::new(&self.v4)?,
            v6: MappedArray::new(&self.v6)?,
            rate: TickRate::of(&self.config.read(0)).context("there are no settings yet")?,
            jiffies: self.jiffies.clone(),
        });
        *mapped = Arc::downgrade(&tables);
        Ok(tables)
    }
}

impl Tables {
    fn now(&self) -> anyhow::Result<u32> {
        let jiffies = self
            .jiffies
            .now()
            .context("cannot read the kernel's clock")?;
        Ok(self.rate.tick(jiffies))
    }
}

impl FlowSource for KernelFlows {
    fn flows(
        &self,
        wanted: &dyn Fn(&FlowReport) -> bool,
        limit: usize,
    ) -> anyhow::Result<(Vec<FlowReport>, bool)> {
        let tables = self.tables()?;
        let (rate, now) = (tables.rate, tables.now()?);
        let v4 = FlowReport::all(&tables.v4, rate, now);
        let all = v4.chain(FlowReport::all(&tables.v6, rate, now));
        let mut all = all.filter(wanted);
        let flows: Vec<_> = all.by_ref().take(limit).collect();
        let more = all.next().is_some();
        Ok((flows, more))
    }

    fn holders(&self, limit: usize) -> anyhow::Result<(Vec<(Holder, Held)>, bool)> {
        let tables = self.tables()?;
        let rule = |schema| {
            let is_known = schema < self.schemas.len();
            is_known.then(|| self.schemas.read(schema).rule)
        };
        let mut holders = Holders::default();
        holders.add(&tables.v4, rule);
        holders.add(&tables.v6, rule);
        Ok(holders.largest(limit))
    }

    fn follow(&self) -> anyhow::Result<Box<dyn NewFlows>> {
        let tables = self.tables()?;
        Ok(Box::new(Follower {
            seen4: all(&tables.v4),
            seen6: all(&tables.v6),
            tables,
        }))
    }
}

/// Finds new flows.
struct Follower {
    tables: Arc<Tables>,
    /// Which flow each record was of when last looked at.
    seen4: Vec<u32>,
    seen6: Vec<u32>,
}

impl NewFlows for Follower {
    fn next(&mut self, limit: usize) -> anyhow::Result<(Vec<FlowReport>, usize)> {
        let (rate, now) = (self.tables.rate, self.tables.now()?);
        let (mut flows, mut skipped) = (Vec::new(), 0);
        let mut tell = |flow| match flows.len() < limit {
            true => flows.push(flow),
            false => skipped += 1,
        };
        changed(&self.tables.v4, &mut self.seen4)
            .filter_map(|index| FlowReport::at(&self.tables.v4, index, rate, now))
            .for_each(&mut tell);
        changed(&self.tables.v6, &mut self.seen6)
            .filter_map(|index| FlowReport::at(&self.tables.v6, index, rate, now))
            .for_each(&mut tell);
        Ok((flows, skipped))
    }
}

/// Which flow each record is of.
fn all<A: Address>(records: &impl Records<A>) -> Vec<u32> {
    let index = 0..records.len();
    index.map(|index| flow_at(records, index)).collect()
}

/// The records of another flow than in `seen`, where it is replaced.
fn changed<A: Address>(records: &impl Records<A>, seen: &mut [u32]) -> impl Iterator<Item = u32> {
    (0..).zip(seen).filter_map(|(index, seen)| {
        let flow = flow_at(records, index);
        (mem::replace(seen, flow) != flow).then_some(index)
    })
}

fn flow_at<A: Address>(records: &impl Records<A>, index: u32) -> u32 {
    which(records.tag(index).load(Ordering::Relaxed))
}
