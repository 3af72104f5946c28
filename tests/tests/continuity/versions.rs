//! An older version of node-lb and this one, one after the other on the same maps: connections live on in
//! both directions.

use std::{path::Path, thread, time::Duration};

use lb_tests::{Balanced, Family, Held, balanced, traffic::Protocol};

use super::{
    kills::random,
    support::{Everywhere, NODE_PORT_LINES, Policy, cluster_ip, ground, take_over},
};

/// How long each version runs: long enough for its agent to look at every flow.
const TERM: Duration = Duration::from_secs(3);
/// How often an agent is killed while it takes over.
const KILLS: usize = 8;
/// By then an agent has taken over, if nobody kills it before.
const TAKEOVER_MILLIS: u64 = 2_000;

#[test]
fn connections_live_on_while_versions_follow_each_other() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let this = balanced::node_lb().unwrap();
    let older = balanced::older_node_lb().unwrap();
    start_over(&mut ground, &older);
    let idle = idle_connections(&ground);
    let load = Everywhere::start(&ground);
    for version in [&this, &older, &this] {
        take_over(&mut ground, version);
        thread::sleep(TERM);
    }
    assert_alive(idle);
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
    let idle = idle_connections(&ground);
    let load = Everywhere::start(&ground);
    ground.kill_agents().unwrap();
    for version in versions.iter().cycle().take(KILLS) {
        ground.launch_agents_of(version).unwrap();
        thread::sleep(Duration::from_millis(random(TAKEOVER_MILLIS)));
        ground.kill_agents().unwrap();
    }
    take_over(&mut ground, &versions[0]);
    assert_alive(idle);
    load.assert_nothing_noticed();
}

/// Has agents of another version begin without anything that earlier ones have left.
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

/// Connections that have nothing to say while versions change.
fn idle_connections(ground: &Balanced) -> Vec<Held> {
    let lab = &ground.lab;
    let both = Family::BOTH.into_iter().flat_map(|family| {
        let inside = cluster_ip(family, Protocol::Tcp);
        [
            Held::open(lab.client(), lab.node(1).at(family, NODE_PORT_LINES)),
            Held::open(lab.pod("pod-2-1"), inside),
            Held::open(lab.node(2), inside),
        ]
    });
    let mut idle: Vec<_> = both.map(Result::unwrap).collect();
    idle.iter_mut().for_each(|held| _ = held.ask().unwrap());
    idle
}

fn assert_alive(idle: Vec<Held>) {
    for mut connection in idle {
        connection.ask().unwrap();
    }
}
