//! Random packets on random nodes: the kernel's programs and the model agree on each.

use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher as _, RandomState},
};

use lb_common::{
    abi::{FrontendKind, config_flag, endpoint_flag, plan_flag},
    verdict::Reason,
};
use lb_tests::packet::{Packet, tcp};

use super::{
    model::{Address, Model, Tuple},
    scene::{EXTERNAL, EXTERNAL_MAC, POD, ROUTER_MAC, Scene},
    service::{Class, EndpointSpec, ServiceSpec, TCP, UDP},
    world::{At, World, assert_expected, world},
};

/// Nodes that are the same in every run, and packets on each node.
const NODES: u64 = 60;
const PACKETS: usize = 250;

/// Nodes of a run that no run before has had.
const FRESH_NODES: u64 = 30;

/// Set to a seed that a failure names, it has that node's packets sent alone. Which of several
/// endpoints the kernel picks is another matter of chance.
const SEED_VARIABLE: &str = "NODE_LB_ORACLE_SEED";

#[test]
fn the_kernel_does_what_the_model_says() {
    world(|world| {
        let mut reasons = BTreeMap::new();
        for seed in 0..NODES {
            compare(world, seed, &mut reasons);
        }
        // What random packets never reach would not be compared.
        for reason in [
            Reason::NotService,
            Reason::StrayReset,
            Reason::ReplyToStack,
            Reason::LaterHook,
            Reason::Opened,
            Reason::ToEndpoint,
            Reason::ToClient,
            Reason::IcmpError,
            Reason::NoEndpoints,
            Reason::NoLocalEndpoints,
            Reason::SourceRange,
            Reason::NoRoute,
            Reason::TimeExceeded,
            Reason::TooBig,
        ] {
            assert!(reasons.contains_key(&reason), "{reason:?} in {reasons:?}");
        }
    });
}

#[test]
fn the_kernel_does_what_the_model_says_of_packets_never_seen_before() {
    let seeds = match env::var(SEED_VARIABLE) {
        Ok(seed) => vec![seed.parse().expect("the seed is a number")],
        Err(_) => {
            let first = RandomState::new().hash_one(());
            (0..FRESH_NODES).map(|n| first.wrapping_add(n)).collect()
        }
    };
    world(|world| {
        for seed in seeds {
            println!("{SEED_VARIABLE}={seed} sends the following node's packets again");
            compare(world, seed, &mut BTreeMap::new());
        }
    });
}

/// Sends a node's packets, and counts what became of them.
fn compare(world: &mut World, seed: u64, reasons: &mut BTreeMap<Reason, usize>) {
    let mut random = Random(seed);
    let scene = *random.of(&Scene::both());
    let mut model = node(world, &mut random, scene);
    for number in 0..PACKETS {
        let name = format!("packet {number} of seed {seed}");
        let reason = step(world, &mut model, &mut random, &name);
        *reasons.entry(reason).or_default() += 1;
    }
}

/// Sends one random packet.
fn step(world: &mut World, model: &mut Model, random: &mut Random, name: &str) -> Reason {
    let at = *random.of(&[At::Xdp, At::TcIngress, At::TcEgress]);
    let device = *random.of(&[EXTERNAL, EXTERNAL, POD]);
    let flow = random.flow(model);
    if let Some((tuple, flow)) = flow
        && random.once_in(6)
    {
        // About an answer that whoever sends such packets has got.
        let about = packet(random, tuple.0, 0, tuple.2, tuple.1);
        let translated = about.clone().source(flow.to.1).destination(flow.to.0);
        let length = *random.of(&[8, 20, 64]);
        let (kind, word) = match model.scene.node.is_ipv4() {
            true => *random.of(&[((3, 3), 0), ((3, 4), 1280), ((11, 0), 0)]),
            false => *random.of(&[((1, 4), 0), ((2, 0), 1280), ((3, 0), 0)]),
        };
        let sender = *random.of(&[tuple.1.0, model.scene.load_balancer]);
        let error = Packet::icmp(sender, tuple.2.0, kind, word, about.quote(length));
        let error = error.macs(EXTERNAL_MAC, ROUTER_MAC).ttl(random.ttl());
        let quote = translated.quote(length);
        let source = if sender == tuple.1.0 {
            flow.to.0.0
        } else {
            sender
        };
        let translated = error.clone().payload(&quote).addresses(source, flow.to.1.0);
        let found = world.run(at, device, &error.bytes());
        let expected = model.handle_error(at, device, &error, &flow, translated);
        assert_expected(name, at, &found, &expected);
        return found.counted[0].1;
    }
    let (protocol, from, to) = match flow {
        Some((tuple, _)) if random.once_in(2) => tuple,
        _ => random.tuple(model),
    };
    let flags = *random.of(&[
        tcp::SYN,
        tcp::SYN,
        tcp::SYN | tcp::ACK,
        tcp::ACK,
        tcp::PSH | tcp::ACK,
        tcp::FIN | tcp::ACK,
        tcp::RST,
    ]);
    let packet = packet(random, protocol, flags, from, to);
    let found = world.run(at, device, &packet.bytes());
    let chosen = || world.translation(protocol, from, to);
    let expected = model.handle(at, device, &packet, flags, (protocol, from, to), chosen);
    let expected = expected.unwrap_or_else(|error| panic!("{name}: {error}: {found:?}"));
    assert_expected(name, at, &found, &expected);
    found.counted[0].1
}

