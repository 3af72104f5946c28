//! Whose addresses are: the identities that flow schemas tell pods apart by.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use lb_admission::classify::{Identities, Identity};
use lb_objects::Pod;

/// The identities of pods' addresses. One that several pods claim is nobody's: it is about to change
/// hands, and nothing says whose it is by now.
pub fn identities<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Identities {
    let mut claimed: HashMap<IpAddr, Option<Arc<Identity>>> = HashMap::new();
    for pod in pods {
        let identity = Arc::new(Identity {
            namespace: pod.name.namespace.to_string(),
            service_account: pod.service_account.clone(),
            labels: pod.labels.clone(),
            node: pod.node.clone(),
        });
        for address in &pod.addresses {
            let by_others = claimed.entry(address.to_canonical());
            by_others
                .and_modify(|identity| *identity = None)
                .or_insert_with(|| Some(identity.clone()));
        }
    }
    let mut identities = Identities::default();
    for (address, identity) in claimed {
        if let Some(identity) = identity {
            identities.insert(address, identity);
        }
    }
    identities
}

#[cfg(test)]
mod tests {
    use lb_objects::ObjectName;

    use super::*;

    fn pod(name: &str, addresses: &[&str]) -> Pod {
        Pod {
            name: ObjectName::new("shop", name),
            node: "worker-1".to_owned(),
            service_account: "cart".to_owned(),
            labels: [("app".to_owned(), name.to_owned())].into(),
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn an_address_is_its_pods_unless_two_claim_it() {
        let pods = [
            pod("a", &["10.0.0.1", "fd00::1"]),
            pod("b", &["10.0.0.2"]),
            pod("c", &["10.0.0.2"]),
            pod("d", &[]),
        ];
        let identities = identities(&pods);
        let of = |address: &str| identities.get(address.parse().unwrap());
        let expected = Identity {
            namespace: "shop".to_owned(),
            service_account: "cart".to_owned(),
            labels: [("app".to_owned(), "a".to_owned())].into(),
            node: "worker-1".to_owned(),
        };
        assert_eq!(of("10.0.0.1"), Some(&expected));
        assert_eq!(of("fd00::1"), Some(&expected));
        assert_eq!((of("10.0.0.2"), of("10.0.0.3")), (None, None));
    }
}
