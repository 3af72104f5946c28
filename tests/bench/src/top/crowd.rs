//! Connections that are established and silent, written to the flow table as programs would have recorded them.

use std::{collections::HashMap, mem::offset_of, sync::atomic::Ordering};

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    abi::{Config, Frontend, FrontendKey, ServiceFlows},
    addr::Ip4,
    flow::{Flow, Rewrite, flow_flag, table, tag},
    parse::TCP,
};
use lb_datapath::{
    Jiffies, TickRate,
    bpf::{BatchMap, MappedArray},
};
use serde_json::Value;

use crate::cluster::{
    Cluster,
    services::{PORT, TARGET_PORT, cluster_ip, endpoint},
};

/// The first client's address and the first port of each; clients have so many ports.
const CLIENTS: u32 = u32::from_be_bytes([198, 18, 0, 1]);
const FIRST_PORT: u16 = 1024;
const PORTS: u32 = 60_000;

/// The flows of each Service, by the number of its service port in the maps.
pub struct Crowd(HashMap<u32, u32>);

impl Crowd {
    /// Writes so many flows to the table, an equal number of each Service.
    ///
    /// # Errors
    ///
    /// If the maps cannot be read, or the table has not room enough.
    pub fn of(cluster: &Cluster, flows: u32) -> Result<Self> {
        let balanced = cluster.balanced().context("no agent runs")?;
        let maps = balanced.map_dir(1)?;
        let config = MappedArray::<Config>::from_pin(&maps.join("CONFIG"))?.read(0);
        let rate = TickRate::of(&config).context("the agent has written no settings")?;
        let now = rate.tick(Jiffies::open()?.now()?);
        let records = MappedArray::<Flow<Ip4>>::from_pin(&maps.join("FLOWS4"))?;
        ensure!(
            records.len() / 2 > flows,
            "the table has {} records, too few for {flows} flows",
            records.len()
        );
        let counters = MappedArray::<ServiceFlows>::from_pin(&maps.join("SERVICE_FLOWS"))?;
        let frontends = BatchMap::<FrontendKey<Ip4>, Frontend>::from_pin(&maps.join("FRONTENDS4"))?;
        let frontends = frontends.entries()?.into_iter();
        let ids: HashMap<_, _> = frontends
            .filter(|(key, _)| key.port == PORT && key.protocol == TCP)
            .map(|(key, frontend)| (key.address.octets, frontend.service))
            .collect();

        let mut of = HashMap::new();
        for number in 0..flows {
            let service = number % cluster.services;
            let frontend = cluster_ip(service).octets();
            let id = *ids.get(&frontend).context("a Service is not in the maps")?;
            let client = Ip4 {
                octets: (CLIENTS + number / PORTS).to_be_bytes(),
            };
            let port = FIRST_PORT + (number % PORTS) as u16;
            let server = endpoint(service, 0);
            let forward = Flow {
                last_seen: now,
                source: client,
                destination: Ip4 { octets: frontend },
                source_port: port,
                destination_port: PORT,
                flags: flow_flag::NUMBERED | flow_flag::SEEN,
                rewrite: Rewrite {
                    source: client,
                    destination: Ip4 {
                        octets: server.octets(),
                    },
                    source_port: port,
                    destination_port: TARGET_PORT,
                },
                service: id,
                peer: 2 * number + 1,
                ..Flow::default()
            };
            let reply = Flow {
                source: forward.rewrite.destination,
                destination: client,
                source_port: TARGET_PORT,
                destination_port: port,
                flags: forward.flags | flow_flag::REPLY,
                rewrite: Rewrite {
                    source: forward.destination,
                    destination: client,
                    source_port: PORT,
                    destination_port: port,
                },
                peer: 2 * number,
                ..forward
            };
            for (index, mut flow) in [(2 * number, forward), (2 * number + 1, reply)] {
                let hash = table::hash(&flow.tuple(), config.secret);
                flow.tag = tag::with_state(tag::claimed(0, hash), tag::LIVE);
                records.write(index, &flow);
            }
            let counter = counters.u32_at(id, offset_of!(ServiceFlows, flows));
            counter.fetch_add(1, Ordering::Relaxed);
            *of.entry(id).or_default() += 1;
        }
        Ok(Self(of))
    }

    /// Whether a set of numbers has exactly these flows.
    ///
    /// # Errors
    ///
    /// If it is not one of `node-lb top`.
    pub fn is_shown_in(&self, frame: &Value) -> Result<bool> {
        let ports = frame["servicePorts"].as_array().context("service ports")?;
        let (mut equal, mut found) = (true, 0);
        for port in ports {
            let ids = port["ids"].as_array().context("numbers")?;
            let flows = ids.iter().filter_map(Value::as_u64);
            let flows: u32 = flows.filter_map(|id| self.0.get(&(id as u32))).sum();
            found += usize::from(flows != 0);
            equal &= port["open"] == flows;
        }
        Ok(equal && found == self.0.len())
    }
}
