//! What events do to the store.

use lb_objects::{
    Algorithm, Endpoint, Refused, RemovedEndpoints, ServiceType, Standing, TrafficPolicy, Weights,
};

use super::*;

#[test]
fn objects_of_admission_are_told_when_all_are_there() {
    let object = |name: &str, shares: u32| {
        let reference = ObjectRef {
            kind: Kind::PriorityLevel,
            name: ObjectName::new("", name),
        };
        let json = serde_json::json!({"spec": {"shares": shares}});
        Event::Apply(Object::Admission(Arc::new(AsWritten {
            reference,
            json,
            standing: Standing::default(),
        })))
    };
    let mut store = Store::new("node-1");
    store.apply([object("a", 1), Event::Synced]);
    assert_eq!(store.take_admission(), None);
    store.apply([object("b", 2), Event::AdmissionSynced]);
    assert_eq!(store.take_admission().unwrap().len(), 2);
    assert_eq!(store.take_admission(), None);
    assert!(
        store.take_changes().is_empty(),
        "no Service is planned again"
    );

    store.apply([object("b", 3)]);
    let changed = store.take_admission().unwrap();
    assert_eq!(changed[1].json["spec"]["shares"], 3);
    let gone = changed[0].reference.clone();
    store.apply([Event::Delete(gone.clone()), Event::Delete(gone)]);
    assert_eq!(store.take_admission().unwrap().len(), 1);
    assert_eq!(store.take_admission(), None);
}

#[test]
fn pods_of_this_node_are_told_when_they_change() {
    let pod = |node: &str, address: &str| {
        Event::Apply(Object::Pod(Arc::new(Pod {
            name: ObjectName::new("shop", node),
            node: node.to_owned(),
            service_account: "cart".to_owned(),
            labels: BTreeMap::new(),
            addresses: vec![address.parse().unwrap()],
        })))
    };
    let mut store = Store::new("node-1");
    store.apply([pod("node-2", "10.0.0.2")]);
    assert_eq!(store.take_pods(), None);
    store.apply([pod("node-1", "10.0.0.1"), Event::Synced]);
    assert_eq!(store.take_pods().unwrap().len(), 1);
    assert!(!store.are_pods_synced());
    store.apply([pod("node-1", "10.0.0.1")]);
    assert_eq!(store.take_pods(), None);
    store.apply([Event::PodsSynced]);
    let all = store.take_pods().unwrap();
    assert!(store.are_pods_synced() && all.len() == 1);
    let reference = Object::Pod(all[0].clone()).reference();
    store.apply([Event::Delete(reference.clone()), Event::Delete(reference)]);
    assert_eq!(store.take_pods(), Some(Vec::new()));
    assert_eq!(store.take_pods(), None);
}

#[test]
fn nothing_changed_before_everything_is_there() {
    let mut store = Store::new("node-1");
    store.apply([
        service("web", "10.96.0.1"),
        slice("web-a", "web", "10.0.0.1"),
    ]);
    assert!(!store.is_synced());
    assert!(store.take_changes().is_empty());

    store.apply([node("node-1", "10.1.0.1"), Event::Synced]);
    let changes = Changes {
        services: [name("web")].into(),
        node: true,
        ..Changes::default()
    };
    assert_eq!(store.take_changes(), changes);
    assert!(store.take_changes().is_empty());
}

#[test]
fn what_is_news_is_counted() {
    let mut store = synced([
        service("web", "10.96.0.1"),
        slice("web-a", "web", "10.0.0.1"),
    ]);
    let applied = |services, endpoint_slices| Applied {
        services,
        endpoint_slices,
    };
    let same = [
        service("web", "10.96.0.1"),
        slice("web-a", "web", "10.0.0.1"),
    ];
    assert_eq!(store.apply(same), applied(0, 0));
    let other = [
        service("web", "10.96.0.2"),
        slice("web-a", "web", "10.0.0.2"),
        slice("web-b", "web", "10.0.0.3"),
    ];
    assert_eq!(store.apply(other), applied(1, 2));
    let gone = |kind, of| {
        Event::Delete(ObjectRef {
            kind,
            name: name(of),
        })
    };
    let gone = [
        gone(Kind::Service, "web"),
        gone(Kind::EndpointSlice, "web-b"),
        gone(Kind::EndpointSlice, "never"),
    ];
    assert_eq!(store.apply(gone), applied(1, 1));
}

