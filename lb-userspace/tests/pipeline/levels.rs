//! Priority levels: which flow schema takes a connection, who is let in by its level's limit, and how
//! others are told.

use lb_admission::classify::Identities;
use lb_common::{
    addr::{Ip4, Ip6},
    flow::limit::{LEVELS, NODE, Seats},
    pipeline::Copied,
    verdict::{Action, Reason},
};
use lb_datapath::memory::Family;
use lb_objects::IpFamily;
use lb_packet::{TCP, UDP};
use node_lb::{
    admission::objects::Objects,
    config::AdmissionMode::{self, Audit, Enforce},
    memory::ProgrammedTables,
};

use crate::{
    conversation::{Conversation, Side},
    hooks::{Outcome, ingress},
    scene::{Client, Limits, Place, Scene},
};

/// The level has half of the node's seats, as catch-all has five shares, too.
fn seats_for(level: u32) -> u32 {
    2 * level
}

/// Who finds no seat is refused.
pub const REJECT: &str = "limitResponse: {type: Reject}";

/// A level whose object says this, beside its shares.
fn level_that(limited: &str) -> String {
    format!(
        "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {{name: tenant}}
spec: {{type: Limited, limited: {{nominalConcurrencyShares: 5, {limited}}}}}
"
    )
}

/// The same and a schema of it: `more` are fields of its specification.
fn objects(limited: &str, subject: &str, ingress: &str, more: &str) -> String {
    let level = level_that(limited);
    format!(
        "{level}---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {{name: tenant}}
spec:
  priorityLevelConfiguration: {{name: tenant}}
  rules:
  - subjects: [{subject}]
    ingress: [{ingress}]
    destinations: [{{namespaces: ['*']}}]
{more}"
    )
}

/// The same with a schema that takes everything.
pub fn for_all(limited: &str, more: &str) -> String {
    objects(limited, "{kind: Any}", "'*'", more)
}

/// A schema of a level that refuses at once.
fn schema(subject: &str, ingress: &str, more: &str) -> String {
    objects(REJECT, subject, ingress, more)
}

/// Everything belongs to the level.
fn all() -> String {
    schema("{kind: Any}", "'*'", "")
}

pub fn admit(tables: &mut ProgrammedTables, text: &str, mode: AdmissionMode, level: u32) {
    let mut objects = Objects::default();
    objects.read([("a.yaml".into(), Ok(text.as_bytes().to_vec()))]);
    assert_eq!(objects.errors, []);
    let in_force = objects.configuration.in_force();
    let pods = Identities::default();
    tables
        .admit(&in_force, mode, seats_for(level), pods)
        .unwrap();
}

pub fn tables(scene: &Scene, text: &str, mode: AdmissionMode, level: u32) -> ProgrammedTables {
    let mut tables = scene.tables();
    admit(&mut tables, text, mode, level);
    tables
}

/// Index of a level's limit.
pub fn index(tables: &ProgrammedTables, level: &str) -> u32 {
    let known = tables.numbered().known();
    let found = known.levels.iter().find(|known| known.level.name == level);
    LEVELS + found.unwrap().number
}

/// What is counted of a level, after a check that flows hold the seats that are in use, or that these linger.
pub fn level(scene: &Scene, tables: &ProgrammedTables, name: &str) -> Seats {
    fn held<A: Family>(tables: &ProgrammedTables, index: u32) -> u32 {
        let former = tables.former_flows::<A>().into_iter();
        let flows = former.chain([tables.flows::<A>()]);
        let places = flows.flat_map(|flows| flows.live().map(|flow| flow.place()));
        let of_each = places.flat_map(|place| place.limits());
        of_each
            .filter(|(limit, _)| *limit == index)
            .map(|(_, width)| width)
            .sum()
    }
    let index = index(tables, name);
    let held = match scene.family {
        IpFamily::V4 => held::<Ip4>(tables, index),
        IpFamily::V6 => held::<Ip6>(tables, index),
    };
    let seats = tables.seats(index);
    let held = held + tables.lingering(index - LEVELS);
    assert_eq!(u32::try_from(seats.used()), Ok(held), "{name}");
    seats
}

/// Connections of a schema: let in, let in above the limit, and refused.
pub fn counted(tables: &ProgrammedTables, schema: &str) -> (u64, u64, u64) {
    let known = tables.numbered().known();
    let found = known.schemas.iter().find(|known| known.name == schema);
    let counted = tables.flow_schema(found.unwrap().number);
    (counted.admitted, counted.over, counted.refused)
}

pub fn open(scene: &Scene, tables: &ProgrammedTables, port: u16) -> Outcome {
    ingress(tables, &scene.opening(port))
}

