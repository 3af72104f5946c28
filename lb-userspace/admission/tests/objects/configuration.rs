//! Objects come, change and go; what is in force is always complete and valid.

use std::fmt::Write;

use lb_admission::{
    configuration::{Configuration, MAX_LIMITED_NAMESPACES, MAX_RULES},
    level::{Level, MAX_LEVELS},
    objects::{Kind, ObjectRef, status::Condition},
    schema::Schema,
};

use crate::support::{configuration, fields, objects};

fn level(name: &str, shares: i32) -> String {
    format!(
        "---\nkind: PriorityLevel\nmetadata: {{name: {name}}}\nspec: {{type: Limited, limited: \
         {{nominalConcurrencyShares: {shares}, limitResponse: {{type: Queue, queuing: {{handSize: 6}}}}}}}}\n"
    )
}

fn schema(name: &str, level: &str, more: &str) -> String {
    format!(
        "---\nkind: FlowSchema\nmetadata: {{name: {name}}}\nspec: {{priorityLevelConfiguration: {{name: {level}}}{more}}}\n"
    )
}

fn reference(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef {
        kind,
        name: name.to_owned(),
    }
}

fn schemas(configuration: &Configuration) -> Vec<String> {
    let in_force = configuration.in_force();
    let name = |active: &lb_admission::configuration::ActiveSchema| {
        format!(
            "{} {}",
            active.schema.name, in_force.levels[active.level].name
        )
    };
    in_force.schemas.iter().map(name).collect()
}

fn condition(configuration: &Configuration, object: &ObjectRef, type_: &str) -> Option<Condition> {
    let conditions = configuration.conditions(600).remove(object)?;
    conditions
        .into_iter()
        .find(|condition| condition.type_ == type_)
}

#[test]
fn mandatory_objects_are_there_without_any() {
    let in_force = Configuration::default().in_force();
    assert_eq!(in_force.levels, [Level::catch_all(), Level::exempt()]);
    let schemas: Vec<_> = in_force
        .schemas
        .into_iter()
        .map(|active| active.schema)
        .collect();
    assert_eq!(schemas, [Schema::exempt(), Schema::catch_all()]);
}

#[test]
fn mandatory_objects_cannot_be_changed_but_for_the_seats_of_exempt() {
    let mut configuration = Configuration::default();
    for (yaml, field) in [
        (level("catch-all", 6), "spec"),
        (level("exempt", 6), "spec.type"),
        (schema("exempt", "catch-all", ""), "spec"),
        (
            schema("catch-all", "exempt", ", matchingPrecedence: 10000"),
            "spec",
        ),
        (
            "kind: PriorityLevel\nmetadata: {name: other}\nspec: {type: Exempt}".to_owned(),
            "spec.type",
        ),
        (
            schema("other", "exempt", ", matchingPrecedence: 1"),
            "spec.matchingPrecedence",
        ),
    ] {
        let errors = configuration.apply(&objects(&yaml)[0]).unwrap_err();
        assert_eq!(fields(&errors), [field], "{yaml}");
    }
    assert_eq!(
        configuration.in_force(),
        Configuration::default().in_force()
    );

    let exempt = "kind: PriorityLevel\nmetadata: {name: exempt}\nspec: {type: Exempt, exempt: {nominalConcurrencyShares: 10, lendablePercent: 20}}";
    configuration.apply(&objects(exempt)[0]).unwrap();
    let in_force = configuration.in_force();
    assert_eq!(
        (
            in_force.levels[1].shares,
            in_force.levels[1].lendable_percent
        ),
        (10, 20)
    );
    configuration.delete(&reference(Kind::PriorityLevel, "exempt"));
    assert_eq!(
        configuration.in_force(),
        Configuration::default().in_force()
    );

    // Without its part, which validation allows, it has the defaults.
    let bare = "kind: PriorityLevel\nmetadata: {name: exempt}\nspec: {type: Exempt}";
    configuration.apply(&objects(bare)[0]).unwrap();
    assert_eq!(
        configuration.in_force(),
        Configuration::default().in_force()
    );
}

