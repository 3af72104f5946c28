//! Agents that end in different ways, and others that take over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::{fs, thread};

use aya::programs::loaded_programs;
use lb_datapath::bpf::Link;
use lb_tests::traffic::{Loads, Protocol};
use lb_tests::{
    Balanced, Condition, Family, Load, Request, Serve, another_build, balanced, eventually,
};

use super::maps::{self, Programmed};
use super::support::{Everywhere, Policy, cluster_ip, ground, ground_with, take_over};

#[test]
fn agents_killed_and_started_again_are_not_noticed() {
    let (mut ground, _web) = ground(Policy::Local);
    let load = Everywhere::start(&ground);
    for _ in 0..3 {
        ground.kill_agents().unwrap();
        thread::sleep(Duration::from_millis(300));
        ground.start_agents().unwrap();
    }
    load.assert_nothing_noticed();
}

#[test]
fn agents_stopped_and_started_again_are_not_noticed() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let load = Everywhere::start(&ground);
    ground.stop_agents().unwrap();
    thread::sleep(Duration::from_secs(1));
    ground.start_agents().unwrap();
    load.assert_nothing_noticed();
}

/// From one build to another and back. Each time the next agent starts before the previous one has
/// ended, as in a DaemonSet update with surge.
#[test]
fn another_build_takes_over_while_the_first_still_runs() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let first = balanced::node_lb().unwrap();
    let next = ground.lab.node(1).dir.join("node-lb-next");
    another_build::write(&first, &next).unwrap();

    let load = Everywhere::start(&ground);
    for build in [next, first] {
        let before = attached(&ground);
        take_over(&mut ground, &build);
        let after = attached(&ground);
        for (link, tag) in &before {
            assert!(after.contains_key(link), "{link} is gone: {after:?}");
            assert_ne!(after[link], *tag, "{link} has the same program");
        }
        assert_eq!(before.len(), after.len());
    }
    load.assert_nothing_noticed();
}

/// The attached programs on all nodes: the kernel's hash of the program in each pinned link.
pub fn attached(ground: &Balanced) -> BTreeMap<String, u64> {
    // Other tests may be unloading theirs.
    let programs = loaded_programs().filter_map(Result::ok);
    let tags: BTreeMap<u32, u64> = programs
        .map(|program| (program.id(), program.tag()))
        .collect();
    let mut attached = BTreeMap::new();
    for number in 1..=ground.lab.nodes().len() {
        let links = ground.map_dir(number).unwrap().with_file_name("links");
        for entry in fs::read_dir(links).unwrap() {
            let path = entry.unwrap().path();
            let program = Link::open(&path).unwrap().info().unwrap().program_id;
            attached.insert(path.display().to_string(), tags[&program]);
        }
    }
    assert!(!attached.is_empty(), "nothing is attached");
    attached
}

#[test]
fn a_restart_without_changes_writes_nothing() {
    let (mut ground, mut web) = ground(Policy::Local);
    web.roll(&ground).unwrap(); // so that numbers are not just those a fresh start would give
    let maps = ground.map_dir(1).unwrap();
    let request = Request::http(cluster_ip(Family::V4, Protocol::Http));
    for _ in 0..5 {
        request.send(ground.lab.pod("pod-1-1")).unwrap();
    }
    let before = Programmed::read(&maps);
    let connections = maps::connections(&maps);
    assert!(connections >= 5, "{connections}");

    ground.kill_agents().unwrap();
    ground.start_agents().unwrap();
    let after = Programmed::read(&maps);
    assert_eq!(before.differences(&after), Vec::<&str>::new());
    assert_eq!(maps::connections(&maps), connections);
}

#[test]
fn what_changed_while_no_agent_ran_is_in_force_once_one_does() {
    let (mut ground, mut web) = ground(Policy::Cluster);
    let maps = ground.map_dir(1).unwrap();
    let before = Programmed::read(&maps);
    ground.kill_agents().unwrap();
    // There is no agent to wait for.
    let old: BTreeSet<_> = web.pods().map(|pod| pod.name().to_owned()).collect();
    web.add_all(&ground, &[1, 2]).unwrap();
    web.retire(&ground, 3).unwrap();
    ground.start_agents().unwrap();

    for family in Family::BOTH {
        for _ in 0..8 {
            let request = Request::http(cluster_ip(family, Protocol::Http));
            let reply = request.send(ground.lab.pod("pod-1-1")).unwrap();
            assert!(!old.contains(&reply.server), "{} is gone", reply.server);
        }
    }
    let after = Programmed::read(&maps);
    assert_eq!(
        before.service_ids(),
        after.service_ids(),
        "services keep their numbers"
    );
}

/// The pods' networks are in the Node object. Until it is read, the agent may not act as if there
/// were none.
#[test]
fn a_restart_knows_who_is_a_pod_from_the_start() {
    let arguments = ["--xdp-mode=native", "--detect-local-mode=NodeCIDR"];
    let (mut ground, _web) = ground_with(Policy::Cluster, &arguments);
    // Without source NAT, a pod on node 2 would answer the client without passing node 1.
    let outside = Request::http(cluster_ip(Family::V4, Protocol::Http));
    let mut loads = Loads::beside(ground.lab.router()).unwrap();
    loads
        .start(
            ground.lab.client(),
            Load::new(outside).pause(Duration::from_millis(5)),
        )
        .unwrap();
    for _ in 0..5 {
        ground.kill_agents().unwrap();
        ground.start_agents().unwrap();
    }
    loads.stop().unwrap().assert_flawless();
}

#[test]
fn an_agent_works_while_its_own_ports_are_taken() {
    let (mut ground, mut web) = ground(Policy::Cluster);
    ground.kill_agents().unwrap();
    let node = ground.lab.node(1);
    let _squatter = Serve::new("squatter").http(10249).start(node).unwrap();
    ground.start_agents().unwrap();

    let old: BTreeSet<_> = web.pods().map(|pod| pod.name().to_owned()).collect();
    web.set_oldest(3, Condition::Gone);
    web.write(&ground).unwrap();
    let request = Request::http(cluster_ip(Family::V4, Protocol::Http));
    eventually(|| match request.send(ground.lab.pod("pod-1-1")) {
        Ok(reply) => Err(format!("{} of {old:?} still answers", reply.server)),
        Err(_) => Ok(()),
    });
}
