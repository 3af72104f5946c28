//! Maps of Services that change their sizes while traffic runs: no connection is disturbed and
//! nothing is forgotten, even if agents are killed meanwhile.

use std::{fs, thread, time::Duration};

use lb_tests::{Balanced, balanced};

use super::{
    interrupted::Change,
    maps::{Programmed, connections},
    support::{Everywhere, Idle, Policy, ground, take_over},
};

/// How long traffic runs between changes.
const TERM: Duration = Duration::from_secs(1);
/// How often an agent is killed in the middle of changes.
const KILLS: usize = 6;
const CHANGE: Change = Change {
    begins: &["changing the sizes of the maps of Services"],
    ends: "the maps of Services have other sizes now",
};

/// Arguments, and the capacities that `node-lb status` shows for some maps.
struct Sizes {
    arguments: &'static [&'static str],
    capacities: [(&'static str, u32); 4],
}

const USUAL: Sizes = Sizes {
    arguments: &[],
    capacities: [
        ("SERVICES", 65_535),
        ("FRONTENDS6", 131_072),
        ("ENDPOINTS", 1_048_576),
        ("MAGLEV", 1_048_576),
    ],
};
const LARGER: Sizes = Sizes {
    arguments: &[
        "--service-port-table-size=262144",
        "--address-table-size=524288",
        "--endpoint-table-size=1000000",
        "--maglev-tables=300",
        "--source-range-table-size=100000",
    ],
    capacities: [
        ("SERVICES", 262_143),
        ("FRONTENDS6", 524_288),
        ("ENDPOINTS", 2_000_000),
        ("MAGLEV", 300 * 4_096),
    ],
};
const SMALLER: Sizes = Sizes {
    arguments: &[
        "--service-port-table-size=1000",
        "--address-table-size=2000",
        "--endpoint-table-size=3000",
        "--maglev-tables=4",
        "--source-range-table-size=16",
    ],
    capacities: [
        ("SERVICES", 999),
        ("FRONTENDS6", 2_000),
        ("ENDPOINTS", 6_000),
        ("MAGLEV", 4 * 4_096),
    ],
};

#[test]
fn connections_live_on_while_the_maps_grow_and_shrink() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let idle = Idle::open(&ground);
    let load = Everywhere::start(&ground);
    for sizes in [LARGER, SMALLER, USUAL] {
        thread::sleep(TERM);
        ground.kill_agents().unwrap();
        let before = Known::of(&ground);
        set_sizes(&mut ground, &sizes);
        ground.start_agents().unwrap();
        assert_sizes(&ground, &sizes);
        Known::of(&ground).assert_follows(&before);
    }
    thread::sleep(TERM);
    idle.assert_alive();
    load.assert_nothing_noticed();
}

/// Each agent wants other sizes, and takes back what the previous one has begun.
#[test]
fn connections_live_on_though_agents_are_killed_while_the_maps_change_their_sizes() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let idle = Idle::open(&ground);
    let load = Everywhere::start(&ground);
    ground.kill_agents().unwrap();
    let sizes = [LARGER, SMALLER, USUAL].iter().cycle().take(KILLS);
    CHANGE.interrupt(
        &mut ground,
        sizes.map(|sizes| |ground: &mut Balanced| set_sizes(ground, sizes)),
    );
    set_sizes(&mut ground, &USUAL);
    ground.start_agents().unwrap();
    assert_sizes(&ground, &USUAL);
    thread::sleep(TERM);
    idle.assert_alive();
    load.assert_nothing_noticed();
}

#[test]
fn maps_that_would_be_too_small_are_not_taken() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let load = Everywhere::start(&ground);
    ground.kill_agents().unwrap();
    ground.set_arguments(&["--xdp-mode=native", "--endpoint-table-size=16"]);
    ground.start_agents().unwrap();
    assert_capacities(&ground, &USUAL);
    let problems = ground.status(1).unwrap().node_problems.join("\n");
    assert!(
        problems.contains("the maps of Services keep their sizes: map ENDPOINT_STATES is in use"),
        "{problems}"
    );
    thread::sleep(TERM);
    load.assert_nothing_noticed();
}

/// An older version takes over maps of the sizes that it has itself.
#[test]
fn an_older_version_takes_over_maps_that_have_had_other_sizes() {
    let (mut ground, _web) = ground(Policy::Cluster);
    let this = balanced::node_lb().unwrap();
    let older = balanced::older_node_lb().unwrap();
    let load = Everywhere::start(&ground);
    for (version, sizes) in [(&this, LARGER), (&this, USUAL), (&older, USUAL)] {
        set_sizes(&mut ground, &sizes);
        take_over(&mut ground, version);
        thread::sleep(TERM);
    }
    load.assert_nothing_noticed();
}

/// What the agents know of Services, on each node.
struct Known(Vec<(Programmed, u64)>);

impl Known {
    fn of(ground: &Balanced) -> Self {
        let nodes = 1..=ground.lab.nodes().len();
        let maps = nodes.map(|number| ground.map_dir(number).unwrap());
        Self(
            maps.map(|maps| (Programmed::read(&maps), connections(&maps)))
                .collect(),
        )
    }

    /// Asserts that Services have kept their numbers, and what they have counted.
    #[track_caller]
    fn assert_follows(&self, before: &Self) {
        for ((now, counted), (then, at_least)) in self.0.iter().zip(&before.0) {
            assert_eq!(now.service_ids(), then.service_ids());
            assert!(counted >= at_least, "{counted} after {at_least}");
        }
    }
}

/// Sets the sizes that agents started from now on ask for.
fn set_sizes(ground: &mut Balanced, sizes: &Sizes) {
    let mut arguments = vec!["--xdp-mode=native"];
    arguments.extend(sizes.arguments);
    ground.set_arguments(&arguments);
}

/// Asserts that all maps have these sizes, and that nothing of a change is left.
#[track_caller]
fn assert_sizes(ground: &Balanced, sizes: &Sizes) {
    assert_capacities(ground, sizes);
    for (number, agent) in (1..).zip(&ground.agents) {
        let log = agent.log().unwrap();
        assert!(!log.contains("keep their sizes"), "{log}");
        let pins = fs::read_dir(ground.map_dir(number).unwrap()).unwrap();
        let names = pins.map(|pin| pin.unwrap().file_name().into_string().unwrap());
        let before: Vec<_> = names.filter(|name| name.ends_with("_BEFORE")).collect();
        assert!(before.is_empty(), "{before:?}");
    }
}

#[track_caller]
fn assert_capacities(ground: &Balanced, sizes: &Sizes) {
    for number in 1..=ground.lab.nodes().len() {
        let maps = ground.status(number).unwrap().maps;
        for (name, capacity) in sizes.capacities {
            let map = maps.iter().find(|map| map.name == name);
            let found = map.map(|map| map.capacity);
            assert_eq!(found, Some(capacity), "{name} of node {number}");
        }
    }
}
