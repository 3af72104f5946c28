//! No object can take the API server away from an agent: neither a Service that claims its address,
//! nor wrong endpoints of its own Service.

use std::{fs, net::SocketAddr};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice, events::v1::Event};
use lb_tests::{
    Cluster, Family, Held, balanced,
    control_plane::{CLUSTER_IP, ClusterSpec, ControlPlaneSpec, service},
};
use serde_json::{Value, json};

use super::support::{WEB, answers, cluster_ip, serve};

const RESERVED: &str = r#"node_lb_services_not_programmed{reason="address-reserved"}"#;

/// Agents that follow the API server at its own address.
fn cluster() -> Cluster {
    let spec = ClusterSpec {
        control_plane: ControlPlaneSpec {
            endpoints: true,
            ..ControlPlaneSpec::default()
        },
        ..ClusterSpec::default()
    };
    let mut cluster = Cluster::without_agents(spec).unwrap();
    let address = cluster.control_plane.address();
    cluster.control_plane.agent_kubeconfig(address).unwrap();
    cluster.ground.start_agents().unwrap();
    cluster
}

#[test]
fn a_service_does_not_get_the_api_servers_address_or_the_agents() {
    let mut cluster = cluster();
    serve(&mut cluster, WEB, 1, json!({}));
    let api_server = cluster.control_plane.address();
    let node = cluster.lab().node(1).ip(Family::V4);
    let claim = |port: u16| {
        json!({
            "externalIPs": [api_server.ip(), node],
            "selector": { "app": WEB },
            "ports": [{ "port": port, "targetPort": 8080 }],
        })
    };
    let services = cluster.client().of::<Service>();
    for (name, port, purpose) in [
        ("server", api_server.port(), "reaches the API server"),
        ("health", 10256, "serves /healthz"),
    ] {
        services.create(service(name, claim(port))).unwrap();
        is_refused(&mut cluster, name, purpose);
    }
    cluster
        .until(|cluster| {
            let refused = cluster.ground.metric(1, RESERVED)?;
            ensure!(refused == 2.0, "{refused} Services");
            Ok(())
        })
        .unwrap();
    // The address that it may have, it has.
    answers(&mut cluster, SocketAddr::new(node, api_server.port()), 1);
    assert_eq!(notes(&mut cluster, "ServiceAddressReserved"), 2);

    // No agent is misled, those that start now neither.
    follows(&mut cluster, "after-claim");
    cluster.ground.kill_agents().unwrap();
    cluster.ground.start_agents().unwrap();
    follows(&mut cluster, "after-restart");

    // Another port is nobody's.
    services
        .patch("server", json!({ "spec": claim(6444) }))
        .unwrap();
    answers(&mut cluster, SocketAddr::new(api_server.ip(), 6444), 1);
    cluster
        .until(|cluster| {
            let refused = cluster.ground.metric(1, RESERVED)?;
            ensure!(refused == 1.0, "{refused} Services");
            Ok(())
        })
        .unwrap();
}

/// As an administrator might have it who took the ClusterIP for the API server's address.
#[test]
fn wrong_endpoints_of_the_api_servers_own_service_lock_no_agent_out() {
    let mut cluster = cluster();
    serve(&mut cluster, WEB, 1, json!({}));
    // The maps have the Service by now: an agent can be started by its address.
    let given = SocketAddr::new(CLUSTER_IP.into(), 443);
    cluster.control_plane.agent_kubeconfig(given).unwrap();
    cluster.ground.kill_agents().unwrap();
    cluster.ground.start_agents().unwrap();
    let address = cluster.control_plane.address();
    cluster
        .until(|cluster| {
            for node in cluster.lab().nodes() {
                let file = balanced::socket(node).with_file_name("api-servers");
                let found = fs::read_to_string(&file).context("nothing is remembered")?;
                ensure!(found == format!("{address}\n"), "{found}");
            }
            Ok(())
        })
        .unwrap();

    // The endpoints are wrong until every agent has them, then all agents start anew.
    let slices = cluster.client().of::<EndpointSlice>();
    let wrong = json!({ "endpoints": [{ "addresses": ["172.30.77.66"], "conditions": { "ready": true } }] });
    cluster
        .until(|cluster| {
            slices.patch("kubernetes", wrong.clone())?;
            for node in cluster.lab().nodes() {
                let connected = Held::open(node, given);
                ensure!(connected.is_err(), "{node} still reaches the API server");
            }
            Ok(())
        })
        .unwrap();
    cluster.ground.kill_agents().unwrap();
    cluster.ground.start_agents().unwrap();
    follows(&mut cluster, "after-all");
    let status = cluster.ground.status(1).unwrap();
    assert_eq!(
        status.api_server,
        Some(format!("{address}, an endpoint of default/kubernetes"))
    );
}

/// Waits until node 1's agent says that it refuses this Service an address.
#[track_caller]
fn is_refused(cluster: &mut Cluster, name: &str, purpose: &str) {
    let service = format!("default/{name}");
    cluster
        .until(|cluster| {
            let refused = cluster.ground.status(1)?.not_programmed;
            let mut of_service = refused.iter().filter(|port| port.service_port == service);
            let reason = of_service.find(|port| port.reason.contains(purpose));
            ensure!(reason.is_some(), "{refused:?}");
            Ok(())
        })
        .unwrap();
}

/// Waits for Events with this reason: how many there are.
fn notes(cluster: &mut Cluster, reason: &str) -> usize {
    cluster
        .until(|cluster| {
            let events = cluster.client().of::<Event>().list("")?;
            let found = events.into_iter();
            let found = found.filter(|event| event.reason.as_deref() == Some(reason));
            match found.count() {
                0 | 1 => anyhow::bail!("not both Services have an Event"),
                count => Ok(count),
            }
        })
        .unwrap()
}

/// Creates a Service, and waits until agents have it.
#[track_caller]
fn follows(cluster: &mut Cluster, name: &str) {
    let spec: Value = json!({ "selector": { "app": WEB } });
    let services = cluster.client().of::<Service>();
    let made = services.create(service(name, spec)).unwrap();
    let target = SocketAddr::new(cluster_ip(&made, Family::V4), 80);
    answers(cluster, target, 1);
}
