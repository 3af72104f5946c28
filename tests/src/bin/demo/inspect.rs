//! The parts of the demo that look inside: the command line, and the maps.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use lb_tests::lab::{Family, Host};
use lb_tests::{Balanced, balanced};
use serde_json::Value;

use super::acts::{CLUSTER_IP, LOAD_BALANCER_IP};
use super::screen::Screen;
use super::world::World;

/// `node-lb plan` and `node-lb explain`, on the objects that the agents follow.
pub fn commands(screen: &mut Screen, world: &dyn World) -> Result<()> {
    screen.act("Every decision explains itself");
    let lab = &world.ground().lab;
    node_lb(screen, world, "plan", &[])?;
    let ways: [(&Host, &str); 2] = [
        (lab.client(), LOAD_BALANCER_IP),
        (lab.pod("pod-2-1"), CLUSTER_IP),
    ];
    for (from, to) in ways {
        let from = from.ip(Family::V4).to_string();
        node_lb(screen, world, "explain", &["--from", &from, "--to", to])?;
    }
    Ok(())
}

/// One Service's entries, as bpftool reads them from the pinned maps.
pub fn maps(screen: &mut Screen, ground: &Balanced) -> Result<()> {
    screen.act("The maps, read with bpftool");
    let frontends = dump(ground, "FRONTENDS4")?;
    let cluster_ip: IpAddr = "10.96.0.10".parse()?;
    let of_web = |entry: &&Value| {
        entry["key"]["port"].as_u64() == Some(80) && holds(&entry["key"]["address"], cluster_ip)
    };
    let Some(frontend) = frontends.iter().find(of_web) else {
        screen.promise(false, "FRONTENDS4 has the ClusterIP");
        return Ok(());
    };
    let maps = ground.map_dir(1)?;
    let maps = maps.display();
    screen.command(
        format_args!("bpftool map dump pinned {maps}/FRONTENDS4    # one entry of it"),
        &frontend.to_string(),
    );
    let service = frontend["value"]["service"].as_u64();
    let service = service.context("a frontend has no field `service`")?;
    let entry = lookup(screen, ground, "SERVICES", service)?;
    let plan = entry["value"]["plan"].as_u64();
    let plan = plan.context("a service has no field `plan`")?;
    lookup(screen, ground, "PLANS", plan)?;
    screen
        .say("counts: local ready, two hinted classes, remote ready, local and remote terminating");
    Ok(())
}

/// Prints commands to try in a lab that stays.
pub fn how_to_poke(ground: &Balanced, program: &Path) {
    let id = ground.lab.id();
    let node = ground.lab.node(1);
    let (pins, manifests) = (node.pin_root.display(), node.manifests());
    let (program, manifests) = (program.display(), manifests.display());
    println!(
        "\nLab {id} stays, with its agents. To look around:

  cargo xtask lab status
  cargo xtask lab get {id} client http {LOAD_BALANCER_IP}
  cargo xtask lab get {id} pod-2-1 http {CLUSTER_IP}
  cargo xtask lab exec {id} client ping -c 1 {address}
  cargo xtask lab exec {id} node-1 curl -s localhost:10249/metrics
  cargo xtask lab exec {id} node-1 bpftool net
  ls {pins}/v*/maps
  bpftool -p map dump pinned {pins}/v*/maps/FRONTENDS4
  {program} plan --source dir:{manifests} --node node-1
  {program} explain --source dir:{manifests} --node node-1 --from {client} --to {LOAD_BALANCER_IP}
  $EDITOR {manifests}/service-web.json   # node-1's agent follows
  tail -f {log}
  cargo xtask lab down {id}

To take node-lb itself out of node-1: `{program} cleanup --bpf-root {pins}`, its agent stopped.",
        address = node.ip(Family::V4),
        client = ground.lab.client().ip(Family::V4),
        log = node.dir.join("agent.log").display(),
    );
}

/// Runs a subcommand on node 1, and shows it.
fn node_lb(screen: &mut Screen, world: &dyn World, subcommand: &str, rest: &[&str]) -> Result<()> {
    let node = world.ground().lab.node(1);
    let mut command = node.command(balanced::node_lb()?)?;
    command
        .arg(subcommand)
        .args(world.source())
        .args(["--node", node.name()])
        .args(["--cluster-cidr", balanced::CLUSTER_CIDR])
        .args(rest);
    let shown = ["node-lb", subcommand, world.source_shown(), "--node node-1"];
    let shown = [&shown, rest].concat().join(" ");
    match output_of(&mut command) {
        Ok(output) => screen.command(shown, &output),
        Err(error) => screen.promise(false, format_args!("{shown}: {error:#}")),
    }
    Ok(())
}

fn dump(ground: &Balanced, map: &str) -> Result<Vec<Value>> {
    match bpftool(ground, map, "dump", &[])? {
        Value::Array(entries) => Ok(entries.iter().map(named_by_btf).collect()),
        other => bail!("bpftool's dump of {map} is no list: {other}"),
    }
}

/// Reads one element of an array, and shows it.
fn lookup(screen: &Screen, ground: &Balanced, map: &str, index: u64) -> Result<Value> {
    let index = u32::try_from(index).context("an index has more than 32 bits")?;
    let key: Vec<_> = index.to_ne_bytes().iter().map(u8::to_string).collect();
    let arguments: Vec<_> = ["key"]
        .into_iter()
        .chain(key.iter().map(String::as_str))
        .collect();
    let entry = named_by_btf(&bpftool(ground, map, "lookup", &arguments)?);
    let line = format!("bpftool map lookup pinned .../{map} key {}", key.join(" "));
    screen.command(line, &entry.to_string());
    Ok(entry)
}

/// Runs bpftool on a map of node 1.
fn bpftool(ground: &Balanced, map: &str, verb: &str, rest: &[&str]) -> Result<Value> {
    let mut command = Command::new("bpftool");
    let path = ground.map_dir(1)?.join(map);
    command.args(["-j", "map", verb, "pinned"]).arg(path);
    let text = output_of(command.args(rest))?;
    serde_json::from_str(&text).with_context(|| format!("bpftool's answer about {map} is no JSON"))
}

/// The part of an entry that has field names; bpftool also prints it as bytes.
fn named_by_btf(entry: &Value) -> Value {
    entry["formatted"].clone()
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}: {}", output.status, error.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a field of any shape holds the octets of `ip`.
fn holds(field: &Value, ip: IpAddr) -> bool {
    let octets = match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    numbers(field) == octets
}

fn numbers(field: &Value) -> Vec<u8> {
    match field {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        Value::Object(fields) => fields.values().flat_map(numbers).collect(),
        number => number
            .as_u64()
            .and_then(|n| u8::try_from(n).ok())
            .into_iter()
            .collect(),
    }
}
