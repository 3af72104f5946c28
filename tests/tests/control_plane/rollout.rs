//! Deployments that roll out, scale to zero and come back, with the real controllers'
//! EndpointSlices.

use std::net::SocketAddr;

use anyhow::ensure;
use k8s_openapi::api::apps::v1::Deployment;
use lb_tests::{FailureKind, Family, Request};
use serde_json::json;

use super::support::{
    Everywhere, WEB, answers, cluster, cluster_ip, node_port, pods, scale, serve,
};

#[test]
fn a_deployment_rolls_scales_to_zero_and_comes_back() {
    let mut cluster = cluster();
    let service = serve(&mut cluster, WEB, 3, json!({ "type": "NodePort" }));
    let old = pods(&cluster, WEB).unwrap();

    let load = Everywhere::start(&cluster, &service);
    let annotation = json!({ "kubectl.kubernetes.io/restartedAt": "now" });
    let template = json!({ "metadata": { "annotations": annotation } });
    let patch = json!({ "spec": { "template": template } });
    let deployments = cluster.client().of::<Deployment>();
    deployments.patch(WEB, patch).unwrap();
    cluster
        .until(|cluster| {
            let now = pods(cluster, WEB)?;
            ensure!(
                now.len() == 3 && now.is_disjoint(&old),
                "pods {now:?}, first {old:?}"
            );
            Ok(())
        })
        .unwrap();
    let target = SocketAddr::new(cluster_ip(&service, Family::V4), 80);
    let servers = answers(&mut cluster, target, 3);
    assert!(servers.is_disjoint(&old), "{servers:?} are none of {old:?}");
    load.assert_no_failures();

    scale(&cluster, WEB, 0);
    let ways = |cluster: &lb_tests::Cluster, family| {
        let inside = SocketAddr::new(cluster_ip(&service, family), 80);
        let outside = cluster.lab().node(1).at(family, node_port(&service, 80));
        let datagrams = SocketAddr::new(cluster_ip(&service, family), 53);
        let lab = cluster.lab();
        [
            Request::http(inside).send(lab.pod("pod-1-1")),
            Request::http(inside).send(lab.node(2)),
            Request::http(outside).send(lab.client()),
            Request::udp(datagrams).send(lab.pod("pod-2-1")),
        ]
    };
    cluster
        .until(|cluster| {
            for result in Family::BOTH
                .into_iter()
                .flat_map(|family| ways(cluster, family))
            {
                let kind = result.as_ref().err().map(|failure| failure.kind);
                ensure!(kind == Some(FailureKind::Refused), "{result:?}");
            }
            ensure!(pods(cluster, WEB)?.is_empty(), "pods are left");
            Ok(())
        })
        .unwrap();

    scale(&cluster, WEB, 2);
    answers(&mut cluster, target, 2);
    for result in Family::BOTH
        .into_iter()
        .flat_map(|family| ways(&cluster, family))
    {
        result.unwrap();
    }
}