#[test]
fn last_valid_version_stays_in_force() {
    let mut configuration = configuration(&(level("a", 7) + &schema("s", "a", ", seats: 2")));
    let before = configuration.in_force();
    for invalid in [level("a", -1), schema("s", "a", ", seats: 11")] {
        let object = &objects(&invalid)[0];
        configuration.apply(object).unwrap_err();
        assert_eq!(configuration.in_force(), before);
        let accepted = condition(&configuration, &object.reference(), "Accepted").unwrap();
        assert_eq!((accepted.status, accepted.reason), (false, "Invalid"));
        assert!(
            accepted
                .message
                .contains("an earlier version stays in force"),
            "{accepted:?}"
        );
    }
    configuration.apply(&objects(&level("a", 8))[0]).unwrap();
    assert_eq!(configuration.in_force().levels[0].shares, 8);
    let accepted = condition(
        &configuration,
        &reference(Kind::PriorityLevel, "a"),
        "Accepted",
    );
    assert!(accepted.unwrap().status);

    let never_valid = &objects(&level("b", -1))[0];
    configuration.apply(never_valid).unwrap_err();
    let accepted = condition(&configuration, &never_valid.reference(), "Accepted").unwrap();
    assert!(
        accepted
            .message
            .contains("must not be negative; not in force"),
        "{accepted:?}"
    );
    configuration.delete(&never_valid.reference());
    assert_eq!(
        condition(&configuration, &never_valid.reference(), "Accepted"),
        None
    );
}

#[test]
fn schemas_dangle_while_their_level_is_missing() {
    let mut configuration = configuration(&(schema("s", "a", "") + &schema("t", "exempt", "")));
    let s = reference(Kind::FlowSchema, "s");
    let dangling = |configuration: &Configuration, name| {
        let condition = condition(
            configuration,
            &reference(Kind::FlowSchema, name),
            "Dangling",
        )
        .unwrap();
        (condition.status, condition.reason)
    };
    assert_eq!(
        schemas(&configuration),
        ["exempt exempt", "t exempt", "catch-all catch-all"]
    );
    assert_eq!(dangling(&configuration, "s"), (true, "NotFound"));
    assert_eq!(
        dangling(&configuration, "t"),
        (false, "Found"),
        "mandatory levels always exist"
    );

    configuration.apply(&objects(&level("a", 1))[0]).unwrap();
    assert_eq!(
        schemas(&configuration),
        ["exempt exempt", "s a", "t exempt", "catch-all catch-all"]
    );
    assert_eq!(dangling(&configuration, "s"), (false, "Found"));

    // An invalid new version of the level changes nothing; its deletion does.
    configuration
        .apply(&objects(&level("a", -1))[0])
        .unwrap_err();
    assert_eq!(dangling(&configuration, "s"), (false, "Found"));
    configuration.delete(&reference(Kind::PriorityLevel, "a"));
    assert_eq!(dangling(&configuration, "s"), (true, "NotFound"));
    configuration.delete(&s);
    assert_eq!(condition(&configuration, &s, "Dangling"), None);
}

#[test]
fn seats_that_the_level_cuts_are_reported() {
    let configuration = configuration(
        &(level("a", 5)
            + &level("b", 1000)
            + &schema("s", "a", ", seats: 3")
            + &schema("t", "b", ", seats: 3")
            + &schema("u", "catch-all", ", seats: 9")),
    );
    let cut = |name| {
        let reference = reference(Kind::FlowSchema, name);
        condition(&configuration, &reference, "SeatsCut").unwrap()
    };
    let of_s = cut("s");
    assert!(
        of_s.status && of_s.message.contains("takes 1 of the 3 seats"),
        "{of_s:?}"
    );
    assert!(!cut("t").status);
    assert!(!cut("u").status, "without queues there is no such limit");
}

#[test]
fn rules_have_an_upper_bound_in_all() {
    let mut rules = String::from(", rules: [");
    for _ in 0..64 {
        rules += "{subjects: [{kind: Any}], destinations: [{namespaces: ['*']}]}, ";
    }
    rules += "]";
    let mut yaml = String::new();
    // Each mandatory schema has one rule.
    let fitting = (MAX_RULES - 2) / 64;
    for index in 0..=fitting {
        write!(yaml, "{}", schema(&format!("s{index}"), "exempt", &rules)).unwrap();
    }
    let objects = objects(&yaml);
    let mut configuration = Configuration::default();
    for object in &objects[..fitting] {
        configuration.apply(object).unwrap();
    }
    let errors = configuration.apply(&objects[fitting]).unwrap_err();
    assert_eq!(fields(&errors), ["spec.rules"]);
    configuration
        .apply(&objects[0])
        .expect("a schema in place of itself");
    configuration.delete(&objects[0].reference());
    configuration
        .apply(&objects[fitting])
        .expect("there is room again");
}

