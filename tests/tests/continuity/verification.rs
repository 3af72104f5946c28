//! Others write to the maps of a running agent and detach its programs: the agent finds it, puts it
//! right and says so.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs,
    mem::offset_of,
    os::fd::AsFd as _,
    path::Path,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use aya::{Pod, programs::loaded_programs};
use fastrand::Rng;
use lb_common::{
    abi::{self, FrontendKey},
    addr::{Ip4, Ip6},
    flow::{Seats, limit::NODE, queue::LevelQueues},
};
use lb_datapath::{
    bpf::{BatchMap, Link, MappedArray},
    maps::SourceKey,
};
use lb_tests::{
    Balanced, Endpoint,
    agent::{NO_FILES, USUAL_FILES},
    eventually,
    map_contents::{entries, networks},
};
use serde_json::json;

use super::support::{Everywhere, Policy, ground, ground_with};

/// Faults that are made at once, and how often.
const FAULTS: usize = 250;
const TIMES: usize = 4;
/// Within this time all of them are to be found and put right.
const REPAIRED: Duration = Duration::from_secs(10);
/// Services beside the one that is asked for.
const OTHERS: usize = 60;

#[test]
fn whatever_others_write_is_put_right_within_ten_seconds() {
    let arguments = [
        "--xdp-mode=native",
        "--admission=enforce",
        "--max-connections=10000",
    ];
    let (mut ground, _web) = ground_with(Policy::Local, &arguments);
    ground.agents[0].expect_differences();
    add_services(&ground);
    let maps = Maps::open(&ground.map_dir(1).unwrap());
    let meant = maps.contents();
    assert!(meant.limits.len() > 10 && meant.levels.len() > 1 && meant.schemas.len() > 1);
    let mut rng = Rng::with_seed(40);
    let mut faults = 0;
    let mut slowest = Duration::ZERO;
    for _ in 0..TIMES {
        faults += (0..FAULTS).filter(|_| maps.spoil(&meant, &mut rng)).count();
        assert!(!maps.contents().differences(&meant).is_empty());
        let since = Instant::now();
        eventually(|| match maps.contents().differences(&meant) {
            differing if differing.is_empty() => Ok(()),
            differing => Err(format!("{differing:?} differ")),
        });
        slowest = slowest.max(since.elapsed());
    }
    println!("{faults} faults; the slowest {FAULTS} were put right in {slowest:.1?}");
    assert!(faults > TIMES * FAULTS * 9 / 10, "{faults}");
    assert!(slowest < REPAIRED, "{slowest:?}");

    // Some faults hit the same record.
    let said = ground.status(1).unwrap().verification;
    assert!(said.found.differences > faults as u64 / 2, "{said:?}");
    let counted = ground
        .metric(1, "node_lb_verification_differences_total")
        .unwrap();
    assert_eq!(counted, said.found.differences as f64);
    let (needs_attention, text) = ground.status_as(1, "table").unwrap();
    assert!(
        needs_attention && text.contains("were not as the agent had written them"),
        "{text}"
    );
    // `node-lb verify` asks no agent: it reads objects and maps itself.
    assert_as_wanted(&ground);
    // Nobody has touched the other node.
    let other = ground.status(2).unwrap().verification;
    assert_eq!((other.found.differences, other.problem), (0, None));
    assert!(other.last_round.is_some());
    let load = Everywhere::start(&ground);
    load.assert_nothing_noticed();
}

