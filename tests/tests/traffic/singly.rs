//! Each of other people's rules by itself, so that a test that fails says which one.
//!
//! `tests/neighbours.rs` shows that the rules do what they say to traffic that has no node-lb; all
//! of them at once, with every kind of client and endpoint, are in `matrix.rs`.

use anyhow::Result;
use lb_tests::{Endpoint, FailureKind, Family, PodNetwork, Request, Topology, eventually};

use crate::{
    ground::{Frontend, Ground, Vips, harsh},
    matrix::{brief_cases, holds},
};

/// An answer that got the Service's address before it is routed would come from the wrong device.
#[test]
fn strict_rp_filter() -> Result<()> {
    beside(Topology {
        strict_rp_filter: true,
        ..Topology::default()
    })
}

/// A flow of which netfilter sees one direction is INVALID, and one that it sees begin is not let
/// through.
#[test]
fn firewall() -> Result<()> {
    beside(Topology {
        firewall: true,
        ..Topology::default()
    })
}

/// To netfilter, a packet that still has a Service's address leaves the pods' networks, and would
/// lose its pod's address.
#[test]
fn masquerade() -> Result<()> {
    beside(Topology {
        masquerade: true,
        ..Topology::default()
    })
}

#[test]
fn all_rules_at_once() -> Result<()> {
    holds(harsh(PodNetwork::Routed), "native", &brief_cases())
}

/// With routed pods, and with pods on a bridge, whose answers to each other are never routed.
fn beside(topology: Topology) -> Result<()> {
    for pod_network in [PodNetwork::Routed, PodNetwork::Bridge] {
        let topology = Topology {
            pod_network,
            ..topology
        };
        holds(topology, "native", &brief_cases())?;
    }
    Ok(())
}

/// What the other tests of the firewall owe to flows that go past it: without, it drops them.
#[test]
fn without_bypass_the_firewall_has_its_say() -> Result<()> {
    let topology = Topology {
        firewall: true,
        ..Topology::default()
    };
    let vips = Vips(1);
    for (netfilter, passes) in [("bypass", true), ("traverse", false)] {
        let arguments = ["--xdp-mode=native", &format!("--netfilter={netfilter}")];
        let ground = Ground::with(topology, &arguments)?;
        let lab = ground.lab();
        let endpoint = [Endpoint::ready(lab.pod("pod-1-1"))];
        ground.publish(vips, |service| service.external_local(), endpoint)?;
        for family in Family::BOTH {
            let target = vips.at(Frontend::LoadBalancerIp, family, lab.node(1));
            // The node's own connections are not forwarded: they tell when the Service is there.
            eventually(|| Request::tcp(target).send(lab.node(1)));
            for request in [Request::tcp(target), Request::udp(target)] {
                let request = if passes { request } else { request.in_vain() };
                let outcome = request.send(lab.client()).map(|reply| reply.server);
                let outcome = outcome.map_err(|failure| failure.kind);
                let expected = match passes {
                    true => Ok("pod-1-1".to_owned()),
                    false => Err(FailureKind::Timeout),
                };
                assert_eq!(outcome, expected, "{netfilter}: {request:?}");
            }
        }
    }
    Ok(())
}
