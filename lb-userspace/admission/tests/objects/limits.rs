//! The static limits, against the vectors.

use lb_admission::{
    configuration::InForce,
    level::{ConnectionLimits, Level, LevelKind, LimitResponse, Limited, Queuing},
    limits::{limits, max_seats},
    schema::Schema,
};
use serde_json::{Value, json};

use crate::support::{configuration, vectors};

/// Shares, lendable and borrowing percentage of levels whose vectors leave them out, and their
/// queues: those of Kubernetes' default configuration and tests.
fn level(vector: &Value) -> Level {
    let name = vector["name"].as_str().unwrap();
    let (lendable, hand_size) = match name {
        "exempt" => (0, None),
        "catch-all" => (0, None),
        "system" => (33, Some(6)),
        "node-high" => (25, Some(6)),
        "leader-election" => (0, Some(4)),
        "workload-high" | "global-default" => (50, Some(6)),
        "workload-low" => (90, Some(6)),
        "noxu1" | "noxu2" => (0, Some(1)),
        other => panic!("unknown level {other}"),
    };
    if let Some(given) = vector.get("lendablePercent") {
        assert_eq!(*given, json!(lendable), "{name}");
    }
    Level {
        name: name.to_owned(),
        shares: u32::try_from(vector["shares"].as_u64().unwrap()).unwrap(),
        lendable_percent: lendable,
        kind: match name {
            "exempt" => LevelKind::Exempt,
            _ => LevelKind::Limited(Limited {
                borrowing_limit_percent: name.starts_with("noxu").then_some(0),
                response: match hand_size {
                    None => LimitResponse::Reject,
                    Some(hand_size) => LimitResponse::Queue(Queuing {
                        queues: 128,
                        hand_size,
                        queue_length_limit: 50,
                    }),
                },
                connections: ConnectionLimits::default(),
                audited: false,
            }),
        },
    }
}

#[test]
fn limits_are_apfs() {
    for config in vectors()["c_limits"]["configs"].as_array().unwrap() {
        let server_limit =
            u32::try_from(config["serverConcurrencyLimit"].as_u64().unwrap()).unwrap();
        let expected = config["levels"].as_array().unwrap();
        let levels: Vec<_> = expected.iter().map(level).collect();
        let shares: u32 = levels.iter().map(|level| level.shares).sum();
        assert_eq!(json!(shares), config["shareSum"]);
        let limits = limits(&levels, server_limit);
        let sum: u32 = limits.iter().map(|limits| limits.nominal).sum();
        assert_eq!(json!(sum), config["nominalCLSum"]);
        for (limits, expected) in limits.iter().zip(expected) {
            for (field, value) in expected.as_object().unwrap() {
                let own = match field.as_str() {
                    "nominalCL" => json!(limits.nominal),
                    "lendableCL" => json!(limits.lendable),
                    "borrowingCL" => json!(limits.borrowing),
                    "minCL" => json!(limits.min),
                    "maxCL" => json!(limits.max),
                    "maxSeatsPerRequest" => json!(limits.max_seats),
                    // The input, and what borrowing computes from it.
                    _ => continue,
                };
                assert_eq!(own, *value, "{field} of {expected} at {server_limit}");
            }
        }
    }
}

#[test]
fn percentages_are_rounded_half_up() {
    for vector in vectors()["c_limits"]["roundHalfAwayFromZero"]
        .as_array()
        .unwrap()
    {
        let number = |field: &str| u32::try_from(vector[field].as_u64().unwrap()).unwrap();
        let level = Level {
            shares: 1,
            lendable_percent: number("lendablePercent"),
            ..Level::catch_all()
        };
        let limits = limits(&[level], number("nominalCL"))[0];
        assert_eq!(limits.nominal, number("nominalCL"));
        assert_eq!(limits.lendable, number("lendableCL"), "{vector}");
    }
}

#[test]
fn wide_connections_are_cut() {
    for vector in vectors()["c_limits"]["maxSeats"].as_array().unwrap() {
        let number = |field: &str| u32::try_from(vector[field].as_u64().unwrap()).unwrap();
        let cut = max_seats(number("nominalCL"), number("handSize"));
        assert_eq!(cut, number("maxSeats"), "{vector}");
    }
}

#[test]
fn no_numbers_are_too_large() {
    let huge = Level {
        shares: u32::MAX,
        lendable_percent: 100,
        kind: LevelKind::Limited(Limited {
            borrowing_limit_percent: Some(u32::MAX),
            response: LimitResponse::Reject,
            connections: ConnectionLimits::default(),
            audited: false,
        }),
        ..Level::catch_all()
    };
    let all = limits(&[huge.clone(), huge, Level::exempt()], u32::MAX);
    assert_eq!((all[0].nominal, all[0].min), (1 << 31, 0));
    assert_eq!((all[0].borrowing, all[0].max), (u32::MAX, u32::MAX));
    assert_eq!((all[2].nominal, all[2].max), (0, u32::MAX));
    assert_eq!(
        limits(&[Level::exempt()], 5)[0].nominal,
        0,
        "no shares at all"
    );
}

#[test]
fn schemas_are_asked_in_order() {
    let order = &vectors()["g_extras"]["flowSchemaOrder"]["example"];
    let mut yaml = String::new();
    for schema in order["input"].as_array().unwrap() {
        let (name, precedence) = (schema[0].as_str().unwrap(), &schema[1]);
        // Names here are DNS subdomains, and "A" is not one.
        let name = if name == "A" { "0-a" } else { name };
        if !["exempt", "catch-all"].contains(&name) {
            yaml += &format!(
                "---\nkind: FlowSchema\nmetadata: {{name: {name}}}\nspec: {{matchingPrecedence: {precedence}, \
                 priorityLevelConfiguration: {{name: catch-all}}}}\n"
            );
        }
    }
    let InForce { schemas, .. } = configuration(&yaml).in_force();
    let names: Vec<_> = schemas
        .iter()
        .map(|active| active.schema.name.as_str())
        .collect();
    let expected =
        order["order"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| match name.as_str().unwrap() {
                "A" => "0-a",
                name => name,
            });
    assert_eq!(names, expected.collect::<Vec<_>>());

    // Kubernetes' example has a capital letter; names are compared byte by byte.
    let orders = ["A", "a"].map(|name| Schema::new(name, 1000, "x"));
    assert!(orders[0].order() < orders[1].order());
}
