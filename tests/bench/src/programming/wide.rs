//! One Service of very many addresses: what it takes to program it, and to change it.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::Balanced;
use serde_json::{Value, json};

use super::changes::Change;
use crate::{
    cluster::{Cluster, agent},
    machine::cpu_time,
};

/// What it is reached at: external IPs, on each of so many ports.
pub const PORTS: u32 = 40;
pub const ADDRESSES: u32 = 2500;

/// How long the agent may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to ask whether it is done.
const POLL: Duration = Duration::from_millis(2);

/// A change of such a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Created,
    EndpointReplaced,
    AddressRemoved,
    Deleted,
}

impl Step {
    /// All, in the order in which they are made.
    pub const ALL: [Self; 4] = [
        Self::Created,
        Self::EndpointReplaced,
        Self::AddressRemoved,
        Self::Deleted,
    ];

    /// What it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::EndpointReplaced => "endpoint replaced",
            Self::AddressRemoved => "address removed",
            Self::Deleted => "deleted",
        }
    }

    fn make(self, cluster: &Cluster) -> Result<()> {
        let manifests = cluster.lab().manifests();
        let node = cluster.node().name();
        match self {
            Self::Created => {
                manifests.apply(&slice("10.244.1.1", node))?;
                manifests.apply(&service(ADDRESSES))
            }
            Self::EndpointReplaced => manifests.apply(&slice("10.244.1.2", node)),
            Self::AddressRemoved => manifests.apply(&service(ADDRESSES - 1)),
            Self::Deleted => manifests.delete("Service", NAME),
        }
    }
}

const NAME: &str = "wide";

/// Makes each change; what it took.
///
/// # Errors
///
/// If one does not arrive.
pub fn measure(cluster: &Cluster) -> Result<Vec<(Step, Change)>> {
    let balanced = cluster.balanced().context("no agent runs")?;
    let pid = agent::of(balanced)?.pid();
    let mut changes = Vec::new();
    for step in Step::ALL {
        let (before, cpu) = (Done::by(balanced)?, cpu_time(pid)?);
        let since = Instant::now();
        step.make(cluster)?;
        let done = loop {
            thread::sleep(POLL);
            let done = Done::by(balanced)?;
            // The slice of a Service that comes later is no change.
            if done.syncs > before.syncs {
                break done;
            }
            ensure!(
                since.elapsed() < PATIENCE,
                "a Service of {} addresses is not {} after {PATIENCE:?}",
                PORTS * ADDRESSES,
                step.name()
            );
        };
        let change = Change {
            wall: since.elapsed(),
            work: done.work.saturating_sub(before.work),
            cpu: cpu_time(pid)? - cpu,
        };
        changes.push((step, change));
    }
    let refused = agent::metric(balanced, "node_lb_services{state=\"not_programmed\"}")?;
    ensure!(refused == 0.0, "{refused} Services are not programmed");
    Ok(changes)
}

/// What the agent has written so far.
struct Done {
    syncs: f64,
    work: Duration,
}

impl Done {
    fn by(balanced: &Balanced) -> Result<Self> {
        let metric = |part| {
            let name = "kubeproxy_sync_proxy_rules_duration_seconds";
            agent::metric(balanced, &format!("{name}_{part}{{ip_family=\"IPv4\"}}"))
        };
        Ok(Self {
            syncs: metric("count")?,
            work: Duration::from_secs_f64(metric("sum")?),
        })
    }
}

fn service(addresses: u32) -> Value {
    let first = u32::from_be_bytes([198, 51, 100, 1]);
    let ips = (0..addresses).map(|number| Ipv4Addr::from_bits(first + number).to_string());
    let port = |number: u32| json!({ "name": format!("p{number}"), "port": 1000 + number });
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": NAME, "namespace": "default" },
        "spec": {
            "clusterIP": "10.99.0.1",
            "externalIPs": ips.collect::<Vec<_>>(),
            "ports": (0..PORTS).map(port).collect::<Vec<_>>(),
        },
    })
}

fn slice(endpoint: &str, node: &str) -> Value {
    let port = |number: u32| json!({ "name": format!("p{number}"), "port": 8080 });
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": NAME },
        },
        "addressType": "IPv4",
        "ports": (0..PORTS).map(port).collect::<Vec<_>>(),
        "endpoints": [{ "addresses": [endpoint], "nodeName": node }],
    })
}