#[test]
fn equal_objects_change_nothing() {
    let mut store = synced([
        service("web", "10.96.0.1"),
        slice("web-a", "web", "10.0.0.1"),
    ]);
    store.apply([
        service("web", "10.96.0.1"),
        slice("web-a", "web", "10.0.0.1"),
    ]);
    assert!(store.take_changes().is_empty());

    store.apply([slice("web-a", "web", "10.0.0.2")]);
    assert_eq!(store.take_changes().services, [name("web")].into());
}

#[test]
fn times_of_changes_are_kept_for_what_they_changed() {
    let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let changed = |slice, seconds| Event::EndpointsChanged {
        slice: name(slice),
        at: at(seconds),
    };
    let mut store = Store::new("node-1");
    store.apply([
        service("web", "10.96.0.1"),
        slice("web-a", "web", "10.0.0.1"),
        changed("web-a", 1),
        Event::Synced,
    ]);
    assert!(store.take_changes().triggers.is_empty(), "the first state");

    store.apply([slice("web-a", "web", "10.0.0.1"), changed("web-a", 2)]);
    assert!(store.take_changes().triggers.is_empty(), "nothing changed");

    store.apply([
        slice("web-a", "web", "10.0.0.2"),
        changed("web-a", 3),
        slice("web-b", "web", "fd00::1"),
        changed("web-b", 4),
    ]);
    let triggers = store.take_changes().triggers;
    let expected = vec![(IpFamily::V4, at(3)), (IpFamily::V6, at(4))];
    assert_eq!(triggers, [(name("web"), expected)].into());

    store.apply([slice("web-a", "web", "10.0.0.3"), changed("web-a", 5)]);
    store.apply([Event::Delete(ObjectRef {
        kind: Kind::EndpointSlice,
        name: name("web-b"),
    })]);
    let changes = store.take_changes();
    assert!(changes.triggers.is_empty() && changes.services == [name("web")].into());
}

#[test]
fn a_slice_may_come_before_its_service() {
    let mut store = synced([slice("web-b", "web", "10.0.0.2")]);
    store.apply([slice("web-a", "web", "10.0.0.1")]);
    assert!(store.take_changes().is_empty(), "nobody to plan for");

    store.apply([service("web", "10.96.0.1")]);
    assert_eq!(store.take_changes().services, [name("web")].into());
    assert_eq!(slice_names(&store, "web"), ["web-a", "web-b"]);
}

#[test]
fn a_slice_that_moves_changes_both_services() {
    let mut store = synced([
        service("blue", "10.96.0.1"),
        service("green", "10.96.0.2"),
        slice("s", "blue", "10.0.0.1"),
    ]);
    store.apply([slice("s", "green", "10.0.0.1")]);
    assert_eq!(
        store.take_changes().services,
        [name("blue"), name("green")].into()
    );
    assert!(slice_names(&store, "blue").is_empty());
    assert_eq!(slice_names(&store, "green"), ["s"]);
}