#[test]
fn detached_and_exchanged_programs_are_attached_again() {
    let (mut ground, _web) = ground(Policy::Cluster);
    ground.agents[0].expect_differences();
    let links = ground.map_dir(1).unwrap().with_file_name("links");
    let pins: Vec<_> = fs::read_dir(&links)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let open = |path: &Path| Link::open(path).unwrap();
    let before: Vec<_> = pins.iter().map(|pin| open(pin).info().unwrap()).collect();
    assert!(pins.len() > 10, "{pins:?}");
    let are_back = || {
        for (pin, before) in pins.iter().zip(&before) {
            let link = Link::open(pin).map_err(|error| format!("{}: {error}", pin.display()))?;
            let info = link.info().map_err(|error| error.to_string())?;
            if (info.target, info.program_id) != (before.target, before.program_id) {
                return Err(format!("{}: {info:?}, before {before:?}", pin.display()));
            }
        }
        Ok(())
    };
    let differences = || ground.status(1).unwrap().verification.found.differences;
    let are_told = |least: u64| match differences() {
        told if told >= least => Ok(()),
        told => Err(format!("{told} of {least}")),
    };
    for pin in &pins {
        open(pin).detach().unwrap();
    }
    eventually(are_back);
    let detached = pins.len() as u64;
    eventually(|| are_told(detached));

    // Programs of both directions change places.
    let links = pins.iter().zip(&before);
    let of_tc: Vec<_> = links
        .filter(|(pin, _)| pin.to_string_lossy().contains("/tcx-"))
        .collect();
    let loaded: Vec<_> = loaded_programs().flatten().collect();
    for (pin, info) in &of_tc {
        let mut others = of_tc.iter().map(|(_, other)| other.program_id);
        let other = others.find(|id| *id != info.program_id).unwrap();
        let program = loaded.iter().find(|program| program.id() == other).unwrap();
        open(pin).replace(program.fd().unwrap().as_fd()).unwrap();
    }
    assert!(are_back().is_err());
    eventually(are_back);
    eventually(|| are_told(detached + of_tc.len() as u64));
    let load = Everywhere::start(&ground);
    load.assert_nothing_noticed();
}

/// An agent that does not run puts nothing right: `node-lb verify` finds it all the same.
#[test]
fn verify_finds_without_an_agent_what_others_have_changed() {
    let (mut ground, _web) = ground(Policy::Local);
    add_services(&ground);
    ground.kill_agents().unwrap();
    assert_as_wanted(&ground);
    let maps = Maps::open(&ground.map_dir(1).unwrap());
    let contents = maps.contents();
    let find = |what: &[&str]| {
        let (differs, text) = ground.verify(1).unwrap();
        assert!(differs, "{text}");
        for what in what {
            assert!(text.contains(what), "{what:?} is not in\n{text}");
        }
    };
    let frontend = |port: u16| {
        let entries = contents.frontends4.iter();
        *entries.clone().find(|(key, _)| key.port == port).unwrap()
    };
    let (key, entry) = frontend(31_007);
    maps.frontends4.delete(&[key]).unwrap();
    find(&["31007 TCP: all of it\n  found   nothing\n  wanted  NodePort"]);
    maps.frontends4.update(&[key], &[entry]).unwrap();
    assert_as_wanted(&ground);

    let plan = maps.plans.read(maps.services.read(entry.service).plan);
    let port = maps
        .endpoints
        .u32_at(plan.first, offset_of!(abi::Endpoint, port));
    port.fetch_xor(1, Relaxed);
    // The ClusterIP, the load balancer IP and the node port lead there.
    find(&[
        "10.96.1.8:80 TCP: endpoints",
        ":8081 (",
        ":8080 (",
        "31007 TCP: endpoints",
    ]);
    port.fetch_xor(1, Relaxed);

    let links = ground.map_dir(1).unwrap().with_file_name("links");
    let link = fs::read_dir(links).unwrap().next().unwrap().unwrap();
    Link::open(&link.path()).unwrap().detach().unwrap();
    let name = link.file_name().into_string().unwrap();
    find(&[
        &format!("program {name}: where it is attached"),
        "found   nowhere",
    ]);
}

/// The node is not ready while somebody writes again and again, and is once that has ended.
#[test]
fn a_data_plane_that_others_keep_changing_makes_the_node_unready() {
    let (mut ground, _web) = ground(Policy::Cluster);
    ground.agents[0].expect_differences();
    let maps = Maps::open(&ground.map_dir(1).unwrap());
    let load = Everywhere::start(&ground);
    let service = *maps.in_use().first().unwrap();
    let is_unready = || {
        // By its name a Service is found after a restart: no packet asks for it.
        let offset = offset_of!(abi::Service, name_hash);
        maps.services.u32_at(service, offset).store(7, Relaxed);
        let status = ground.status(1).map_err(|error| format!("{error:#}"))?;
        let problem = status.verification.problem.clone().unwrap_or_default();
        let is_told = status
            .not_ready
            .iter()
            .any(|check| check.contains("data-plane"));
        match problem.contains("SERVICES") && is_told {
            true => Ok(()),
            false => Err(format!("{:?}, {:?}", status.verification, status.not_ready)),
        }
    };
    eventually(is_unready);
    eventually(|| {
        let status = ground.status(1).map_err(|error| format!("{error:#}"))?;
        match status.verification.problem.is_none() && status.not_ready.is_empty() {
            true => Ok(()),
            false => Err(format!("{:?}, {:?}", status.verification, status.not_ready)),
        }
    });
    load.assert_nothing_noticed();
}

