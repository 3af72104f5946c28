//! Pods: whose addresses they are.

use std::net::IpAddr;

use k8s_openapi::{
    api::core::v1::{self as core, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    super::{Kind, Object, Refused},
    Translate,
    field::{self, Findings, Invalid},
};
use crate::{ObjectName, Pod};

/// The service account of a pod that names none.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";

impl Translate for core::Pod {
    const KIND: Kind = Kind::Pod;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    /// `None` for a pod in its node's network: its address is not its own.
    fn to_model(
        &self,
        name: ObjectName,
        findings: &mut Findings,
    ) -> Result<Option<Object>, Invalid> {
        let spec = self.spec.as_ref();
        if spec.and_then(|spec| spec.host_network) == Some(true) {
            return Ok(None);
        }
        let service_account = spec.and_then(|spec| spec.service_account_name.as_deref());
        let service_account = service_account.filter(|name| !name.is_empty());
        let node = spec.and_then(|spec| spec.node_name.clone());
        let addresses = self
            .status
            .as_ref()
            .map(|status| addresses(status, findings));
        let pod = Pod {
            name,
            node: node.unwrap_or_default(),
            service_account: service_account
                .unwrap_or(DEFAULT_SERVICE_ACCOUNT)
                .to_owned(),
            labels: self.metadata.labels.clone().unwrap_or_default(),
            addresses: addresses.unwrap_or_default(),
        };
        Ok(Some(Object::Pod(pod.into())))
    }
}

/// The addresses that the pod has at present.
fn addresses(status: &PodStatus, findings: &mut Findings) -> Vec<IpAddr> {
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    let listed = status.pod_ips.as_deref().unwrap_or_default();
    if listed.is_empty() {
        let ip = status.pod_ip.as_deref().filter(|ip| !ip.is_empty());
        let ip = ip.map(|ip| field::ip("status.podIP", ip));
        return ip
            .and_then(|ip| findings.check(Refused::Value, ip))
            .into_iter()
            .collect();
    }
    let ip = |(index, listed): (usize, &core::PodIP)| {
        let ip = field::ip(format_args!("status.podIPs[{index}].ip"), &listed.ip);
        findings.check(Refused::Value, ip)
    };
    listed.iter().enumerate().filter_map(ip).collect()
}
