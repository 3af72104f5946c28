//! Nodes.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::{
    api::core::v1::{self as core, NodeSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    super::{Kind, Object, Refused},
    Translate,
    field::{self, Findings, Invalid},
};
use crate::{Node, ObjectName};

impl Translate for core::Node {
    const KIND: Kind = Kind::Node;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn to_model(
        &self,
        name: ObjectName,
        findings: &mut Findings,
    ) -> Result<Option<Object>, Invalid> {
        let spec = self.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_ref());
        let node = Node {
            name: name.name.to_string(),
            labels: self.metadata.labels.clone().unwrap_or_default(),
            addresses: addresses(self, findings),
            pod_cidrs: spec
                .map(|spec| pod_cidrs(spec, findings))
                .unwrap_or_default(),
            taints: taints
                .into_iter()
                .flatten()
                .map(|taint| taint.key.clone())
                .collect(),
            deleting: self.metadata.deletion_timestamp.is_some(),
        };
        Ok(Some(Object::Node(node.into())))
    }
}

/// InternalIP before ExternalIP, in the object's order.
fn addresses(node: &core::Node, findings: &mut Findings) -> Vec<IpAddr> {
    let listed = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    let mut ips = [Vec::new(), Vec::new()];
    for (index, entry) in listed.into_iter().flatten().enumerate() {
        let class = match entry.type_.as_str() {
            "InternalIP" => 0,
            "ExternalIP" => 1,
            _ => continue,
        };
        let field = format_args!("status.addresses[{index}].address");
        ips[class].extend(findings.check(Refused::Value, field::ip(field, &entry.address)));
    }
    ips.concat()
}

/// `podCIDRs`, or `podCIDR` in a manifest that has only that.
fn pod_cidrs(spec: &NodeSpec, findings: &mut Findings) -> Vec<IpNet> {
    let of_list = |index, text: &String| field::cidr(format_args!("spec.podCIDRs[{index}]"), text);
    let of_one = |text: &str| field::cidr("spec.podCIDR", text);
    field::listed_or_one(
        (spec.pod_cidrs.as_ref(), of_list),
        (spec.pod_cidr.as_deref(), of_one),
        findings,
    )
}
