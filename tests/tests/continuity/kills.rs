//! Agents that are killed in the middle of a change: they leave a consistent state, the next one
//! continues from it, and traffic is not disturbed.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use lb_tests::{
    Agent, Balanced, Condition, Deployment, Endpoint, Family, Lab, MapContents, balanced,
    eventually, map_contents::Endpoints, patient,
};

use super::{
    maps,
    support::{Everywhere, Policy, ground},
};

/// Agents are killed while they write, and their successors while they start, until so many of the
/// first kind of kills have hit between two writes of one change.
const BETWEEN_WRITES: usize = 5;
/// The limit on the number of kills for that. On a machine with time to spare most of them hit.
const KILLS: usize = 40;
/// Services that change together, one write after the other.
const CROWD: usize = 48;
/// Time between two changes.
const INTERVAL: Duration = Duration::from_millis(10);

#[test]
fn agents_killed_while_they_write_leave_whole_services_and_are_not_noticed() {
    let (mut ground, mut web) = ground(Policy::Cluster);
    let crowd = Crowd::new(&ground);
    let mut agents: Vec<_> = std::mem::take(&mut ground.agents);
    let views: Vec<_> = (1..=2).map(|node| View::new(&ground, node)).collect();
    let load = Everywhere::start(&ground);

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| change_until(&stop, &ground, &mut web, &crowd));
        let _stopped = StopOnDrop(&stop);
        let (mut between_writes, mut kills) = (0, 0);
        while between_writes < BETWEEN_WRITES {
            assert!(
                kills < KILLS,
                "only {between_writes} of {kills} kills were between two writes"
            );
            let (index, view) = (kills % 2, &views[kills % 2]);
            kills += 1;
            let agent = agents.remove(index);
            let node = agent.node().clone();
            view.wait_for_a_change_under_way(&crowd, random(4));
            agent.kill().unwrap();
            between_writes += usize::from(view.is_between_writes(&crowd));
            view.check(&crowd);

            // The next agent is killed wherever it is.
            let spec = || balanced::spec(&node, &["--xdp-mode=native"]).unwrap();
            let next = Agent::launch(&node, spec()).unwrap();
            thread::sleep(Duration::from_millis(random(400)));
            next.kill().unwrap();
            view.check(&crowd);
            agents.insert(index, Agent::start(&node, spec()).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        let changes = writer.join().unwrap();
        println!("{changes} changes; {between_writes} of {kills} kills were between two writes");
    });

    ground.agents = agents;
    // It may already have this state.
    web.set_oldest(2, Condition::Ready);
    web.write(&ground).unwrap();
    for (node, view) in (1..).zip(&views) {
        let plans = ground.plans(node).unwrap();
        eventually(|| {
            let contents = view.contents.check(&plans);
            contents.with_context(|| format!("node {node}"))
        });
    }
    load.assert_nothing_noticed();
}

/// Ends the changes even if a check fails, because the threads' scope waits for them.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes endpoints until it is told to stop. Returns how often.
fn change_until(
    stop: &AtomicBool,
    ground: &Balanced,
    web: &mut Deployment,
    crowd: &Crowd,
) -> usize {
    let mut changes = 0;
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        web.set_oldest(
            2,
            match changes % 2 {
                0 => Condition::Terminating,
                _ => Condition::Ready,
            },
        );
        web.write(ground).unwrap();
        crowd.point(&ground.lab, changes % 2);
        changes += 1;
        next += INTERVAL;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    changes
}

/// Services without traffic, each with one endpoint. All have the first or all have the second one,
/// except while a change is being written.
struct Crowd {
    /// Manifests for either endpoint, each a single file, so that it is one event for an agent.
    manifests: [Vec<u8>; 2],
    endpoints: [IpAddr; 2],
}

