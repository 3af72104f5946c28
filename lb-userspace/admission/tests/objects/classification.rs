//! The compiled classifier gives the same answers as the plain ordered search.

use std::{collections::BTreeMap, net::IpAddr};

use lb_admission::{
    classify::{
        Classifier, Connection, Distinguisher, Identity, MAX_DISTINGUISHER, ServiceFrontend,
    },
    configuration::{ActiveSchema, InForce},
    level::{Level, LevelKind},
    schema::{
        Destination, DistinguisherMethod, Ingress, Listed, NameOrAny, PortSpan, PrefixLengths,
        Rule, Schema, Services, Source,
    },
    suggested::SUGGESTED,
};
use lb_objects::Protocol;
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::{Index, select, subsequence},
};

/// Few names, so that rules and connections match often.
const NAMES: [&str; 3] = ["a", "b", "c"];
const NETWORKS: [&str; 12] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.0/24",
    "10.1.2.3/32",
    "10.2.0.0/15",
    "192.0.2.0/24",
    "::/0",
    "2001:db8::/32",
    "2001:db8:1::/48",
    "2001:db8:1::5/128",
    "fd00::/8",
];
const ADDRESSES: [&str; 11] = [
    "10.0.0.1",
    "10.1.0.1",
    "10.1.2.1",
    "10.1.2.3",
    "10.3.255.255",
    "192.0.2.77",
    "203.0.113.1",
    "2001:db8::1",
    "2001:db8:1::5",
    "fd00::1",
    "::ffff:10.1.2.3",
];
const METHODS: [DistinguisherMethod; 6] = [
    DistinguisherMethod::SourceIp,
    DistinguisherMethod::SourcePrefix(PrefixLengths { ipv4: 24, ipv6: 64 }),
    DistinguisherMethod::SourceNamespace,
    DistinguisherMethod::SourceServiceAccount,
    DistinguisherMethod::SourceNode,
    DistinguisherMethod::DestinationService,
];
const INGRESSES: [Ingress; 3] = [Ingress::External, Ingress::Pod, Ingress::Node];
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

fn name() -> impl Strategy<Value = String> {
    select(&NAMES[..]).prop_map(str::to_owned)
}

fn name_or_any() -> impl Strategy<Value = NameOrAny> {
    prop_oneof![Just(NameOrAny::Any), name().prop_map(NameOrAny::Only)]
}

fn network() -> impl Strategy<Value = ipnet::IpNet> {
    select(&NETWORKS[..]).prop_map(|text| text.parse().unwrap())
}

fn listed<T: std::fmt::Debug + Clone + 'static>(
    one: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Listed<T>> {
    prop_oneof![Just(Listed::Any), vec(one, 1..3).prop_map(Listed::Only)]
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(name(), name(), 0..3)
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![
        1 => Just(Source::Any),
        4 => (network(), vec(network(), 0..3))
            .prop_map(|(network, except)| Source::Network { network, except }),
        2 => name_or_any().prop_map(Source::Namespace),
        2 => (name(), name_or_any())
            .prop_map(|(namespace, name)| Source::ServiceAccount { namespace, name }),
        2 => (name_or_any(), labels())
            .prop_map(|(namespace, labels)| Source::Workload { namespace, labels }),
    ]
}

fn destination() -> impl Strategy<Value = Destination> {
    let services = (listed(name()), listed(name()))
        .prop_map(|(namespaces, names)| Services { namespaces, names });
    let span = (1..5_u16, 0..3_u16).prop_map(|(first, more)| PortSpan {
        first,
        last: first + more,
    });
    (
        option::of(services),
        listed(span),
        listed(select(&PROTOCOLS[..])),
        listed(network()),
    )
        .prop_map(|(service, ports, protocols, addresses)| Destination {
            service,
            ports,
            protocols,
            addresses,
        })
}

