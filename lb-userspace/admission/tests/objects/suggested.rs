//! The suggested configuration does what its comments say.

use lb_admission::{
    classify::{Connection, Distinguisher, Identity, ServiceFrontend},
    schema::Ingress,
    suggested::SUGGESTED,
};
use lb_objects::Protocol;

use crate::support::configuration;

const DNS: (&str, &str, u16) = ("kube-system", "kube-dns", 53);
const API: (&str, &str, u16) = ("default", "kubernetes", 443);
const METRICS: (&str, &str, u16) = ("kube-system", "metrics-server", 443);
const SHOP: (&str, &str, u16) = ("shop", "web", 80);

#[test]
fn connections_meet_the_level_meant_for_them() {
    let in_force = configuration(SUGGESTED).in_force();
    assert_eq!(in_force.dangling, []);
    let pod = |namespace: &str| Identity {
        namespace: namespace.to_owned(),
        service_account: "default".to_owned(),
        ..Identity::default()
    };
    let (tenant, controller) = (pod("shop"), pod("kube-system"));
    use Ingress::{External, Node, Pod};
    for (ingress, identity, to, level, distinguisher) in [
        (Pod, Some(&tenant), API, "exempt", ""),
        (Pod, None, API, "exempt", ""),
        (Node, None, API, "exempt", ""),
        (External, None, API, "global-default", "10.9.8.0/24"),
        (Pod, Some(&tenant), DNS, "cluster-dns", "10.9.8.7"),
        (Node, None, DNS, "cluster-dns", "10.9.8.7"),
        (Pod, Some(&controller), DNS, "cluster-dns", "10.9.8.7"),
        (External, None, DNS, "global-default", "10.9.8.0/24"),
        (Node, None, SHOP, "node-high", "shop/web"),
        (
            Node,
            None,
            METRICS,
            "node-high",
            "kube-system/metrics-server",
        ),
        (
            Pod,
            Some(&controller),
            SHOP,
            "workload-high",
            "kube-system/default",
        ),
        (Pod, Some(&tenant), METRICS, "system", "shop"),
        (Pod, None, METRICS, "system", "10.9.8.7"),
        (Pod, Some(&tenant), SHOP, "workload-low", "shop"),
        (Pod, None, SHOP, "workload-low", "10.9.8.7"),
        (External, None, SHOP, "global-default", "10.9.8.0/24"),
    ] {
        let (namespace, service, port) = to;
        let connection = Connection {
            ingress,
            source: "10.9.8.7".parse().unwrap(),
            identity,
            destination: ServiceFrontend {
                namespace,
                service,
                port,
                protocol: Protocol::Tcp,
                address: None,
            },
        };
        let active = &in_force.schemas[in_force.classify(&connection)];
        let found = &in_force.levels[active.level];
        assert_eq!(found.name, level, "{connection:?}");
        let flow = Distinguisher::new(&active.schema, found, &connection);
        assert_eq!(flow.to_string(), distinguisher, "{connection:?}");
    }
}

#[test]
fn no_level_lends_more_than_half() {
    let in_force = configuration(SUGGESTED).in_force();
    for (level, limits) in in_force.levels.iter().zip(in_force.limits(1000)) {
        assert!(level.lendable_percent <= 50, "{}", level.name);
        let has_its_own = limits.min > 0 || level.name == "exempt";
        assert!(has_its_own, "{} can always be used", level.name);
    }
}

#[test]
fn examples_of_the_guide_are_valid() {
    let guide = include_str!("../../../../docs/admission.md");
    let mut examples = guide.split("```yaml\n").skip(1);
    let objects: String = examples
        .by_ref()
        .map(|rest| format!("---\n{}", rest.split("```").next().unwrap()))
        .collect();
    let in_force = configuration(&objects).in_force();
    assert_eq!(in_force.levels.len(), 5);
    assert_eq!(in_force.schemas.len(), 6);
}
