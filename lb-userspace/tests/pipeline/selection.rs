//! Which endpoint a connection gets: session affinity, Maglev lookup, an even spread.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use lb_common::{
    addr::{Address, Ip4},
    parse::{TCP, Tuple},
    select::{self, Policy},
    verdict::Reason,
};
use lb_objects::{Algorithm, IpFamily, TrafficPolicy};
use node_lb::{map_writer::maglev, memory::ProgrammedTables, plan::FrontendKind};

use crate::{
    hooks::ingress,
    scene::{Client, MAGLEV_ROWS, Place, Scene},
};

const TIMEOUT: u32 = 10_800;

#[test]
fn connections_spread_evenly() {
    for scene in Scene::each() {
        let scene = Scene {
            endpoints: vec![Place::Remote; 5],
            flow_records: 1 << 17,
            ..scene
        };
        let tables = scene.tables();
        let mut picks = BTreeMap::<SocketAddr, u32>::new();
        for port in 1..=5_000 {
            let outcome = ingress(&tables, &scene.opening(port));
            assert_eq!(outcome.reason, Reason::Opened);
            *picks.entry(outcome.read().to()).or_default() += 1;
        }
        assert_eq!(picks.len(), 5);
        assert!(
            picks.values().all(|count| (850..1150).contains(count)),
            "{picks:?}"
        );
        for index in 0..5 {
            let endpoint = *tables.endpoint(index).unwrap();
            let address = SocketAddr::new(endpoint.address.into(), endpoint.port);
            assert_eq!(tables.connections(endpoint.id), u64::from(picks[&address]));
        }
    }
}

#[test]
fn only_clients_inside_the_source_ranges_reach_a_load_balancer() {
    for scene in Scene::each() {
        let client = scene.client(1).ip();
        let elsewhere = match scene.family {
            IpFamily::V4 => "198.51.100.0/24",
            IpFamily::V6 => "2001:db8:d::/48",
        };
        for (ranges, frontend, reason) in [
            (
                vec![client.into()],
                FrontendKind::LoadBalancerIp,
                Reason::Opened,
            ),
            (
                vec![elsewhere.parse().unwrap()],
                FrontendKind::LoadBalancerIp,
                Reason::SourceRange,
            ),
            (
                vec![elsewhere.parse().unwrap()],
                FrontendKind::ExternalIp,
                Reason::Opened,
            ),
        ] {
            let scene = Scene {
                source_ranges: ranges,
                frontend,
                ..scene.clone()
            };
            let outcome = ingress(&scene.tables(), &scene.opening(1));
            assert_eq!(outcome.reason, reason, "{scene:?}");
        }
    }
}

#[test]
fn a_client_stays_with_its_endpoint_within_the_timeout() {
    let scene = sticky();
    let tables = scene.tables();
    let first = pick(&scene, &tables, 1);
    assert_eq!(picks(&scene, &tables, 2..50), BTreeSet::from([first]));
}

#[test]
fn every_way_to_a_service_port_shares_its_affinity() {
    let scene = sticky();
    let tables = scene.tables();
    let first = pick(&scene, &tables, 1);
    for frontend in [
        FrontendKind::LoadBalancerIp,
        FrontendKind::NodePort,
        FrontendKind::ExternalIp,
    ] {
        let scene = Scene {
            frontend,
            ..scene.clone()
        };
        assert_eq!(
            picks(&scene, &tables, 100..150),
            BTreeSet::from([first]),
            "{frontend:?}"
        );
    }
}

#[test]
fn ways_with_different_sets_share_the_endpoints_that_both_have() {
    let cluster = Scene {
        endpoints: vec![Place::Local; 4],
        external: TrafficPolicy::Local,
        ..sticky()
    };
    let local = Scene {
        frontend: FrontendKind::NodePort,
        ..cluster.clone()
    };
    for (one, other) in [(&cluster, &local), (&local, &cluster)] {
        for seed in 0..20 {
            let tables = cluster.tables();
            tables.seed(seed);
            let first = pick(one, &tables, 1);
            assert_eq!(picks(other, &tables, 2..10), BTreeSet::from([first]));
        }
    }
}

#[test]
fn each_new_connection_restarts_the_timeout() {
    let scene = sticky();
    let tables = scene.tables();
    let first = pick(&scene, &tables, 1);
    for connection in 1..20 {
        tables.set_seconds(u32::from(connection) * TIMEOUT);
        assert_eq!(pick(&scene, &tables, 1 + connection), first);
    }
}

#[test]
fn affinity_ends_with_the_timeout() {
    let scene = sticky();
    let tables = scene.tables();
    let mut seen = BTreeSet::new();
    for connection in 0..50 {
        tables.set_seconds(u32::from(connection) * (TIMEOUT + 1));
        seen.insert(pick(&scene, &tables, 1 + connection));
    }
    assert_eq!(seen.len(), scene.endpoints.len());
}

#[test]
fn affinity_to_a_remote_endpoint_does_not_leave_the_local_set() {
    let cluster = Scene {
        endpoints: vec![Place::Local, Place::Remote, Place::Remote, Place::Remote],
        external: TrafficPolicy::Local,
        ..sticky()
    };
    let local = Scene {
        frontend: FrontendKind::NodePort,
        ..cluster.clone()
    };
    for seed in 0..50 {
        let tables = cluster.tables();
        tables.seed(seed);
        let first = pick(&cluster, &tables, 1);
        assert_eq!(pick(&local, &tables, 2), cluster.endpoint(0));
        assert_eq!(
            pick(&cluster, &tables, 3),
            first,
            "the Cluster set's choice is kept apart"
        );
    }
}

