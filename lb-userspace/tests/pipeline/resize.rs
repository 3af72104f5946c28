//! Flow tables that change their size: packets of flows that are still in the old table.

use std::net::SocketAddr;

use lb_common::{
    addr::{Ip4, Ip6},
    flow::{Record, Stage, flow_flag},
    pipeline::Copied,
    verdict::{Action, Reason},
};
use lb_datapath::memory::Family;
use lb_objects::IpFamily;
use lb_packet::{
    TCP, UDP,
    tcp_flag::{ACK, SYN},
};
use node_lb::{memory::ProgrammedTables, plan::FrontendKind};

use crate::{
    conversation::{Conversation, Side},
    hooks::{Outcome, ingress, through},
    scene::{Client, Place, Scene},
};

/// Sizes of the next table: larger and smaller than the old one.
pub const SIZES: [u32; 2] = [4096, 64];
/// The client's port.
pub const PORT: u16 = 4000;

/// Source NAT, the client's own address, and endpoints past the stack or behind it.
pub fn scenes() -> impl Iterator<Item = Scene> {
    let families = [IpFamily::V4, IpFamily::V6].into_iter();
    families.flat_map(|family| {
        let scene = Scene::new(family, TCP);
        let kept = Scene {
            endpoints: vec![Place::Local; 3],
            frontend: FrontendKind::LoadBalancerIp,
            external: lb_objects::TrafficPolicy::Local,
            ..scene.clone()
        };
        let several = Scene {
            endpoints: vec![Place::Remote; 3],
            ..scene.clone()
        };
        [scene, kept, several]
    })
}

/// The state of a conversation.
#[derive(Clone, Copy)]
pub struct Progress {
    pub there: Option<(SocketAddr, SocketAddr)>,
    pub next: [u32; 2],
}

impl Progress {
    pub fn of(talk: &Conversation<'_>) -> Self {
        Self {
            there: talk.there,
            next: talk.next,
        }
    }

    pub fn go_on<'a>(self, scene: &'a Scene, tables: &'a ProgrammedTables) -> Conversation<'a> {
        let mut talk = Conversation::new(scene, tables, PORT);
        (talk.there, talk.next) = (self.there, self.next);
        talk
    }
}

pub fn established(scene: &Scene, tables: &ProgrammedTables) -> Progress {
    Progress::of(&Conversation::established(scene, tables, PORT))
}

/// The flows of a scene's family, in the old table if `before` is set, or else in the next one.
fn directions(scene: &Scene, tables: &ProgrammedTables, before: bool) -> usize {
    fn count<A: Family>(tables: &ProgrammedTables, before: bool) -> usize {
        match before {
            true => tables.former_flows::<A>().unwrap().live().count(),
            false => tables.flows::<A>().live().count(),
        }
    }
    match scene.family {
        IpFamily::V4 => count::<Ip4>(tables, before),
        IpFamily::V6 => count::<Ip6>(tables, before),
    }
}

#[test]
fn a_packet_of_either_side_finds_its_flow_in_the_table_of_before() {
    for scene in scenes() {
        for (size, side) in SIZES.into_iter().flat_map(|n| Side::BOTH.map(|s| (n, s))) {
            let mut tables = scene.tables();
            let before = established(&scene, &tables);
            tables.begin_resize(size);
            let mut talk = before.go_on(&scene, &tables);
            let outcome = talk.send(side, ACK, b"data");
            let reason = match side {
                Side::Client => Reason::ToEndpoint,
                Side::Endpoint => Reason::ToClient,
            };
            assert_eq!(outcome.reason, reason);
            assert_eq!(talk.there, before.there);
            assert_eq!(talk.stage(), Some(Stage::Established));
            assert_eq!(directions(&scene, &tables, false), 2);
            assert_eq!(tables.stats(1).connections, 1, "it is the same connection");
            // Both sides go on, to its end, with one table only.
            let now = Progress::of(&talk);
            tables.end_resize();
            let mut talk = now.go_on(&scene, &tables);
            for side in Side::BOTH {
                talk.send(side, ACK, b"more");
            }
            assert_eq!(talk.there, before.there);
            talk.close(side);
            assert_eq!(talk.stage(), Some(Stage::Closed));
        }
    }
}

