//! Each foreign rule on its own, so that a failing test names it.
//!
//! `lab_rules.rs` shows that the rules do what they say to traffic without node-lb. In `matrix.rs`
//! all of them are active at once, with every kind of client and endpoint.

use anyhow::Result;
use lb_tests::{Endpoint, FailureKind, Family, PodNetwork, Request, Topology, eventually};

use crate::{
    ground::{Frontend, Ground, Vips, harsh},
    matrix::{brief_cases, holds},
};

/// If an answer got the Service's address before it is routed, it would seem to come from the wrong
/// device.
#[test]
fn strict_rp_filter() -> Result<()> {
    beside(Topology {
        strict_rp_filter: true,
        ..Topology::default()
    })
}

/// If netfilter sees only one direction of a flow, it is INVALID; and a flow that it sees begin is
/// not let through.
#[test]
fn firewall() -> Result<()> {
    beside(Topology {
        firewall: true,
        ..Topology::default()
    })
}

/// A packet that still has a Service's address seems to netfilter to leave the pods' networks, and
/// would lose its pod's address.
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

/// With routed pods, and with pods on a bridge, where answers between them are never routed.
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

/// The counter-test to the other firewall tests: if flows do not bypass the firewall, it drops
/// them.
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
            // The node's own connections are not forwarded, so they show when the Service is
            // programmed.
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
