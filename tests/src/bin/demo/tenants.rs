//! The part of the demo in which a noisy tenant and a quiet one share a node's connections.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lb_tests::traffic::allow_many_files;
use lb_tests::{Balanced, Family, Held, Load, LoadReport, Request};
use node_lb::agent::status::PriorityLevel;

use super::acts::CLUSTER_IP;
use super::screen::Screen;
use super::world::NODE_PORT;

/// Connections that the node lets in, and that the noisy tenant tries to hold.
const SEATS: usize = 200;
const TRIES: usize = 250;
/// How long the quiet tenant asks.
const ASKS_FOR: Duration = Duration::from_secs(2);
/// How long ended connections may count.
const SOON: Duration = Duration::from_secs(20);

/// What comes from outside is the noisy tenant's, what comes from pods the quiet one's. Each has 95
/// of the seats, catch-all has ten.
const OBJECTS: &str = "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: noisy}
spec:
  type: Limited
  limited: {nominalConcurrencyShares: 95, borrowingLimitPercent: 0, limitResponse: {type: Reject}}
---
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: quiet}
spec:
  type: Limited
  limited: {nominalConcurrencyShares: 95, borrowingLimitPercent: 0, limitResponse: {type: Reject}}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: noisy}
spec:
  priorityLevelConfiguration: {name: noisy}
  rules: [{subjects: [{kind: Any}], ingress: [External], destinations: [{namespaces: [default]}]}]
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: quiet}
spec:
  priorityLevelConfiguration: {name: quiet}
  rules: [{subjects: [{kind: Any}], ingress: [Pod], destinations: [{namespaces: [default]}]}]
";

/// The same load with a plain limit, with an audit of levels, and with levels in force.
pub fn tenants(screen: &mut Screen, ground: &mut Balanced) -> Result<()> {
    screen.act("A noisy tenant and a quiet one: 200 connections for the node");
    allow_many_files()?;
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("objects.yaml"), OBJECTS)?;
    let seats = format!("--max-connections={SEATS}");
    let objects = format!("--admission-objects={}", directory.path().display());

    restart(ground, &[&seats])?;
    let (connections, quiet) = both(ground)?;
    let held = connections.len();
    drop(connections);
    screen.say(format_args!("A plain limit, {seats}:"));
    screen.promise(
        held == SEATS && quiet.ok == 0,
        format_args!(
            "the noisy tenant holds {held} of the {TRIES} that it tries; the quiet one gets {} of \
             {} requests through",
            quiet.ok,
            quiet.ok + quiet.failed
        ),
    );

    restart(ground, &[&seats, &objects, "--admission=audit"])?;
    let (connections, quiet) = both(ground)?;
    let held = connections.len();
    drop(connections);
    let over = level(ground, "noisy")?.over;
    screen.say("Levels for both, with an audit first: --admission=audit");
    screen.promise(
        held == TRIES && over > 0,
        format_args!("all {held} are let in, and {over} of them would have been refused"),
    );
    screen.no_failures("the quiet tenant", &quiet);

    restart(ground, &[&seats, &objects, "--admission=enforce"])?;
    let (connections, quiet) = both(ground)?;
    let noisy = level(ground, "noisy")?;
    screen.say("Levels in force: --admission=enforce");
    screen.command("node-lb admission levels", &ground.levels(1)?);
    screen.command("node-lb admission connections", &ground.connections(1)?);
    let held = connections.len();
    drop(connections);
    screen.promise(
        held == noisy.limit as usize && noisy.refused as usize >= TRIES - held,
        format_args!("the noisy tenant holds {held}, its share, and is refused the rest"),
    );
    screen.no_failures("the quiet tenant", &quiet);
    restart(ground, &[])
}

/// The connections that the noisy tenant holds, and what becomes of the quiet one's requests
/// meanwhile.
fn both(ground: &Balanced) -> Result<(Vec<Held>, LoadReport)> {
    let lab = &ground.lab;
    let target: SocketAddr = lab.node(1).at(Family::V4, NODE_PORT);
    let tries = (0..TRIES).map(|_| Held::open(lab.client(), target));
    let held = tries.filter_map(Result::ok).collect();
    let asks = Load::new(Request::http(CLUSTER_IP.parse()?)).pause(Duration::from_millis(5));
    let quiet = asks.run_for(ASKS_FOR, lab.pod("pod-1-1"))?;
    Ok((held, quiet))
}

/// Starts the agents with other arguments, once all connections are gone.
fn restart(ground: &mut Balanced, arguments: &[&str]) -> Result<()> {
    let start = Instant::now();
    while in_use(ground)? > 0 {
        ensure!(start.elapsed() < SOON, "connections stay in use");
        std::thread::sleep(Duration::from_millis(100));
    }
    ground.stop_agents()?;
    ground.set_arguments(arguments);
    ground.start_agents()
}

/// Connections within limits and levels of node 1.
fn in_use(ground: &Balanced) -> Result<u32> {
    let status = ground.status(1)?;
    let limits = status.connection_limits.iter().map(|limit| limit.in_use);
    let levels = status.priority_levels.iter().map(|level| level.in_use);
    Ok(limits.chain(levels).sum())
}

fn level(ground: &Balanced, name: &str) -> Result<PriorityLevel> {
    let levels = ground.status(1)?.priority_levels;
    let found = levels.into_iter().find(|level| level.name == name);
    found.with_context(|| format!("there is no level {name}"))
}
