//! Every kind of Service, with the addresses that the API server gives it.

use std::net::SocketAddr;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Service;
use lb_tests::{
    Cluster, FailureKind, Family, Request, balanced::node_lb, control_plane::service, http_get,
};
use serde_json::json;

use super::support::{answers, cluster, cluster_ip, node_port, serve, servers_at};

#[test]
fn every_kind_of_service_is_programmed_and_reached() {
    let mut cluster = cluster();
    let made = serve(&mut cluster, "web", 2, json!({ "type": "NodePort" }));
    cluster_ips_and_node_ports(&cluster, &made);
    explained(&cluster, &made);
    load_balancer(&mut cluster);
    external_ip(&mut cluster);
    headless_and_by_name(&mut cluster);
    changes_of_kind(&mut cluster);
}

fn cluster_ips_and_node_ports(cluster: &Cluster, made: &Service) {
    let lab = cluster.lab();
    for family in Family::BOTH {
        let ip = cluster_ip(made, family);
        let requests = [
            Request::http(SocketAddr::new(ip, 80)),
            Request::tcp(SocketAddr::new(ip, 81)),
            Request::udp(SocketAddr::new(ip, 53)),
        ];
        for request in requests {
            request.send(lab.pod("pod-1-1")).unwrap();
            request.send(lab.node(2)).unwrap();
        }
        for node in lab.nodes() {
            let outside = node.at(family, node_port(made, 80));
            Request::http(outside).send(lab.client()).unwrap();
        }
    }
}

/// The command line asks the API server itself, and says so if it cannot.
fn explained(cluster: &Cluster, made: &Service) {
    let node = cluster.lab().node(1);
    let front = cluster.front.address();
    let kubeconfig = cluster.control_plane.agent_kubeconfig(front).unwrap();
    let to = SocketAddr::new(cluster_ip(made, Family::V4), 80);
    let line = format!(
        "{} explain --kubeconfig {} --node {node} --from {} --to {to}",
        node_lb().unwrap().display(),
        kubeconfig.display(),
        node.ip(Family::V4),
    );
    let text = node.run(&line).unwrap();
    assert!(text.contains("Service default/web:http"), "{text}");
    let nobody = cluster.control_plane.port(1);
    let error = node.run(&format!("{line} --master https://{nobody}"));
    let error = format!("{:#}", error.unwrap_err());
    assert!(error.contains("cannot reach the API server"), "{error}");
}

fn load_balancer(cluster: &mut Cluster) {
    let spec = json!({
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "selector": { "app": "web" },
    });
    let services = cluster.client().of::<Service>();
    let made = services.create(service("balanced", spec)).unwrap();
    let ingress = json!([
        { "ip": "172.30.78.10", "ipMode": "VIP" },
        { "ip": "fd00:172:30:78::10", "ipMode": "VIP" },
    ]);
    let status = json!({ "loadBalancer": { "ingress": ingress } });
    services.patch_status("balanced", status).unwrap();
    // Policy Local: only the one of two pods that is on node 1, to which the router sends this.
    for ip in ["172.30.78.10", "fd00:172:30:78::10"] {
        let target = SocketAddr::new(ip.parse().unwrap(), 80);
        cluster
            .until(|cluster| {
                let found = servers_at(cluster.lab().client(), target)?;
                ensure!(found.len() == 1, "{target} is served by {found:?}");
                Ok(())
            })
            .unwrap();
    }
    let port = made.spec.and_then(|spec| spec.health_check_node_port);
    let port = port.expect("a healthCheckNodePort").try_into().unwrap();
    cluster
        .until(|cluster| {
            let node = cluster.lab().node(1);
            let address = node.at(Family::V4, port);
            let answer = http_get::get(cluster.lab().client(), address, "/")?;
            ensure!(answer.status == 200, "{answer:?}");
            let local = "\"localEndpoints\": 1";
            ensure!(answer.body.contains(local), "{answer:?}");
            Ok(())
        })
        .unwrap();
}

fn external_ip(cluster: &mut Cluster) {
    let spec = json!({ "externalIPs": ["172.30.78.77"], "selector": { "app": "web" } });
    let services = cluster.client().of::<Service>();
    services.create(service("external", spec)).unwrap();
    let target = "172.30.78.77:80".parse().unwrap();
    cluster
        .until(|cluster| {
            let found = servers_at(cluster.lab().client(), target)?;
            ensure!(found.len() == 2, "{target} is served by {found:?}");
            Ok(())
        })
        .unwrap();
}

/// Headless and ExternalName Services give a service proxy nothing to do, so no server is asked
/// about them.
fn headless_and_by_name(cluster: &mut Cluster) {
    let before = cluster.ground.status(1).unwrap();
    let services = cluster.client().of::<Service>();
    let headless = json!({ "clusterIP": "None", "selector": { "app": "web" } });
    services.create(service("headless", headless)).unwrap();
    let by_name = json!({
        "metadata": { "name": "by-name" },
        "spec": { "type": "ExternalName", "externalName": "example.test" },
    });
    services.create(by_name).unwrap();
    // Another Service, which is programmed after them.
    let after = json!({ "selector": { "app": "web" } });
    let made = services.create(service("after", after)).unwrap();
    answers(
        cluster,
        SocketAddr::new(cluster_ip(&made, Family::V4), 80),
        2,
    );
    let status = cluster.ground.status(1).unwrap();
    assert_eq!(status.service_ports, before.service_ports + 6, "{status:?}");
    assert_eq!(status.not_programmed, []);
    assert_eq!(status.source_problems, [""; 0]);
}

fn changes_of_kind(cluster: &mut Cluster) {
    let services = cluster.client().of::<Service>();
    let made = services
        .patch("after", json!({ "spec": { "type": "NodePort" } }))
        .unwrap();
    let port = node_port(&made, 80);
    answers(cluster, cluster.lab().node(2).at(Family::V6, port), 2);
    services.delete("after").unwrap();
    let gone = SocketAddr::new(cluster_ip(&made, Family::V4), 80);
    cluster
        .until(|cluster| {
            let lab = cluster.lab();
            for target in [gone, lab.node(1).at(Family::V4, port)] {
                let answer = Request::http(target).send(lab.node(1));
                let failure = answer.err().map(|failure| failure.kind);
                // The ClusterIP belongs to no Service any more. The node port belongs to the node,
                // and is closed.
                ensure!(failure.is_some(), "{target} answers still");
                ensure!(target == gone || failure == Some(FailureKind::Refused));
            }
            Ok(())
        })
        .unwrap();
}