#[test]
fn levels_and_their_queues_are_bounded() {
    let level = |name: &str, queues: u32| {
        format!(
            "---\nkind: PriorityLevel\nmetadata: {{name: {name}}}\nspec: {{type: Limited, \
             limited: {{limitResponse: {{type: Queue, queuing: {{queues: {queues}, handSize: 1}}}}}}}}\n"
        )
    };
    for (queues, fitting, field) in [
        (4096, 16, "spec.limited.limitResponse.queuing.queues"),
        (1, MAX_LEVELS - 2, "metadata.name"),
    ] {
        let yaml: String = (0..=fitting)
            .map(|index| level(&format!("l{index}"), queues))
            .collect();
        let objects = objects(&yaml);
        let mut configuration = Configuration::default();
        for object in &objects[..fitting] {
            configuration.apply(object).unwrap();
        }
        let errors = configuration.apply(&objects[fitting]).unwrap_err();
        assert_eq!(fields(&errors), [field]);
        configuration
            .apply(&objects[0])
            .expect("a level in place of itself");
        configuration.delete(&objects[0].reference());
        configuration
            .apply(&objects[fitting])
            .expect("there is room again");
    }
}

#[test]
fn shares_are_as_large_as_the_api_takes() {
    let yaml = format!(
        "kind: PriorityLevel\nmetadata: {{name: a}}\nspec: {{type: Limited, limited: {{\
         nominalConcurrencyShares: {}, limitResponse: {{type: Reject}}}}}}\n",
        i32::MAX
    );
    let limits = configuration(&yaml).in_force().limits(u32::MAX);
    assert!(limits.iter().any(|limits| limits.nominal > u32::MAX - 100));
}

#[test]
fn deadlines_are_clamped_and_noted() {
    let yaml = schema(
        "s",
        "exempt",
        ", linger: 1h, deadlines: {connectPatience: 1h, handshake: 0s, clientIdle: 10m, lifetime: 10000h}",
    );
    let mut configuration = Configuration::default();
    let notes = configuration.apply(&objects(&yaml)[0]).unwrap();
    assert_eq!(
        fields(&notes),
        [
            "spec.linger",
            "spec.deadlines.connectPatience",
            "spec.deadlines.lifetime"
        ]
    );
    let in_force = configuration.in_force();
    let schema = &in_force.schemas[1].schema;
    let seconds = |duration: std::time::Duration| duration.as_secs();
    assert_eq!(seconds(schema.linger), 10);
    assert_eq!(seconds(schema.deadlines.connect_patience), 20);
    assert_eq!(seconds(schema.deadlines.queue_wait()), 5);
    assert_eq!(seconds(schema.deadlines.handshake), 3);
    assert_eq!(schema.deadlines.client_idle.map(seconds), Some(600));
    assert_eq!(schema.deadlines.server_idle, None);
    assert_eq!(schema.deadlines.lifetime.map(seconds), Some(720 * 3600));

    for (more, field) in [
        (", deadlines: {handshake: '10'}", "spec.deadlines.handshake"),
        (", linger: soon", "spec.linger"),
        (
            ", longRunning: true, deadlines: {lifetime: 1h}",
            "spec.longRunning",
        ),
        (
            ", rejectAnswer: {queueFull: rst}",
            "spec.rejectAnswer.queueFull",
        ),
        (
            ", distinguisherMethod: {type: BySourceIP, sourcePrefix: {}}",
            "spec.distinguisherMethod.sourcePrefix",
        ),
        (
            ", distinguisherMethod: {type: BySourcePrefix, sourcePrefix: {ipv6: 128}}",
            "spec.distinguisherMethod.sourcePrefix.ipv6",
        ),
    ] {
        let yaml = self::schema("s", "exempt", more);
        let errors = configuration.apply(&objects(&yaml)[0]).unwrap_err();
        assert_eq!(fields(&errors), [field], "{more}");
    }
}

fn namespace(name: &str, annotations: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\n"
    )
}

