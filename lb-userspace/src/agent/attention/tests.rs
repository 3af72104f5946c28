use std::fmt::Write as _;

use super::*;
use crate::{
    agent::status::{
        AtLimit, Busiest, Difference, Failing, FlowTable, Map, NotProgrammed, Pressed, SilentNode,
        Syncing,
    },
    check::Level,
    flows::Limit,
};

/// An agent that has nothing to complain of.
fn healthy() -> Status {
    Status {
        node: "worker-1".to_owned(),
        in_sync_since: Some("2026-11-01T00:00:00Z".to_owned()),
        last_sync: Some("2026-11-01T00:00:00Z".to_owned()),
        maps: vec![map("SERVICES", 79, None)],
        connection_limits: vec![limit(None, 9, 10), limit(Some("shop/web"), 500, 0)],
        flows: Some([table("IPv4", 100), table("IPv6", 0)]),
        ..Status::default()
    }
}

fn map(name: &str, entries: u32, setting: Option<&str>) -> Map {
    Map {
        name: name.to_owned(),
        entries,
        capacity: 100,
        setting: setting.map(str::to_owned),
    }
}

fn table(family: &str, occupied: u32) -> FlowTable {
    FlowTable {
        family: family.to_owned(),
        flows: u64::from(occupied / 2),
        records: 1000,
        occupied,
        flows_of_one: 250,
        busiest: None,
    }
}

fn busiest(flows: u64) -> Busiest {
    Busiest {
        service_port: "shop/web:http".to_owned(),
        protocol: "TCP".to_owned(),
        flows,
    }
}

fn limit(service: Option<&str>, in_use: u32, limit: u32) -> ConnectionLimit {
    ConnectionLimit {
        service: service.map(str::to_owned),
        limit,
        in_use,
        refused: 17,
        ..ConnectionLimit::default()
    }
}

fn level(name: &str, in_use: u32, limit: u32) -> PriorityLevel {
    PriorityLevel {
        name: name.to_owned(),
        in_use,
        limit,
        refused: 3,
        waiting: 4,
        ..PriorityLevel::default()
    }
}

fn not_programmed(service_port: &str) -> NotProgrammed {
    NotProgrammed {
        service_port: service_port.to_owned(),
        protocol: "TCP".to_owned(),
        family: "IPv4".to_owned(),
        reason: "SERVICES is full".to_owned(),
        remedy: "delete what fills the map".to_owned(),
    }
}

/// The only finding about a state that differs from a healthy one in one thing.
fn only(change: impl FnOnce(&mut Status)) -> (Level, String) {
    let mut status = healthy();
    change(&mut status);
    let found = of(&status);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].section.is_some(), "no page says more: {found:?}");
    let mut text = found[0].found.clone();
    let remedy = found[0].remedy.as_ref().expect("there is a remedy");
    write!(text, " -> {remedy}").expect("a String takes any text");
    (found[0].level, text)
}

#[test]
fn a_healthy_agent_needs_no_attention() {
    assert_eq!(of(&healthy()), []);
    // What passes by itself.
    let mut busy = healthy();
    busy.age_ms = 9_000;
    busy.syncing = Some(Syncing {
        for_ms: 9_000,
        services: 10_000,
        done: 3,
    });
    assert_eq!(of(&busy), []);
}

