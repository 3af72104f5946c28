//! What an agent makes of its own node: pods that come and go, more addresses than there is room
//! for, and a Node object that says nothing, or is not there.

use std::{fmt::Write as _, net::SocketAddr};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    Balanced, Family, HttpAnswer, Lab, PodNetwork, Request, eventually, http_get, lab::POD_BRIDGE,
    manifests::node_object,
};
use serde_json::{Value, json};

use crate::support::{CLUSTER_IP, NODE_PORT, SMALL, line_with, many_services, serve_web};

const PLANNED: &str = "node_lb_services_planned_total";
const LEFT_OUT: &str = r#"node_lb_local_addresses{state="left_out"}"#;

/// So many Services that a sync of them takes seconds here.
const MANY: u32 = 20_000;

#[test]
fn pods_labels_and_taints_have_no_service_planned_again() -> Result<()> {
    let arguments = ["--xdp-mode=native", "--nodeport-addresses=0.0.0.0/0,::/0"];
    let ground = Balanced::with(SMALL, &arguments)?;
    let _server = serve_web(&ground)?;
    let lab = &ground.lab;
    let node = lab.node(1);
    let before = ground.metric(1, PLANNED)?;
    for number in 0..10 {
        let pod = lab.add_pod(node, &format!("guest-{number}"))?;
        let request = Request::tcp(format!("{CLUSTER_IP}:80").parse()?);
        eventually(|| request.send(&pod));
        // Its link-local address, too, is one of the node's.
        let found = node.run(&format!("ip -6 -brief addr show dev {}", pod.host_end))?;
        ensure!(found.contains("fe80::"), "{found}");
        lab.remove_pod(&pod)?;
    }
    let mut object = node_object(node);
    object["metadata"]["labels"]["example.com/rack"] = json!("7");
    object["spec"]["taints"] = json!([{ "key": "example.com/gpu", "effect": "NoSchedule" }]);
    ground.change_something(|| lab.manifests().apply(&object))?;
    assert_eq!(ground.metric(1, PLANNED)?, before);

    // A taint that counts does so.
    object["spec"]["taints"] = json!([{ "key": "ToBeDeletedByClusterAutoscaler" }]);
    lab.manifests().apply(&object)?;
    eventually(|| has_status(&healthz(&ground)?, 503));
    assert_eq!(ground.metric(1, PLANNED)?, before);
    // And another address has node ports planned, but no other Service.
    lab.manifests().apply(&node_object(node))?;
    ground.change(|| {
        let service = lab.service("inside").cluster_ip("10.96.0.11");
        service.tcp("lines", 80, 9090).apply()
    })?;
    let before = ground.metric(1, PLANNED)?;
    ground.change_something(|| {
        node.run("ip addr add 172.30.77.200/24 dev eth0")?;
        Ok(())
    })?;
    assert_eq!(ground.metric(1, PLANNED)?, before + 1.0);
    Ok(())
}

#[test]
fn more_addresses_than_there_is_room_for_end_nothing() -> Result<()> {
    let mut ground = Balanced::with(SMALL, &["--local-address-table-size=16"])?;
    let _server = serve_web(&ground)?;
    let node = ground.lab.node(1);
    node.run("ip link add many type bridge")?;
    node.run("ip link set many up")?;
    let lines = addresses("many", 100);
    node.feed("ip -batch -", &lines)?;
    eventually(|| has(&ground, LEFT_OUT, |left_out| left_out >= 85.0));
    ground.agents[0].check()?;
    let log = ground.agents[0].log()?;
    assert_eq!(log.matches("raise --local-address-table-size").count(), 1);
    let status = ground.status(1)?;
    assert!(status.local_addresses_left_out >= 85, "{status:?}");
    serves(&ground)?;

    // The node's own are among those that there is room for.
    let own = Request::tcp(node.at(Family::V4, NODE_PORT));
    own.send(node)?;
    node.run("ip link del many")?;
    eventually(|| has(&ground, LEFT_OUT, |left_out| left_out == 0.0));

    // Another size takes effect at the next start, and no connection minds.
    ground.stop_agents()?;
    ground.set_arguments(&["--local-address-table-size=1024"]);
    ground.start_agents()?;
    ground.lab.node(1).run("ip link add many type bridge")?;
    ground.lab.node(1).feed("ip -batch -", &lines)?;
    let in_map = r#"node_lb_local_addresses{state="in_map"}"#;
    eventually(|| has(&ground, in_map, |in_map| in_map > 100.0));
    assert_eq!(ground.metric(1, LEFT_OUT)?, 0.0);
    serves(&ground)
}

/// What kube-proxy's ipvs mode leaves: a device with every ClusterIP.
#[test]
fn cluster_ips_on_the_device_of_ipvs_are_not_the_nodes_own() -> Result<()> {
    let mut ground = Balanced::with(SMALL, &["--nodeport-addresses=0.0.0.0/0,::/0"])?;
    let _server = serve_web(&ground)?;
    let in_map = r#"node_lb_local_addresses{state="in_map"}"#;
    let (before, planned) = (ground.metric(1, in_map)?, ground.metric(1, PLANNED)?);
    let node = ground.lab.node(1);
    node.run("ip link add kube-ipvs0 type bridge")?;
    node.feed("ip -batch -", &addresses("kube-ipvs0", 5000))?;
    // What comes after it has been looked at as well.
    let pod = ground.lab.add_pod(node, "after")?;
    eventually(|| Request::tcp(format!("{CLUSTER_IP}:80").parse().unwrap()).send(&pod));
    ground.lab.remove_pod(&pod)?;
    ground.agents[0].check()?;
    assert_eq!(ground.metric(1, LEFT_OUT)?, 0.0);
    eventually(|| has(&ground, in_map, |now| now == before));
    assert_eq!(ground.metric(1, PLANNED)?, planned);
    serves(&ground)
}