#[test]
fn a_full_level_refuses_and_others_do_not() {
    for scene in Scene::each() {
        let by_network = match scene.family {
            IpFamily::V4 => "{kind: CIDR, cidr: {cidr: 203.0.113.0/24}}",
            IpFamily::V6 => "{kind: CIDR, cidr: {cidr: '2001:db8:c::/64'}}",
        };
        let text = schema(by_network, "'*'", "");
        let tables = tables(&scene, &text, Enforce, 2);
        for port in 1..=2 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        for port in 3..=5 {
            let outcome = open(&scene, &tables, port);
            assert_eq!(
                (outcome.action, outcome.reason),
                (Action::Answer, Reason::ConcurrencyLimit)
            );
        }
        // The same packet again is the same connection.
        assert_eq!(open(&scene, &tables, 1).reason, Reason::ToEndpoint);
        let seats = level(&scene, &tables, "tenant");
        assert_eq!(
            (seats.used(), seats.highest, seats.refused, seats.over),
            (2, 2, 3, 0)
        );
        assert_eq!(counted(&tables, "tenant"), (2, 0, 3));

        // A pod's connection belongs to another level.
        let pod = Scene {
            client: Client::Pod,
            ..scene.clone()
        };
        for port in 1..=2 {
            assert_eq!(open(&pod, &tables, port).reason, Reason::Opened);
        }
        assert_eq!(
            open(&pod, &tables, 3).reason,
            Reason::ConcurrencyLimit,
            "as many as catch-all has"
        );
        assert_eq!(level(&scene, &tables, "catch-all").used(), 2);
        assert_eq!(counted(&tables, "catch-all"), (2, 0, 1));
        assert_eq!(tables.seats(NODE), Seats::default(), "it is divided");
    }
}

#[test]
fn the_ingress_of_a_rule_is_where_a_connection_comes_from() {
    for (ingress, expected) in [
        ("Pod", [("Pod", "tenant"), ("External", "catch-all")]),
        ("External", [("Pod", "catch-all"), ("External", "tenant")]),
        ("Node", [("Pod", "catch-all"), ("External", "catch-all")]),
    ] {
        for scene in Scene::each() {
            let tables = tables(&scene, &schema("{kind: Any}", ingress, ""), Enforce, 5);
            for (client, schema) in expected {
                let scene = Scene {
                    client: match client {
                        "Pod" => Client::Pod,
                        _ => Client::Outside,
                    },
                    ..scene.clone()
                };
                let before = counted(&tables, schema).0;
                assert_eq!(open(&scene, &tables, 1).reason, Reason::Opened);
                assert_eq!(
                    counted(&tables, schema).0,
                    before + 1,
                    "{ingress}: {client}"
                );
            }
        }
    }
}

#[test]
fn an_audit_counts_who_would_be_refused() {
    for scene in Scene::each() {
        let tables = tables(&scene, &all(), Audit, 2);
        for port in 1..=5 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        let seats = level(&scene, &tables, "tenant");
        assert_eq!(
            (seats.used(), seats.highest, seats.refused, seats.over),
            (5, 5, 0, 3)
        );
        assert_eq!(counted(&tables, "tenant"), (5, 3, 0));
    }
}

#[test]
fn clients_are_told_as_the_schema_says() {
    for (answer, tcp, udp) in [
        ("RST", None, Some((3, 3))),
        ("ICMP", Some((3, 13)), Some((3, 3))),
        ("Drop", None, None),
    ] {
        for scene in Scene::each() {
            let more = format!("  rejectAnswer: {{concurrencyLimit: {answer}}}\n");
            let tables = tables(&scene, &schema("{kind: Any}", "'*'", &more), Enforce, 1);
            assert_eq!(open(&scene, &tables, 1).reason, Reason::Opened);
            let outcome = open(&scene, &tables, 2);
            assert_eq!(outcome.reason, Reason::ConcurrencyLimit);
            if answer == "Drop" {
                assert_eq!(outcome.action, Action::Drop);
                continue;
            }
            assert_eq!(outcome.action, Action::Answer);
            let read = outcome.read();
            read.assert_checksums();
            let expected = match scene.protocol {
                UDP => udp,
                _ => tcp,
            };
            let expected = expected.map(|kind| match (scene.family, kind) {
                (IpFamily::V4, kind) => kind,
                (IpFamily::V6, (3, 13)) => (1, 1),
                (IpFamily::V6, _) => (1, 4),
            });
            match expected {
                Some(kind) => assert_eq!(read.icmp_kind(), kind, "{answer}"),
                None => assert_eq!(read.protocol, scene.protocol, "a reset"),
            }
        }
    }
}

