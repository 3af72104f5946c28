//! However a lab ends, nothing of it remains; and labs do not disturb each other.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use lb_tests::lab::registry::WIREGUARD_SOCKETS;
use lb_tests::lab::{LabId, lab_tool};
use lb_tests::{Family, Lab, Request, Serve, Topology, Tunnel, eventually};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn nothing_is_left_after_success() -> Result<()> {
    let lab = Lab::up(Topology {
        tunnel: Some(Tunnel::WireGuard),
        ..Topology::default()
    })?;
    let id = lab.id().clone();
    let _process = Serve::new("node").http(80).start(lab.node(1))?;
    fs::create_dir(&lab.node(1).pin_root).context("an agent's pins")?;
    fs::create_dir(lab.node(1).pin_root.join("v1"))?;
    assert_eq!(
        kinds_left_of(&id)?,
        BTreeSet::from(["cgroup", "directory", "netns", "pins", "sockets"])
    );
    lab.down()?;
    assert_eq!(kinds_left_of(&id)?, BTreeSet::new());
    Ok(())
}

#[test]
fn nothing_is_left_after_a_panic() -> Result<()> {
    let (tell, told) = std::sync::mpsc::channel();
    let result = thread::spawn(move || {
        let lab = Lab::up(Topology::default()).unwrap();
        tell.send((lab.id().clone(), kinds_left_of(lab.id()).unwrap()))
            .unwrap();
        panic!("on purpose");
    })
    .join();
    assert!(result.is_err());
    let (id, while_up) = told.recv()?;
    assert!(while_up.contains("netns"));
    assert_eq!(kinds_left_of(&id)?, BTreeSet::new());
    Ok(())
}

#[test]
fn nothing_is_left_of_a_lab_that_could_not_be_built() -> Result<()> {
    let id: LabId = format!("f{}", std::process::id() % 1_000_000).parse()?;
    // A file where the lab's pins should be.
    let obstacle = id.pin_root("lab");
    Lab::up(Topology {
        nodes: 1,
        pods_per_node: 0,
        ..Topology::default()
    })?
    .down()?;
    fs::create_dir(&obstacle)?;
    let error = Lab::up_as(id.clone(), Topology::default()).map(|lab| lab.id().clone());
    let message = format!("{:#}", error.expect_err("built over somebody's pins"));
    assert!(
        message.contains(&obstacle.display().to_string()),
        "{message}"
    );
    assert_eq!(kinds_left_of(&id)?, BTreeSet::new());
    Ok(())
}

#[test]
fn a_topology_without_room_is_refused() {
    for topology in [
        Topology {
            nodes: 0,
            ..Topology::default()
        },
        Topology {
            nodes: 100,
            ..Topology::default()
        },
        Topology {
            pods_per_node: 201,
            ..Topology::default()
        },
        Topology {
            pod_mtu: 1000,
            ..Topology::default()
        },
    ] {
        assert!(Lab::up(topology).is_err(), "{topology:?}");
    }
}

#[test]
fn the_machines_own_namespace_is_not_touched() -> Result<()> {
    // A fresh namespace takes the place of the machine's own, in which others may be working.
    thread::spawn(|| -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let state = || -> Result<String> {
            let output = Command::new("sh")
                .args([
                    "-c",
                    "ip link; ip addr; ip route show table all; ip rule; nft list ruleset",
                ])
                .output()?;
            Ok(String::from_utf8(output.stdout)?)
        };
        let before = state()?;
        ensure!(before.contains("lo:"), "no state was read: {before}");
        let lab = Lab::up(Topology {
            firewall: true,
            masquerade: true,
            ..Topology::default()
        })?;
        assert_eq!(state()?, before);
        lab.down()?;
        assert_eq!(state()?, before);
        Ok(())
    })
    .join()
    .expect("no panic")
}

#[test]
fn two_labs_live_side_by_side() -> Result<()> {
    let topology = Topology {
        nodes: 1,
        pods_per_node: 1,
        ..Topology::default()
    };
    let labs = [Lab::up(topology)?, Lab::up(topology)?];
    assert_ne!(labs[0].id(), labs[1].id());
    let target = labs[0].pod("pod-1-1").at(Family::V4, 80);
    let _servers = ["first", "second"]
        .iter()
        .zip(&labs)
        .map(|(name, lab)| Serve::new(name).tcp(80).start(lab.pod("pod-1-1")))
        .collect::<Result<Vec<_>>>()?;
    let [first, second] = labs;
    assert_eq!(Request::tcp(target).send(first.client())?.server, "first");
    assert_eq!(Request::tcp(target).send(second.client())?.server, "second");
    first.down()?;
    assert_eq!(Request::tcp(target).send(second.client())?.server, "second");
    second.down()
}