/// What cannot be read is no difference. An agent that said so would exchange programs that are right.
#[test]
fn an_agent_without_file_descriptors_takes_no_program_for_missing() {
    let (ground, _web) = ground(Policy::Cluster);
    let load = Everywhere::start(&ground);
    let agent = &ground.agents[0];
    let says = |text: &str| match agent.log() {
        Ok(log) if log.contains(text) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    agent.limit_files(NO_FILES).unwrap();
    eventually(|| says("cannot compare all of the data plane with what it should be"));
    agent.limit_files(USUAL_FILES).unwrap();
    let began = ground.status(1).unwrap().verification.last_round;
    eventually(|| {
        let now = ground.status(1).map_err(|error| format!("{error:#}"))?;
        match now.verification.last_round != began && now.verification.found.differences == 0 {
            true => Ok(()),
            false => Err(format!("{:?}", now.verification)),
        }
    });
    load.assert_nothing_noticed();
}

/// Has `node-lb verify` find nothing on node 1.
#[track_caller]
fn assert_as_wanted(ground: &Balanced) {
    let (differs, text) = ground.verify(1).unwrap();
    assert!(!differs && text.contains("are as they should be"), "{text}");
}

/// Services with endpoints, node ports, source ranges and Maglev tables.
fn add_services(ground: &Balanced) {
    let add = || {
        for number in 0..OTHERS {
            let name = format!("other-{number}");
            let service = ground
                .lab
                .service(&name)
                .cluster_ip(&format!("10.96.1.{}", number + 1))
                .cluster_ip(&format!("fd00:10:96::1:{:x}", number + 1))
                .tcp("http", 80, 8080)
                .node_port(31_000 + number as u16)
                .load_balancer_ip(&format!("172.30.79.{}", number + 1));
            let service = match number % 3 {
                0 => service.annotation("node-lb.io/max-connections", "50"),
                _ => service,
            };
            let service = service.set("loadBalancerSourceRanges", json!(["198.51.100.0/24"]));
            match number % 2 {
                0 => service
                    .annotation("node-lb.io/algorithm", "maglev")
                    .apply()?,
                _ => service.apply()?,
            }
            ground
                .lab
                .endpoints(&name)
                .tcp("http", 8080)
                .with(Endpoint::on_node(ground.lab.node(2)))
                .apply()?;
        }
        Ok(())
    };
    ground.change(add).unwrap();
}

/// The maps of a node that decide about packets.
struct Maps {
    frontends4: BatchMap<FrontendKey<Ip4>, abi::Frontend>,
    frontends6: BatchMap<FrontendKey<Ip6>, abi::Frontend>,
    cluster_ips: BatchMap<Ip6, abi::ClusterIp>,
    source_ranges: BatchMap<SourceKey, u8>,
    own: BatchMap<Ip6, abi::LocalAddress>,
    services: MappedArray<abi::Service>,
    plans: MappedArray<abi::Plan>,
    endpoints: MappedArray<abi::Endpoint>,
    rows: MappedArray<abi::MaglevRows>,
    ranges: MappedArray<abi::ServiceRange>,
    settings: MappedArray<abi::Config>,
    seats: MappedArray<Seats>,
    levels: MappedArray<Seats>,
    level_queues: MappedArray<LevelQueues>,
    schemas: MappedArray<abi::FlowSchema>,
}

/// What is in them, as far as programs can come to it.
struct Contents {
    /// As text, by map.
    parts: BTreeMap<&'static str, Vec<String>>,
    /// Numbers of the published services, with their plans.
    services: Vec<(u32, abi::Service, abi::Plan)>,
    frontends4: Vec<(FrontendKey<Ip4>, abi::Frontend)>,
    frontends6: Vec<(FrontendKey<Ip6>, abi::Frontend)>,
    /// Indexes of limits, the node's among them.
    limits: Vec<u32>,
    /// Numbers of priority levels and of flow schemas.
    levels: Vec<u32>,
    schemas: Vec<u32>,
}

impl Contents {
    /// The maps that differ.
    fn differences(&self, other: &Self) -> Vec<&'static str> {
        let maps = self.parts.keys().copied();
        maps.filter(|map| self.parts[map] != other.parts[map])
            .collect()
    }
}

