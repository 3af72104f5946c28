//! The Services of the API server, and changes of their endpoints.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use lb_tests::{Family, control_plane::Objects};
use serde_json::{Value, json};

use super::ground::{Ground, Group};
use crate::cluster::services::{PORT, TARGET_PORT, name};

/// Services without a selector. Each has an EndpointSlice that no controller writes.
pub struct Services {
    slices: Objects<EndpointSlice>,
    /// The endpoints of a Service, as in its slice, by group.
    endpoints: [Value; 2],
    /// The address of each Service, and the group that serves it.
    all: Vec<(SocketAddrV4, Group)>,
}

impl Services {
    /// Creates Services that group A serves.
    ///
    /// # Errors
    ///
    /// If the API server refuses.
    pub fn create(ground: &Ground, count: u32) -> Result<Self> {
        let endpoints = [Group::A, Group::B].map(|group| endpoints(ground, group));
        let services = ground.api().of::<Service>();
        let services = services.create_all((0..count).map(service))?;
        let slices = ground.api().of::<EndpointSlice>();
        slices.create_all((0..count).map(|number| slice(number, &endpoints[0])))?;
        let all = services
            .iter()
            .map(|service| Ok((target(service)?, Group::A)));
        Ok(Self {
            slices,
            endpoints,
            all: all.collect::<Result<_>>()?,
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The address of a Service, and the group that should answer there.
    pub fn get(&self, number: usize) -> (SocketAddrV4, Group) {
        self.all[number]
    }

    /// Makes the other group serve a Service. Returns when the API server has accepted that.
    ///
    /// # Errors
    ///
    /// If the API server refuses.
    pub fn change(&mut self, number: usize) -> Result<()> {
        let group = self.all[number].1.other();
        let patch = json!({ "endpoints": self.endpoints[group as usize] });
        self.slices.patch(&name(number as u32), patch)?;
        self.all[number].1 = group;
        Ok(())
    }
}

fn service(number: u32) -> Value {
    json!({
        "metadata": { "name": name(number) },
        "spec": { "ports": [{ "port": PORT, "targetPort": TARGET_PORT }] },
    })
}

fn slice(number: u32, endpoints: &Value) -> Value {
    json!({
        "metadata": {
            "name": name(number),
            "labels": { "kubernetes.io/service-name": name(number) },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "", "protocol": "TCP", "port": TARGET_PORT }],
        "endpoints": endpoints,
    })
}

fn endpoints(ground: &Ground, group: Group) -> Value {
    let node = ground.node().name();
    let pods = ground.pods(group).iter();
    pods.map(|pod| {
        json!({
            "addresses": [pod.ip(Family::V4)],
            "nodeName": node,
            "conditions": { "ready": true },
        })
    })
    .collect()
}

/// The address that the API server chose.
fn target(service: &Service) -> Result<SocketAddrV4> {
    let spec = service.spec.as_ref();
    let address = spec.and_then(|spec| spec.cluster_ip.as_ref());
    let address: Ipv4Addr = address.context("a Service without ClusterIP")?.parse()?;
    Ok(SocketAddrV4::new(address, PORT))
}
