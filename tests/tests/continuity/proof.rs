//! `node-lb verify` asks a copy of the attached programs about test packets: it finds what a comparison of maps does
//! not see, and leaves nothing behind. The agent does so all the time.

use std::{
    collections::BTreeMap,
    mem::offset_of,
    path::Path,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use aya::{
    Pod,
    maps::{Map, MapData, PerCpuArray},
};
use lb_common::{
    abi::{self, FrontendKey, config_flag},
    addr::{Ip4, Ip6},
    flow::{Flow, Hop, Seats},
    verdict::{Hook, Reason},
};
use lb_datapath::bpf::{BatchMap, MappedArray};
use lb_tests::{Balanced, eventually, faults::Meddler};
use serde_json::json;

use super::support::{Policy, ground, ground_with};

/// Services beside the one that is there, each with its own reason to be asked for.
fn add_services(ground: &Balanced) {
    let add = || {
        let of = |name: &str, ip: u8| {
            let cluster_ip = format!("10.96.2.{ip}");
            ground.lab.service(name).cluster_ip(&cluster_ip)
        };
        // Nobody serves these.
        of("nobody", 1).tcp("http", 80, 8080).apply()?;
        of("associations", 2).sctp("sig", 90, 9090).apply()?;
        let guarded = of("guarded", 3).tcp("http", 80, 8080);
        let guarded = guarded.load_balancer_ip("172.30.79.3");
        let ranges = json!(["203.0.113.0/24"]);
        guarded.set("loadBalancerSourceRanges", ranges).apply()
    };
    ground.change(add).unwrap();
}

#[test]
fn verify_asks_programs_and_leaves_nothing_behind() {
    let (mut ground, _web) = ground(Policy::Local);
    add_services(&ground);
    // It would write, too.
    ground.kill_agents().unwrap();
    let directory = ground.map_dir(1).unwrap();
    let before = State::read(&directory);
    let (differs, text) = ground.verify(1).unwrap();
    assert!(!differs, "{text}");
    // Two families, an entrance outside with two programs and one of pods, for each address.
    let packets = number_before(&text, " test packets");
    assert!(packets > 60, "{text}");
    assert!(!text.contains("no test packets"), "{text}");
    let after = State::read(&directory);
    assert_eq!(before, after, "{}", before.difference(&after));
}

#[test]
fn verify_finds_by_packets_what_maps_do_not_show() {
    let (mut ground, _web) = ground(Policy::Local);
    ground.kill_agents().unwrap();
    let directory = ground.map_dir(1).unwrap();
    let find = |what: &[&str]| {
        let (differs, text) = ground.verify(1).unwrap();
        assert!(differs, "{text}");
        for what in what {
            assert!(text.contains(what), "{what:?} is not in\n{text}");
        }
        text
    };

    // Maps of Services are as they should be: `verify` compares no settings.
    let settings: MappedArray<abi::Config> = open(&directory, "CONFIG");
    let flags = settings.u32_at(0, offset_of!(abi::Config, flags));
    flags.fetch_xor(config_flag::MASQUERADE_ALL, Relaxed);
    let text = find(&[
        "10.96.0.10:80 TCP: a test packet from a pod by ",
        "[fd00:10:96::10]:53 UDP: a test packet from a pod by ",
        " with source NAT, past the host's stack (opened, sent on)",
    ]);
    assert!(!text.contains("endpoints\n"), "{text}");
    flags.fetch_xor(config_flag::MASQUERADE_ALL, Relaxed);

    let frontends =
        BatchMap::<FrontendKey<Ip4>, abi::Frontend>::from_pin(&directory.join("FRONTENDS4"));
    let frontends = frontends.unwrap();
    let all = frontends.entries().unwrap();
    let at = |ip: [u8; 4], port| {
        let is_it = |(key, _): &&(FrontendKey<Ip4>, abi::Frontend)| {
            key.port == port && std::net::Ipv4Addr::from(ip) == std::net::IpAddr::from(key.address)
        };
        *all.iter().find(is_it).unwrap()
    };
    let (key, entry) = at([10, 96, 0, 10], 80);
    frontends.delete(&[key]).unwrap();
    find(&[
        "10.96.0.10:80 TCP: a test packet from outside by ",
        "found   unknown-port (sent on)",
    ]);
    frontends.update(&[key], &[entry]).unwrap();

    let services: MappedArray<abi::Service> = open(&directory, "SERVICES");
    let plans: MappedArray<abi::Plan> = open(&directory, "PLANS");
    let endpoints: MappedArray<abi::Endpoint> = open(&directory, "ENDPOINTS");
    let index = services.read(entry.service).plan;
    let plan = plans.read(index);
    let local = endpoints.u32_at(plan.first, offset_of!(abi::Endpoint, port));
    for slot in 1..plan.counts.iter().sum() {
        let port = endpoints.u32_at(plan.first + slot, offset_of!(abi::Endpoint, port));
        port.fetch_xor(1, Relaxed);
    }
    local.fetch_xor(1, Relaxed);
    find(&[
        "172.30.78.10:80 TCP: a test packet from outside by ",
        "found   10.244.",
    ]);
    for slot in 0..plan.counts.iter().sum() {
        let port = endpoints.u32_at(plan.first + slot, offset_of!(abi::Endpoint, port));
        port.fetch_xor(1, Relaxed);
    }

    // Endpoints of this node count as those of others.
    let [local, hinted, hinted_far, far, ..] = plan.counts;
    let mut other = plan;
    other.counts[..4].copy_from_slice(&[0, hinted, hinted_far, local + far]);
    plans.write(index, &other);
    find(&[
        "172.30.78.10:80 TCP: a test packet from outside by ",
        "found   no-local-endpoints (dropped)",
    ]);
    plans.write(index, &plan);
    let (differs, text) = ground.verify(1).unwrap();
    assert!(!differs, "{text}");
}

/// Meanwhile a Service changes all the time: that is no difference. Somebody who goes on changing the node's settings,
/// though the agent goes on putting them right, is one.
#[test]
fn the_agent_asks_programs_all_the_time() {
    let arguments = ["--xdp-mode=native", "--test-packet-interval=1s"];
    let (mut ground, _web) = ground_with(Policy::Local, &arguments);
    add_services(&ground);
    let sent = |ground: &Balanced| ground.status(1).unwrap().test_packets;
    let since = Instant::now();
    let mut rounds = BTreeMap::new();
    for port in (81..90).cycle() {
        let service = ground.lab.service("nobody").cluster_ip("10.96.2.1");
        service.tcp("http", port, 8080).apply().unwrap();
        thread::sleep(Duration::from_millis(50));
        let now = sent(&ground);
        assert_eq!((now.found.differences, now.not_sent), (0, None));
        rounds.extend(now.last_round.map(|at| (at, now.packets)));
        if rounds.len() >= 5 || since.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    assert!(rounds.len() >= 5, "{rounds:?}");
    // The first one may have been there before the Services.
    let mut whole = rounds.values().skip(1);
    // Two families, an entrance outside with two programs and one of pods, for each address.
    assert!(whole.all(|packets| *packets > 60), "{rounds:?}");
    let counted = ground.metric(1, "node_lb_test_packets_total").unwrap();
    assert!(counted >= rounds.values().sum::<u64>() as f64, "{counted}");
    let flows: Vec<String> = used(&ground.map_dir(1).unwrap(), "FLOWS4", |flow: &Flow<Ip4>| {
        flow.tag != 0
    });
    assert!(flows.is_empty(), "{flows:?}");

    ground.agents[0].expect_differences();
    let meddler = Meddler::start(&ground.map_dir(1).unwrap()).unwrap();
    let said = eventually(|| match sent(&ground) {
        sent if sent.problem.is_some() => Ok(sent),
        sent => Err(format!("{sent:?}")),
    });
    drop(meddler);
    let latest = &said.found.latest.last().unwrap().what;
    for part in [
        "default/",
        ": a test packet from a pod by ",
        " with source NAT, ",
    ] {
        assert!(latest.contains(part), "{latest}");
    }
    let counted = ground.metric(1, "node_lb_test_packet_differences_total");
    assert!(counted.unwrap() >= said.found.differences as f64);
    let (_, text) = ground.status_as(1, "table").unwrap();
    assert!(text.contains("programs did something else with "), "{text}");
    eventually(|| match ground.status(1).unwrap() {
        now if now.test_packets.problem.is_none() && now.not_ready.is_empty() => Ok(()),
        now => Err(format!("{:?}, {:?}", now.test_packets, now.not_ready)),
    });
}

/// What packets leave behind.
#[derive(PartialEq, Eq, Debug)]
struct State(BTreeMap<&'static str, Vec<String>>);

impl State {
    fn read(directory: &Path) -> Self {
        Self(BTreeMap::from([
            (
                "FLOWS4",
                used::<Flow<Ip4>>(directory, "FLOWS4", |flow| flow.tag != 0),
            ),
            (
                "FLOWS6",
                used::<Flow<Ip6>>(directory, "FLOWS6", |flow| flow.tag != 0),
            ),
            (
                "SERVICE_STATS",
                used(directory, "SERVICE_STATS", |of: &abi::ServiceStats| {
                    *of != Default::default()
                }),
            ),
            (
                "SERVICE_FLOWS",
                used(directory, "SERVICE_FLOWS", |of: &abi::ServiceFlows| {
                    *of != Default::default()
                }),
            ),
            (
                "SERVICE_SHORTAGES",
                used(directory, "SERVICE_SHORTAGES", |of: &abi::Shortages| {
                    *of != Default::default()
                }),
            ),
            (
                "ENDPOINT_STATES",
                used(directory, "ENDPOINT_STATES", |of: &abi::EndpointState| {
                    *of != Default::default()
                }),
            ),
            (
                "ENDPOINT_MEMORY",
                used(directory, "ENDPOINT_MEMORY", |of: &abi::EndpointMemory| {
                    *of != Default::default()
                }),
            ),
            (
                "ENDPOINT_LOADS",
                used(directory, "ENDPOINT_LOADS", |of: &abi::EndpointLoad| {
                    *of != Default::default()
                }),
            ),
            (
                "SEATS",
                used(directory, "SEATS", |of: &Seats| *of != Default::default()),
            ),
            ("HOPS", used(directory, "HOPS", |of: &Hop| of.ifindex != 0)),
            ("PACKETS", counted(directory)),
        ]))
    }

    /// The maps that differ.
    fn difference(&self, other: &Self) -> String {
        let maps = self
            .0
            .iter()
            .filter(|(map, state)| other.0[*map] != **state);
        maps.map(|(map, _)| *map).collect::<Vec<_>>().join(", ")
    }
}

/// The elements of an array that are in use, as text.
fn used<T: Pod + std::fmt::Debug>(
    directory: &Path,
    map: &str,
    is_used: impl Fn(&T) -> bool,
) -> Vec<String> {
    let array: MappedArray<T> = open(directory, map);
    let elements = array
        .iter(0..array.len())
        .filter(|(_, element)| is_used(element));
    elements.map(|element| format!("{element:?}")).collect()
}

/// What has been counted of packets to Services. Devices are never without any packets of others.
fn counted(directory: &Path) -> Vec<String> {
    let map = Map::PerCpuArray(MapData::from_pin(directory.join("PACKETS")).unwrap());
    let packets = PerCpuArray::<_, u64>::try_from(map).unwrap();
    let reasons = Reason::ALL.iter().filter(|reason| {
        reason.is_refusal()
            || matches!(
                reason,
                Reason::Opened | Reason::LaterHook | Reason::ToEndpoint
            )
    });
    let counters = reasons.flat_map(|reason| Hook::ALL.iter().map(move |hook| (hook, reason)));
    let count = |(hook, reason): (&Hook, &Reason)| {
        let count: u64 = packets.get(&hook.counter(*reason), 0).unwrap().iter().sum();
        format!("{} {}: {count}", hook.name(), reason.name())
    };
    counters.map(count).collect()
}

fn open<T: Pod>(directory: &Path, map: &str) -> MappedArray<T> {
    MappedArray::from_pin(&directory.join(map)).unwrap()
}

/// The number that a text has before some words.
#[track_caller]
fn number_before(text: &str, words: &str) -> u64 {
    let before = text.split(words).next().unwrap();
    let number = before.rsplit(' ').next().unwrap();
    number
        .parse()
        .unwrap_or_else(|_| panic!("{words:?} in {text}"))
}