impl Crowd {
    /// Creates the Services with the first endpoint.
    fn new(ground: &Balanced) -> Self {
        let lab = &ground.lab;
        let pods = ["pod-1-1", "pod-2-1"].map(|name| lab.pod(name));
        let manifests = pods.map(|pod| {
            let slices = (0..CROWD).flat_map(|n| {
                let slices = lab.endpoints(&name(n)).tcp("lines", 9090);
                slices.with(Endpoint::ready(pod)).objects()
            });
            let slices: Vec<_> = slices.collect();
            let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": slices });
            list.to_string().into_bytes()
        });
        let crowd = Self {
            manifests,
            endpoints: pods.map(|pod| pod.ip(Family::V4)),
        };
        ground
            .change(|| {
                crowd.point(lab, 0);
                (0..CROWD).try_for_each(|n| {
                    let service = lab.service(&name(n)).cluster_ip(&cluster_ip(n).to_string());
                    service.tcp("lines", 80, 9090).apply()
                })
            })
            .unwrap();
        for node in 1..=2 {
            eventually(|| {
                let found = View::of(ground, node).crowd.len();
                (found == CROWD)
                    .then_some(())
                    .ok_or_else(|| format!("{found} services"))
            });
        }
        crowd
    }

    /// Gives all Services one of the endpoints.
    fn point(&self, lab: &Lab, endpoint: usize) {
        let manifests = &self.manifests[endpoint];
        lab.manifests().write("crowd.json", manifests).unwrap();
    }

    /// Which of the two endpoints a service has; `None` if it has anything else.
    fn endpoint(&self, found: &Endpoints) -> Option<usize> {
        let all: Vec<_> = found.iter().flatten().collect();
        let [one] = all.as_slice() else { return None };
        self.endpoints.iter().position(|ip| *ip == one.ip())
    }
}

fn name(number: usize) -> String {
    format!("crowd-{number}")
}

fn cluster_ip(number: usize) -> IpAddr {
    IpAddr::from([10, 96, 1, number as u8])
}

/// The maps of a node.
struct View {
    contents: MapContents,
    directory: std::path::PathBuf,
    /// Ids of the crowd's services.
    crowd: Vec<u32>,
    /// Connections counted so far. Nothing may reset the count.
    connections: std::cell::Cell<u64>,
}

impl View {
    fn new(ground: &Balanced, node: usize) -> Self {
        let view = Self::of(ground, node);
        assert_eq!(view.crowd.len(), CROWD);
        view
    }

    fn of(ground: &Balanced, node: usize) -> Self {
        let directory = ground.map_dir(node).unwrap();
        let contents = MapContents::open(&directory).unwrap();
        let services = contents.services().unwrap();
        let of_crowd = |number| services.get(&((cluster_ip(number), 80).into(), 6)).copied();
        Self {
            crowd: (0..CROWD).filter_map(of_crowd).collect(),
            contents,
            directory,
            connections: Default::default(),
        }
    }

    /// How many of the crowd have the second endpoint, as far as can be seen while an agent writes.
    fn moved(&self, crowd: &Crowd) -> usize {
        let endpoint = |id: &u32| crowd.endpoint(&self.contents.endpoints_of(*id).ok()?);
        self.crowd.iter().filter_map(endpoint).sum()
    }

    fn is_between_writes(&self, crowd: &Crowd) -> bool {
        (1..CROWD).contains(&self.moved(crowd))
    }

    /// Returns when part of the crowd has been written, after this has been seen `times` times.
    fn wait_for_a_change_under_way(&self, crowd: &Crowd, times: u64) {
        let start = Instant::now();
        let mut seen = 0;
        while seen <= times {
            if self.is_between_writes(crowd) {
                seen += 1;
            }
            // A machine may be too slow to see it. Then any moment will do.
            if start.elapsed() > patient(Duration::from_secs(5)) {
                return;
            }
        }
    }

    /// Asserts what must hold whenever no agent runs.
    #[track_caller]
    fn check(&self, crowd: &Crowd) {
        let frontends = self.contents.frontends().unwrap();
        for number in 0..CROWD {
            let found = &frontends[&((cluster_ip(number), 80).into(), 6)];
            assert!(
                crowd.endpoint(found).is_some(),
                "{}: {found:?}",
                name(number)
            );
        }
        let connections = maps::connections(&self.directory);
        assert!(
            connections >= self.connections.replace(connections),
            "counters began again"
        );
    }
}

/// A random number below `end`.
pub fn random(end: u64) -> u64 {
    RandomState::new().hash_one(()) % end
}