#[test]
fn a_name_in_use_is_refused_and_its_lab_unharmed() -> Result<()> {
    let topology = Topology {
        nodes: 1,
        pods_per_node: 0,
        ..Topology::default()
    };
    let lab = Lab::up(topology)?;
    let again = Lab::up_as(lab.id().clone(), topology).map(|lab| lab.id().clone());
    let message = format!("{:#}", again.expect_err("two labs of one name"));
    assert!(message.contains("exists already"), "{message}");
    let _server = Serve::new("node").tcp(80).start(lab.node(1))?;
    Request::tcp(lab.node(1).at(Family::V4, 80)).send(lab.client())?;
    lab.down()
}

#[test]
fn nothing_is_left_after_ctrl_c() -> Result<()> {
    let (owner, id) = start_victim()?;
    end(owner, Signal::SIGINT)?;
    wait_until_gone(&id)
}

#[test]
fn nothing_is_left_after_kill_9() -> Result<()> {
    let (owner, id) = start_victim()?;
    end(owner, Signal::SIGKILL)?;
    wait_until_gone(&id)
}

#[test]
fn leftovers_of_a_lab_killed_with_its_guard_go_at_the_next_start() -> Result<()> {
    let (owner, id) = start_victim()?;
    let guard = guard_of(&id)?;
    kill(guard, Signal::SIGKILL)?;
    end(owner, Signal::SIGKILL)?;
    eventually(|| {
        ensure!(guard_of(&id).is_err(), "the guard is there still");
        Ok(())
    });
    // Another test of this run may just be starting, and sweep.
    Lab::up(Topology {
        nodes: 1,
        pods_per_node: 0,
        ..Topology::default()
    })?
    .down()?;
    assert_eq!(kinds_left_of(&id)?, BTreeSet::new());
    Ok(())
}

#[test]
fn kept_labs_stay_until_they_are_taken_down() -> Result<()> {
    let topology = Topology {
        nodes: 1,
        pods_per_node: 1,
        ..Topology::default()
    };
    let lab = Lab::up(topology)?;
    Serve::new("kept")
        .tcp(80)
        .start(lab.pod("pod-1-1").with_processes())?
        .leave_running()?;
    let target = lab.pod("pod-1-1").at(Family::V4, 80);
    let id = lab.keep()?;
    // It is not an orphan for the next lab.
    Lab::up(topology)?.down()?;
    let client = lb_tests::lab::open_host(&id, "client")?;
    assert_eq!(Request::tcp(target).send(client)?.server, "kept");
    let status = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["down", &id.to_string()])
        .status()?;
    assert!(status.success());
    assert_eq!(kinds_left_of(&id)?, BTreeSet::new());
    Ok(())
}

/// A process that owns a lab in use and does nothing else, to be killed.
fn start_victim() -> Result<(Child, LabId)> {
    let mut owner = Command::new(lab_tool()?)
        .args(["own", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut name = String::new();
    BufReader::new(owner.stdout.take().context("no stdout")?).read_line(&mut name)?;
    let id = name.trim_end().parse();
    let id = id.context("the victim did not say its lab's name")?;
    let kinds = kinds_left_of(&id)?;
    ensure!(
        kinds == BTreeSet::from(["cgroup", "directory", "netns", "pins"]),
        "{kinds:?}"
    );
    Ok((owner, id))
}

fn end(mut process: Child, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(process.id() as i32), signal)?;
    process.wait()?;
    Ok(())
}

fn guard_of(id: &LabId) -> Result<Pid> {
    let wanted = format!("guard\0{id}\0");
    fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.ends_with(&wanted))
        })
        .map(Pid::from_raw)
        .context("the lab has no guard")
}

fn wait_until_gone(id: &LabId) -> Result<()> {
    eventually(|| {
        let left = kinds_left_of(id)?;
        ensure!(left.is_empty(), "left: {left:?}");
        Ok(())
    });
    Ok(())
}

/// Which kinds of things on the machine have the lab's name.
fn kinds_left_of(id: &LabId) -> Result<BTreeSet<&'static str>> {
    let places = [
        (
            "netns",
            Path::new("/run/netns").to_owned(),
            format!("nlb-{id}-"),
        ),
        (
            "pins",
            Path::new("/sys/fs/bpf").to_owned(),
            format!("node-lb-{id}-"),
        ),
        (
            "cgroup",
            id.cgroup()?
                .parent()
                .context("a cgroup is in one")?
                .to_owned(),
            { format!("node-lb-lab-{id}") },
        ),
        (
            "directory",
            id.dir()
                .parent()
                .context("a directory is in one")?
                .to_owned(),
            { id.to_string() },
        ),
    ];
    let mut found = BTreeSet::new();
    // WireGuard makes the directory.
    let sockets = Path::new(WIREGUARD_SOCKETS).to_owned();
    let sockets = sockets
        .exists()
        .then(|| ("sockets", sockets, id.wireguard_prefix()));
    for (kind, dir, prefix) in places.into_iter().chain(sockets) {
        for entry in fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))? {
            if entry?.file_name().to_string_lossy().starts_with(&prefix) {
                found.insert(kind);
            }
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    if mounts.contains(&format!("/nlb-{id}-")) {
        found.insert("netns");
    }
    Ok(found)
}
