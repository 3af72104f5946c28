//! SCTP associations through Services, between programs that bring their own SCTP: the kernel may have none.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};
use lb_common::verdict::Reason;
use lb_tests::{Endpoint, Family, PodNetwork, Topology, eventually, lab::Host};

use crate::ground::{Frontend, Ground, PORT, Vips, harsh};

/// Programs of usrsctp: one that sends back what it gets, and one that sends what it reads.
const SERVER: &str = "/usr/lib/usrsctp/echo_server";
const CLIENT: &str = "/usr/lib/usrsctp/client";
/// Where the server listens.
const ECHO: u16 = 7;
/// Seconds after which a client gives up.
const DEADLINE: &str = "40";

#[test]
fn associations_stand_with_xdp() -> Result<()> {
    everywhere(Topology::default(), "--xdp-mode=native")
}

#[test]
fn associations_stand_without_xdp() -> Result<()> {
    everywhere(Topology::default(), "--xdp-mode=off")
}

#[test]
fn associations_stand_among_other_rules() -> Result<()> {
    everywhere(harsh(PodNetwork::Bridge), "--xdp-mode=native")
}

#[test]
fn associations_are_left_alone_if_that_is_said() -> Result<()> {
    let ground = ground(Topology::default(), &["--sctp=off"])?;
    let target = Vips(1).at(Frontend::ClusterIp, Family::V4, ground.lab().node(1));
    let before = ground.balanced().packets(1, Reason::OtherProtocol)?;
    let client = ground.lab().pod("pod-1-2");
    let _process = start(client, target)?;
    eventually(|| {
        let passed = ground.balanced().packets(1, Reason::OtherProtocol)? - before;
        ensure!(passed > 0, "no packet has passed");
        Ok(())
    });
    Ok(())
}

/// A lab with a Service of SCTP, whose endpoints are a pod on each node.
fn ground(topology: Topology, arguments: &[&str]) -> Result<Ground> {
    let ground = Ground::with(topology, arguments)?;
    let lab = ground.lab();
    let service = Vips(1).service(lab.manifests());
    service
        .sctp("echo", PORT, ECHO)
        .node_port(Vips(1).node_port())
        .apply()?;
    let endpoints = ["pod-1-1", "pod-2-1"].map(|pod| Endpoint::ready(lab.pod(pod)));
    Ground::slices(lab, Vips(1))
        .sctp("echo", ECHO)
        .with_all(endpoints)
        .apply()?;
    ground.settle()?;
    Ok(ground)
}

fn everywhere(topology: Topology, xdp: &str) -> Result<()> {
    let ground = ground(topology, &[xdp])?;
    let lab = ground.lab();
    let _servers = ["pod-1-1", "pod-2-1"]
        .map(|pod| Running::server(lab.pod(pod)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let node = lab.node(1);
    let inside: &Host = lab.pod("pod-1-2");
    // One at a time on each host: who brings its own SCTP sees all of its host's packets, and aborts
    // associations of others.
    let talks = |client: &Host| {
        for family in Family::BOTH {
            for frontend in Frontend::ALL {
                let target = Vips(1).at(frontend, family, node);
                // Both endpoints, more likely than not.
                for _ in 0..2 {
                    let case = || format!("{client} {frontend:?} {family:?}");
                    talk(client, target).with_context(case)?;
                }
            }
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let others = scope.spawn(|| talks(lab.client()));
        talks(inside)?;
        others.join().expect("no talk panics")
    })?;
    // Those of the client inside, at least.
    let opened = ground.balanced().packets(1, Reason::Opened)?;
    ensure!(opened >= 16, "{opened} flows were opened");
    Ok(())
}

/// Talks to an echo server over an association, and ends it.
fn talk(client: &Host, target: SocketAddr) -> Result<()> {
    let mut process = start(client, target)?;
    let mut input = process.0.stdin.take().context("a pipe")?;
    let mut output = BufReader::new(process.0.stdout.take().context("a pipe")?);
    let mut heard = String::new();
    // Packets of many lengths.
    for length in [1, 2, 3, 30, 75] {
        let line = "x".repeat(length) + "\n";
        input.write_all(line.as_bytes())?;
        loop {
            let mut answer = String::new();
            let length = output.read_line(&mut answer)?;
            ensure!(length != 0, "no answer to {line:?} after {heard:?}");
            if answer == line {
                break;
            }
            heard += &answer;
        }
    }
    drop(input);
    loop {
        let mut line = String::new();
        ensure!(output.read_line(&mut line)? != 0, "no end after {heard:?}");
        heard += &line;
        if line.contains("SCTP_SHUTDOWN_COMP") {
            break;
        }
    }
    // It prints more, and would be killed by a closed pipe.
    for line in output.lines() {
        line?;
    }
    process.0.wait()?;
    Ok(())
}

fn start(client: &Host, target: SocketAddr) -> Result<Running> {
    let mut command = client.command("timeout")?;
    let (ip, port) = (target.ip().to_string(), target.port().to_string());
    command.args([DEADLINE, CLIENT, &ip, &port]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    Ok(Running(command.spawn().context("cannot start a client")?))
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn server(host: &Host) -> Result<Self> {
        let mut command = host.command(SERVER)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self(command.spawn().context("cannot start a server")?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If it has ended already, that is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