impl Maps {
    fn open(directory: &Path) -> Self {
        let pin = |name: &str| directory.join(name);
        Self {
            frontends4: BatchMap::from_pin(&pin("FRONTENDS4")).unwrap(),
            frontends6: BatchMap::from_pin(&pin("FRONTENDS6")).unwrap(),
            cluster_ips: BatchMap::from_pin(&pin("CLUSTER_IPS")).unwrap(),
            source_ranges: BatchMap::from_pin(&pin("SOURCE_RANGES")).unwrap(),
            own: BatchMap::from_pin(&pin("LOCAL_ADDRESSES")).unwrap(),
            services: MappedArray::from_pin(&pin("SERVICES")).unwrap(),
            plans: MappedArray::from_pin(&pin("PLANS")).unwrap(),
            endpoints: MappedArray::from_pin(&pin("ENDPOINTS")).unwrap(),
            rows: MappedArray::from_pin(&pin("MAGLEV")).unwrap(),
            ranges: MappedArray::from_pin(&pin("SERVICE_RANGES")).unwrap(),
            settings: MappedArray::from_pin(&pin("CONFIG")).unwrap(),
            seats: MappedArray::from_pin(&pin("SEATS")).unwrap(),
            levels: MappedArray::from_pin(&pin("LEVELS")).unwrap(),
            level_queues: MappedArray::from_pin(&pin("LEVEL_QUEUES")).unwrap(),
            schemas: MappedArray::from_pin(&pin("FLOW_SCHEMAS")).unwrap(),
        }
    }

    /// Numbers of the published services.
    fn in_use(&self) -> Vec<u32> {
        let services = self.services.iter(1..self.services.len());
        let published = services.filter(|(_, service)| service.plan != 0);
        published.map(|(id, _)| id).collect()
    }

    fn contents(&self) -> Contents {
        let services: Vec<_> = self
            .in_use()
            .into_iter()
            .map(|id| (id, self.services.read(id)))
            .map(|(id, service)| {
                (
                    id,
                    service,
                    self.plans.read(service.plan % self.plans.len()),
                )
            })
            .collect();
        let settings = abi::Config {
            hop_generation: 0,
            ..self.settings.read(0)
        };
        let has_owner = |(index, seats): (u32, Seats)| (seats.owner != 0).then_some(index);
        let limits = self.seats.iter(0..self.seats.len()).filter_map(has_owner);
        let limits: Vec<_> = [NODE].into_iter().chain(limits).collect();
        let levels = self.levels.iter(0..self.levels.len());
        let levels: Vec<_> = levels.filter_map(has_owner).collect();
        let schemas = self.schemas.iter(0..self.schemas.len());
        let schemas = schemas.filter(|(_, schema)| schema.owner != 0);
        let schemas: Vec<_> = schemas.map(|(number, _)| number).collect();
        // Limits of levels are set anew all the time, and the rest is for counting.
        let rule = |index: &u32| {
            let Seats { limit, flags, .. } = self.seats.read(*index);
            format!("{index}: {limit} {flags}")
        };
        let level = |number: &u32| {
            let flags = self.levels.read(*number).flags;
            format!("{number}: {flags} {:?}", self.level_queues.read(*number))
        };
        let schema = |number: &u32| {
            let found = self.schemas.read(*number);
            let (rule, answers) = (found.rule, found.answers);
            format!(
                "{number}: {:?} {rule:?} {answers} {:?}",
                found.seats, found.deadlines
            )
        };
        let parts = [
            ("SEATS", limits.iter().map(rule).collect()),
            (
                "LEVELS and LEVEL_QUEUES",
                levels.iter().map(level).collect(),
            ),
            ("FLOW_SCHEMAS", schemas.iter().map(schema).collect()),
            ("FRONTENDS4", entries(&self.frontends4).unwrap()),
            ("FRONTENDS6", entries(&self.frontends6).unwrap()),
            ("CLUSTER_IPS", entries(&self.cluster_ips).unwrap()),
            ("SOURCE_RANGES", networks(&self.source_ranges).unwrap()),
            ("LOCAL_ADDRESSES", entries(&self.own).unwrap()),
            ("SERVICES and PLANS", vec![format!("{services:?}")]),
            ("ENDPOINTS", elements(&self.endpoints, 1000)),
            ("MAGLEV", elements(&self.rows, 4000)),
            ("SERVICE_RANGES", elements(&self.ranges, u32::MAX)),
            ("CONFIG", vec![format!("{settings:?}")]),
        ];
        Contents {
            parts: parts.into(),
            services,
            frontends4: self.frontends4.entries().unwrap(),
            frontends6: self.frontends6.entries().unwrap(),
            limits,
            levels,
            schemas,
        }
    }

