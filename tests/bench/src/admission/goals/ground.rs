//! The lab: tenants with a Service, a pod, a priority level and a flow schema each, and hosts that load
//! them.
//!
//! ```text
//! quiet client ──── router ──┬── node-1 ──┬── pod-1-1   serves the first tenant
//!                            ├── noisy-1  └── …
//!                            └── …
//! ```

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use lb_tests::{
    AgentSource, Balanced, Endpoint, Family, Held, Host, Lab, Pod, Serve, Topology,
    manifests::admission::{flow_schema, priority_level},
    traffic::{Capacity, RunningServer},
};
use node_lb::agent::status::{FlowSchema, PriorityLevel};
use serde_json::{Value, json};

use super::super::node_lb::enforce;
use crate::cluster::{agent, services::TARGET_PORT};

/// The endpoints' backlog: as much as Linux allows by default, which servers in Go use.
const BACKLOG: u32 = 4096;
/// The number of the first noisy host on the node network.
const FIRST_NOISY: u8 = 2;
/// The port of the node for the first tenant.
const FIRST_PORT: u16 = 30_080;

/// A tenant: the name of its Service, priority level and flow schema, whose flows are clients' addresses.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    pub name: &'static str,
    /// Seats of its level.
    pub seats: u32,
    pub response: Response,
}

/// What a connection gets that finds no seat.
#[derive(Clone, Copy, Debug)]
pub enum Response {
    /// It is refused.
    Reject,
    /// It waits for its turn.
    Queue {
        queues: u32,
        /// The most connections in each of them.
        length: u32,
        /// For how long a client is patient, in seconds; its connection waits for a quarter of that.
        patience: u32,
        /// Whether free seats are kept for clients without any.
        keeps_seats: bool,
    },
}

impl Tenant {
    /// Its level and its schema.
    fn objects(&self) -> [Value; 2] {
        let mut level = priority_level(self.name, self.seats);
        let destination = json!({"namespaces": ["*"], "services": [self.name]});
        let mut schema = flow_schema(self.name, &json!({"kind": "Any"}), &destination);
        schema["spec"]["distinguisherMethod"] = json!({"type": "BySourceIP"});
        if let Response::Queue {
            queues,
            length,
            patience,
            keeps_seats,
        } = self.response
        {
            let limited = &mut level["spec"]["limited"];
            limited["limitResponse"] = json!({
                "type": "Queue",
                "queuing": {"queues": queues, "handSize": 6, "queueLengthLimit": length},
            });
            if !keeps_seats {
                limited["connections"] = json!({"firstSeatReservePercent": 0});
            }
            schema["spec"]["deadlines"] = json!({"connectPatience": format!("{patience}s")});
        }
        [level, schema]
    }
}

/// A lab in which node-lb admits connections to tenants.
pub struct Ground {
    // Dropped first.
    servers: Vec<RunningServer>,
    pub balanced: Balanced,
    tenants: Vec<Tenant>,
    noisy: Vec<Host>,
}

impl Ground {
    /// Builds the lab with so many noisy hosts, starts an endpoint for each tenant, and node-lb with more
    /// arguments.
    ///
    /// # Errors
    ///
    /// Without root, or if something does not start.
    pub fn build(tenants: &[Tenant], noisy: u8, arguments: &[&str]) -> Result<Self> {
        let lab = Lab::up(Topology {
            nodes: 1,
            pods_per_node: tenants.len() as u8,
            ..Topology::default()
        })?;
        let noisy = (FIRST_NOISY..).zip(1..=noisy);
        let noisy = noisy.map(|(number, name)| lab.add_host(&format!("noisy-{name}"), number));
        let noisy = noisy.collect::<Result<Vec<_>>>()?;
        for host in &noisy {
            host.allow_many_connections()?;
        }
        let mut servers = Vec::new();
        for ((tenant, pod), number) in tenants.iter().zip(lab.pods()).zip(0..) {
            servers.push(serve(pod)?);
            let service = lab.service(tenant.name);
            let service = service.cluster_ip(&format!("10.96.0.{}", 10 + number));
            let port = FIRST_PORT + number;
            let service = service.tcp("tcp", 80, TARGET_PORT).node_port(port);
            service.external_local().apply()?;
            let endpoints = lab.endpoints(tenant.name).tcp("tcp", TARGET_PORT);
            endpoints.with(Endpoint::ready(pod)).apply()?;
        }
        let objects = tenants.iter().flat_map(Tenant::objects);
        let objects: Vec<_> = objects.map(|object| object.to_string()).collect();
        let levels: Vec<_> = tenants.iter().map(|one| (one.name, one.seats)).collect();
        let mut balanced = Balanced::without_agents(lab, AgentSource::Manifests, &[]);
        enforce(&mut balanced, arguments, &objects.join("\n---\n"), &levels)?;
        Ok(Self {
            servers,
            balanced,
            tenants: tenants.to_vec(),
            noisy,
        })
    }

    /// Where the quiet client runs.
    pub fn quiet(&self) -> &Host {
        self.balanced.lab.client()
    }

    /// Where noisy clients run, each at an address of its own.
    pub fn noisy(&self) -> &[Host] {
        &self.noisy
    }

    /// What clients of a tenant, by its number, connect to.
    pub fn target(&self, tenant: usize) -> SocketAddr {
        self.at(FIRST_PORT + tenant as u16)
    }

    /// A port of the node.
    pub fn at(&self, port: u16) -> SocketAddr {
        self.balanced.lab.node(1).at(Family::V4, port)
    }

    /// The pod that serves a tenant, by its number.
    pub fn pod(&self, tenant: usize) -> &Pod {
        &self.balanced.lab.pods()[tenant]
    }

    /// Has a noisy host, by its number, take all seats of a tenant's level and keep them.
    ///
    /// # Errors
    ///
    /// If that is not possible.
    pub fn take_seats(&self, host: usize, tenant: usize) -> Result<Vec<Held>> {
        let seats = self.tenants[tenant].seats;
        let held = Held::open_all(&self.noisy[host], self.target(tenant), seats as usize);
        let number = held.len();
        ensure!(
            number as u32 == seats,
            "{number} of {seats} seats could be taken"
        );
        Ok(held)
    }

    /// What the agent counts of a tenant's level and of its schema.
    ///
    /// # Errors
    ///
    /// If the agent does not answer.
    pub fn counts(&self, tenant: usize) -> Result<(PriorityLevel, FlowSchema)> {
        let status = self.balanced.status(1)?;
        let name = self.tenants[tenant].name;
        let level = status.priority_level(name).context("no such level")?;
        let schema = status.flow_schema(name).context("no such schema")?;
        Ok((level.clone(), schema.clone()))
    }

    /// The agent's process id.
    ///
    /// # Errors
    ///
    /// If no agent runs.
    pub fn agent(&self) -> Result<u32> {
        Ok(agent::of(&self.balanced)?.pid())
    }

    /// Removes the lab.
    ///
    /// # Errors
    ///
    /// If something of it remains.
    pub fn down(self) -> Result<()> {
        let Balanced { agents, lab, .. } = self.balanced;
        drop((self.servers, agents));
        lab.down()
    }
}

fn serve(pod: &Pod) -> Result<RunningServer> {
    pod.set_sysctl("net/core/somaxconn", &BACKLOG.to_string())?;
    let capacity = Capacity {
        served: usize::MAX,
        backlog: BACKLOG,
    };
    let server = Serve::new(pod.name()).tcp(TARGET_PORT);
    server.capacity(capacity).start(pod)
}