#[test]
fn a_level_without_seats_lets_nobody_in_and_an_exempt_one_everybody() {
    for scene in Scene::each() {
        let jail = all().replace(
            "nominalConcurrencyShares: 5",
            "nominalConcurrencyShares: 0, borrowingLimitPercent: 0",
        );
        let jailed = tables(&scene, &jail, Enforce, 5);
        assert_eq!(open(&scene, &jailed, 1).reason, Reason::ConcurrencyLimit);
        assert_eq!(level(&scene, &jailed, "tenant").used(), 0);

        let exempt = all().replace(
            "priorityLevelConfiguration: {name: tenant}",
            "priorityLevelConfiguration: {name: exempt}",
        );
        let exempt = tables(&scene, &exempt, Enforce, 1);
        for port in 1..=20 {
            assert_eq!(open(&scene, &exempt, port).reason, Reason::Opened);
        }
        assert_eq!(level(&scene, &exempt, "exempt").used(), 20);
    }
}

#[test]
fn what_the_cluster_depends_on_is_let_in_by_a_full_level() {
    for scene in Scene::each() {
        let scene = Scene {
            limits: Limits {
                essential: true,
                ..Limits::default()
            },
            ..scene
        };
        let tables = tables(&scene, &all(), Enforce, 1);
        for port in 1..=3 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        let seats = level(&scene, &tables, "tenant");
        assert_eq!((seats.used(), seats.exempted, seats.refused), (1, 2, 0));
    }
}

#[test]
fn the_seats_of_a_level_and_of_a_service_are_taken_both_or_neither() {
    for scene in Scene::each() {
        let scene = Scene {
            limits: Limits {
                service: 3,
                ..Limits::default()
            },
            ..scene
        };
        let tables = tables(&scene, &all(), Enforce, 2);
        for port in 1..=2 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        assert_eq!(open(&scene, &tables, 3).reason, Reason::ConcurrencyLimit);
        let of_service = tables.seats(1);
        assert_eq!((of_service.used(), of_service.refused), (2, 0));
        assert_eq!(level(&scene, &tables, "tenant").refused, 1);
    }
}

#[test]
fn a_connection_that_ends_gives_its_seat_back() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let tables = tables(&scene, &all(), Enforce, 1);
        let mut talk = Conversation::established(&scene, &tables, 1);
        assert_eq!(open(&scene, &tables, 2).reason, Reason::ConcurrencyLimit);
        assert_eq!(level(&scene, &tables, "tenant").used(), 1);
        talk.close(Side::Client);
        assert_eq!(level(&scene, &tables, "tenant").used(), 0);
        assert_eq!(open(&scene, &tables, 2).reason, Reason::Opened);
    }
}

#[test]
fn connections_keep_the_level_that_they_began_with() {
    for scene in Scene::each() {
        let mut tables = tables(&scene, &all(), Enforce, 4);
        for port in 1..=2 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        // The schema is gone.
        admit(&mut tables, &level_that(REJECT), Enforce, 4);
        assert_eq!(open(&scene, &tables, 3).reason, Reason::Opened);
        assert_eq!(level(&scene, &tables, "tenant").used(), 2);
        assert_eq!(level(&scene, &tables, "catch-all").used(), 1);
    }
}

#[test]
fn a_flow_in_the_next_table_has_the_same_level() {
    for scene in Scene::each() {
        let mut tables = tables(&scene, &all(), Enforce, 4);
        assert_eq!(open(&scene, &tables, 1).reason, Reason::Opened);
        tables.begin_resize(scene.flow_records * 2);
        assert_eq!(tables.copy_flows(), [Copied::Copied]);
        tables.end_resize();
        assert_eq!(level(&scene, &tables, "tenant").used(), 1);
        assert_eq!(open(&scene, &tables, 1).reason, Reason::ToEndpoint);
    }
}

/// With all of these, a connection is counted, and gives its seat back.
#[test]
fn levels_go_together_with_everything() {
    use lb_objects::Algorithm::{Maglev, Random};
    const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);
    for scene in Scene::each() {
        for place in [Place::Local, Place::Remote, Place::Host] {
            for client in [Client::Outside, Client::Pod] {
                for bypass in [true, false] {
                    for (algorithm, affinity) in
                        [(Random, None), (Maglev, None), (Random, Some(MINUTE))]
                    {
                        let scene = Scene {
                            endpoints: vec![place; 3],
                            client,
                            bypass,
                            algorithm,
                            affinity,
                            ..scene.clone()
                        };
                        let tables = tables(&scene, &all(), Enforce, 1);
                        let reasons = [1, 2].map(|port| open(&scene, &tables, port).reason);
                        assert_eq!(
                            reasons,
                            [Reason::Opened, Reason::ConcurrencyLimit],
                            "{scene:?}"
                        );
                        assert_eq!(level(&scene, &tables, "tenant").used(), 1, "{scene:?}");
                    }
                }
            }
        }
    }
}