    /// Makes a fault. Returns whether it did.
    fn spoil(&self, meant: &Contents, rng: &mut Rng) -> bool {
        let (id, service, plan) = &meant.services[rng.usize(..meant.services.len())];
        let flip = 1 << rng.u32(..32);
        let some4 = &meant.frontends4[rng.usize(..meant.frontends4.len())];
        let some6 = &meant.frontends6[rng.usize(..meant.frontends6.len())];
        match rng.u8(..13) {
            0 => flip_word(&self.services, *id, flip, rng),
            1 | 2 => flip_word(&self.plans, service.plan, flip, rng),
            3 if plan.counts.iter().sum::<u32>() > 0 => {
                flip_word(&self.endpoints, plan.first, flip, rng);
            }
            4 if plan.maglev_rows != 0 => {
                let row = plan.maglev_cluster + rng.u32(..plan.maglev_rows - 4);
                flip_word(&self.rows, row / abi::MAGLEV_ROWS, flip, rng);
            }
            5 => drop(self.frontends4.delete(&[some4.0]).unwrap()),
            6 => drop(self.frontends6.delete(&[some6.0]).unwrap()),
            7 => {
                let other = abi::Frontend {
                    service: some4.1.service ^ 1,
                    ..some4.1
                };
                self.frontends4.update(&[some4.0], &[other]).unwrap();
            }
            8 => {
                let foreign = FrontendKey {
                    port: rng.u16(40_000..50_000),
                    ..some6.0
                };
                self.frontends6.update(&[foreign], &[some6.1]).unwrap();
            }
            9 => {
                let ips = self.cluster_ips.entries().unwrap();
                let Some((ip, _)) = ips.get(rng.usize(..=ips.len())) else {
                    return false;
                };
                self.cluster_ips.delete(&[*ip]).unwrap();
            }
            10 => {
                let range = rng.u32(..self.ranges.len());
                flip_word(&self.ranges, range, flip, rng);
            }
            11 => match rng.u8(..3) {
                0 => {
                    let ranges = self.source_ranges.entries().unwrap();
                    let keys: Vec<_> = ranges.iter().map(|(key, _)| *key).collect();
                    self.source_ranges.delete(&keys).unwrap();
                }
                1 => {
                    let own = self.own.entries().unwrap();
                    self.own
                        .delete(&own.iter().map(|(ip, _)| *ip).take(2).collect::<Vec<_>>())
                        .unwrap();
                }
                _ => {
                    let flags = self.settings.u32_at(0, offset_of!(abi::Config, flags));
                    flags.fetch_xor(flip, Relaxed);
                }
            },
            12 => {
                let kind = rng.u8(..4);
                let mut one_of = |numbers: &[u32]| numbers[rng.usize(..numbers.len())];
                let word = match kind {
                    0 => self
                        .seats
                        .u32_at(one_of(&meant.limits), offset_of!(Seats, flags)),
                    1 => self
                        .seats
                        .u32_at(one_of(&meant.limits), offset_of!(Seats, limit)),
                    2 => self
                        .levels
                        .u32_at(one_of(&meant.levels), offset_of!(Seats, flags)),
                    _ => {
                        let offset = offset_of!(abi::FlowSchema, seats);
                        self.schemas.u32_at(one_of(&meant.schemas), offset)
                    }
                };
                word.fetch_xor(flip, Relaxed);
            }
            _ => return false,
        }
        true
    }
}

/// Flips a bit of one of an element's words.
fn flip_word<T: Pod>(elements: &MappedArray<T>, index: u32, flip: u32, rng: &mut Rng) {
    let word = rng.usize(..size_of::<T>() / 4);
    elements.u32_at(index, 4 * word).fetch_xor(flip, Relaxed);
}

/// The first elements of an array, as text.
fn elements<T: Pod + Debug>(array: &MappedArray<T>, number: u32) -> Vec<String> {
    let elements = array.iter(0..number);
    elements.map(|element| format!("{element:?}")).collect()
}
