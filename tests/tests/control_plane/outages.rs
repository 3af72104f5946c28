//! The API server is away, its history is gone, or its address or the agent's rights have changed.

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::ensure;
use k8s_openapi::api::{core::v1::Service, rbac::v1::ClusterRole};
use lb_tests::{
    Cluster, Family, Request,
    control_plane::{AGENT_ACCOUNT, service},
    http_get,
};
use serde_json::json;

use super::support::{
    Everywhere, FOLLOWED, WEB, answers, begin_afresh, cluster, cluster_ip, metric, serve,
};

const CHANGES: &str = "kubeproxy_sync_proxy_rules_service_changes_total";
const RELISTS: &str = "node_lb_api_relists_total";

/// Three things that an API server may do to its clients, one after the other: it is killed and
/// comes back, objects change and vanish while it is away, and its history is compacted.
#[test]
fn an_api_server_that_was_away_costs_one_list_each_and_only_what_changed_is_written() {
    let mut cluster = cluster();
    let kept = serve(&mut cluster, WEB, 2, json!({ "type": "NodePort" }));
    let services = cluster.client().of::<Service>();
    let spec = || json!({ "selector": { "app": WEB } });
    let gone = services.create(service("gone", spec())).unwrap();
    let gone = SocketAddr::new(cluster_ip(&gone, Family::V4), 80);
    answers(&mut cluster, gone, 2);

    // Compaction alone causes nothing, because a watch from the present needs no history.
    let (relists, changes) = counts(&cluster);
    cluster.control_plane.compact_history().unwrap();
    let load = Everywhere::start(&cluster, &kept);
    cluster.front.forget();
    cluster.front.close();
    cluster.control_plane.kill_api().unwrap();
    thread::sleep(Duration::from_secs(4));
    Request::http(gone).send(cluster.lab().node(1)).unwrap();
    assert_eq!(cluster.front.requests(), [], "nobody can ask anything");
    cluster.control_plane.start_api().unwrap();
    services.delete("gone").unwrap();
    let made = services.create(service("new", spec())).unwrap();
    let made = SocketAddr::new(cluster_ip(&made, Family::V4), 80);
    cluster.control_plane.compact_history().unwrap();
    cluster.front.open().unwrap();

    answers(&mut cluster, made, 2);
    cluster
        .until(|cluster| {
            let answer = Request::http(gone).send(cluster.lab().node(1));
            ensure!(answer.is_err(), "{gone} is served still");
            let status = cluster.ground.status(1)?;
            ensure!(status.source_problems.is_empty(), "{status:?}");
            ensure!(status.services == 3, "{} Services", status.services);
            Ok(())
        })
        .unwrap();
    load.assert_no_failures();

    // At most one new list for each watch. A watch needs none if it had seen the start of the new
    // API server's history.
    let relists = counts(&cluster).0 - relists;
    let most = FOLLOWED as f64;
    assert!((1.0..=most).contains(&relists), "{relists} new lists");
    let lists = cluster.front.lists();
    assert!(
        lists <= 2 * FOLLOWED,
        "{lists} lists: {:?}",
        cluster.front.requests()
    );
    // One Service was added and one removed; `web` and `kubernetes` are unchanged.
    assert_eq!(counts(&cluster).1 - changes, 2.0, "Services written");
}

/// New lists, and Services changed, as the agent on node 1 counts them, both families together.
fn counts(cluster: &Cluster) -> (f64, f64) {
    // There is no such series before the first new list.
    let relists = cluster.ground.metric(1, RELISTS).unwrap_or_default();
    (relists, metric(cluster, CHANGES))
}

#[test]
fn tokens_addresses_and_rights_change_without_a_restart() {
    let mut cluster = cluster();
    let service = serve(&mut cluster, WEB, 1, json!({ "type": "NodePort" }));
    let load = Everywhere::start(&cluster, &service);
    revoked_token(&mut cluster);
    begin_afresh(&mut cluster);
    changed_address(&mut cluster);
    forbidden_resource(&mut cluster);
    load.assert_no_failures();
}

/// The account's tokens become invalid, and a new one is written to the file, as by the kubelet.
fn revoked_token(cluster: &mut Cluster) {
    cluster.control_plane.revoke_agent_tokens().unwrap();
    // The API server remembers valid tokens for some seconds.
    cluster
        .until(|cluster| {
            cluster.front.cut();
            thread::sleep(Duration::from_secs(1));
            says(cluster, "401")
        })
        .unwrap();
    cluster.control_plane.renew_agent_token().unwrap();
    follows(cluster, "after-token");
}

fn changed_address(cluster: &mut Cluster) {
    cluster.front.move_to(7444).unwrap();
    cluster
        .until(|cluster| says(cluster, "cannot reach the API server"))
        .unwrap();
    let address = cluster.front.address();
    cluster.control_plane.agent_kubeconfig(address).unwrap();
    follows(cluster, "after-address");
}

/// Started without the right to EndpointSlices, an agent says so, and goes on when it gets the
/// right.
fn forbidden_resource(cluster: &mut Cluster) {
    let roles = cluster.client().cluster_wide::<ClusterRole>();
    let role = roles.get(AGENT_ACCOUNT).unwrap().expect("the agent's role");
    let rules = serde_json::to_value(&role.rules).unwrap();
    let mut fewer = rules.clone();
    fewer
        .as_array_mut()
        .unwrap()
        .retain(|rule| rule["apiGroups"] != json!(["discovery.k8s.io"]));
    roles
        .patch(AGENT_ACCOUNT, json!({ "rules": fewer }))
        .unwrap();

    let pids = |cluster: &Cluster| -> Vec<_> {
        cluster
            .ground
            .agents
            .iter()
            .map(lb_tests::Agent::pid)
            .collect()
    };
    cluster.ground.kill_agents().unwrap();
    cluster.ground.launch_agents().unwrap();
    let before = pids(cluster);
    cluster
        .until(|cluster| {
            let node = cluster.lab().node(1);
            let address = SocketAddr::from(([127, 0, 0, 1], 10256));
            let answer = http_get::get(node, address, "/readyz?verbose")?;
            ensure!(answer.status != 200, "ready: {answer:?}");
            let named = |line: &str| line.starts_with("[-]") && line.contains("endpointslices");
            ensure!(answer.body.lines().any(named), "{}", answer.body);
            says(cluster, "403")
        })
        .unwrap();
    roles
        .patch(AGENT_ACCOUNT, json!({ "rules": rules }))
        .unwrap();
    cluster.ground.wait_until_ready().unwrap();
    follows(cluster, "after-rights");
    assert_eq!(pids(cluster), before, "nothing was started again");
}

/// Whether the log of the agent on node 1 contains this.
fn says(cluster: &Cluster, text: &str) -> anyhow::Result<()> {
    let log = cluster.ground.agents[0].log()?;
    ensure!(
        log.contains(text),
        "the agent does not say {text:?}:\n{log}"
    );
    Ok(())
}

/// Creates a Service, and waits until agents have it.
fn follows(cluster: &mut Cluster, name: &str) {
    let services = cluster.client().of::<Service>();
    let spec = json!({ "selector": { "app": WEB } });
    let made = services.create(service(name, spec)).unwrap();
    answers(
        cluster,
        SocketAddr::new(cluster_ip(&made, Family::V4), 80),
        1,
    );
}
