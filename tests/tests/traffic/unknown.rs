//! Ports that a ClusterIP does not have are refused at once, and addresses in a ServiceCIDR that no
//! Service has are silent, to pods, to the node's own processes and to clients outside.

use std::time::Duration;

use anyhow::Result;
use lb_common::{abi::ClusterIp, addr::Ip6, verdict::Reason};
use lb_datapath::bpf::BatchMap;
use lb_tests::{
    Endpoint, FailureKind, Family, PodNetwork, Request, Topology, eventually, lab::Host, patient,
    traffic::Protocol,
};
use serde_json::json;

use crate::ground::{Ground, LINES, PORT, Vips, harsh};

/// The Service that each lab has.
const OWN: Vips = Vips(1);
/// No Service has it, but the test may give it to one.
const OTHER_PORT: u16 = PORT + 2;
/// A refusal comes by then.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn other_ports_of_a_cluster_ip_are_refused_with_xdp() -> Result<()> {
    refused_everywhere(Topology::default(), &["--xdp-mode=native"])
}

#[test]
fn other_ports_of_a_cluster_ip_are_refused_without_xdp() -> Result<()> {
    refused_everywhere(Topology::default(), &["--xdp-mode=off"])
}

/// So that it is the hook where packets leave that refuses the node's own.
#[test]
fn other_ports_of_a_cluster_ip_are_refused_without_socket_hooks() -> Result<()> {
    refused_everywhere(Topology::default(), &["--socket-lb=off"])
}

#[test]
fn other_ports_of_a_cluster_ip_are_refused_among_other_rules() -> Result<()> {
    refused_everywhere(harsh(PodNetwork::Bridge), &["--xdp-mode=native"])
}

fn ground(topology: Topology, arguments: &[&str]) -> Result<Ground> {
    let ground = Ground::with(topology, arguments)?;
    let endpoint = [Endpoint::ready(ground.lab().pod("pod-1-1"))];
    ground.publish(OWN, |service| service, endpoint)?;
    ground.settle()?;
    Ok(ground)
}

/// Pods, the node's own processes and clients outside.
fn clients(ground: &Ground) -> [&Host; 3] {
    let lab = ground.lab();
    [
        lab.client(),
        lab.pod("pod-1-2").as_ref(),
        lab.node(1).as_ref(),
    ]
}

/// The server that answers.
fn ask(client: &Host, request: Request) -> Result<String, FailureKind> {
    let reply = request.send(client).map(|reply| reply.server);
    reply.map_err(|failure| failure.kind)
}

fn refused_everywhere(topology: Topology, arguments: &[&str]) -> Result<()> {
    let ground = ground(topology, arguments)?;
    let lab = ground.lab();
    for client in clients(&ground) {
        for family in Family::BOTH {
            let other = OWN.cluster(family, OTHER_PORT);
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let request = Request::new(protocol, other).deadline(patient(SOON));
                assert_eq!(
                    ask(client, request),
                    Err(FailureKind::Refused),
                    "{client} {family:?} {protocol:?}"
                );
            }
            // The Service itself is served.
            if !arguments.contains(&"--socket-lb=off") || client.name() != lab.node(1).name() {
                let reply = Request::tcp(OWN.cluster(family, PORT)).send(client)?;
                assert_eq!(reply.server, "pod-1-1", "{client} {family:?}");
            }
            if topology.firewall && client.name() == lab.client().name() {
                // The nodes' firewalls let nobody outside send to other addresses, and a ping is
                // refused where it leaves.
                continue;
            }
            let mut ping = client.command("ping")?;
            let output = ping
                .args(["-c", "1", "-W", "5", &other.ip().to_string()])
                .output()?;
            let told = String::from_utf8_lossy(&output.stdout).to_lowercase();
            assert!(told.contains("port unreachable"), "{client}: {told}");
        }
    }
    assert!(ground.balanced().packets(1, Reason::UnknownPort)? > 0);
    Ok(())
}

#[test]
fn addresses_of_no_service_are_silent_and_leave_nothing_behind() -> Result<()> {
    for mode in ["--xdp-mode=native", "--xdp-mode=off"] {
        let ground = ground(Topology::default(), &[mode])?;
        let lab = ground.lab();
        lab.manifests().apply(&json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
        }))?;
        ground.settle()?;
        for client in clients(&ground) {
            for family in Family::BOTH {
                let unused = Vips(77).cluster(family, PORT);
                let before = ground.balanced().packets(1, Reason::NoSuchService)?;
                assert_eq!(
                    ask(client, Request::tcp(unused).in_vain()),
                    Err(FailureKind::Timeout),
                    "{client} {family:?} {mode}"
                );
                let after = ground.balanced().packets(1, Reason::NoSuchService)?;
                assert!(
                    after > before,
                    "{client} {family:?} {mode}: {before}, {after}"
                );
            }
        }
        let unused = Family::BOTH.map(|family| Vips(77).cluster(family, PORT));
        let flows = ground.balanced().flows(1)?;
        let scanned = flows.iter().filter(|flow| unused.contains(&flow.frontend));
        assert_eq!(scanned.count(), 0, "a scan creates nothing");
    }
    Ok(())
}

#[test]
fn services_gain_and_lose_ports_and_addresses_at_once() -> Result<()> {
    let ground = ground(Topology::default(), &["--xdp-mode=native"])?;
    let lab = ground.lab();
    let client = lab.pod("pod-1-2").as_ref();
    let other = OWN.cluster(Family::V4, OTHER_PORT);
    let answer = || ask(client, Request::tcp(other).deadline(patient(SOON)));
    assert_eq!(answer(), Err(FailureKind::Refused));
    let more = OWN.service(lab.manifests()).tcp("more", OTHER_PORT, LINES);
    more.apply()?;
    let slices = Ground::slices(lab, OWN).tcp("more", LINES);
    slices.with(Endpoint::ready(lab.pod("pod-1-1"))).apply()?;
    ground.settle()?;
    assert_eq!(answer().as_deref(), Ok("pod-1-1"));
    OWN.service(lab.manifests()).apply()?;
    ground.settle()?;
    assert_eq!(answer(), Err(FailureKind::Refused));

    let map =
        BatchMap::<Ip6, ClusterIp>::from_pin(&ground.balanced().map_dir(1)?.join("CLUSTER_IPS"))?;
    let entries = || map.entries().map(|entries| entries.len());
    // Those of this Service in both families, and that of `settle`'s.
    assert_eq!(entries()?, 3);
    lab.manifests().delete("Service", &OWN.name())?;
    ground.settle()?;
    eventually(|| match entries() {
        Ok(1) => Ok(()),
        other => Err(format!("{other:?} ClusterIPs")),
    });
    Ok(())
}

#[test]
fn unknown_ports_can_be_left_alone() -> Result<()> {
    let ground = ground(Topology::default(), &["--unknown-service-ports=ignore"])?;
    for client in clients(&ground) {
        let request = Request::tcp(OWN.cluster(Family::V4, OTHER_PORT)).in_vain();
        let failure = ask(client, request);
        // Nobody in the lab has the address, as its router or its nodes may say.
        assert!(
            matches!(
                failure,
                Err(FailureKind::Timeout | FailureKind::Unreachable)
            ),
            "{client}: {failure:?}"
        );
    }
    assert_eq!(ground.balanced().packets(1, Reason::UnknownPort)?, 0);
    Ok(())
}
