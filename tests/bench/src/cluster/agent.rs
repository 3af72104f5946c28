//! node-lb's agent in a cluster.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum as _;
use lb_tests::{Agent, Balanced, Lab, Node};
use node_lb::config::XdpMode;

use super::{services, usage, usage::Usage};

/// How long an agent that is ready may take until it serves metrics.
const METRICS_DEADLINE: Duration = Duration::from_secs(2);

/// Starts an agent with nothing in the kernel. Returns what it took until all Services were there.
///
/// # Errors
///
/// If it does not get ready, or lacks some of them.
pub fn start(
    lab: Lab,
    services: u32,
    xdp_mode: XdpMode,
    arguments: &[&str],
) -> Result<(Balanced, Usage)> {
    for service in 0..services {
        services::apply(&lab, service, &services::endpoints(service))?;
    }
    let since = Instant::now();
    let flag = xdp_flag(xdp_mode)?;
    let balanced = Balanced::in_lab(lab, &[&[&*flag], arguments].concat())?;
    let usage = usage::so_far(of(&balanced)?.pid(), since.elapsed())?;
    let programmed = metric(&balanced, "node_lb_services{state=\"programmed\"}")?;
    ensure!(
        programmed == f64::from(services),
        "node-lb has {programmed} of {services} services"
    );
    Ok((balanced, usage))
}

/// The agent's argument for how to attach.
///
/// # Errors
///
/// If the mode has no name.
pub fn xdp_flag(mode: XdpMode) -> Result<String> {
    let mode = mode.to_possible_value();
    let mode = mode.context("a mode without a name")?;
    Ok(format!("--xdp-mode={}", mode.get_name()))
}

/// The agent.
pub fn of(balanced: &Balanced) -> Result<&Agent> {
    balanced.agents.first().context("no agent runs")
}

/// A metric of the agent's.
pub fn metric(balanced: &Balanced, name: &str) -> Result<f64> {
    let since = Instant::now();
    loop {
        let value = balanced.metric(1, name);
        if value.is_ok() || since.elapsed() > METRICS_DEADLINE {
            return value;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// How XDP is attached to the device in front of clients: `native`, `generic` or `tc`.
pub fn xdp_mode(balanced: &Balanced) -> Result<&'static str> {
    let modes = ["native", "generic", "tc"];
    let device = Node::UPLINK;
    let is = |mode: &&&str| {
        let name = format!("node_lb_device_xdp_mode{{device=\"{device}\",mode=\"{mode}\"}}");
        balanced.metric(1, &name).is_ok_and(|value| value == 1.0)
    };
    let mode = modes.iter().find(is);
    mode.copied()
        .with_context(|| format!("the agent does not serve {device}"))
}