#[test]
fn a_flow_through_the_stack_is_found_where_its_answers_leave() {
    for scene in Scene::each() {
        let scene = Scene {
            endpoints: vec![Place::Host],
            client: Client::Outside,
            ..scene
        };
        let mut tables = scene.tables();
        let opened = through(&tables, &scene.opening(PORT));
        assert_eq!(opened.reason, Reason::Opened);
        let (from, to) = (opened.read().from(), opened.read().to());
        tables.begin_resize(SIZES[0]);
        let answer = through(&tables, &scene.frame(to, from, SYN | ACK, b""));
        assert_eq!(answer.reason, Reason::ToClient);
        assert_eq!(answer.read().from(), scene.target());
    }
}

#[test]
fn a_flow_comes_whole_or_not_at_all() {
    for scene in scenes() {
        let mut tables = scene.tables();
        let before = established(&scene, &tables);
        // The smallest table there is, full of other flows.
        tables.begin_resize(1);
        for port in 1..100 {
            ingress(&tables, &scene.opening(port));
        }
        let full = directions(&scene, &tables, false);
        assert!(full >= 30, "{full}");
        for side in Side::BOTH {
            let mut talk = before.go_on(&scene, &tables);
            let outcome = talk.send(side, ACK, b"data");
            assert_eq!(outcome.action, Action::Drop);
            assert_eq!(outcome.reason, Reason::FlowTableFull);
            assert!(directions(&scene, &tables, false) <= full);
        }
        assert!(tables.copy_flows().contains(&Copied::Left));
        assert!(
            directions(&scene, &tables, false).is_multiple_of(2),
            "half a flow"
        );
    }
}

#[test]
fn a_repeated_syn_finds_what_it_opened_before() {
    for scene in scenes() {
        let mut tables = scene.tables();
        let (before, first) = {
            let mut talk = Conversation::new(&scene, &tables, PORT);
            let first = talk.segment(Side::Client, SYN);
            talk.send(Side::Client, SYN, b"");
            (Progress::of(&talk), first)
        };
        tables.begin_resize(SIZES[0]);
        let mut talk = before.go_on(&scene, &tables);
        let again = talk.deliver(Side::Client, first, b"");
        assert_eq!(again.reason, Reason::ToEndpoint);
        assert_eq!(talk.there, before.there);
        talk.send(Side::Endpoint, SYN | ACK, b"");
        talk.send(Side::Client, ACK, b"");
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert_eq!(tables.stats(1).half_open, 0);
    }
}

#[test]
fn a_closed_flow_gives_way_to_a_new_connection_as_ever() {
    for scene in scenes() {
        let mut tables = scene.tables();
        let mut before = {
            let mut talk = Conversation::established(&scene, &tables, PORT);
            talk.close(Side::Client);
            assert_eq!(talk.stage(), Some(Stage::Closed));
            Progress::of(&talk)
        };
        tables.begin_resize(SIZES[0]);
        before.next[0] = before.next[0].wrapping_add(1 << 20);
        let mut talk = before.go_on(&scene, &tables);
        let opened = talk.send(Side::Client, SYN, b"");
        assert_eq!(opened.reason, Reason::Opened);
        assert_eq!(talk.stage(), Some(Stage::Unreplied));
        // Flows that are left in the old table do not come back.
        assert!(
            tables
                .copy_flows()
                .iter()
                .all(|copied| *copied != Copied::Copied)
        );
        assert_eq!(talk.stage(), Some(Stage::Unreplied));
    }
}

#[test]
fn a_port_of_a_flow_in_the_table_of_before_is_not_given_away() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene {
            ports: node_lb::config::PortRange {
                first: 10_000,
                last: 10_003,
            },
            ..Scene::new(family, TCP)
        };
        let mut tables = scene.tables();
        let mut sources: Vec<_> = (1..=3).map(|port| source(&scene, &tables, port)).collect();
        tables.begin_resize(SIZES[0]);
        sources.push(source(&scene, &tables, 4));
        sources.sort();
        sources.dedup();
        assert_eq!(sources.len(), 4);
        let none = ingress(&tables, &scene.opening(5));
        assert_eq!(none.reason, Reason::SnatPortsExhausted);
    }
}

