//! `lab`: a lab for people. Brings one up, shows it, runs commands inside, takes it down.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use lb_tests::attack::{Flood, FloodKind};
use lb_tests::lab::registry::{self, Record, Registry};
use lb_tests::lab::{LabId, open_host};
use lb_tests::traffic::Protocol;
use lb_tests::{Host, Lab, PodNetwork, Request, Serve, Topology};

/// A cluster's network in network namespaces: a client, a router, nodes and pods.
#[derive(Parser)]
#[command(name = "lab")]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Build a lab that stays until it is taken down.
    Up(Up),
    /// List labs and their hosts.
    Status,
    /// Run a command in a host's network namespace and cgroup.
    Exec {
        lab: LabId,
        /// For example `client`, `node-1`, `pod-1-2`.
        host: String,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Make one request to one of the lab's servers, and print who answered.
    Get {
        lab: LabId,
        host: String,
        protocol: ProtocolArg,
        /// ADDRESS:PORT or [ADDRESS]:PORT.
        target: SocketAddr,
    },
    /// Send a flood from spoofed sources, and print how much that was.
    Flood {
        lab: LabId,
        host: String,
        kind: FloodArg,
        /// ADDRESS:PORT or [ADDRESS]:PORT, all of one family.
        #[arg(required = true)]
        targets: Vec<SocketAddr>,
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Frames per second; as fast as one CPU sends unless given.
        #[arg(long)]
        rate: Option<u32>,
    },
    /// Remove labs.
    Down {
        #[arg(required_unless_present = "all")]
        lab: Option<LabId>,
        /// Every lab but those of processes that still run.
        #[arg(long, conflicts_with = "lab")]
        all: bool,
    },
}

#[derive(Args)]
struct Up {
    /// Up to ten lower-case letters and digits.
    #[arg(default_value = "lab")]
    name: LabId,
    #[arg(long, default_value_t = 2)]
    nodes: u8,
    /// Pods on each node.
    #[arg(long, default_value_t = 2)]
    pods: u8,
    #[arg(long, value_enum, default_value = "routed")]
    pod_network: PodNetworkArg,
    /// rp_filter=1 on the nodes.
    #[arg(long)]
    strict_rp_filter: bool,
    /// A stateful firewall on the nodes.
    #[arg(long)]
    firewall: bool,
    /// A CNI's masquerade rule on the nodes.
    #[arg(long)]
    masquerade: bool,
    /// Do not start servers on the pods (HTTP on port 8080, lines on TCP 9090, UDP 9090).
    #[arg(long)]
    no_servers: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum PodNetworkArg {
    Routed,
    Bridge,
}

#[derive(Clone, Copy, ValueEnum)]
enum ProtocolArg {
    Http,
    Tcp,
    Udp,
    UdpUnconnected,
}

#[derive(Clone, Copy, ValueEnum)]
enum FloodArg {
    Syn,
    Ack,
    Udp,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Cmd::Up(up) => bring_up(up),
        Cmd::Status => status(),
        Cmd::Exec { lab, host, command } => exec(&lab, &host, &command),
        Cmd::Get {
            lab,
            host,
            protocol,
            target,
        } => ask(&lab, &host, protocol, target),
        Cmd::Flood {
            lab,
            host,
            kind,
            targets,
            seconds,
            rate,
        } => flood(&open_host(&lab, &host)?, kind, targets, seconds, rate),
        Cmd::Down { lab: Some(lab), .. } => take_down(&lab),
        Cmd::Down { lab: None, .. } => take_all_down(),
    }
}

fn bring_up(up: Up) -> Result<()> {
    let start = Instant::now();
    let topology = Topology {
        nodes: up.nodes,
        pods_per_node: up.pods,
        pod_network: match up.pod_network {
            PodNetworkArg::Routed => PodNetwork::Routed,
            PodNetworkArg::Bridge => PodNetwork::Bridge,
        },
        strict_rp_filter: up.strict_rp_filter,
        firewall: up.firewall,
        masquerade: up.masquerade,
        ..Topology::default()
    };
    let lab = Lab::up_as(up.name, topology)?;
    if !up.no_servers {
        for pod in lab.pods() {
            let server = Serve::new(pod.name()).http(8080).tcp(9090).udp(9090);
            server.start(pod.with_processes())?.leave_running()?;
        }
    }
    let id = lab.keep()?;
    println!("lab {id} is up after {:.1?}\n", start.elapsed());
    show(&id)?;
    println!("\nlab exec {id} client ping 172.30.77.11\nlab down {id}");
    Ok(())
}

fn status() -> Result<()> {
    let labs = registry::all()?;
    if labs.is_empty() {
        println!("there is no lab");
    }
    labs.iter().try_for_each(show)
}

fn show(id: &LabId) -> Result<()> {
    let Record { owner, hosts } = registry::load(id)?;
    let owner = match owner {
        None => "kept".to_owned(),
        Some(owner) if owner.is_alive() => format!("of {owner}"),
        Some(owner) => format!("of {owner}, which is gone"),
    };
    println!("lab {id} ({owner}), files in {}", id.dir().display());
    for host in hosts {
        let (v4, v6) = (host.addresses.v4.to_string(), host.addresses.v6.to_string());
        println!("  {:<12}{v4:<16}{v6:<24}{}", host.name, host.netns);
    }
    Ok(())
}

fn exec(id: &LabId, host: &str, line: &[String]) -> Result<()> {
    let (program, args) = line.split_first().context("no command")?;
    let mut command = open_host(id, host)?.command(program)?;
    Err(command.args(args).exec()).with_context(|| format!("cannot run {program}"))
}

fn ask(id: &LabId, host: &str, protocol: ProtocolArg, target: SocketAddr) -> Result<()> {
    let protocol = match protocol {
        ProtocolArg::Http => Protocol::Http,
        ProtocolArg::Tcp => Protocol::Tcp,
        ProtocolArg::Udp => Protocol::Udp,
        ProtocolArg::UdpUnconnected => Protocol::UdpUnconnected,
    };
    let reply = Request::new(protocol, target).send(open_host(id, host)?)?;
    println!("{reply}");
    Ok(())
}

fn flood(
    host: &Host,
    kind: FloodArg,
    targets: Vec<SocketAddr>,
    seconds: u64,
    rate: Option<u32>,
) -> Result<()> {
    let kind = match kind {
        FloodArg::Syn => FloodKind::Syn,
        FloodArg::Ack => FloodKind::Ack,
        FloodArg::Udp => FloodKind::Udp,
    };
    let mut flood = Flood::new(kind, targets);
    if let Some(rate) = rate {
        flood = flood.rate(rate);
    }
    println!("{}", flood.run_for(Duration::from_secs(seconds), host)?);
    Ok(())
}

fn take_down(id: &LabId) -> Result<()> {
    if let Some(owner) = registry::load(id)?.owner.filter(|owner| owner.is_alive()) {
        bail!("lab {id} is in use by {owner}, which removes it when it ends");
    }
    Registry::lock()?.remove(id)
}

fn take_all_down() -> Result<()> {
    // The lock hides labs that are just being registered.
    let registry = Registry::lock()?;
    for id in registry.remove_orphans()? {
        println!("removed lab {id}");
    }
    for id in registry::all()? {
        match registry::load(&id)?.owner {
            Some(owner) => println!("lab {id} is in use by {owner}"),
            None => {
                registry.remove(&id)?;
                println!("removed lab {id}");
            }
        }
    }
    Ok(())
}