fn rule() -> impl Strategy<Value = Rule> {
    let sources = (vec(source(), 1..4), vec(source(), 0..2));
    let destinations = (vec(destination(), 1..3), vec(destination(), 0..2));
    let ingress = prop_oneof![
        Just(Listed::Any),
        subsequence(&INGRESSES[..], 1..3).prop_map(Listed::Only)
    ];
    (sources, ingress, destinations).prop_map(|(sources, ingress, destinations)| Rule {
        sources: sources.0,
        except_sources: sources.1,
        ingress,
        destinations: destinations.0,
        except_destinations: destinations.1,
    })
}

/// Up to 150 rules: more than two steps of the compiled search.
fn in_force() -> impl Strategy<Value = InForce> {
    let rules = prop_oneof![vec(vec(rule(), 0..4), 0..8), vec(vec(rule(), 0..4), 20..50)];
    let methods = vec(option::of(select(&METHODS[..])), 50);
    let flags = (any::<bool>(), any::<bool>());
    (rules, methods, flags).prop_map(|(rules, methods, (catch_all, tells_flows_apart))| {
        let rules = rules.into_iter().zip(methods).enumerate();
        let schemas = rules.map(|(index, (rules, distinguisher))| Schema {
            rules,
            distinguisher,
            ..Schema::new(&format!("schema-{index}"), 10, "catch-all")
        });
        let last = match catch_all {
            true => Schema::catch_all(),
            // A last schema that might not match.
            false => Schema::new("last", 10_000, "catch-all"),
        };
        let active = |schema| ActiveSchema { schema, level: 0 };
        let mut level = Level::catch_all();
        if let LevelKind::Limited(limited) = &mut level.kind {
            limited.connections.max_connections_per_flow = tells_flows_apart.then_some(9);
        }
        InForce {
            levels: vec![level],
            schemas: schemas.chain([last]).map(active).collect(),
            dangling: Vec::new(),
        }
    })
}

fn identity() -> impl Strategy<Value = Identity> {
    let node = select(&["", "worker-1"][..]);
    (name(), name(), labels(), node).prop_map(|(namespace, service_account, labels, node)| {
        Identity {
            namespace,
            service_account,
            labels,
            node: node.to_owned(),
        }
    })
}

#[derive(Clone, Debug)]
struct Seed {
    ingress: Ingress,
    source: IpAddr,
    identity: Option<Identity>,
    names: (&'static str, &'static str),
    port: u16,
    protocol: Protocol,
    address: Option<IpAddr>,
}

impl Seed {
    fn connection(&self) -> Connection<'_> {
        Connection {
            ingress: self.ingress,
            source: self.source,
            identity: self.identity.as_ref(),
            destination: ServiceFrontend {
                namespace: self.names.0,
                service: self.names.1,
                port: self.port,
                protocol: self.protocol,
                address: self.address,
            },
        }
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    select(&ADDRESSES[..]).prop_map(|text| text.parse().unwrap())
}

fn seed() -> impl Strategy<Value = Seed> {
    (
        select(&INGRESSES[..]),
        address(),
        option::of(identity()),
        (select(&NAMES[..]), select(&NAMES[..])),
        0..8_u16,
        select(&PROTOCOLS[..]),
        option::of(address()),
    )
        .prop_map(
            |(ingress, source, identity, names, port, protocol, address)| Seed {
                ingress,
                source,
                identity,
                names,
                port,
                protocol,
                address,
            },
        )
}

