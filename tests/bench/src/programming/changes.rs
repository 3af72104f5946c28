//! Replaces one endpoint of a Service by another.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lb_common::{
    abi::{self, Endpoint, Frontend, FrontendKey, Plan},
    addr::{Address as _, Ip4},
    parse::TCP,
};
use lb_datapath::bpf::{BatchMap, MappedArray};
use lb_tests::Balanced;

use crate::{
    cluster::{
        Cluster, agent, nft, rules,
        services::{self, PORT},
    },
    machine::cpu_time,
    statistics::Random,
};

/// How long a change may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to check whether the change is in force.
const POLL: Duration = Duration::from_micros(50);

/// By then everything that a change causes after packets see it is over.
const AFTERMATH: Duration = Duration::from_millis(20);

/// The cost of a change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// From its announcement until packets see it.
    pub wall: Duration,
    /// The part of that time spent on work, without waiting for more changes.
    pub work: Duration,
    pub cpu: Duration,
}

/// Makes changes in a cluster.
pub struct Changes<'a> {
    cluster: &'a Cluster,
    random: Random,
    /// The Service that has another endpoint at present.
    changed: Option<u32>,
    agent: Option<AgentChanges<'a>>,
}

/// The agent, and where its changes show.
struct AgentChanges<'a> {
    balanced: &'a Balanced,
    pid: u32,
    /// Ids of Services, by ClusterIP.
    ids: HashMap<Ipv4Addr, u32>,
    services: MappedArray<abi::Service>,
    plans: MappedArray<Plan>,
    endpoints: MappedArray<Endpoint>,
}

impl<'a> Changes<'a> {
    /// For a cluster with programmed Services.
    ///
    /// # Errors
    ///
    /// If node-lb's maps cannot be read.
    pub fn of(cluster: &'a Cluster) -> Result<Self> {
        Ok(Self {
            cluster,
            random: Random::new(u64::from(cluster.services)),
            changed: None,
            agent: cluster.balanced().map(AgentChanges::of).transpose()?,
        })
    }

    /// Replaces an endpoint of some Service, or the next time, takes that back. Waits until it is
    /// done.
    ///
    /// # Errors
    ///
    /// If the change does not arrive.
    pub fn make(&mut self) -> Result<Change> {
        let (service, before, after) = match self.changed.take() {
            Some(service) => (
                service,
                services::changed_endpoints(service),
                services::endpoints(service),
            ),
            None => {
                let service = self.random.below(self.cluster.services);
                self.changed = Some(service);
                (
                    service,
                    services::endpoints(service),
                    services::changed_endpoints(service),
                )
            }
        };
        match &self.agent {
            Some(agent) => agent.make(self.cluster, service, &after),
            None => through_nft(self.cluster, &rules::change(service, &before, &after)),
        }
    }
}

/// The transaction that kube-proxy sends, without the work of computing it.
fn through_nft(cluster: &Cluster, transaction: &str) -> Result<Change> {
    let usage = nft(cluster.node(), transaction)?;
    Ok(Change {
        wall: usage.wall,
        work: usage.wall,
        cpu: usage.cpu,
    })
}

impl<'a> AgentChanges<'a> {
    fn of(balanced: &'a Balanced) -> Result<Self> {
        let maps = balanced.map_dir(1)?;
        let frontends = BatchMap::<FrontendKey<Ip4>, Frontend>::from_pin(&maps.join("FRONTENDS4"))?;
        let ids = frontends.entries()?.into_iter();
        let ids = ids.filter(|(key, _)| key.port == PORT && key.protocol == TCP);
        Ok(Self {
            balanced,
            pid: agent::of(balanced)?.pid(),
            ids: ids
                .map(|(key, frontend)| (key.address.octets.into(), frontend.service))
                .collect(),
            services: MappedArray::from_pin(&maps.join("SERVICES"))?,
            plans: MappedArray::from_pin(&maps.join("PLANS"))?,
            endpoints: MappedArray::from_pin(&maps.join("ENDPOINTS"))?,
        })
    }

    /// Measures from before the manifest is written until the Service has another plan.
    fn make(&self, cluster: &Cluster, service: u32, after: &[Ipv4Addr]) -> Result<Change> {
        let address = services::cluster_ip(service);
        let id = *self
            .ids
            .get(&address)
            .with_context(|| format!("no frontend {address}"))?;
        let plan = self.services.read(id).plan;
        let work = self.work()?;
        let cpu = cpu_time(self.pid)?;
        let since = Instant::now();
        services::apply(cluster.lab(), service, after)?;
        while self.services.read(id).plan == plan {
            ensure!(
                since.elapsed() < PATIENCE,
                "a change is not in the maps after {PATIENCE:?}"
            );
            thread::sleep(POLL);
        }
        let wall = since.elapsed();
        thread::sleep(AFTERMATH);
        let cpu = cpu_time(self.pid)? - cpu;
        let found = self.programmed(id);
        ensure!(
            found.len() == after.len() && after.iter().all(|address| found.contains(address)),
            "{} is sent to {found:?}, not {after:?}",
            services::name(service)
        );
        Ok(Change {
            wall,
            work: self.work_since(work)?,
            cpu,
        })
    }

    /// The endpoints of a Service in the maps.
    fn programmed(&self, id: u32) -> Vec<Ipv4Addr> {
        let plan = self.plans.read(self.services.read(id).plan);
        let count: u32 = plan.counts.iter().sum();
        let endpoints = self.endpoints.iter(plan.first..plan.first + count);
        endpoints
            .map(|(_, endpoint)| Ip4::from_mapped(endpoint.address).octets.into())
            .collect()
    }

    /// How long the agent has worked on changes so far.
    fn work(&self) -> Result<Duration> {
        let name = "kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family=\"IPv4\"}";
        Ok(Duration::from_secs_f64(agent::metric(self.balanced, name)?))
    }

    /// The same since `before`, once the change in the maps has been counted.
    fn work_since(&self, before: Duration) -> Result<Duration> {
        let since = Instant::now();
        loop {
            let work = self.work()?.saturating_sub(before);
            if !work.is_zero() || since.elapsed() > PATIENCE {
                return Ok(work);
            }
            thread::sleep(POLL);
        }
    }
}