#[test]
fn each_trouble_is_a_sentence_with_a_remedy() {
    let check = |change: fn(&mut Status), level: Level, found: &str, remedy: &str| {
        let (is, text) = only(change);
        assert_eq!(is, level, "{text}");
        let (start, end) = text.split_once(" -> ").unwrap();
        assert!(start.contains(found), "{found:?} in {start:?}");
        assert!(end.contains(remedy), "{remedy:?} in {end:?}");
    };
    let (warning, failure) = (Level::Warning, Level::Failure);
    check(
        |status| status.not_ready = vec!["devices (ib0 has no programs)".to_owned()],
        failure,
        "the agent is not ready: devices (ib0 has no programs)",
        "the log says more",
    );
    check(
        |status| {
            status.verification.found.within_an_hour = 3;
            status.verification.found.latest = vec![Difference {
                at: "2026-11-01T00:00:00Z".to_owned(),
                what: "PLANS 7 of shop/web:http TCP (IPv4) has been changed".to_owned(),
            }];
        },
        warning,
        "3 records of the data plane were not as the agent had written them within the last hour, and were put \
         right; the latest, at 2026-11-01T00:00:00Z: PLANS 7 of shop/web:http TCP (IPv4) has been changed",
        "find what else writes to node-lb's maps",
    );
    check(
        |status| {
            status.test_packets.found.within_an_hour = 2;
            status.test_packets.found.latest = vec![Difference {
                at: "2026-11-01T00:00:00Z".to_owned(),
                what: "10.96.0.10:80 TCP of shop/web: unknown-port (sent on)".to_owned(),
            }];
        },
        failure,
        "something else with 2 test packets than Services ask for within the last hour; the latest, at \
         2026-11-01T00:00:00Z: 10.96.0.10:80 TCP of shop/web: unknown-port (sent on)",
        "`node-lb verify` says what differs now",
    );
    check(
        |status| {
            status.silent_nodes = vec![SilentNode {
                node: "worker-2".to_owned(),
                endpoints: 3,
            }];
        },
        warning,
        "none of the 3 endpoints on node worker-2 that were tried answers",
        "look at node worker-2 and at the pods' network",
    );
    check(
        |status| status.age_ms = 12_345,
        failure,
        "busy with the same changes for 12 s",
        "/livez",
    );
    check(
        |status| status.source_problems = vec!["services: 403 Forbidden".to_owned()],
        warning,
        "services: 403 Forbidden",
        "correct the object, or what keeps the agent from the API server",
    );
    check(
        |status| status.node_problems = vec!["pins are gone: mount it".to_owned()],
        warning,
        "pins are gone",
        "node-lb check",
    );
    check(
        |status| status.local_addresses_left_out = 3,
        warning,
        "3 of the node's own addresses",
        "--local-address-table-size",
    );
    check(
        |status| status.not_programmed = vec![not_programmed("shop/web:http")],
        failure,
        "shop/web:http TCP IPv4 is not served as it should be: SERVICES is full",
        "delete what fills the map",
    );
    check(
        |status| {
            status.at_limit = vec![AtLimit {
                service_port: "shop/web:http".to_owned(),
                protocol: "TCP".to_owned(),
                family: "IPv6".to_owned(),
                exhausted: vec![Limit::SnatPorts.name().to_owned()],
                remedies: vec![Limit::SnatPorts.remedy().to_owned()],
            }];
        },
        failure,
        "shop/web:http TCP IPv6 has no more ports for source NAT",
        "--snat-ports",
    );
    check(
        |status| {
            status.pressed = vec![Pressed {
                service_port: "shop/web:http".to_owned(),
                protocol: "TCP".to_owned(),
                half_open: 300,
                gave_way: 0,
            }];
        },
        warning,
        "shop/web:http TCP has 300 half-open flows",
        "node-lb flows",
    );
    check(
        |status| status.maps[0] = map("MAGLEV", 80, Some("--maglev-tables")),
        warning,
        "map MAGLEV is 80 % full: 80 of 100 entries",
        "a larger --maglev-tables",
    );
    check(
        |status| status.maps[0] = map("WAYS_BACK", 100, None),
        failure,
        "map WAYS_BACK is 100 % full",
        "delete what fills it",
    );
    check(
        |status| status.flows = Some([table("IPv4", 0), table("IPv6", 800)]),
        warning,
        "800 of 1000 records of the IPv6 flow table",
        "--flow-table-size",
    );
    check(
        |status| {
            let mut tables = [table("IPv4", 400), table("IPv6", 0)];
            tables[0].busiest = Some(busiest(200));
            status.flows = Some(tables);
        },
        warning,
        "shop/web:http TCP has 200 of the 250 flows that one service port may have in the IPv4 flow table",
        "node-lb top",
    );
    check(
        |status| {
            status.failing = vec![Failing {
                service_port: "shop/web:http".to_owned(),
                protocol: "TCP".to_owned(),
                endpoints: vec!["10.244.1.7:80".parse().unwrap()],
            }];
        },
        warning,
        "endpoints of shop/web:http TCP refuse connections or do not answer: 10.244.1.7:80",
        "readiness probe",
    );
    check(
        |status| status.connection_limits[0].in_use = 10,
        warning,
        "the node has all of its 10 connections, and refuses more: 17 so far",
        "raise --max-connections",
    );
    check(
        |status| status.connection_limits[1].limit = 500,
        warning,
        "Service shop/web has all of its 500 connections",
        "node-lb.io/max-connections",
    );
    check(
        |status| {
            status.connection_limits[1].pressed = true;
            status.connection_limits[1].slow_handshakes = 70;
        },
        warning,
        "Service shop/web has 70 slow handshakes",
        "node-lb flows",
    );
    check(
        |status| status.priority_levels = vec![level("batch", 20, 20), level("web", 19, 20)],
        warning,
        "priority level batch has no seat left of 20: 4 connections wait, 3 were refused so far",
        "node-lb admission connections",
    );
    check(
        |status| {
            status.priority_levels = vec![PriorityLevel {
                pressed: true,
                ..level("web", 1, 20)
            }];
        },
        warning,
        "priority level web has 0 slow handshakes",
        "node-lb flows",
    );
    check(
        |status| status.admission_problems = vec!["FlowSchema a: no such level".to_owned()],
        warning,
        "FlowSchema a: no such level",
        "its last valid version is in force",
    );
    check(
        |status| status.health_checks.problems = vec!["Service a/b: cannot listen".to_owned()],
        failure,
        "cannot listen",
        "ss -ltnp",
    );
}

#[test]
fn an_exempt_level_and_one_without_seats_are_never_full() {
    let mut status = healthy();
    status.priority_levels = vec![level("none", 0, 0), level("exempt", 30, 20)];
    status.priority_levels[1].exempt = true;
    assert_eq!(of(&status), []);
}

#[test]
fn the_worst_comes_first_and_many_of_a_kind_are_cut_short() {
    let mut status = healthy();
    status.source_problems = vec!["a broken manifest".to_owned()];
    status.not_programmed = (0..7)
        .map(|n| not_programmed(&format!("shop/web-{n}:")))
        .collect();
    let found = of(&status);
    let levels: Vec<_> = found.iter().map(|finding| finding.level).collect();
    assert_eq!(
        levels,
        [[Level::Failure; 5].as_slice(), &[Level::Warning]].concat()
    );
    assert!(found[0].found.starts_with("shop/web-0: TCP IPv4"));
    assert!(found[4].found.ends_with("(and 2 more like this)"));
    assert_eq!(found[5].found, "a broken manifest");
}

#[test]
fn programs_get_both_in_one_object() {
    let mut status = healthy();
    status.not_programmed = vec![not_programmed("shop/web:http")];
    let report = serde_json::to_value(Report::of(status.clone())).unwrap();
    assert_eq!(report["attention"][0]["level"], "failure");
    assert_eq!(report["node"], "worker-1");
    // Who reads the agent's own state reads it here, too.
    assert_eq!(serde_json::from_value::<Status>(report).unwrap(), status);
}
