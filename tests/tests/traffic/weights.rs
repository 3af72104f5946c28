//! Weights of endpoints, as a Service's annotation or a slice's gives them.

use std::collections::BTreeMap;

use anyhow::Result;
use lb_tests::{Endpoint, Family, Request, Service, traffic::Held};
use serde_json::json;

use crate::ground::{Frontend, Ground, Vips};

const VIPS: Vips = Vips(1);
/// New connections of a kind.
const MANY: u32 = 200;

/// How many of [`MANY`] requests each server answers.
fn answered(ground: &Ground, request: Request) -> BTreeMap<String, u32> {
    let mut answered = BTreeMap::new();
    for _ in 0..MANY {
        let reply = request.send(ground.lab().client()).unwrap();
        *answered.entry(reply.server).or_default() += 1;
    }
    answered
}

/// Requests by both protocols over both families, to a load balancer IP.
fn requests(ground: &Ground) -> impl Iterator<Item = Request> {
    Family::BOTH.into_iter().flat_map(|family| {
        let target = VIPS.at(Frontend::LoadBalancerIp, family, ground.lab().node(1));
        [Request::tcp(target), Request::udp(target)]
    })
}

/// By chance, one that is due half of the connections gets less than three tenths of them once in
/// 10^8 runs.
#[track_caller]
fn assert_half(answered: &BTreeMap<String, u32>, server: &str) {
    let got = answered.get(server).copied().unwrap_or(0);
    let half = MANY * 3 / 10..=MANY * 7 / 10;
    assert!(half.contains(&got), "{server} has {got} of {answered:?}");
}

fn annotated<'a>(service: Service<'a>, weights: &str, algorithm: &str) -> Service<'a> {
    let service = service.annotation("node-lb.io/weights", weights);
    service.annotation("node-lb.io/algorithm", algorithm)
}

#[test]
fn nodes_and_addresses_get_what_the_service_gives_them() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let pods = || lab.pods().iter().map(Endpoint::ready);
    // Three pods with a weight of 1, and one with 3.
    let heavy = &lab.pods()[0];
    let weights = Family::BOTH.map(|family| format!("{}=3", heavy.ip(family)));
    for algorithm in ["least-connections", "random", "maglev"] {
        let publish = |weights: &str| {
            ground.publish(
                VIPS,
                |service| annotated(service, weights, algorithm),
                pods(),
            )?;
            ground.settle()
        };
        publish(&weights.join(", "))?;
        for request in requests(&ground) {
            assert_half(&answered(&ground, request), heavy.name());
        }

        if algorithm == "least-connections" {
            continue; // datagrams leave flows behind, which count for a while
        }
        // All of node 2 counts four times what all of node 1 does.
        publish("node/node-2=4")?;
        let on_node_1 = lab.pods().iter().filter(|pod| pod.node == "node-1");
        let on_node_1: Vec<_> = on_node_1.map(|pod| pod.name().to_owned()).collect();
        for request in requests(&ground) {
            let answered = answered(&ground, request);
            let got: u32 = on_node_1.iter().filter_map(|name| answered.get(name)).sum();
            // A fifth is due.
            assert!((MANY / 20..MANY * 2 / 5).contains(&got), "{answered:?}");
        }
    }
    Ok(())
}

#[test]
fn a_slice_with_a_weight_takes_effect_and_leaves_connections_alone() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let (heavy, others) = lab.pods().split_first().unwrap();
    let others = || others.iter().map(Endpoint::ready);
    ground.publish(VIPS, |service| service, others())?;
    ground.settle()?;
    let target = VIPS.at(Frontend::LoadBalancerIp, Family::V4, lab.node(1));
    let mut held = Held::open_all(lab.client(), target, 20);
    assert_eq!(held.len(), 20);

    let mut slices = Ground::slices(lab, VIPS)
        .with(Endpoint::ready(heavy))
        .objects();
    for slice in &mut slices {
        let metadata = &mut slice["metadata"];
        metadata["name"] = format!("{}-heavy", metadata["name"].as_str().unwrap()).into();
        metadata["annotations"] = json!({"node-lb.io/weight": "3"});
    }
    lab.manifests()
        .apply_list("endpointslices-heavy.json", &slices)?;
    ground.settle()?;
    for request in requests(&ground) {
        assert_half(&answered(&ground, request), heavy.name());
    }
    for connection in &mut held {
        let answer = connection.ask()?;
        assert_ne!(answer.server, heavy.name());
        assert_eq!(connection.retransmissions()?, 0);
    }
    Ok(())
}
