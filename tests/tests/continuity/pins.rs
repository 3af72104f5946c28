//! Pins that others remove, with the BPF file system or without it, while agents run.

use std::{env, fs, path::Path, process::Command};

use anyhow::ensure;
use lb_tests::{Balanced, Family, Request, eventually, traffic::Protocol};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::support::{Everywhere, Policy, cluster_ip, ground};

const BPF_FS: &str = "/sys/fs/bpf";

#[test]
fn removed_pins_are_made_again_and_nobody_notices() {
    let (mut ground, _web) = ground(Policy::Local);
    let before: Vec<_> = (1..=2).map(|node| pins(&ground, node)).collect();
    let load = Everywhere::start(&ground);
    for node in ground.lab.nodes() {
        fs::remove_dir_all(&node.pin_root).unwrap();
    }
    for (number, before) in (1..).zip(&before) {
        eventually(|| {
            let found = pins(&ground, number);
            let missing: Vec<_> = before.iter().filter(|pin| !found.contains(pin)).collect();
            missing
                .is_empty()
                .then_some(())
                .ok_or_else(|| format!("{missing:?}"))
        });
        // It counts them once all are there.
        eventually(|| {
            let restored = ground.metric(number, "node_lb_pins_restored_total")?;
            ensure!(restored >= before.len() as f64, "{restored} of {before:?}");
            anyhow::Ok(())
        });
    }
    let log = ground.agents[0].log().unwrap();
    assert!(
        log.contains("had been removed, and are there again"),
        "{log}"
    );
    // They are the pins of what is in use: another agent goes on from there.
    another_service(&ground, "10.96.0.20");
    ground.kill_agents().unwrap();
    ground.start_agents().unwrap();
    another_service(&ground, "10.96.0.21");
    load.assert_nothing_noticed();
}

#[test]
fn devices_that_are_gone_leave_no_pins() {
    let (ground, _web) = ground(Policy::Cluster);
    let before = pins(&ground, 1);
    for _ in 0..3 {
        let pod = ground.lab.add_pod(ground.lab.node(1), "guest").unwrap();
        let request = Request::http(cluster_ip(Family::V4, Protocol::Http));
        request.send(&pod).unwrap();
        ground.lab.remove_pod(&pod).unwrap();
    }
    eventually(|| {
        let found = pins(&ground, 1);
        (found == before)
            .then_some(())
            .ok_or_else(|| format!("{found:?}"))
    });
}

/// In a mount namespace of its own: the machine's BPF file system stays where it is.
#[test]
fn the_bpf_file_system_can_be_unmounted_and_mounted_again() {
    in_own_mount_namespace(
        "pins::the_bpf_file_system_can_be_unmounted_and_mounted_again",
        || {
            let (mut ground, _web) = ground(Policy::Cluster);
            let load = Everywhere::start(&ground);
            umount2(BPF_FS, MntFlags::MNT_DETACH).unwrap();
            missing(&ground, 1.0);
            let said = ground.status(1).unwrap().node_problems.join("\n");
            assert!(
                said.contains("is not on a BPF file system any more"),
                "{said}"
            );

            // Changes are still written, and new pods are still served.
            let guest = ground.lab.add_pod(ground.lab.node(1), "guest").unwrap();
            let request = Request::http(cluster_ip(Family::V4, Protocol::Http));
            eventually(|| request.send(&guest).map_err(|error| format!("{error:#}")));

            mount_bpf_fs();
            missing(&ground, 0.0);
            another_service(&ground, "10.96.0.20");
            ground.kill_agents().unwrap();
            ground.start_agents().unwrap();
            request.send(&guest).unwrap();
            load.assert_nothing_noticed();
        },
    );
}

/// Has a Service written to the maps, which are read by their pins.
fn another_service(ground: &Balanced, ip: &str) {
    let name = format!("other-{}", ip.replace('.', "-"));
    let service = ground.lab.service(&name).cluster_ip(ip);
    let change = || service.tcp("http", 80, 8080).apply();
    ground.change(change).unwrap();
}

/// Waits until all agents say whether pins are missing.
#[track_caller]
fn missing(ground: &Balanced, wanted: f64) {
    for number in 1..=ground.lab.nodes().len() {
        eventually(|| {
            let found = ground.metric(number, "node_lb_pins_missing");
            let found = found.map_err(|error| format!("{error:#}"))?;
            (found == wanted)
                .then_some(())
                .ok_or_else(|| format!("{found}"))
        });
    }
}

/// The names of the pins on a node, of maps and links.
fn pins(ground: &Balanced, node: usize) -> Vec<String> {
    let Ok(maps) = ground.map_dir(node) else {
        return Vec::new();
    };
    let directories = [maps.clone(), maps.with_file_name("links")];
    let entries = directories.iter().flat_map(fs::read_dir).flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Runs a test once more, in a process with mounts of its own and a BPF file system of its own.
#[track_caller]
fn in_own_mount_namespace(test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "NODE_LB_TEST_HAS_OWN_MOUNTS";
    if env::var_os(INSIDE).is_some() {
        // What is left when the BPF file system is unmounted is not one.
        mount(
            Some("tmpfs"),
            BPF_FS,
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&Path>,
        )
        .unwrap();
        mount_bpf_fs();
        return body();
    }
    let status = Command::new("unshare")
        .args(["--mount", "--propagation=private"])
        .arg(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .status();
    assert!(status.unwrap().success(), "see above");
}

fn mount_bpf_fs() {
    mount(
        Some("bpf"),
        BPF_FS,
        Some("bpf"),
        MsFlags::empty(),
        None::<&Path>,
    )
    .unwrap();
}
