//! Session affinity by client address, and Maglev's by the whole tuple.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_tests::{Endpoint, Family, Request, lab::Host};

use crate::ground::{Frontend, Ground, Vips, servers};

const VIPS: Vips = Vips(1);
/// By chance, so many answers in a row come from one of four servers once in 10^8 runs.
const MANY: usize = 14;

#[test]
fn a_client_stays_with_its_endpoint_on_every_frontend() -> Result<()> {
    let ground = sticky(600)?;
    let lab = ground.lab();
    let clients: [&Host; 3] = [
        lab.client(),
        lab.pod("pod-1-1").as_ref(),
        lab.node(1).as_ref(),
    ];
    for client in clients {
        for family in Family::BOTH {
            let mut seen = BTreeSet::new();
            for frontend in Frontend::ALL {
                let target = VIPS.at(frontend, family, lab.node(1));
                seen.extend(servers(client, Request::tcp(target), MANY / 2));
            }
            assert_eq!(seen.len(), 1, "{client} over {family:?}: {seen:?}");
        }
    }
    Ok(())
}

#[test]
fn ports_have_affinity_of_their_own() -> Result<()> {
    let ground = sticky(600)?;
    let lab = ground.lab();
    // Ten clients. Their TCP and UDP endpoints are chosen separately: all pairs are equal once in
    // 4^10.
    let mut hosts: Vec<&Host> = lab.pods().iter().map(AsRef::as_ref).collect();
    hosts.push(lab.client());
    let differs = hosts.iter().any(|host| {
        Family::BOTH.into_iter().any(|family| {
            let target = VIPS.at(Frontend::ClusterIp, family, lab.node(1));
            servers(host, Request::tcp(target), 1) != servers(host, Request::udp(target), 1)
        })
    });
    assert!(differs);
    Ok(())
}

#[test]
fn a_client_moves_on_when_its_endpoint_leaves_and_stays_there() -> Result<()> {
    let ground = sticky(600)?;
    let lab = ground.lab();
    let request = Request::tcp(VIPS.at(Frontend::NodePort, Family::V4, lab.node(1)));
    let mut left: Vec<_> = lab.pods().iter().collect();
    while left.len() > 1 {
        let found = servers(lab.client(), request, MANY / 2);
        assert_eq!(found.len(), 1, "{found:?}");
        left.retain(|pod| pod.name() != found[0]);
        ground.endpoints(VIPS, left.iter().map(|pod| Endpoint::ready(pod)))?;
        ground.settle()?;
        let next = servers(lab.client(), request, 1);
        assert_ne!(next, found);
    }
    Ok(())
}

#[test]
fn affinity_ends_after_its_timeout_and_lasts_while_it_is_used() -> Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let ground = sticky(2)?;
    let lab = ground.lab();
    let request = Request::tcp(VIPS.at(Frontend::NodePort, Family::V4, lab.node(1)));
    let mut asked = Instant::now();
    let mut last = servers(lab.client(), request, 1);
    let mut stays = 0;
    for _ in 0..40 {
        let before = asked;
        thread::sleep(TIMEOUT * 3 / 4);
        asked = Instant::now();
        let next = servers(lab.client(), request, 1);
        // If the machine stopped for longer than the rest of the timeout, this shows nothing.
        if before.elapsed() < TIMEOUT {
            assert_eq!(next, last);
            stays += 1;
        }
        last = next;
        if stays == 4 {
            break;
        }
    }
    assert_eq!(stays, 4, "no two requests came within the timeout");
    let moved = (0..8).any(|_| {
        thread::sleep(TIMEOUT + Duration::from_millis(100));
        servers(lab.client(), request, 1) != last
    });
    assert!(moved, "still with {last:?}");
    Ok(())
}

#[test]
fn a_changed_affinity_takes_effect_on_the_live_service() -> Result<()> {
    let ground = sticky(600)?;
    let lab = ground.lab();
    let request = Request::tcp(VIPS.at(Frontend::ClusterIp, Family::V4, lab.node(1)));
    assert_eq!(servers(lab.client(), request, MANY).len(), 1);
    VIPS.service(lab.manifests()).apply()?;
    ground.settle()?;
    assert!(servers(lab.client(), request, MANY).len() > 1);
    Ok(())
}

#[test]
fn nodes_agree_on_maglevs_endpoint_for_a_client_tuple() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let maglev = "node-lb.io/algorithm";
    let pods = lab.pods().iter().map(Endpoint::ready);
    ground.publish(VIPS, |service| service.annotation(maglev, "maglev"), pods)?;
    ground.settle()?;
    for family in Family::BOTH {
        let target = VIPS.at(Frontend::LoadBalancerIp, family, lab.node(1));
        let ask = |port| Request::udp(target).from_port(port).send(lab.client());
        let mut chosen = [vec![], vec![]];
        for (node, chosen) in lab.nodes().iter().zip(&mut chosen) {
            lab.route_services_via(node)?;
            for port in 41000..41020 {
                chosen.push(ask(port)?.server);
            }
        }
        let [one, two] = chosen;
        assert_eq!(one, two, "{family:?}");
        assert!(
            one.iter().any(|server| *server != one[0]),
            "all go to {}",
            one[0]
        );
    }
    Ok(())
}

/// A Service with affinity and with every pod as an endpoint.
fn sticky(seconds: u32) -> Result<Ground> {
    let ground = Ground::new()?;
    let pods = ground.lab().pods().iter().map(Endpoint::ready);
    ground.publish(VIPS, |service| service.client_ip_affinity(seconds), pods)?;
    ground.settle()?;
    Ok(ground)
}