fn packet(random: &mut Random, protocol: u8, flags: u8, from: Address, to: Address) -> Packet {
    let packet = match protocol {
        UDP => Packet::udp(from, to),
        _ => Packet::tcp(from, to, flags),
    };
    let size = match random.once_in(5) {
        true => 1330 + random.below(50),
        false => random.below(64),
    };
    let payload: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
    let packet = packet
        .macs(EXTERNAL_MAC, ROUTER_MAC)
        .ttl(random.ttl())
        .traffic_class(random.next() as u8)
        .payload(&payload);
    match from.0.is_ipv4() {
        true => {
            let packet = packet.options(&vec![1; random.below(4) * 4]);
            match random.once_in(4) {
                true => packet.without_checksum(),
                false => packet,
            }
        }
        false if random.once_in(4) => packet.extension(0, 8).extension(60, 16),
        false => packet,
    }
}

/// A node with random services and no flows.
fn node(world: &mut World, random: &mut Random, scene: Scene) -> Model {
    let ports = 1000;
    let bypass = random.once_in(2);
    world.forget();
    world.configure(|config| {
        config.snat_count = u32::from(ports);
        config.reject_rate = u32::MAX;
        config.flags = config_flag::DETECT_BY_CIDR | if bypass { config_flag::BYPASS } else { 0 };
    });
    let services: Vec<_> = (0..8)
        .map(|number| service(random, scene, number))
        .collect();
    for service in &services {
        world.add(service);
    }
    Model {
        scene,
        services,
        bypass,
        ports,
        flows: Default::default(),
    }
}

fn service(random: &mut Random, scene: Scene, number: u16) -> ServiceSpec {
    let port = 30_000 + number;
    let mut spec = ServiceSpec::new(if number.is_multiple_of(2) { TCP } else { UDP })
        .cluster_ip(scene.cluster_ip, port)
        .node_port(scene.node, port)
        .load_balancer(scene.load_balancer, port)
        .frontend(FrontendKind::ExternalIp, scene.external_ip, port);
    for flag in [plan_flag::INTERNAL_LOCAL, plan_flag::EXTERNAL_LOCAL] {
        if random.once_in(3) {
            spec.flags |= flag;
        }
    }
    if random.once_in(3) {
        for address in [scene.client, scene.local] {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            spec = spec.source_range(address, prefix);
        }
    }
    let remote = [
        scene.remote,
        scene.narrow,
        scene.unresolved,
        scene.unroutable,
    ];
    for number in 0..random.below(5) as u16 {
        let class = *random.of(&Class::ALL);
        let address = match class.is_local() {
            true => *random.of(&[scene.local, scene.node]),
            false => *random.of(&remote),
        };
        let host = if address == scene.node {
            endpoint_flag::HOST
        } else {
            0
        };
        let local = if class.is_local() {
            endpoint_flag::LOCAL
        } else {
            0
        };
        spec.endpoints.push(EndpointSpec {
            class,
            address,
            port: 8080 + number,
            flags: host | local | endpoint_flag::IN_CLUSTER,
        });
    }
    spec
}

/// Numbers that look random and come again with the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    fn ttl(&mut self) -> u8 {
        *self.of(&[64, 64, 64, 255, 2, 1, 0])
    }

    /// A flow of the model, if it has any.
    fn flow(&mut self, model: &Model) -> Option<(Tuple, super::model::Flow)> {
        if model.flows.is_empty() {
            return None;
        }
        let mut flows: Vec<_> = model
            .flows
            .iter()
            .map(|(tuple, flow)| (*tuple, *flow))
            .collect();
        flows.sort_by_key(|(tuple, _)| *tuple);
        Some(*self.of(&flows))
    }

    /// Somebody sends something to a frontend, or to nothing in particular.
    fn tuple(&mut self, model: &Model) -> Tuple {
        let scene = model.scene;
        let from = *self.of(&[
            scene.client,
            scene.client,
            scene.local,
            scene.remote,
            scene.node,
        ]);
        let service = self.of(&model.services);
        let (_, address, port) = *self.of(&service.frontends);
        let port = port + u16::from(self.once_in(8)) * 100;
        let source = (from, 40_000 + self.below(4) as u16);
        (service.protocol, source, (address, port))
    }
}
