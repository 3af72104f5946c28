//! Starting, inspecting and removing node-lb.

use std::{
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result};
use lb_common::abi::VERSION;
use lb_tests::{Endpoint, FailureKind, Family, Node, Request, balanced};
use serde_json::Value;

use crate::ground::{Frontend, Ground, Vips};

#[test]
fn cleanup_removes_everything_once_the_agent_is_gone() -> Result<()> {
    let ground = Ground::new()?;
    let vips = Vips(1);
    let endpoint = [Endpoint::ready(ground.lab().pod("pod-2-1"))];
    ground.publish(vips, |service| service, endpoint)?;
    ground.settle()?;
    let node = ground.lab().node(1).clone();
    let cleanup = || {
        let root = node.pin_root.display().to_string();
        output(
            node.command(balanced::node_lb()?)?
                .args(["cleanup", "--bpf-root", &root]),
        )
    };

    let busy = cleanup()?;
    assert_eq!(busy.status.code(), Some(1), "{busy:?}");
    assert!(stderr(&busy).contains("in use"), "{}", stderr(&busy));
    let target = vips.at(Frontend::NodePort, Family::V4, &node);
    Request::tcp(target).send(ground.lab().client())?;

    let lab = ground.without_agents()?;
    Request::tcp(target).send(lab.client())?;
    let done = cleanup()?;
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(!node.pin_root.join(format!("v{VERSION}")).exists());
    assert!(!node.run("ip -details link")?.contains("prog/xdp"));
    assert_eq!(
        node.run("bpftool -j net show")?.matches("\"id\"").count(),
        0
    );
    let cgroup = node.cgroup_root.display();
    let left = node.run(&format!("bpftool cgroup show {cgroup}"))?;
    assert!(left.trim().is_empty(), "{left}");
    let refused = Request::tcp(target).send(lab.client()).map(drop);
    assert_eq!(
        refused.map_err(|failure| failure.kind),
        Err(FailureKind::Refused)
    );
    assert!(
        cleanup()?.status.success(),
        "nothing left to remove is no error"
    );
    Ok(())
}

#[test]
fn an_agent_that_cannot_start_says_why() -> Result<()> {
    let ground = Ground::new()?;
    let node = ground.lab().node(1);
    let manifests = format!("--source=dir:{}", node.manifests().display());
    let root = format!("--bpf-root={}", node.pin_root.display());
    let cgroup = format!("--cgroup-path={}", node.cgroup_root.display());
    let own = [&*manifests, &*root, &*cgroup, "--node=node-1"];
    for (arguments, code, words) in [
        (&["--xdp-mode=sometimes"][..], 2, "--xdp-mode"),
        (&["--bpf-rot=/x"], 2, "--bpf-rot"),
        (&["--cluster-cidr=10.244.0.0/33"], 2, "--cluster-cidr"),
        (&["--flow-table-size=3"], 2, "--flow-table-size"),
        (&own, 1, "another"),
    ] {
        let agent = balanced::node_lb()?;
        let ended = output(
            node.command("timeout")?
                .arg("60")
                .arg(agent)
                .arg("agent")
                .args(arguments),
        )?;
        let said = stderr(&ended);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    Ok(())
}

#[test]
fn maps_read_well_in_bpftool() -> Result<()> {
    let ground = Ground::new()?;
    let (lab, vips) = (ground.lab(), Vips(1));
    let node = lab.node(1);
    ground.publish(
        vips,
        |service| service,
        [Endpoint::ready(lab.pod("pod-1-1"))],
    )?;
    ground.settle()?;
    Request::tcp(vips.at(Frontend::NodePort, Family::V4, node)).send(lab.client())?;

    let maps = node.pin_root.join(format!("v{VERSION}/maps"));
    let frontends = bpftool(node, "dump", &maps.join("FRONTENDS4"), "")?;
    let frontends = frontends.as_array().context("a list")?;
    let one = &frontends[0]["formatted"];
    for field in ["address", "port", "protocol"] {
        assert!(!one["key"][field].is_null(), "no {field} in {one}");
    }
    let service = one["value"]["service"]
        .as_u64()
        .context("a service's number")?;

    let entry = lookup(node, &maps.join("SERVICES"), service)?;
    let plan = entry["plan"].as_u64().context("a plan's number")?;
    let plan = lookup(node, &maps.join("PLANS"), plan)?;
    assert_eq!(plan["service"].as_u64(), Some(service), "{plan}");
    assert_eq!(plan["counts"].as_array().map(Vec::len), Some(6), "{plan}");
    let first = plan["first"].as_u64().context("its first endpoint")?;
    let endpoint = lookup(node, &maps.join("ENDPOINTS"), first)?;
    assert!(
        !endpoint["address"].is_null() && !endpoint["port"].is_null(),
        "{endpoint}"
    );
    Ok(())
}

fn lookup(node: &Node, map: &Path, index: u64) -> Result<Value> {
    let [a, b, c, d] = (index as u32).to_ne_bytes();
    let entry = bpftool(node, "lookup", map, &format!("key {a} {b} {c} {d}"))?;
    Ok(entry["formatted"]["value"].clone())
}

fn bpftool(node: &Node, action: &str, map: &Path, rest: &str) -> Result<Value> {
    let map = map.display();
    let text = node.run(&format!("bpftool -j map {action} pinned {map} {rest}"))?;
    serde_json::from_str(&text).with_context(|| format!("{map}: {text}"))
}

fn output(command: &mut Command) -> Result<Output> {
    command
        .output()
        .with_context(|| format!("cannot run {command:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
