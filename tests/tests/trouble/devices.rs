//! Devices on which XDP is not possible as asked for, or nothing is: log, metric and status say so,
//! and traffic still flows.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use lb_tests::{Balanced, Family, HttpAnswer, Lab, Node, Request, eventually, http_get};
use node_lb::check::Level;

use crate::{
    check::Report,
    support::{NODE_PORT, SMALL, line_with, serve_web},
};

#[test]
fn where_another_xdp_program_is_tc_does_the_work() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    // The program that the lab pins for the far ends of wires.
    let program = lab.id().pin_root("lab").join("xdp_pass");
    let program = program.display();
    lab.node(1)
        .run(&format!("ip link set eth0 xdpdrv pinned {program}"))?;
    let ground = Balanced::in_lab(lab, &["--xdp-mode=native"])?;
    says(&ground, "eth0", "tc", "another XDP program is attached")?;
    let _server = serve_web(&ground)?;
    serves(&ground)?;
    let link = ground.lab.node(1).run("ip -details link show dev eth0")?;
    assert!(link.contains("lab_pass"), "theirs is gone: {link}");
    Ok(())
}

#[test]
fn a_device_whose_driver_cannot_gets_the_generic_kind() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    lab.node(1).run("ip link add second type bridge")?;
    lab.node(1).run("ip link set second up")?;
    let arguments = ["--xdp-mode=native", "--device=eth0", "--device=second"];
    let ground = Balanced::in_lab(lab, &arguments)?;
    says(
        &ground,
        "second",
        "generic",
        "the driver does not support it",
    )?;
    // The problem of one device does not affect another.
    let uplink = device(&ground, Node::UPLINK)?;
    assert_eq!((uplink.mode.as_str(), uplink.reason), ("native", None));
    let _server = serve_web(&ground)?;
    serves(&ground)
}

/// By default a veth is left to TC, which is reported as well.
#[test]
fn a_veth_is_left_to_tc() -> Result<()> {
    let ground = Balanced::with(SMALL, &[])?;
    says(&ground, "eth0", "tc", "--xdp-mode=native")?;
    let _server = serve_web(&ground)?;
    serves(&ground)
}

/// A tunnel with an address of the pods' network, as Flannel and Calico make them for WireGuard.
#[test]
fn a_device_without_ethernet_addresses_is_named_until_it_is_gone_or_ignored() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let node = lab.node(1);
    let address = node.pod_networks.v4.network();
    for command in [
        "ip tuntap add dev flannel-wg mode tun",
        &format!("ip address add {address}/32 dev flannel-wg"),
        "ip link set flannel-wg up",
    ] {
        node.run(command)?;
    }
    let source = format!("--source=dir:{}", node.manifests().display());
    let ignored = "--ignored-device=flannel-*";
    let report = Report::with(node, "exec \"$@\"", &[&source])?;
    assert_eq!(report.code, Some(1), "{}", report.said);
    let found = report.finding("devices");
    assert_eq!(found.level, Level::Failure, "{found:?}");
    assert!(found.found.contains("on flannel-wg:"), "{found:?}");
    assert!(found.remedy().contains("--ignored-device=flannel-wg"));
    let report = Report::with(node, "exec \"$@\"", &[&source, ignored])?;
    assert_eq!(report.code, Some(0), "{}", report.said);

    let mut ground = Balanced::in_lab(lab, &["--xdp-mode=native"])?;
    let answer = readyz(&ground)?;
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.body.contains("[-]devices failed"), "{answer:?}");
    let problems = ground.status(1)?.node_problems;
    assert!(problems[0].contains("flannel-wg"), "{problems:?}");
    let log = ground.agents[0].log()?;
    assert!(line_with(&log, "flannel-wg").contains("WARN"), "{log}");
    // Everything else is served.
    let _server = serve_web(&ground)?;
    serves(&ground)?;

    let becomes_ready = |ground: &Balanced| {
        eventually(|| match readyz(ground).map_err(|e| format!("{e:#}"))? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.body),
        });
    };
    ground.stop_agents()?;
    ground.set_arguments(&["--xdp-mode=native", ignored]);
    ground.start_agents()?;
    becomes_ready(&ground);
    ground.stop_agents()?;
    ground.set_arguments(&["--xdp-mode=native"]);
    ground.start_agents()?;
    assert_eq!(readyz(&ground)?.status, 500);
    ground.lab.node(1).run("ip link delete flannel-wg")?;
    becomes_ready(&ground);
    assert_eq!(ground.status(1)?.node_problems, Vec::<String>::new());
    Ok(())
}

fn readyz(ground: &Balanced) -> Result<HttpAnswer> {
    let health = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10256);
    http_get::get(ground.lab.node(1), health, "/readyz")
}

/// Asserts that a device is in this mode, and that log, metric and status give the reason.
#[track_caller]
fn says(ground: &Balanced, name: &str, mode: &str, reason: &str) -> Result<()> {
    let found = device(ground, name)?;
    assert_eq!(found.mode, mode, "{found:?}");
    assert!(
        found
            .reason
            .as_ref()
            .is_some_and(|why| why.contains(reason)),
        "{found:?}"
    );
    let log = ground.agents[0].log()?;
    let line = line_with(&log, reason);
    assert!(line.contains("WARN") && line.contains(name), "{line}");
    let metric = format!(r#"node_lb_device_xdp_mode{{device="{name}",mode="{mode}"}}"#);
    assert_eq!(ground.metric(1, &metric)?, 1.0);
    Ok(())
}

fn device(ground: &Balanced, name: &str) -> Result<node_lb::agent::status::Device> {
    let devices = ground.status(1)?.devices;
    let found = devices.into_iter().find(|device| device.name == name);
    found.with_context(|| format!("the agent has no device {name}"))
}

fn serves(ground: &Balanced) -> Result<()> {
    let lab = &ground.lab;
    let target = lab.node(1).at(Family::V4, NODE_PORT);
    assert_eq!(Request::tcp(target).send(lab.client())?.server, "pod-1-1");
    Ok(())
}
