//! Pods: whose addresses they are.

use std::net::IpAddr;

use k8s_openapi::{
    api::core::v1::{self as core, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    super::{Kind, Object},
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
    let of_list = |index, listed: &core::PodIP| {
        field::ip(format_args!("status.podIPs[{index}].ip"), &listed.ip)
    };
    let of_one = |text: &str| field::ip("status.podIP", text);
    field::listed_or_one(
        (status.pod_ips.as_ref(), of_list),
        (status.pod_ip.as_deref(), of_one),
        findings,
    )
}