#[test]
fn deletions_are_changes_once() {
    let mut store = synced([
        service("web", "10.96.0.1"),
        slice("web-a", "web", "10.0.0.1"),
        node("node-1", "10.1.0.1"),
    ]);
    let delete = |kind, name: ObjectName| Event::Delete(ObjectRef { kind, name });
    let cluster_scoped = ObjectName::new(String::new(), "node-1");

    store.apply([delete(Kind::EndpointSlice, name("web-a"))]);
    assert_eq!(store.take_changes().services, [name("web")].into());
    store.apply([
        delete(Kind::Service, name("web")),
        delete(Kind::Node, cluster_scoped.clone()),
    ]);
    let changes = store.take_changes();
    assert_eq!(changes.services, [name("web")].into());
    assert!(changes.node);
    assert!(store.service(&name("web")).is_none() && store.node().is_none());

    store.apply([
        delete(Kind::EndpointSlice, name("web-a")),
        delete(Kind::Service, name("web")),
        delete(Kind::Node, cluster_scoped),
    ]);
    assert!(store.take_changes().is_empty());
}

#[test]
fn other_nodes_are_ignored() {
    let mut store = synced([node("node-1", "10.1.0.1")]);
    store.apply([node("node-2", "10.1.0.2")]);
    assert!(store.take_changes().is_empty());
    assert_eq!(store.node().expect("ours").name, "node-1");
}

#[test]
fn problems_are_replaced_by_origin_and_counted_once() {
    let mut store = Store::new("node-1");
    let report = |origin: &str, messages: &[&str]| Event::Problems {
        origin: origin.to_owned(),
        problems: messages.iter().map(|message| problem(message)).collect(),
    };
    store.apply([report("a.yaml", &["one"]), report("b.yaml", &["two"])]);
    store.apply([report("a.yaml", &["one", "three"])]);
    let messages = |store: &Store| -> Vec<_> {
        store
            .problems()
            .map(|problem| problem.message.clone())
            .collect()
    };
    assert_eq!(messages(&store), ["one", "three", "two"]);
    assert_eq!(store.problems_total(), 3);

    store.apply([report("a.yaml", &[])]);
    assert_eq!(messages(&store), ["two"]);
    assert_eq!(store.problems_total(), 3);
}

fn synced(events: impl IntoIterator<Item = Event>) -> Store {
    let mut store = Store::new("node-1");
    store.apply(events);
    store.apply([Event::Synced]);
    store.take_changes();
    store
}

fn slice_names<'a>(store: &'a Store, service: &str) -> Vec<&'a str> {
    let slices = store.slices(&name(service));
    slices.map(|slice| &*slice.name.name).collect()
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}

fn service(service: &str, cluster_ip: &str) -> Event {
    let service = Service {
        name: name(service),
        uid: None,
        created: 0,
        service_type: ServiceType::ClusterIp,
        cluster_ips: vec![cluster_ip.parse().unwrap()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ports: Vec::new(),
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        load_balancer_source_ranges: Vec::new(),
        health_check_node_port: 0,
        session_affinity: None,
        algorithm: Algorithm::Random,
        weights: Weights::default(),
        slow_start: None,
        removed_endpoints: RemovedEndpoints::Keep,
        max_connections: 0,
        hash_balance_factor: 0,
        max_connections_per_endpoint: 0,
        long_running: false,
    };
    Event::Apply(Object::Service(service.into()))
}

fn slice(slice: &str, service: &str, address: &str) -> Event {
    let endpoint = Endpoint {
        address: address.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        node_name: None,
        zone_hints: Box::default(),
        node_hints: Box::default(),
    };
    let slice = EndpointSlice {
        name: name(slice),
        service: service.to_owned(),
        weight: 1,
        ports: Vec::new(),
        endpoints: vec![endpoint],
    };
    Event::Apply(Object::EndpointSlice(slice.into()))
}

fn node(name: &str, address: &str) -> Event {
    let node = Node {
        name: name.to_owned(),
        addresses: vec![address.parse().unwrap()],
        ..Node::default()
    };
    Event::Apply(Object::Node(node.into()))
}

fn problem(message: &str) -> Problem {
    Problem {
        refused: Refused::File,
        object: None,
        file: None,
        line: None,
        message: message.to_owned(),
    }
}
