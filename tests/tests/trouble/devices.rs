//! Devices on which XDP is not possible as asked for, or nothing is: log, metric and status say so,
//! and traffic still flows.

use std::{
    fs::File,
    io, mem,
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsRawFd as _,
};

use anyhow::{Context, Result, ensure};
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

/// A device with an address of the pods' network, and packets that begin with neither an Ethernet nor
/// an IP header, as of InfiniBand.
#[test]
fn a_device_that_programs_cannot_read_is_named_until_it_is_gone_or_ignored() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let node = lab.node(1);
    tunnel(node, "pods-ib", Some(libc::ARPHRD_INFINIBAND))?;
    let source = format!("--source=dir:{}", node.manifests().display());
    let ignored = "--ignored-device=pods-*";
    let report = Report::with(node, "exec \"$@\"", &[&source])?;
    assert_eq!(report.code, Some(1), "{}", report.said);
    let found = report.finding("devices");
    assert_eq!(found.level, Level::Failure, "{found:?}");
    assert!(found.found.contains("on pods-ib,"), "{found:?}");
    assert!(found.remedy().contains("--ignored-device=pods-ib"));
    let report = Report::with(node, "exec \"$@\"", &[&source, ignored])?;
    assert_eq!(report.code, Some(0), "{}", report.said);

    let mut ground = Balanced::in_lab(lab, &["--xdp-mode=native"])?;
    let answer = readyz(&ground)?;
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.body.contains("[-]devices failed"), "{answer:?}");
    let problems = ground.status(1)?.node_problems;
    assert!(problems[0].contains("pods-ib"), "{problems:?}");
    let log = ground.agents[0].log()?;
    assert!(line_with(&log, "pods-ib").contains("WARN"), "{log}");
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
    ground.lab.node(1).run("ip link delete pods-ib")?;
    becomes_ready(&ground);
    assert_eq!(ground.status(1)?.node_problems, Vec::<String>::new());
    Ok(())
}

/// Its packets begin with the IP header.
#[test]
fn a_tun_with_an_address_of_the_pods_is_served() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    tunnel(lab.node(1), "pods-tun", None)?;
    let ground = Balanced::in_lab(lab, &["--xdp-mode=native"])?;
    assert_eq!(readyz(&ground)?.status, 200);
    let found = device(&ground, "pods-tun")?;
    assert_eq!(
        (found.role.as_str(), found.mode.as_str()),
        ("overlay", "tc")
    );
    let _server = serve_web(&ground)?;
    serves(&ground)
}

/// Makes a TUN with an address of the node's pod network, whose packets begin as on links of a type
/// (`ARPHRD_*`), or with the IP header.
fn tunnel(node: &Node, name: &str, link: Option<u16>) -> Result<()> {
    node.run(&format!("ip tuntap add dev {name} mode tun"))?;
    if let Some(link) = link {
        node.netns().run(|| set_link_type(name, link))??;
    }
    let address = node.pod_networks.v4.network();
    node.run(&format!("ip address add {address}/32 dev {name}"))?;
    node.run(&format!("ip link set {name} up"))?;
    Ok(())
}

/// Says what the packets of a TUN are, which must be down.
fn set_link_type(name: &str, link: u16) -> Result<()> {
    let tun = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: zero bytes are a request: numbers and characters.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request outlives the call, which reads its name and flags.
    let attached = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &request) };
    ensure!(attached == 0, "{name}: {}", io::Error::last_os_error());
    // SAFETY: the call takes a number.
    let set = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETLINK, libc::c_ulong::from(link)) };
    ensure!(set == 0, "{name}: {}", io::Error::last_os_error());
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
