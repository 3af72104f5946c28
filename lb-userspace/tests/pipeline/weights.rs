//! Endpoints with weights: each gets its share of new connections, however one is chosen.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use lb_objects::{Algorithm, TrafficPolicy};
use lb_packet::TCP;
use node_lb::{memory::ProgrammedTables, plan::FrontendKind};

use crate::{
    conversation::Conversation,
    scene::{Place, Scene},
    seats::open,
};

const WEIGHTS: [u16; 3] = [1, 2, 5];
const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Random,
    Algorithm::Maglev,
    Algorithm::LeastConnections,
    Algorithm::LeastLatency,
];
/// A multiple of the sum of the weights.
const CONNECTIONS: u16 = 800;

/// Scenes of both families and protocols.
fn weighted(algorithm: Algorithm, weights: &[u16]) -> impl Iterator<Item = Scene> {
    let weights = weights.to_vec();
    Scene::each().map(move |scene| Scene {
        endpoints: vec![Place::Local, Place::Remote, Place::Remote],
        weights: weights.clone(),
        algorithm,
        flow_records: 1 << 14,
        ..scene
    })
}

/// Opens connections from so many ports on; returns how many each endpoint got.
fn shares(scene: &Scene, tables: &ProgrammedTables, first: u16, count: u16) -> Vec<u32> {
    let mut picked = BTreeMap::<SocketAddr, u32>::new();
    for port in first..first + count {
        if scene.protocol == TCP {
            Conversation::established(scene, tables, port);
        }
        *picked
            .entry(open(scene, tables, port).read().to())
            .or_default() += 1;
    }
    let endpoints = (0..scene.endpoints.len()).map(|index| scene.endpoint(index));
    endpoints
        .map(|endpoint| picked.get(&endpoint).copied().unwrap_or(0))
        .collect()
}

#[track_caller]
fn assert_shares(got: &[u32], weights: &[u16], tolerance: f64) {
    let sum: u32 = weights.iter().map(|weight| u32::from(*weight)).sum();
    let all: u32 = got.iter().sum();
    for (got_one, weight) in got.iter().zip(weights) {
        let due = f64::from(all) * f64::from(*weight) / f64::from(sum);
        let error = (f64::from(*got_one) - due).abs() / due;
        assert!(error <= tolerance, "{got:?} for {weights:?}");
    }
}

#[test]
fn new_connections_are_shared_by_weight() {
    for algorithm in ALGORITHMS {
        for scene in weighted(algorithm, &WEIGHTS) {
            let tables = scene.tables();
            let got = shares(&scene, &tables, 1, CONNECTIONS);
            // Chance, but for those that are counted.
            let tolerance = match algorithm {
                Algorithm::LeastConnections | Algorithm::LeastLatency => 0.1,
                Algorithm::Random | Algorithm::Maglev => 0.25,
            };
            assert_shares(&got, &WEIGHTS, tolerance);
        }
    }
}

#[test]
fn endpoints_of_the_same_weight_are_chosen_as_without() {
    for algorithm in ALGORITHMS {
        for scene in weighted(algorithm, &[7; 3]) {
            let plain = Scene {
                weights: Vec::new(),
                ..scene.clone()
            };
            let [seven, plain] =
                [&scene, &plain].map(|scene| shares(scene, &scene.tables(), 1, 100));
            assert_eq!(seven, plain);
        }
    }
}

#[test]
fn the_local_set_has_shares_of_its_own() {
    for algorithm in ALGORITHMS {
        for scene in weighted(algorithm, &[1, 100, 3]) {
            let scene = Scene {
                frontend: FrontendKind::LoadBalancerIp,
                external: TrafficPolicy::Local,
                endpoints: vec![Place::Local, Place::Remote, Place::Local],
                ..scene
            };
            let got = shares(&scene, &scene.tables(), 1, CONNECTIONS);
            assert_eq!(got[1], 0);
            assert_shares(&[got[0], got[2]], &[1, 3], 0.25);
        }
    }
}

#[test]
fn changed_weights_leave_connections_where_they_are() {
    for algorithm in ALGORITHMS {
        for scene in weighted(algorithm, &WEIGHTS).filter(|scene| scene.protocol == TCP) {
            let mut tables = scene.tables();
            let endpoint = |tables: &ProgrammedTables| open(&scene, tables, 1).read().to();
            Conversation::established(&scene, &tables, 1);
            let before = endpoint(&tables);
            let ids = |tables: &ProgrammedTables| {
                let first = tables.plan(1).unwrap().first;
                [0, 1, 2].map(|index| tables.endpoint(first + index).unwrap().id)
            };
            let known = ids(&tables);
            let reversed = [5, 2, 1];
            let changed = Scene {
                weights: reversed.to_vec(),
                ..scene.clone()
            };
            tables.program(&[changed.plan()]);
            assert_eq!(ids(&tables), known);
            assert_eq!(endpoint(&tables), before);
            // By least connections those that are open count as well: none but that one is.
            let tolerance = match algorithm {
                Algorithm::LeastConnections | Algorithm::LeastLatency => 0.1,
                Algorithm::Random | Algorithm::Maglev => 0.25,
            };
            let got = shares(&changed, &tables, 2, CONNECTIONS);
            assert_shares(&got, &reversed, tolerance);
        }
    }
}

#[test]
fn an_endpoint_in_slow_start_gets_its_part_of_a_share() {
    for algorithm in ALGORITHMS {
        for scene in weighted(algorithm, &[]) {
            let newest = scene.endpoint(2);
            let mut plan = scene.plan();
            plan.endpoints
                .scale(|endpoint| if *endpoint == newest { 5 } else { 10 });
            let mut tables = scene.tables();
            tables.program(&[plan]);
            let got = shares(&scene, &tables, 1, CONNECTIONS);
            assert_shares(&got, &[10, 10, 5], 0.25);
        }
    }
}

#[test]
fn a_client_with_session_affinity_stays_whatever_the_weights_are() {
    for algorithm in ALGORITHMS {
        for scene in weighted(algorithm, &WEIGHTS) {
            let scene = Scene {
                affinity: Some(Duration::from_secs(60)),
                ..scene
            };
            let got = shares(&scene, &scene.tables(), 1, 50);
            assert_eq!(got.iter().filter(|got| **got != 0).count(), 1, "{got:?}");
        }
    }
}

#[test]
fn while_endpoints_terminate_their_weights_count() {
    for scene in weighted(Algorithm::Random, &WEIGHTS) {
        let scene = Scene {
            endpoints: vec![Place::RemoteTerminating; 3],
            ..scene
        };
        let got = shares(&scene, &scene.tables(), 1, CONNECTIONS);
        assert_shares(&got, &WEIGHTS, 0.25);
    }
}
