//! An older version of node-lb and this one, one after the other on the same maps: connections live
//! on in both directions.

use std::{path::Path, thread, time::Duration};

use lb_tests::{Balanced, balanced};

use super::{
    kills::random,
    support::{Everywhere, Idle, Policy, ground, take_over},
};

/// How long each version runs: long enough for its agent to look at every flow.
const TERM: Duration = Duration::from_secs(3);
/// How often an agent is killed while it takes over.
const KILLS: usize = 8;
/// An agent has taken over by then, if it is not killed.
const TAKEOVER_MILLIS: u64 = 2_000;

#[test]
fn connections_live_on_while_versions_follow_each_other() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let this = balanced::node_lb().unwrap();
    let older = balanced::older_node_lb().unwrap();
    start_over(&mut ground, &older);
    let idle = Idle::open(&ground);
    let load = Everywhere::start(&ground);
    for version in [&this, &older, &this] {
        take_over(&mut ground, version);
        thread::sleep(TERM);
    }
    idle.assert_alive();
    load.assert_nothing_noticed();
}

#[test]
fn connections_live_on_though_agents_are_killed_while_they_take_over() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let versions = [
        balanced::node_lb().unwrap(),
        balanced::older_node_lb().unwrap(),
    ];
    start_over(&mut ground, &versions[1]);
    let idle = Idle::open(&ground);
    let load = Everywhere::start(&ground);
    ground.kill_agents().unwrap();
    for version in versions.iter().cycle().take(KILLS) {
        ground.launch_agents_of(version).unwrap();
        thread::sleep(Duration::from_millis(random(TAKEOVER_MILLIS)));
        ground.kill_agents().unwrap();
    }
    take_over(&mut ground, &versions[0]);
    idle.assert_alive();
    load.assert_nothing_noticed();
}

/// Lets agents of another version start without anything that earlier ones have left.
fn start_over(ground: &mut Balanced, version: &Path) {
    ground.kill_agents().unwrap();
    for node in ground.lab.nodes() {
        let root = node.pin_root.display();
        let program = balanced::node_lb().unwrap();
        node.run(&format!("{} cleanup --bpf-root {root}", program.display()))
            .unwrap();
    }
    ground.start_agents_of(version).unwrap();
}