/// The source that the endpoint sees of a new connection.
fn source(scene: &Scene, tables: &ProgrammedTables, port: u16) -> SocketAddr {
    let opened = ingress(tables, &scene.opening(port));
    assert_eq!(opened.reason, Reason::Opened);
    opened.read().from()
}

#[test]
fn all_flows_are_copied_once() {
    for scene in Scene::each() {
        let mut tables = scene.tables();
        let flows = 50;
        let opened: Vec<Outcome> = (1..=flows)
            .map(|port| ingress(&tables, &scene.opening(port)))
            .collect();
        tables.begin_resize(SIZES[0]);
        // Some flows are copied by their own packets.
        for port in 1..=10 {
            ingress(
                &tables,
                &scene.frame(scene.client(port), scene.target(), ACK, b""),
            );
        }
        let copied = tables.copy_flows();
        let count = |what| copied.iter().filter(|copied| **copied == what).count();
        assert_eq!((count(Copied::Merged), count(Copied::Copied)), (10, 40));
        assert_eq!(tables.copy_flows(), [Copied::Merged; 50]);
        assert_eq!(directions(&scene, &tables, false), 100);
        assert_eq!(
            directions(&scene, &tables, true),
            100,
            "what was there stays"
        );
        tables.end_resize();
        for (port, before) in (1..=flows).zip(opened) {
            let frame = scene.frame(scene.client(port), scene.target(), SYN, b"");
            let again = ingress(&tables, &frame);
            assert_eq!(again.reason, Reason::ToEndpoint);
            assert_eq!(again.read().from(), before.read().from());
        }
    }
}

#[test]
fn flows_that_have_ended_since_do_not_come_back() {
    for scene in scenes() {
        let mut tables = scene.tables();
        let before = established(&scene, &tables);
        tables.begin_resize(SIZES[0]);
        let mut talk = before.go_on(&scene, &tables);
        talk.send(Side::Client, ACK, b"data");
        end_all(&scene, &tables);
        assert_eq!(tables.copy_flows(), []);
        assert_eq!(directions(&scene, &tables, false), 0);
        let from = before.there.unwrap().1;
        let straggler = scene.frame(from, before.there.unwrap().0, ACK, b"");
        ingress(&tables, &straggler);
        assert_eq!(directions(&scene, &tables, false), 0);
    }
}

/// Ends the flows in the next table, as the agent does.
fn end_all(scene: &Scene, tables: &ProgrammedTables) {
    fn end<A: Family>(tables: &ProgrammedTables) {
        use lb_common::flow::{record::kill, slots::Slots};
        let flows = tables.flows::<A>();
        for index in 0..=flows.mask() {
            kill(flows.slot(index).unwrap(), 0);
        }
    }
    match scene.family {
        IpFamily::V4 => end::<Ip4>(tables),
        IpFamily::V6 => end::<Ip6>(tables),
    }
}

#[test]
fn half_a_flow_is_left_behind() {
    let scene = Scene::new(IpFamily::V4, UDP);
    let mut tables = scene.tables();
    let opened = ingress(&tables, &scene.opening(PORT));
    let (from, to) = (opened.read().from(), opened.read().to());
    // The agent ends the client's direction of a flow to an endpoint that no longer serves.
    {
        use lb_common::flow::{record::kill, slots::Slots};
        let flows = tables.flows::<Ip4>();
        let is_forward = |record: &Record<Ip4>| {
            // SAFETY: only this thread uses the table.
            let flow = unsafe { record.as_ref() };
            !flow.has(flow_flag::REPLY) && flow.source_port == PORT
        };
        let mut records = (0..=flows.mask()).filter_map(|index| flows.slot(index));
        let forward = records.find(is_forward);
        kill(forward.unwrap(), 0);
    }
    tables.begin_resize(SIZES[0]);
    let answer = ingress(&tables, &scene.frame(to, from, ACK, b""));
    assert_eq!(answer.reason, Reason::NotService);
    assert_eq!(tables.copy_flows(), []);
    assert_eq!(directions(&scene, &tables, false), 0);
}
