//! Pods that start one after the other, as their node sees it: a device with an address.

use std::{
    fmt::Write as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::{
    cluster::{Cluster, agent},
    machine::cpu_time,
};

/// Pods in a second.
const RATE: u32 = 20;

/// What they cost the agent.
#[derive(Clone, Copy, Debug)]
pub struct Starts {
    pub pods: u32,
    pub services: u32,
    /// The part of one CPU that the agent used meanwhile.
    pub cpu: f64,
    /// How often a Service was planned.
    pub planned: f64,
}

/// Starts pods; what that costs the agent.
///
/// # Errors
///
/// If devices cannot be made.
pub fn measure(cluster: &Cluster, pods: u32) -> Result<Starts> {
    let balanced = cluster.balanced().context("no agent runs")?;
    let pid = agent::of(balanced)?.pid();
    let planned = || agent::metric(balanced, "node_lb_services_planned_total");
    let (before, cpu) = (planned()?, cpu_time(pid)?);
    let since = Instant::now();
    let (node, elsewhere) = (cluster.node(), cluster.server().netns().name().to_owned());
    for number in 0..pods {
        let mut lines = String::new();
        for line in [
            format!("link add veth{number} type veth peer name far{number} netns {elsewhere}"),
            format!("link set veth{number} up"),
            format!(
                "route add 10.245.{}.{}/32 dev veth{number}",
                number / 250,
                number % 250
            ),
        ] {
            writeln!(lines, "{line}").expect("a String takes any text");
        }
        node.feed("ip -batch -", &lines)?;
        let far = format!("ip link set far{number} up");
        cluster.server().run(&far)?;
        let next = Duration::from_secs(1) * (number + 1) / RATE;
        thread::sleep(next.saturating_sub(since.elapsed()));
    }
    let cpu = cpu_time(pid)? - cpu;
    Ok(Starts {
        pods,
        services: cluster.services,
        cpu: cpu.as_secs_f64() / since.elapsed().as_secs_f64(),
        planned: planned()? - before,
    })
}