/// As with an external cloud controller, which gives a Node its addresses some time later.
#[test]
fn a_node_without_addresses_is_waited_for() -> Result<()> {
    let topology = lb_tests::Topology {
        pod_network: PodNetwork::Bridge,
        ..SMALL
    };
    let lab = Lab::up(topology)?;
    let mut object = node_object(lab.node(1));
    let addresses = object["status"]["addresses"].take();
    object["status"]["addresses"] = json!([]);
    lab.manifests().apply(&object)?;
    let ground = Balanced::in_lab(lab, &[])?;
    let status = ground.status(1)?;
    assert!(
        status.node_addresses.is_empty(),
        "{POD_BRIDGE}'s? {status:?}"
    );
    let problem = status.node_problems.concat();
    assert!(problem.contains("has no address"), "{problem}");
    let log = ground.agents[0].log()?;
    assert!(line_with(&log, "has no address").contains("WARN"), "{log}");
    assert_eq!(log.matches("has no address").count(), 1, "{log}");
    let ready = ask(&ground, "/readyz")?;
    assert!(ready.status == 500 && ready.body.contains("[-]node-addresses"));
    // As kube-proxy: that node is there, and nothing is stuck.
    assert_eq!(healthz(&ground)?.status, 200);

    object["status"]["addresses"] = addresses;
    ground.lab.manifests().apply(&object)?;
    eventually(|| has_status(&ask(&ground, "/readyz")?, 200));
    let _server = serve_web(&ground)?;
    serves(&ground)?;
    assert_eq!(ground.status(1)?.node_problems, Vec::<String>::new());
    Ok(())
}

#[test]
fn what_is_known_of_a_node_outlives_its_object() -> Result<()> {
    let mut ground = Balanced::with(SMALL, &[])?;
    let _server = serve_web(&ground)?;
    let name = ground.lab.node(1).name().to_owned();
    let known = ground.status(1)?.node_addresses;
    ground.lab.manifests().delete("Node", &name)?;
    let gone = eventually(|| {
        let answer = healthz(&ground)?;
        has_status(&answer, 503).map(|()| answer)
    });
    let body: Value = serde_json::from_str(&gone.body)?;
    assert_eq!(
        (&body["nodeEligible"], &body["healthy"]),
        (&json!(false), &json!(true))
    );
    let status = ground.status(1)?;
    assert_eq!(status.node_addresses, known);
    let problem = status.node_problems.concat();
    assert!(problem.contains("there is no Node object"), "{problem}");
    serves(&ground)?;
    assert_eq!(ask(&ground, "/readyz")?.status, 200);

    let object = node_object(ground.lab.node(1));
    ground.lab.manifests().apply(&object)?;
    eventually(|| has_status(&healthz(&ground)?, 200));
    assert_eq!(ground.status(1)?.node_problems, Vec::<String>::new());

    // A restart, and the Node object has lost its addresses meanwhile: the maps remember.
    ground.stop_agents()?;
    let mut object = object;
    object["status"]["addresses"] = json!([]);
    ground.lab.manifests().apply(&object)?;
    ground.start_agents()?;
    assert_eq!(ground.status(1)?.node_addresses, known);
    serves(&ground)
}

/// Health, metrics and status answer while many Services are written.
#[test]
fn a_long_sync_is_seen_as_such() -> Result<()> {
    let ground = Balanced::with(SMALL, &[])?;
    let services = many_services(MANY, 80);
    ground.lab.manifests().apply_list("many.json", &services)?;
    let (mut seen, mut scrapes) = (None, 0);
    loop {
        if ground.metric(1, "node_lb_sync_running_seconds")? > 0.0 {
            scrapes += 1;
            assert_eq!(ask(&ground, "/livez")?.status, 200);
        }
        let status = ground.status(1)?;
        if status.syncing.is_none() && status.services == MANY as usize {
            break;
        }
        seen = status.syncing.or(seen);
    }
    ensure!(scrapes > 0, "no scrape has seen the sync");
    let seen = seen.context("no status has seen the sync")?;
    assert_eq!(seen.services, MANY as usize);
    Ok(())
}

/// Lines that give a device so many addresses.
fn addresses(device: &str, count: u32) -> String {
    let mut lines = String::new();
    for number in 0..count {
        let [.., a, b] = (number + 1).to_be_bytes();
        writeln!(lines, "addr add 10.99.{a}.{b}/32 dev {device}").expect("a String takes any text");
    }
    lines
}

fn serves(ground: &Balanced) -> Result<()> {
    let lab = &ground.lab;
    let target = lab.node(1).at(Family::V4, NODE_PORT);
    assert_eq!(Request::tcp(target).send(lab.client())?.server, "pod-1-1");
    Ok(())
}

fn healthz(ground: &Balanced) -> Result<HttpAnswer> {
    ask(ground, "/healthz")
}

fn ask(ground: &Balanced, path: &str) -> Result<HttpAnswer> {
    let address = SocketAddr::from(([127, 0, 0, 1], 10256));
    http_get::get(ground.lab.node(1), address, path)
}

fn has_status(answer: &HttpAnswer, status: u16) -> Result<()> {
    ensure!(answer.status == status, "{answer:?}");
    Ok(())
}

fn has(ground: &Balanced, metric: &str, is_right: impl Fn(f64) -> bool) -> Result<()> {
    let value = ground.metric(1, metric)?;
    ensure!(is_right(value), "{metric} is {value}");
    Ok(())
}
