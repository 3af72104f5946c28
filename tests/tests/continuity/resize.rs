//! Flow tables that get another size while traffic runs: no connection notices, whoever is killed meanwhile.

use std::{fs, path::Path, thread, time::Duration};

use lb_tests::{
    Agent, Balanced, Family, Held, Load, Request, balanced, eventually, patient, traffic::Protocol,
};

use super::{
    kills::random,
    support::{
        Everywhere, NODE_PORT_LINES, Policy, cluster_ip, ground, ground_with, load_balancer_ip,
        take_over_with,
    },
};

/// Flows that labs' tables have room for at first, and other sizes.
const USUAL: u32 = 65_536;
const LARGER: u32 = 131_072;
const SMALLER: u32 = 32_768;
/// Traffic between changes.
const TERM: Duration = Duration::from_secs(1);
/// How often an agent is killed in the middle of changes.
const KILLS: usize = 12;
/// By then a change is done, if nobody ends the agent before.
const CHANGE_MILLIS: u64 = 500;

#[test]
fn connections_live_on_while_the_flow_table_grows_and_shrinks() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let idle = idle_connections(&ground);
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
    assert_alive(idle);
    load.assert_nothing_noticed();
}

/// The next one goes on, or takes back, whatever the one before has left: each wants another size.
#[test]
fn connections_live_on_though_agents_are_killed_while_the_flow_table_changes_its_size() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let idle = idle_connections(&ground);
    let load = Everywhere::start(&ground);
    ground.kill_agents().unwrap();
    let mut interrupted = 0;
    for size in [LARGER, SMALLER, USUAL].into_iter().cycle().take(KILLS) {
        ground.agents = launch_agents(&ground, size);
        wait_for_a_change(&ground.agents);
        thread::sleep(Duration::from_millis(random(CHANGE_MILLIS)));
        let logs = ground.agents.iter().map(|agent| agent.log().unwrap());
        interrupted += logs.filter(|log| !log.contains("now, after")).count();
        ground.kill_agents().unwrap();
    }
    println!("{interrupted} of {} changes were interrupted", 2 * KILLS);
    assert!(interrupted > KILLS / 2, "{interrupted}");
    start_agents(&mut ground, USUAL);
    assert_size(&ground, USUAL);
    thread::sleep(TERM);
    assert_alive(idle);
    load.assert_nothing_noticed();
}

#[test]
fn a_table_that_would_be_too_small_for_the_open_flows_is_not_taken() {
    let (mut ground, _web) = ground_with(
        Policy::Cluster,
        &["--xdp-mode=native", "--flow-table-size=4096"],
    );
    let idle = idle_connections(&ground);
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
    assert_alive(idle);
}

/// An older version takes tables over as they are, if it is given their size.
#[test]
fn an_older_version_takes_over_tables_of_another_size() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let this = balanced::node_lb().unwrap();
    let older = balanced::older_node_lb().unwrap();
    let idle = idle_connections(&ground);
    let load = Everywhere::start(&ground);
    for (version, size) in [
        (&older, USUAL),
        (&this, LARGER),
        (&older, LARGER),
        (&this, USUAL),
    ] {
        take_over_with(&mut ground, version, &[&size_argument(size)]);
        thread::sleep(TERM);
    }
    assert_size(&ground, USUAL);
    assert_alive(idle);
    load.assert_nothing_noticed();
}

/// With another size it ends, and says why; nothing is lost by that.
#[test]
fn an_older_version_refuses_tables_of_another_size_than_its_own() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let older = balanced::older_node_lb().unwrap();
    let idle = idle_connections(&ground);
    ground.kill_agents().unwrap();
    let refused = start(&ground, &older, LARGER);
    for mut agent in refused {
        let error = agent.wait_until_ready().unwrap_err().to_string();
        assert!(error.contains("map FLOWS4"), "{error}");
    }
    start_agents(&mut ground, USUAL);
    assert_alive(idle);
}

fn size_argument(size: u32) -> String {
    format!("--flow-table-size={size}")
}

fn start(ground: &Balanced, program: &Path, size: u32) -> Vec<Agent> {
    let size = size_argument(size);
    let launch = |node| {
        let spec = balanced::spec(node, &["--xdp-mode=native", &size]).unwrap();
        Agent::launch(node, spec.program(program)).unwrap()
    };
    ground.lab.nodes().iter().map(launch).collect()
}

fn launch_agents(ground: &Balanced, size: u32) -> Vec<Agent> {
    start(ground, &balanced::node_lb().unwrap(), size)
}

fn start_agents(ground: &mut Balanced, size: u32) {
    ground.agents = launch_agents(ground, size);
    for agent in &mut ground.agents {
        agent.wait_until_ready().unwrap();
    }
}

/// Returns when some agent is about to exchange programs, or has nothing to change.
fn wait_for_a_change(agents: &[Agent]) {
    let says = [
        "changes the flow table's size",
        "goes on with a change",
        "the first state is in the maps",
    ];
    let is_there = |agent: &Agent| {
        let log = agent.log().unwrap();
        says.iter().any(|text| log.contains(text))
    };
    eventually(|| match agents.iter().any(is_there) {
        true => Ok(()),
        false => Err("no agent has come so far"),
    });
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

/// Connections that have nothing to say while the size changes.
fn idle_connections(ground: &Balanced) -> Vec<Held> {
    let lab = &ground.lab;
    let both = Family::BOTH.into_iter().flat_map(|family| {
        let inside = cluster_ip(family, Protocol::Tcp);
        [
            Held::open(lab.client(), lab.node(1).at(family, NODE_PORT_LINES)),
            Held::open(lab.client(), load_balancer_ip(family, Protocol::Tcp)),
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
