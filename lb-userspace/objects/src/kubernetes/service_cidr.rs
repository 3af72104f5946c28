//! ServiceCIDRs (KEP-1880): the networks from which a cluster takes ClusterIPs.

use k8s_openapi::{
    api::networking::v1 as networking, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    super::{Kind, Object, Refused},
    Translate,
    field::{self, Findings, Invalid},
};
use crate::{ObjectName, ServiceCidr};

impl Translate for networking::ServiceCIDR {
    const KIND: Kind = Kind::ServiceCidr;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn to_model(
        &self,
        name: ObjectName,
        findings: &mut Findings,
    ) -> Result<Option<Object>, Invalid> {
        let listed = self.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
        let texts = listed.into_iter().flatten().enumerate();
        let cidrs = texts.filter_map(|(index, text)| {
            let cidr = field::cidr(format_args!("spec.cidrs[{index}]"), text);
            findings.check(Refused::Value, cidr)
        });
        let cidrs = cidrs.collect();
        Ok(Some(Object::ServiceCidr(
            ServiceCidr { name, cidrs }.into(),
        )))
    }
}
