//! Programs that run as agents: where they run, when they are ready, how they end.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use lb_tests::{Agent, AgentSpec, Endpoint, Lab, Node, PATIENCE, Readiness, Serve, Topology};

fn two_nodes() -> Result<Lab> {
    Lab::up(Topology {
        nodes: 2,
        pods_per_node: 1,
        ..Topology::default()
    })
}

#[test]
fn an_agent_runs_on_its_node_until_it_is_stopped() -> Result<()> {
    let lab = two_nodes()?;
    let node = lab.node(2);
    // Once it says that it waits, it is the only process left.
    let script =
        "echo serving $0; cat /proc/self/cgroup; ip -brief addr; echo waiting; exec sleep 60";
    let spec = || {
        let ready = Readiness::Log("waiting".to_owned());
        AgentSpec::new("sh", ["-c", script], ready).arg(node.name())
    };
    let agent = Agent::start(node, spec())?;
    let log = agent.log()?;
    assert!(log.starts_with("serving node-2\n"), "{log}");
    assert!(log.contains("172.30.77.12/24"), "{log}");
    let members = fs::read_to_string(node.cgroup().join("cgroup.procs"))?;
    assert_eq!(members.trim(), agent.pid().to_string());
    agent.kill()?;
    assert_eq!(fs::read_to_string(node.cgroup().join("cgroup.procs"))?, "");

    // A new start has its own part of the log.
    let agent = Agent::start(node, spec())?;
    assert_eq!(agent.log()?.matches("serving").count(), 1);
    let status = agent.stop(PATIENCE)?;
    assert!(!status.success(), "sleep does not handle SIGTERM: {status}");
    lab.down()
}

#[test]
fn readiness_is_asked_over_http_inside_the_node() -> Result<()> {
    let lab = two_nodes()?;
    let node = lab.node(1);
    let address = SocketAddr::from(([127, 0, 0, 1], 10256));
    let ready = Readiness::Http {
        address,
        path: "/readyz".to_owned(),
    };
    let spec = AgentSpec::new("sleep", ["60"], ready).deadline(Duration::from_millis(300));
    let failure = Agent::start(node, spec.clone()).map(drop).unwrap_err();
    assert!(
        failure.to_string().contains("not ready after 300ms"),
        "{failure:#}"
    );
    // A server on another node, not on this one.
    let _elsewhere = Serve::new("other").http(10256).start(lab.node(2))?;
    assert!(Agent::start(node, spec.clone()).is_err());
    let _here = Serve::new("agent").http(10256).start(node)?;
    Agent::start(node, spec.deadline(PATIENCE))?.kill()?;
    lab.down()
}

#[test]
fn an_agent_that_ends_early_is_reported_with_its_log() -> Result<()> {
    let lab = two_nodes()?;
    let ready = Readiness::Log("never".to_owned());
    let spec = AgentSpec::new("sh", ["-c", "echo no privileges >&2; exit 3"], ready);
    // An hour, which the test cannot wait for.
    let spec = spec.deadline(Duration::from_secs(3600));
    let failure = format!(
        "{:#}",
        Agent::start(lab.node(1), spec).map(drop).unwrap_err()
    );
    assert!(
        failure.contains("exit status: 3") && failure.contains("no privileges"),
        "{failure}"
    );
    lab.down()
}

#[test]
fn manifests_reach_every_node_whole() -> Result<()> {
    let lab = two_nodes()?;
    let (here, there) = (lab.pod("pod-1-1"), lab.pod("pod-2-1"));
    lab.service("web")
        .cluster_ip("10.96.0.10")
        .tcp("http", 80, 8080)
        .apply()?;
    lab.endpoints("web")
        .tcp("http", 8080)
        .with(Endpoint::ready(here))
        .with(Endpoint::terminating(there))
        .apply()?;
    for node in lab.nodes() {
        assert_eq!(
            files(node)?,
            [
                "endpointslices-web.json",
                "node-node-1.json",
                "node-node-2.json",
                "service-web.json"
            ]
        );
        let slices = fs::read(node.manifests().join("endpointslices-web.json"))?;
        let slices: serde_json::Value = serde_json::from_slice(&slices)?;
        let [v4, v6] = [&slices["items"][0], &slices["items"][1]];
        assert_eq!(v4["endpoints"][0]["addresses"][0], "10.244.1.10");
        assert_eq!(v6["endpoints"][1]["addresses"][0], "fd00:10:244:2::10");
        assert_eq!(v6["endpoints"][1]["nodeName"], "node-2");
        let conditions = &v4["endpoints"][1]["conditions"];
        assert_eq!(conditions["ready"], false);
        assert_eq!(conditions["serving"], true);
        assert_eq!(conditions["terminating"], true);
    }
    lab.manifests().delete("Service", "web")?;
    assert!(!files(lab.node(1))?.contains(&"service-web.json".to_owned()));
    lab.down()
}

fn files(node: &Node) -> Result<Vec<String>> {
    let entries = fs::read_dir(node.manifests()).context("manifests")?;
    let mut names: Vec<_> = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}