#[test]
fn affinity_breaks_when_the_endpoint_leaves() {
    let scene = sticky();
    let mut tables = scene.tables();
    let first = pick(&scene, &tables, 1);
    let left: Vec<_> = (0..scene.endpoints.len())
        .map(|index| match scene.endpoint(index) == first {
            true => Place::RemoteTerminating,
            false => Place::Remote,
        })
        .collect();
    let changed = Scene {
        endpoints: left,
        ..scene.clone()
    };
    tables.program(&[changed.plan()]);
    let second = pick(&scene, &tables, 2);
    assert_ne!(second, first);

    // The endpoint that took over keeps its number, wherever it moves in the set.
    tables.program(&[scene.plan()]);
    assert_eq!(picks(&scene, &tables, 3..50), BTreeSet::from([second]));
}

#[test]
fn clients_and_services_have_affinity_of_their_own() {
    let scene = sticky();
    let tables = scene.tables();
    let firsts: BTreeSet<_> = (0..=u8::MAX)
        .filter_map(|client| pick_for(&tables, [10, 9, 9, client]))
        .collect();
    assert_eq!(firsts.len(), scene.endpoints.len(), "clients spread");
}

#[test]
fn maglev_lookup_follows_the_tables() {
    let scene = Scene {
        endpoints: vec![Place::Remote, Place::Local, Place::Remote, Place::Local],
        external: TrafficPolicy::Local,
        algorithm: Algorithm::Maglev,
        ..Scene::new(IpFamily::V4, TCP)
    };
    let (tables, sets) = (scene.tables(), scene.plan().endpoints);
    let plan = *tables.plan(1).unwrap();
    for (policy, set) in [
        (Policy::Cluster, sets.cluster()),
        (Policy::Local, sets.local()),
    ] {
        let table = maglev::table(set, &[], 0, MAGLEV_ROWS);
        let mut picks = BTreeSet::new();
        for port in 1..500 {
            let tuple = tuple(&scene, port);
            let row = select::maglev_hash(&tuple) % MAGLEV_ROWS;
            let index = select::pick(&tables.tc(), &plan, policy, &tuple, port.into()).unwrap();
            let picked = tables.endpoint(index).unwrap();
            let picked = SocketAddr::new(picked.address.into(), picked.port);
            assert_eq!(picked, set[usize::from(table[row as usize])]);
            picks.insert(picked);
        }
        assert_eq!(picks.len(), set.len());
    }
}

#[test]
fn maglev_keeps_clients_where_they_are_when_others_leave() {
    let scene = Scene {
        endpoints: vec![Place::Remote; 5],
        algorithm: Algorithm::Maglev,
        ..Scene::new(IpFamily::V4, TCP)
    };
    let mut left = scene.clone();
    left.endpoints[4] = Place::RemoteTerminating;
    let (before, after) = (scene.tables(), left.tables());
    let moved = (1..1000)
        .map(|port| (pick(&scene, &before, port), pick(&scene, &after, port)))
        .filter(|(before, after)| *before != scene.endpoint(4) && before != after)
        .count();
    assert!(moved < 1000 / 8, "{moved}");
}

#[test]
fn maglev_picks_are_the_same_on_every_node() {
    let scene = Scene::new(IpFamily::V4, TCP);
    let hashes = (1..100).map(|port| select::maglev_hash(&tuple(&scene, port)));
    // If the hash changes, an upgrade moves connections, so a change must not go unnoticed.
    assert_eq!(
        hashes.fold(0, |all: u32, hash| all.rotate_left(1) ^ hash),
        MAGLEV_HASHES
    );
}

const MAGLEV_HASHES: u32 = 2_731_172_130;

/// Four remote endpoints, `sessionAffinity: ClientIP`, and a pod as client.
fn sticky() -> Scene {
    Scene {
        endpoints: vec![Place::Remote; 4],
        affinity: Some(Duration::from_secs(TIMEOUT.into())),
        client: Client::Outside,
        ..Scene::new(IpFamily::V4, TCP)
    }
}

/// The endpoint of a new connection from this client port.
fn pick(scene: &Scene, tables: &ProgrammedTables, port: u16) -> SocketAddr {
    ingress(tables, &scene.opening(port)).read().to()
}

fn picks(
    scene: &Scene,
    tables: &ProgrammedTables,
    ports: std::ops::Range<u16>,
) -> BTreeSet<SocketAddr> {
    ports.map(|port| pick(scene, tables, port)).collect()
}

fn pick_for(tables: &ProgrammedTables, client: [u8; 4]) -> Option<u32> {
    let tuple = Tuple {
        source: Ip4 { octets: client },
        protocol: TCP,
        ..Tuple::default()
    };
    let plan = tables.plan(1)?;
    let first = select::pick(&tables.tc(), plan, Policy::Cluster, &tuple, 0);
    let again = select::pick(&tables.tc(), plan, Policy::Cluster, &tuple, u32::MAX);
    assert_eq!(first, again);
    first
}

fn tuple(scene: &Scene, port: u16) -> Tuple<Ip4> {
    Tuple {
        source: Ip4::from_mapped(scene.client(port).ip().into()),
        destination: Ip4::from_mapped(scene.target().ip().into()),
        source_port: port,
        destination_port: scene.target().port(),
        protocol: TCP,
        pad: [0; 3],
    }
}