#[test]
fn the_limit_of_a_namespace_is_a_schema_after_those_that_people_write() {
    let limit = "node-lb.io/max-connections: '20'";
    let text = namespace("shop", limit)
        + &namespace("bank", &format!("{limit}, node-lb.io/priority-level: a"))
        + &schema("s", "catch-all", "")
        + &schema("last", "catch-all", ", matchingPrecedence: 9999");
    let mut configuration = configuration(&text);
    let expected = [
        "exempt exempt",
        "s catch-all",
        "namespace:shop catch-all",
        "last catch-all",
        "catch-all catch-all",
    ];
    assert_eq!(schemas(&configuration), expected);
    let bank = reference(Kind::Namespace, "bank");
    assert!(condition(&configuration, &bank, "Dangling").unwrap().status);
    configuration.apply(&objects(&level("a", 1))[0]).unwrap();
    assert!(schemas(&configuration).contains(&"namespace:bank a".to_owned()));

    let in_force = configuration.in_force();
    let shop = &in_force.schemas[3].schema;
    assert_eq!((&*shop.name, shop.precedence), ("namespace:shop", 9000));
    let level = &in_force.levels[in_force.schemas[3].level];
    assert_eq!(shop.most_per_flow(level), Some(20));

    // The last valid version stays, until the Namespace or its limit is gone.
    let wrong = namespace(
        "shop",
        "node-lb.io/max-connections: many, node-lb.io/priority-level: exempt",
    );
    let wrong = configuration.apply(&objects(&wrong)[0]).unwrap_err();
    let expected = [
        "metadata.annotations[node-lb.io/max-connections]",
        "metadata.annotations[node-lb.io/priority-level]",
    ];
    assert_eq!(fields(&wrong), expected);
    assert_eq!(configuration.in_force(), in_force);
    configuration.delete(&reference(Kind::Namespace, "shop"));
    assert!(!schemas(&configuration).contains(&"namespace:shop catch-all".to_owned()));

    // Nobody else may have such a name.
    let taken = schema("namespace:shop", "catch-all", "");
    let refused = configuration.apply(&objects(&taken)[0]).unwrap_err();
    assert_eq!(fields(&refused), ["metadata.name"]);
}

#[test]
fn a_schema_may_allow_fewer_connections_than_its_level() {
    let limited = |most: i32| {
        format!(
            "---\nkind: PriorityLevel\nmetadata: {{name: a}}\nspec: {{type: Limited, limited: \
             {{limitResponse: {{type: Reject}}, connections: {{maxConnectionsPerFlow: {most}}}}}}}\n"
        )
    };
    for (of_level, of_schema, most) in [(5, 7, 5), (7, 5, 5)] {
        let schema = schema("s", "a", &format!(", maxConnectionsPerFlow: {of_schema}"));
        let in_force = configuration(&(limited(of_level) + &schema)).in_force();
        let active = &in_force.schemas[1];
        let level = &in_force.levels[active.level];
        assert_eq!(active.schema.most_per_flow(level), Some(most));
        assert!(active.schema.tells_flows_apart(level));
    }
    for (level, most) in [("exempt", 5), ("catch-all", 0)] {
        let schema = schema("s", level, &format!(", maxConnectionsPerFlow: {most}"));
        let refused = Configuration::default()
            .apply(&objects(&schema)[0])
            .unwrap_err();
        assert_eq!(fields(&refused), ["spec.maxConnectionsPerFlow"]);
    }
}

#[test]
fn namespaces_leave_room_for_schemas_that_people_write() {
    let limited = |number| namespace(&format!("n{number}"), "node-lb.io/max-connections: '5'");
    let mut configuration = Configuration::default();
    for number in 0..MAX_LIMITED_NAMESPACES {
        configuration.apply(&objects(&limited(number))[0]).unwrap();
    }
    let one_more = limited(MAX_LIMITED_NAMESPACES);
    let refused = configuration.apply(&objects(&one_more)[0]).unwrap_err();
    assert_eq!(fields(&refused), ["metadata.annotations"]);
    // A new version of one that is there needs no more room.
    configuration.apply(&objects(&limited(0))[0]).unwrap();
    configuration
        .apply(&objects(&schema("s", "catch-all", ""))[0])
        .unwrap();
    configuration.delete(&reference(Kind::Namespace, "n0"));
    configuration.apply(&objects(&one_more)[0]).unwrap();

    // However it is written, zero is no limit.
    let zero = namespace("n1", "node-lb.io/max-connections: '00'");
    configuration.apply(&objects(&zero)[0]).unwrap();
    let in_force = configuration.in_force();
    let n1 = in_force
        .schemas
        .iter()
        .find(|active| active.schema.name == "namespace:n1");
    assert_eq!(n1.unwrap().schema.max_connections_per_flow, None);
}
