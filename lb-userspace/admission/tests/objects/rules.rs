//! The meaning of rules, from objects to the schema that takes a connection.

use lb_admission::{
    classify::{
        Connection, Identity, ServiceFrontend,
        matching::{DestinationMismatch, Mismatch},
    },
    schema::Ingress,
};
use lb_objects::Protocol;

use crate::support::configuration;

/// A pod of the shop, connecting to its web server.
fn cart() -> Identity {
    Identity {
        namespace: "shop".to_owned(),
        service_account: "cart".to_owned(),
        labels: [("app", "cart"), ("tier", "front")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        node: "worker-1".to_owned(),
    }
}

fn connection(identity: &Identity) -> Connection<'_> {
    Connection {
        ingress: Ingress::Pod,
        source: "10.1.2.3".parse().unwrap(),
        identity: Some(identity),
        destination: ServiceFrontend {
            namespace: "shop",
            service: "web",
            port: 80,
            protocol: Protocol::Tcp,
            address: Some("10.96.0.7".parse().unwrap()),
        },
    }
}

/// Why a rule, in YAML's flow style, does not take the connection.
fn mismatch(rule: &str, connection: &Connection<'_>) -> Option<Mismatch> {
    let yaml = format!(
        "{{kind: FlowSchema, metadata: {{name: x}}, spec: {{priorityLevelConfiguration: {{name: catch-all}}, rules: [{rule}]}}}}"
    );
    let in_force = configuration(&yaml).in_force();
    let schema = &in_force.schemas[1].schema;
    assert_eq!(schema.name, "x");
    let mismatch = schema.rules[0].mismatch(connection);
    assert_eq!(schema.matches(connection), mismatch.is_none());
    mismatch
}

#[test]
fn subjects() {
    let cart = cart();
    let connection = connection(&cart);
    let any = "destinations: [{namespaces: ['*']}]";
    for (subject, matches) in [
        ("{kind: Any}", true),
        ("{kind: CIDR, cidr: {cidr: 10.1.0.0/16}}", true),
        ("{kind: CIDR, cidr: {cidr: 10.1.2.3/32}}", true),
        ("{kind: CIDR, cidr: {cidr: 10.2.0.0/16}}", false),
        ("{kind: CIDR, cidr: {cidr: '::/0'}}", false),
        (
            "{kind: CIDR, cidr: {cidr: 10.0.0.0/8, except: [10.1.2.0/24]}}",
            false,
        ),
        (
            "{kind: CIDR, cidr: {cidr: 10.0.0.0/8, except: [10.1.3.0/24]}}",
            true,
        ),
        ("{kind: Namespace, namespace: {name: shop}}", true),
        ("{kind: Namespace, namespace: {name: '*'}}", true),
        ("{kind: Namespace, namespace: {name: shops}}", false),
        (
            "{kind: ServiceAccount, serviceAccount: {namespace: shop, name: cart}}",
            true,
        ),
        (
            "{kind: ServiceAccount, serviceAccount: {namespace: shop, name: '*'}}",
            true,
        ),
        (
            "{kind: ServiceAccount, serviceAccount: {namespace: shop, name: web}}",
            false,
        ),
        (
            "{kind: ServiceAccount, serviceAccount: {namespace: bank, name: cart}}",
            false,
        ),
        (
            "{kind: Workload, workload: {namespace: shop, matchLabels: {app: cart}}}",
            true,
        ),
        (
            "{kind: Workload, workload: {namespace: '*', matchLabels: {app: cart, tier: front}}}",
            true,
        ),
        (
            "{kind: Workload, workload: {namespace: shop, matchLabels: {app: cart, tier: back}}}",
            false,
        ),
        (
            "{kind: Workload, workload: {namespace: bank, matchLabels: {app: cart}}}",
            false,
        ),
    ] {
        let expected = (!matches).then_some(Mismatch::Source);
        let only = format!("{{subjects: [{subject}], {any}}}");
        assert_eq!(mismatch(&only, &connection), expected, "{only}");

        let other = "{kind: CIDR, cidr: {cidr: 192.0.2.0/24}}";
        let among = format!("{{subjects: [{other}, {subject}], {any}}}");
        assert_eq!(mismatch(&among, &connection), expected, "{among}");

        let expected = matches.then_some(Mismatch::ExceptSource(1));
        let except =
            format!("{{subjects: [{{kind: Any}}], exceptSubjects: [{other}, {subject}], {any}}}");
        assert_eq!(mismatch(&except, &connection), expected, "{except}");

        // Of an unknown source, only the address can match.
        let unknown = Connection {
            identity: None,
            ..connection
        };
        let by_address = subject.contains("Any") || subject.contains("CIDR");
        let expected = (!(matches && by_address)).then_some(Mismatch::Source);
        assert_eq!(mismatch(&only, &unknown), expected, "{only}");
    }
}