proptest! {
    #[test]
    fn compiled_and_plain_search_agree(in_force in in_force(), seeds in vec(seed(), 1..80)) {
        let mut classifier = Classifier::new(&in_force);
        // Classes are assigned first and used later, as for packets.
        let keys: Vec<_> = seeds.iter().map(|seed| classifier.key(&seed.connection())).collect();
        for (seed, key) in seeds.iter().zip(keys) {
            let plain = in_force.classify(&seed.connection());
            prop_assert_eq!(classifier.classify(&key), plain, "{:?}", seed);
        }
    }

    /// What the kernel knows of a source is its class alone.
    #[test]
    fn a_class_of_sources_says_what_an_address_and_an_identity_do(
        in_force in in_force(), seeds in vec(seed(), 1..80)
    ) {
        let mut classifier = Classifier::new(&in_force);
        let classes: Vec<_> = seeds
            .iter()
            .map(|seed| match &seed.identity {
                Some(identity) => classifier.pod_class(seed.source, identity),
                None => classifier.network_class(seed.source),
            })
            .collect();
        for (seed, class) in seeds.iter().zip(classes) {
            let connection = seed.connection();
            let destination = classifier.destination_class(&connection.destination);
            let schema = classifier.decide(seed.ingress, class, destination);
            prop_assert_eq!(schema, in_force.classify(&connection), "{:?}", seed);
            let active = &in_force.schemas[schema];
            let flow = Distinguisher::new(&active.schema, &in_force.levels[active.level], &connection);
            let by_identity = active.schema.distinguisher.is_some_and(|method| method.needs_identity())
                && !matches!(flow, Distinguisher::None | Distinguisher::Network(_));
            let mut flows = classifier.flows_of(class);
            let found = flows.find(|(of, _)| *of == schema).map(|(_, flow)| flow);
            prop_assert_eq!(found, by_identity.then_some(flow));
            // Where nothing asks whose pods are, they are as their networks are.
            let is_network = class == classifier.network_class(seed.source);
            prop_assert!(classifier.asks_for_identity() || is_network);
        }
    }

    /// Connections that no rule tells apart share their classes, so that tables stay small.
    #[test]
    fn classes_are_shared(in_force in in_force(), seeds in vec(seed(), 2..20), index in any::<Index>()) {
        let mut classifier = Classifier::new(&in_force);
        let seed = index.get(&seeds);
        let key = classifier.key(&seed.connection());
        for other in &seeds {
            classifier.key(&other.connection());
        }
        let again = classifier.key(&seed.connection());
        prop_assert_eq!((key.identity, key.destination), (again.identity, again.destination));
    }
}

#[test]
fn classifying_allocates_nothing() {
    let in_force = crate::support::configuration(SUGGESTED).in_force();
    let mut classifier = Classifier::new(&in_force);
    let identity = Identity {
        namespace: "kube-system".to_owned(),
        service_account: "controller".to_owned(),
        ..Identity::default()
    };
    let connection = Connection {
        ingress: Ingress::Pod,
        source: "10.1.2.3".parse().unwrap(),
        identity: Some(&identity),
        destination: ServiceFrontend {
            namespace: "shop",
            service: "web",
            port: 80,
            protocol: Protocol::Tcp,
            address: None,
        },
    };
    let key = classifier.key(&connection);
    let mut buffer = [0; MAX_DISTINGUISHER];
    let mut length = 0;
    let allocations = allocation_counter::measure(|| {
        let active = &in_force.schemas[classifier.classify(&key)];
        let flow = Distinguisher::new(&active.schema, &in_force.levels[active.level], &connection);
        length = flow.text(&mut buffer).len();
    });
    assert_eq!(&buffer[..length], b"kube-system/controller");
    assert_eq!(allocations.count_total, 0);
    let counted = allocation_counter::measure(|| drop(classifier.clone()));
    assert!(counted.count_total > 0, "allocations are counted here");
}

#[test]
fn every_schema_of_a_large_configuration_can_be_found() {
    let schema = |index: u16| Schema {
        rules: vec![Rule::new(Destination {
            ports: Listed::Only(vec![PortSpan {
                first: index,
                last: index,
            }]),
            ..Destination::any()
        })],
        ..Schema::new(&format!("port-{index}"), 10, "catch-all")
    };
    let active = |index| ActiveSchema {
        schema: schema(index),
        level: 0,
    };
    let in_force = InForce {
        schemas: (1..=4096).map(active).collect(),
        ..crate::support::configuration("").in_force()
    };
    let mut classifier = Classifier::new(&in_force);
    for port in [1, 2, 63, 64, 65, 128, 1000, 4095, 4096] {
        let seed = Seed {
            ingress: Ingress::External,
            source: "192.0.2.1".parse().unwrap(),
            identity: None,
            names: ("a", "b"),
            port,
            protocol: Protocol::Tcp,
            address: None,
        };
        let key = classifier.key(&seed.connection());
        assert_eq!(classifier.classify(&key), usize::from(port) - 1);
    }
}
