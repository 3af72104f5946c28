//! Programs on all processors at once, beside the sweeper: whatever they do, the table is
//! consistent afterwards.

use std::{
    collections::HashSet,
    fmt::Debug,
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use lb_common::{
    addr::Address,
    flow::{Flow, Timeouts, flow_flag, tag},
};
use lb_packet::Packet;

use super::{
    scene::{EXTERNAL, EXTERNAL_MAC, ROUTER_MAC, Scene},
    service::{ServiceSpec, TCP, UDP},
    world::{At, World, world},
};

/// How long the processors are kept busy, for each family.
const TIME: Duration = Duration::from_secs(3);
/// So few that every processor meets every flow.
const CLIENT_PORTS: u16 = 96;
/// Fewer than clients' ports, so that they run out and are taken over.
const NODE_PORTS: u32 = 64;
const FIRST_NODE_PORT: u16 = 50_000;
/// So short that flows end while their packets are under way, unless the connections are
/// established.
const TICKS: u32 = 3;
/// So long that these flows still exist at the end.
const LONG: u32 = 1000;

#[test]
fn the_table_is_whole_after_all_processors_have_worked_on_it() {
    world(|world| {
        for scene in Scene::both() {
            world.forget();
            world.configure(|config| {
                config.tick_shift = 5;
                config.snat_first = FIRST_NODE_PORT.into();
                config.snat_count = NODE_PORTS;
            });
            world.limit(Timeouts {
                tcp: [TICKS, TICKS, LONG, TICKS, TICKS],
                udp: [TICKS, TICKS, LONG, TICKS, TICKS],
                port_held: 2 * TICKS,
                shortest: TICKS,
            });
            let frontend = (scene.node, 30_080);
            for protocol in [TCP, UDP] {
                let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
                world.add(&spec.remote(scene.remote, 8080).local(scene.local, 8080));
            }
            let sweeper = world.sweep();
            // The first pass corrects what an earlier version has counted. It may take a flow that
            // comes for one that goes meanwhile.
            while sweeper.stats().passes == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            let processors = thread::available_parallelism().unwrap().get();
            let end = Instant::now() + TIME;
            let frames =
                world.run_beside([At::Xdp, At::TcIngress], EXTERNAL, 2 * processors, || {
                    (Instant::now() < end).then(|| frame(&scene, frontend))
                });
            // Pairs with a record that was just being written are ended by the next passes.
            let passes = sweeper.stats().passes;
            while sweeper.stats().passes < passes + 4 {
                thread::sleep(Duration::from_millis(50));
            }
            drop(sweeper);
            println!("{frames} frames");
            assert!(frames > 10_000, "{frames} frames are few");
            world.assert_whole(&scene);
        }
    });
}

/// A random packet of a client or an endpoint. Its numbers fit often enough.
fn frame(scene: &Scene, frontend: (IpAddr, u16)) -> Vec<u8> {
    let mut chance = Chance(RandomState::new().hash_one(()));
    let udp = chance.below(4) == 0;
    let client = (
        scene.client,
        40_000 + chance.below(CLIENT_PORTS.into()) as u16,
    );
    let (from, to) = match chance.below(3) {
        0 => {
            let port = FIRST_NODE_PORT + chance.below(NODE_PORTS.into()) as u16;
            ((scene.remote, 8080), (scene.node, port))
        }
        _ => (client, frontend),
    };
    let packet = match udp {
        true => Packet::udp(from, to),
        false => {
            let flags = [0x02, 0x02, 0x12, 0x10, 0x10, 0x11, 0x14, 0x04];
            let flags = flags[chance.below(flags.len() as u64) as usize];
            let number = |chance: &mut Chance| 1000 + chance.below(3) as u32;
            Packet::tcp(from, to, flags).numbers(number(&mut chance), number(&mut chance))
        }
    };
    packet.macs(EXTERNAL_MAC, ROUTER_MAC).bytes()
}

/// Random numbers that are cheap, but need not be good.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Asserts what must hold for a table that nothing is working on.
///
/// - Each record in use has another one of the other direction, which names it.
/// - No two records are for the same packets, so no port of the node is used twice towards an
///   endpoint.
///
/// Returns how many flows there are, and how many of them have not proved themselves.
fn assert_whole<A: Address + Debug>(records: &[Flow<A>]) -> (usize, usize) {
    let mut tuples = HashSet::new();
    let mut half_open = 0;
    for (index, flow) in (0_u32..).zip(records) {
        if !tag::in_use(flow.tag) {
            assert_ne!(
                tag::state(flow.tag),
                tag::BUSY,
                "record {index} was never published"
            );
            continue;
        }
        let other = &records[flow.peer as usize];
        assert!(
            tag::in_use(other.tag),
            "record {index} has lost its other half: {flow:?}"
        );
        assert_eq!(other.peer, index, "{flow:?} and {other:?}");
        assert_ne!(flow.has(flow_flag::REPLY), other.has(flow_flag::REPLY));
        let addresses = (flow.source.to_mapped(), flow.destination.to_mapped());
        let tuple = (
            IpAddr::from(addresses.0),
            IpAddr::from(addresses.1),
            flow.source_port,
            flow.destination_port,
            flow.protocol(),
        );
        assert!(tuples.insert(tuple), "two records of {tuple:?}");
        let is_reply = flow.has(flow_flag::REPLY);
        half_open += usize::from(tag::state(flow.tag) == tag::HALF && !is_reply);
    }
    println!("{} records in use", tuples.len());
    assert_ne!(tuples.len(), 0, "no flow is there to look at");
    (tuples.len() / 2, half_open)
}

impl World {
    fn assert_whole(&self, scene: &Scene) {
        let (flows, half_open) = match scene.node {
            IpAddr::V4(_) => assert_whole(&self.records4()),
            IpAddr::V6(_) => assert_whole(&self.records6()),
        };
        assert_eq!(self.flows(), flows as i64, "counted by programs, and found");
        assert_eq!(
            self.half_open(),
            half_open as i64,
            "counted by programs, and found"
        );
    }
}
