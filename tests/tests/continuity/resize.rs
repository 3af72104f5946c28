//! Flow tables that change their size while traffic runs: no connection is disturbed, even if
//! agents are killed meanwhile.

use std::{fs, thread, time::Duration};

use lb_tests::{Balanced, Family, Load, Request, balanced, eventually, patient, traffic::Protocol};

use super::{
    interrupted::Change,
    support::{Everywhere, Idle, Policy, ground, ground_with, load_balancer_ip, take_over},
};

/// How many flows the labs' tables have room for at first, and other sizes.
const USUAL: u32 = 65_536;
const LARGER: u32 = 131_072;
const SMALLER: u32 = 32_768;
/// How long traffic runs between changes.
const TERM: Duration = Duration::from_secs(1);
/// How often an agent is killed in the middle of changes.
const KILLS: usize = 12;
/// Pods that end while an agent starts.
const BRIEF_PODS: usize = 16;
const CHANGE: Change = Change {
    begins: &[
        "changing the flow table's size",
        "continuing an interrupted change",
    ],
    ends: "now, after",
};

#[test]
fn connections_live_on_while_the_flow_table_grows_and_shrinks() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let idle = Idle::open(&ground);
    let load = Everywhere::start(&ground);
    for (from, to) in [(USUAL, LARGER), (LARGER, SMALLER), (SMALLER, USUAL)] {
        thread::sleep(TERM);
        ground.kill_agents().unwrap();
        start_agents(&mut ground, to);
        assert_size(&ground, to);
        for agent in &ground.agents {
            let log = agent.log().unwrap();
            let said = format!("the flow table has room for {to} flows now, after {from}");
            assert!(log.contains(&said) && !log.contains("are lost"), "{log}");
        }
    }
    thread::sleep(TERM);
    idle.assert_alive();
    load.assert_nothing_noticed();
}

/// Each agent wants another size, and goes on with or takes back what the previous one has left.
#[test]
fn connections_live_on_though_agents_are_killed_while_the_flow_table_changes_its_size() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let idle = Idle::open(&ground);
    let load = Everywhere::start(&ground);
    ground.kill_agents().unwrap();
    let sizes = [LARGER, SMALLER, USUAL].into_iter().cycle().take(KILLS);
    CHANGE.interrupt(
        &mut ground,
        sizes.map(|size| move |ground: &mut Balanced| set_size(ground, size)),
    );
    start_agents(&mut ground, USUAL);
    assert_size(&ground, USUAL);
    thread::sleep(TERM);
    idle.assert_alive();
    load.assert_nothing_noticed();
}

/// If a pod ends before its device gets other programs, that is not a device that refuses them.
#[test]
fn pods_end_while_the_flow_table_changes_its_size() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let idle = Idle::open(&ground);
    for size in [LARGER, USUAL, SMALLER, USUAL] {
        let node = ground.lab.node(1);
        let start = |number| ground.lab.add_pod(node, &format!("brief-{number}"));
        let pods: Vec<_> = (0..BRIEF_PODS)
            .map(|number| start(number).unwrap())
            .collect();
        ground.kill_agents().unwrap();
        launch_agents(&mut ground, size);
        for pod in pods {
            ground.lab.remove_pod(&pod).unwrap();
        }
        ground.wait_until_ready().unwrap();
        assert_size(&ground, size);
    }
    idle.assert_alive();
}

#[test]
fn a_table_that_would_be_too_small_for_the_open_flows_is_not_taken() {
    let (mut ground, _web) = ground_with(
        Policy::Cluster,
        &["--xdp-mode=native", "--flow-table-size=4096"],
    );
    let idle = Idle::open(&ground);
    let many = Request::udp(load_balancer_ip(Family::V4, Protocol::Udp));
    let opened = Load::new(many.deadline(patient(Duration::from_secs(2))))
        .workers(16)
        .pause(Duration::from_millis(10))
        .at_least(900)
        .run_for(Duration::from_secs(1), ground.lab.client())
        .unwrap();
    assert!(opened.ok > 800 && opened.failed == 0, "{opened}");
    ground.kill_agents().unwrap();
    start_agents(&mut ground, 1024);
    let status = ground.status(1).unwrap().flow_table_size;
    assert_eq!(status.flows, 4096);
    let why = status.change.unwrap();
    assert!(why.contains("IPv4 flows are open"), "{why}");
    assert!(why.contains("room for 4096 flows instead of 1024"), "{why}");
    idle.assert_alive();
}

/// An older version takes over tables as they are, if it is told their size.
#[test]
fn an_older_version_takes_over_tables_of_another_size() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let this = balanced::node_lb().unwrap();
    let older = balanced::older_node_lb().unwrap();
    let idle = Idle::open(&ground);
    let load = Everywhere::start(&ground);
    for (version, size) in [
        (&older, USUAL),
        (&this, LARGER),
        (&older, LARGER),
        (&this, USUAL),
    ] {
        set_size(&mut ground, size);
        take_over(&mut ground, version);
        thread::sleep(TERM);
    }
    assert_size(&ground, USUAL);
    idle.assert_alive();
    load.assert_nothing_noticed();
}

/// With another size it ends, and says why. Nothing is lost.
#[test]
fn an_older_version_refuses_tables_of_another_size_than_its_own() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let older = balanced::older_node_lb().unwrap();
    let idle = Idle::open(&ground);
    ground.kill_agents().unwrap();
    set_size(&mut ground, LARGER);
    ground.launch_agents_of(&older).unwrap();
    for agent in &mut ground.agents {
        let error = agent.wait_until_ready().unwrap_err().to_string();
        assert!(error.contains("map FLOWS4"), "{error}");
    }
    start_agents(&mut ground, USUAL);
    idle.assert_alive();
}

/// Sets the size that agents started from now on ask for.
fn set_size(ground: &mut Balanced, size: u32) {
    ground.set_arguments(&["--xdp-mode=native", &format!("--flow-table-size={size}")]);
}

fn launch_agents(ground: &mut Balanced, size: u32) {
    set_size(ground, size);
    ground.launch_agents().unwrap();
}

fn start_agents(ground: &mut Balanced, size: u32) {
    set_size(ground, size);
    ground.start_agents().unwrap();
}

/// Asserts that all tables have room for so many flows, and that nothing of a change is left.
#[track_caller]
fn assert_size(ground: &Balanced, size: u32) {
    for number in 1..=ground.lab.nodes().len() {
        eventually(|| {
            let status = ground.status(number).unwrap();
            let records: Vec<_> = status.flows.iter().flatten().map(|t| t.records).collect();
            match records == [4 * size, 2 * size] && status.flow_table_size.flows == size {
                true => Ok(()),
                false => Err(format!("{status:?}")),
            }
        });
        let pins = fs::read_dir(ground.map_dir(number).unwrap()).unwrap();
        let names = pins.map(|pin| pin.unwrap().file_name().into_string().unwrap());
        let next: Vec<_> = names.filter(|name| name.ends_with("_NEXT")).collect();
        assert!(next.is_empty(), "{next:?}");
    }
}
