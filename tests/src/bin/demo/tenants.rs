//! The part of the demo in which a noisy tenant and a quiet one share a node's connections.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lb_tests::traffic::allow_many_files;
use lb_tests::{Balanced, Family, Held, Load, LoadReport, Request};
use node_lb::agent::status::{FlowSchema, PriorityLevel};

use super::acts::CLUSTER_IP;
use super::screen::Screen;
use super::world::NODE_PORT;

/// Connections that the node lets in, and that the noisy tenant tries to hold.
const SEATS: usize = 200;
const TRIES: usize = 250;
/// Requests that the noisy tenant always has or wants where they may wait: 40 more than it has seats.
const WANTED: usize = 135;
/// How long each of them takes.
const HOLD: Duration = Duration::from_millis(200);
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

/// The objects, where the noisy tenant's connections wait for their turn. Each client is a flow of its own.
fn with_queues() -> String {
    let queues =
        "limitResponse: {type: Queue, queuing: {queues: 64, handSize: 6, queueLengthLimit: 50}}";
    OBJECTS
        .replacen("limitResponse: {type: Reject}", queues, 1)
        .replacen(
            "rules:",
            "distinguisherMethod: {type: BySourceIP}\n  rules:",
            1,
        )
}

/// The same load with a plain limit, with an audit of levels, and with levels in force; then one whose
/// connections wait.
pub fn tenants(screen: &mut Screen, ground: &mut Balanced) -> Result<()> {
    screen.act("A noisy tenant and a quiet one: 200 connections for the node");
    allow_many_files()?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("objects.yaml");
    fs::write(&file, OBJECTS)?;
    let seats = format!("--max-connections={SEATS}");
    let objects = format!("--admission-objects={}", directory.path().display());

    restart(ground, &[&seats])?;
    let (connections, quiet) = both(ground)?;
    let mut quiets = vec![("plain limit", quiet.clone())];
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
    quiets.push(("levels, audit", quiet));

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
    quiets.push(("levels", quiet));

    fs::write(&file, with_queues())?;
    restart(ground, &[&seats, &objects, "--admission=enforce"])?;
    quiets.push(("one level, queues", queues(screen, ground)?));
    plot(screen, &quiets);
    restart(ground, &[])
}

/// Two clients of one level: a noisy one that always wants more than there is, and a quiet one. Returns what
/// becomes of the quiet one's requests.
fn queues(screen: &mut Screen, ground: &Balanced) -> Result<LoadReport> {
    screen.say("Levels in which connections wait for their turn: limitResponse: {type: Queue}");
    let lab = &ground.lab;
    let neighbour = lab.add_host("neighbour", 2)?;
    let request = Request::http(lab.node(1).at(Family::V4, NODE_PORT));
    let before = schema(ground, "noisy")?;
    let noisy = Load::new(request.held_for(HOLD)).workers(WANTED);
    let noisy = noisy.start(lab.client())?;
    // Until all seats are taken.
    thread::sleep(2 * HOLD);
    let quiet = Load::new(request)
        .workers(1)
        .pause(Duration::from_millis(5));
    let quiet = quiet.start(&neighbour)?;
    thread::sleep(ASKS_FOR);
    screen.command("node-lb admission levels", &ground.levels(1)?);
    let (quiet, noisy) = (quiet.stop()?, noisy.stop()?);
    let schema = schema(ground, "noisy")?;
    screen.promise(
        noisy.failed == 0 && schema.waited > 0 && schema.refused == before.refused,
        format_args!(
            "the noisy tenant wants {WANTED} at a time, and none of its {} requests is refused: {} had \
             to wait, {} ms on average",
            noisy.ok + noisy.failed,
            schema.waited,
            schema.mean_wait_ms
        ),
    );
    screen.no_failures("a quiet one in the same level", &quiet);
    Ok(quiet)
}

/// How long the quiet one's requests took, side by side.
fn plot(screen: &Screen, quiets: &[(&str, LoadReport)]) {
    const WIDTH: f64 = 40.0;
    screen.say("The quiet tenant's requests, from its SYN to the answer:");
    let slowest = quiets.iter().map(|(_, quiet)| quiet.p99).max();
    let slowest = slowest.unwrap_or_default().as_secs_f64();
    for (with, quiet) in quiets {
        let share = 100.0 * quiet.failed as f64 / (quiet.ok + quiet.failed).max(1) as f64;
        let times = match quiet.ok {
            0 => String::new(),
            _ => {
                let bar = (quiet.p99.as_secs_f64() / slowest * WIDTH).ceil() as usize;
                let (p50, p99) = (format!("{:.1?}", quiet.p50), format!("{:.1?}", quiet.p99));
                format!("p50 {p50:>7}  p99 {p99:>7}  {}", "#".repeat(bar))
            }
        };
        screen.say(format_args!("  {with:<18}  {share:>3.0} % fail  {times}"));
    }
}

/// The connections that the noisy tenant holds, and what becomes of the quiet one's requests
/// meanwhile.
fn both(ground: &Balanced) -> Result<(Vec<Held>, LoadReport)> {
    let lab = &ground.lab;
    let target: SocketAddr = lab.node(1).at(Family::V4, NODE_PORT);
    let held = Held::open_all(lab.client(), target, TRIES);
    let asks = Load::new(Request::http(CLUSTER_IP.parse()?)).pause(Duration::from_millis(5));
    let quiet = asks.run_for(ASKS_FOR, lab.pod("pod-1-1"))?;
    Ok((held, quiet))
}

/// Starts the agents with other arguments, once all connections are gone.
fn restart(ground: &mut Balanced, arguments: &[&str]) -> Result<()> {
    let start = Instant::now();
    while in_use(ground)? > 0 {
        ensure!(start.elapsed() < SOON, "connections stay in use");
        thread::sleep(Duration::from_millis(100));
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

fn schema(ground: &Balanced, name: &str) -> Result<FlowSchema> {
    let found = ground.status(1)?.flow_schema(name).cloned();
    found.with_context(|| format!("there is no schema {name}"))
}

fn level(ground: &Balanced, name: &str) -> Result<PriorityLevel> {
    let found = ground.status(1)?.priority_level(name).cloned();
    found.with_context(|| format!("there is no level {name}"))
}