#[test]
fn ingress() {
    let cart = cart();
    for (listed, ingress, matches) in [
        ("['*']", Ingress::Node, true),
        ("[Pod]", Ingress::Pod, true),
        ("[Pod]", Ingress::Node, false),
        ("[External, Node]", Ingress::Node, true),
        ("[External, Node]", Ingress::Pod, false),
        ("null", Ingress::External, true),
    ] {
        let rule = format!(
            "{{subjects: [{{kind: Any}}], ingress: {listed}, destinations: [{{namespaces: ['*']}}]}}"
        );
        let connection = Connection {
            ingress,
            ..connection(&cart)
        };
        let expected = (!matches).then_some(Mismatch::Ingress);
        assert_eq!(mismatch(&rule, &connection), expected, "{rule}");
    }
}

#[test]
fn destinations() {
    use DestinationMismatch::*;
    let cart = cart();
    let connection = connection(&cart);
    for (destination, reason) in [
        ("{namespaces: ['*']}", None),
        ("{namespaces: [bank, shop], services: [db, web]}", None),
        ("{namespaces: [bank]}", Some(Namespace)),
        ("{namespaces: ['*'], services: [db]}", Some(Service)),
        ("{namespaces: [shop], ports: [80]}", None),
        ("{namespaces: [shop], ports: ['80']}", None),
        ("{namespaces: [shop], ports: [443, 79-81]}", None),
        ("{namespaces: [shop], ports: [443, 8000-8999]}", Some(Port)),
        ("{namespaces: [shop], protocols: [TCP]}", None),
        (
            "{namespaces: [shop], protocols: [UDP, SCTP]}",
            Some(Protocol),
        ),
        ("{addresses: [10.96.0.0/16]}", None),
        ("{addresses: ['*']}", None),
        ("{addresses: ['fd00::/8', 192.0.2.0/24]}", Some(Address)),
        (
            "{namespaces: [shop], addresses: [192.0.2.0/24]}",
            Some(Address),
        ),
        (
            "{namespaces: [bank], addresses: [10.96.0.0/16]}",
            Some(Namespace),
        ),
    ] {
        let rule = format!("{{subjects: [{{kind: Any}}], destinations: [{destination}]}}");
        assert_eq!(
            mismatch(&rule, &connection),
            reason.map(Mismatch::Destination),
            "{rule}"
        );
        let except = format!(
            "{{subjects: [{{kind: Any}}], destinations: [{{namespaces: ['*']}}], exceptDestinations: [{destination}]}}"
        );
        let expected = reason.is_none().then_some(Mismatch::ExceptDestination(0));
        assert_eq!(mismatch(&except, &connection), expected, "{except}");
    }

    let several = "{subjects: [{kind: Any}], destinations: [{namespaces: [bank]}, {namespaces: [shop], ports: [1]}, {namespaces: ['*'], services: [db]}]}";
    let closest = mismatch(several, &connection);
    assert_eq!(
        closest,
        Some(Mismatch::Destination(Port)),
        "the destination that fits best"
    );
}

#[test]
fn what_is_not_known_fits_only_what_fits_all() {
    let cart = cart();
    let mut connection = connection(&cart);
    connection.destination.port = 0;
    connection.destination.address = None;
    for (destination, matches) in [
        ("{namespaces: [shop]}", true),
        ("{namespaces: [shop], ports: [1-65535]}", false),
        ("{namespaces: [shop], addresses: [0.0.0.0/0]}", false),
    ] {
        let rule = format!("{{subjects: [{{kind: Any}}], destinations: [{destination}]}}");
        assert_eq!(mismatch(&rule, &connection).is_none(), matches, "{rule}");
    }
}
