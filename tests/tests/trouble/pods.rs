//! Nodes whose pods cannot be told from other sources, as with Calico's IPAM or the VPC CNI of AWS:
//! the Node object has no podCIDR.

use std::net::SocketAddr;

use anyhow::Result;
use lb_tests::{Balanced, Lab, eventually, http_get, manifests::node_object};
use node_lb::check::Level;
use serde_json::Value;

use crate::{
    check::Report,
    support::{SMALL, line_with},
};

const HEALTH: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 10256);
const CHECK: &str = "/readyz/local-pod-detection";

#[test]
fn without_a_network_of_pods_the_agent_is_unready_and_says_what_to_set() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let whole = node_object(lab.node(1));
    let mut bare = whole.clone();
    bare["spec"] = Value::Object(Default::default());
    lab.manifests().apply(&bare)?;

    let report = Report::of(lab.node(1), "exec \"$@\"")?;
    assert_eq!(report.code, Some(1), "{}", report.said);
    let found = report.finding("local pods");
    assert_eq!(found.level, Level::Failure, "{found:?}");
    assert!(found.remedy().contains("--cluster-cidr"), "{found:?}");

    // The mode that the lab's networks of pods are nothing to.
    let ground = Balanced::in_lab(lab, &["--detect-local-mode=NodeCIDR"])?;
    let node = ground.lab.node(1);
    let answer = http_get::get(node, HEALTH, "/readyz")?;
    assert_eq!(answer.status, 500, "{answer:?}");
    let line = "[-]local-pod-detection failed";
    assert!(answer.body.contains(line), "{answer:?}");
    let reason = http_get::get(node, HEALTH, CHECK)?.body;
    for part in [
        "Node node-1 has no podCIDR",
        "--cluster-cidr (chart: config.cluster-cidr)",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    let problems = ground.status(1)?.node_problems;
    assert!(problems[0].contains("no podCIDR"), "{problems:?}");
    let log = ground.agents[0].log()?;
    assert!(line_with(&log, "no podCIDR").contains("WARN"), "{log}");

    // A Node gets its podCIDR when it likes; the agent need not be started anew.
    ground.lab.manifests().apply(&whole)?;
    eventually(|| {
        let answer = http_get::get(node, HEALTH, "/readyz").map_err(|e| format!("{e:#}"))?;
        match answer.status {
            200 => Ok(()),
            _ => Err(answer.body),
        }
    });
    assert_eq!(ground.status(1)?.node_problems, Vec::<String>::new());
    let log = ground.agents[0].log()?;
    let warned = log.lines().filter(|line| line.contains("WARN"));
    let warned = warned.filter(|line| line.contains("no podCIDR"));
    assert_eq!(warned.count(), 1, "once is enough: {log}");
    Ok(())
}
