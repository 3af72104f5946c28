//! EndpointSlices.

use k8s_openapi::{api::discovery::v1 as discovery, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{
    super::{Kind, Object, Refused},
    Translate,
    field::{self, Findings, Invalid},
};
use crate::{DEFAULT_WEIGHT, Endpoint, EndpointPort, EndpointSlice, ObjectName, SharedName};

/// The label that names the Service of a slice.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// The label that marks the slices of headless Services, whatever its value.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// The weight of each of its endpoints, unless the Service gives one another.
const WEIGHT_ANNOTATION: &str = "node-lb.io/weight";
/// The API server's limit for one slice.
const MAX_ENDPOINTS: usize = 1000;

impl Translate for discovery::EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn to_model(
        &self,
        name: ObjectName,
        findings: &mut Findings,
    ) -> Result<Option<Object>, Invalid> {
        let label = |key| {
            self.metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(key))
        };
        if label(HEADLESS_LABEL).is_some() {
            return Ok(None);
        }
        let is_ipv4 = match self.address_type.as_str() {
            "IPv4" => true,
            "IPv6" => false,
            _ => return Ok(None),
        };
        let service = label(SERVICE_NAME_LABEL)
            .map(String::as_str)
            .unwrap_or_default();
        field::label(
            format_args!("metadata.labels[{SERVICE_NAME_LABEL}]"),
            service,
        )?;
        let raw = self.endpoints.as_deref().unwrap_or_default();
        if raw.len() > MAX_ENDPOINTS {
            let count = format!("{} endpoints,", raw.len());
            return Err(Invalid::new("endpoints", count, "must be at most 1000"));
        }

        let ports = ports(self.ports.as_deref().unwrap_or_default())?;
        // With exact capacity: what a filter collects has room to grow, and there are tens of
        // thousands of slices.
        let mut endpoints = Vec::with_capacity(raw.len());
        for (index, raw) in raw.iter().enumerate() {
            let endpoint = endpoint(index, raw, is_ipv4);
            endpoints.extend(findings.check(Refused::Endpoint, endpoint));
        }
        let slice = EndpointSlice {
            name,
            service: service.to_owned(),
            ports,
            weight: weight(&self.metadata, findings),
            endpoints,
        };
        Ok(Some(Object::EndpointSlice(slice.into())))
    }
}

fn weight(metadata: &ObjectMeta, findings: &mut Findings) -> u16 {
    let Some(text) = field::annotation(metadata, WEIGHT_ANNOTATION) else {
        return DEFAULT_WEIGHT;
    };
    let field = format_args!("metadata.annotations[{WEIGHT_ANNOTATION}]");
    let weight = field::weight(field, text, ", and is taken as 1");
    let weight = findings.check(Refused::Value, weight);
    weight.unwrap_or(DEFAULT_WEIGHT)
}

/// Ports without a name or a number are left out, as in kube-proxy.
fn ports(raw: &[discovery::EndpointPort]) -> Result<Vec<EndpointPort>, Invalid> {
    let mut ports = Vec::with_capacity(raw.len());
    for (index, raw) in raw.iter().enumerate() {
        let at = |field| format!("ports[{index}].{field}");
        let number = field::port_or_zero(at("port"), raw.port)?;
        let protocol = field::protocol(at("protocol"), raw.protocol.as_deref())?;
        let name = field::port_name(at("name"), raw.name.as_deref())?;
        if raw.name.is_some() && number != 0 {
            ports.push(EndpointPort {
                name,
                protocol,
                port: number,
            });
        }
    }
    Ok(ports)
}

/// Only the first address counts, and it must be of the slice's family.
fn endpoint(index: usize, raw: &discovery::Endpoint, is_ipv4: bool) -> Result<Endpoint, Invalid> {
    let Some(text) = raw.addresses.first() else {
        let field = format_args!("endpoints[{index}].addresses");
        return Err(Invalid::new(field, "[]", "must have an address"));
    };
    let field = format_args!("endpoints[{index}].addresses[0]");
    let address = field::unicast_ip(field, text)?;
    if address.is_ipv4() != is_ipv4 {
        let field = format_args!("endpoints[{index}].addresses[0]");
        return Err(Invalid::text(
            field,
            text,
            "must be of the slice's addressType",
        ));
    }

    let conditions = raw.conditions.as_ref();
    let hints = raw.hints.as_ref();
    let zones = hints.and_then(|hints| hints.for_zones.as_deref());
    let nodes = hints.and_then(|hints| hints.for_nodes.as_deref());
    Ok(Endpoint {
        address,
        ready: conditions.and_then(|c| c.ready).unwrap_or(true),
        serving: conditions.and_then(|c| c.serving).unwrap_or(true),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        node_name: raw.node_name.as_deref().map(SharedName::from),
        zone_hints: zones
            .unwrap_or_default()
            .iter()
            .map(|zone| zone.name.as_str().into())
            .collect(),
        node_hints: nodes
            .unwrap_or_default()
            .iter()
            .map(|node| node.name.as_str().into())
            .collect(),
    })
}
