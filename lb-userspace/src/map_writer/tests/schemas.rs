//! Flow schemas and priority levels: what programs find in the maps, and what becomes of it.

use std::time::Duration;

use lb_admission::configuration::InForce;
use lb_common::{
    abi::{Decision, FlowSchema},
    flow::{Seats, limit::limit_flag},
    service::Origin,
};
use lb_datapath::TickRate;

use super::*;
use crate::{admission::objects::Objects, config::AdmissionMode, map_writer::NotInForce};

/// Seats of the node.
const SEATS: u32 = 1000;

pub(super) fn level(name: &str) -> String {
    format!(
        "---\napiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\nmetadata: {{name: {name}}}\n\
         spec: {{type: Limited, limited: {{limitResponse: {{type: Reject}}}}}}\n"
    )
}

/// A schema with one rule: `from` are its subjects, `to` its destinations.
pub(super) fn schema(name: &str, level: &str, from: &str, to: &str) -> String {
    format!(
        "---\napiVersion: node-lb.io/v1alpha1\nkind: FlowSchema\nmetadata: {{name: {name}}}\n\
         spec: {{priorityLevelConfiguration: {{name: {level}}}, matchingPrecedence: 100, \
         rules: [{{subjects: [{from}], destinations: [{to}]}}]}}\n"
    )
}

pub(super) const ANYONE: &str = "{kind: Any}";
pub(super) const FIRST: &str = "{namespaces: [default], services: [s1]}";

fn in_force(text: &[String]) -> InForce {
    let mut objects = Objects::default();
    objects.read([("a.yaml".into(), Ok(text.concat().into_bytes()))]);
    assert_eq!(objects.errors, []);
    objects.configuration.in_force()
}

impl Bench {
    pub(super) fn admit(&mut self, text: &[String], mode: AdmissionMode) -> Result<(), NotInForce> {
        let in_force = in_force(text);
        let limits = in_force.limits(SEATS);
        let result = self.writer.set_schemas(&in_force, mode, &limits);
        self.writer.settle();
        self.writer.tidy();
        result
    }

    pub(super) fn program(&mut self, spec: &Spec) {
        let plan = spec.plan();
        self.writer.apply(Key::of(&plan), Some(&plan)).unwrap();
        self.writer.settle();
    }

    /// The number of the schema that takes connections to a Service's first address.
    pub(super) fn number(&self, spec: &Spec, source: &str, origin: Origin) -> u32 {
        let plan = spec.plan();
        let claim = claims(&Key::of(&plan), &*plan.frontends).next().unwrap();
        let state = self.kernel.state();
        let class = state.destination_classes[usize::from(state.frontends[&claim.address].class)];
        let mut decision: Decision = class.decision;
        if class.set != 0 {
            let source = source.parse::<Ipv4Addr>().unwrap().to_ipv6_mapped();
            let networks = state.source_classes.iter();
            let found = networks.filter(|((set, bits, octets), _)| {
                let shift = 128 - (bits - 32);
                let network = u128::from_be_bytes(*octets);
                *set == class.set
                    && u128::from(source).checked_shr(shift) == network.checked_shr(shift)
            });
            let longest = found.max_by_key(|((_, bits, _), _)| *bits);
            decision = state.decisions[(class.first + longest.unwrap().1) as usize];
        }
        decision.of(origin as u32)
    }

    /// The schema and the level that connections to a Service's first address belong to, by their
    /// names.
    pub(super) fn taken(&self, spec: &Spec, source: &str, origin: Origin) -> (String, String) {
        let number = self.number(spec, source, origin);
        let level = self.kernel.state().flow_schemas[number as usize]
            .seats
            .level();
        let known = self.writer.numbered().known();
        let found = known.schema(number);
        let (schema, _) = found.unwrap_or_else(|| panic!("no schema has number {number}"));
        let of_schema = known.levels.iter().find(|known| known.number == level);
        assert_eq!(
            of_schema.map(|level| &level.level.name),
            Some(&schema.level)
        );
        (schema.name.clone(), schema.level.clone())
    }

    fn schema_at(&self, spec: &Spec) -> String {
        self.taken(spec, "192.0.2.1", Origin::Outside).0
    }

    fn seats_of_level(&self, name: &str) -> (u32, Seats) {
        let known = self.writer.numbered().known();
        let level = known.levels.iter().find(|known| known.level.name == name);
        let number = level.unwrap().number;
        (number, self.kernel.state().levels[number as usize])
    }
}

#[test]
fn connections_to_a_service_belong_to_the_schema_that_takes_them() {
    let mut bench = Bench::new(ROOMY);
    bench.program(&spec(1, [1]));
    let text = [level("one"), schema("first", "one", ANYONE, FIRST)];
    bench.admit(&text, AdmissionMode::Enforce).unwrap();
    // One that comes later is classified as well.
    bench.program(&spec(2, [1]));
    assert_eq!(bench.schema_at(&spec(1, [1])), "first");
    assert_eq!(bench.schema_at(&spec(2, [1])), "catch-all");

    let (_, seats) = bench.seats_of_level("one");
    // 30 of 35 shares.
    assert_eq!((seats.limit, seats.flags), (858, limit_flag::STRICT));
    let (_, exempt) = bench.seats_of_level("exempt");
    assert_eq!((exempt.limit, exempt.flags), (0, 0));
    bench.admit(&text, AdmissionMode::Audit).unwrap();
    let (_, seats) = bench.seats_of_level("one");
    assert_eq!(seats.flags, limit_flag::STRICT | limit_flag::AUDIT);
    // A level may be audited alone.
    let audited = text.map(|text| text.replace("limitResponse", "mode: Audit, limitResponse"));
    bench.admit(&audited, AdmissionMode::Enforce).unwrap();
    let flags = |name| bench.seats_of_level(name).1.flags;
    assert_eq!(flags("one"), limit_flag::STRICT | limit_flag::AUDIT);
    assert_eq!(flags("catch-all"), limit_flag::STRICT);
}

#[test]
fn sources_and_origins_matter_where_a_rule_says_so() {
    let mut bench = Bench::new(ROOMY);
    bench.program(&spec(1, [1]));
    bench.program(&spec(2, [1]));
    let network = "{kind: CIDR, cidr: {cidr: 10.1.0.0/16, except: [10.1.7.0/24]}}";
    let text = [level("one"), schema("from-network", "one", network, FIRST)];
    bench.admit(&text, AdmissionMode::Enforce).unwrap();
    let first = spec(1, [1]);
    for (source, expected) in [
        ("10.1.2.3", "from-network"),
        ("10.1.7.3", "catch-all"),
        ("10.2.0.1", "catch-all"),
    ] {
        let (schema, _) = bench.taken(&first, source, Origin::Pod);
        assert_eq!(schema, expected, "{source}");
    }
    // Nobody looks up the sources of connections to the other one.
    let state = bench.kernel.state();
    let plain = state.frontends.values().filter(|entry| {
        let class = state.destination_classes[usize::from(entry.class)];
        class.set == 0
    });
    assert_eq!(plain.count(), 1);
}

#[test]
fn what_is_replaced_becomes_free_when_nobody_can_see_it() {
    let mut bench = Bench::new(ROOMY);
    for number in 1..6 {
        bench.program(&spec(number, [1]));
    }
    let network = |octet: u32| format!("{{kind: CIDR, cidr: {{cidr: 10.{octet}.0.0/16}}}}");
    for round in 0..200 {
        let text = [
            level("one"),
            schema("a", "one", &network(round % 250), FIRST),
            schema(
                "b",
                "one",
                ANYONE,
                "{namespaces: [default], services: [s2]}",
            ),
        ];
        bench.admit(&text, AdmissionMode::Enforce).unwrap();
        assert_eq!(bench.schema_at(&spec(2, [1])), "b");
        let source = format!("10.{}.0.1", round % 250);
        assert_eq!(bench.taken(&spec(1, [1]), &source, Origin::Pod).0, "a");
    }
    let fill = bench.writer.fill();
    let entries = |map| fill.iter().find(|fill| fill.map == map).unwrap().entries;
    assert_eq!((entries("LEVELS"), entries("FLOW_SCHEMAS")), (3, 4));
    assert!(entries("DESTINATION_CLASSES") <= 3 && entries("SOURCE_CLASSES") <= 6);
}

#[test]
fn a_later_agent_finds_levels_and_what_they_hold() {
    let mut bench = Bench::new(ROOMY);
    bench.program(&spec(1, [1]));
    let text = [level("one"), schema("first", "one", ANYONE, FIRST)];
    bench.admit(&text, AdmissionMode::Enforce).unwrap();
    let (number, seats) = bench.seats_of_level("one");
    bench.kernel.state().levels[number as usize] = Seats {
        word: 7,
        limit: 5,
        ..seats
    };

    let writer = MapWriter::new(bench.kernel.maps(), NodeFacts::default()).unwrap();
    bench.writer = writer;
    // Other levels come first in the alphabet now.
    let text = [
        level("aaa"),
        level("one"),
        schema("first", "one", ANYONE, FIRST),
    ];
    let in_force = in_force(&text);
    let limits = in_force.limits(SEATS);
    bench
        .writer
        .set_schemas(&in_force, AdmissionMode::Enforce, &limits)
        .unwrap();
    bench.program(&spec(1, [1]));
    bench.writer.finish_adoption();
    bench.writer.tidy();
    assert_eq!(bench.schema_at(&spec(1, [1])), "first");
    let (again, seats) = bench.seats_of_level("one");
    assert_eq!((again, seats.used(), seats.limit), (number, 7, 5));
}

#[test]
fn a_level_with_connections_keeps_its_number() {
    let mut bench = Bench::new(ROOMY);
    bench.program(&spec(1, [1]));
    let of = |name: &str| [level(name), schema("first", name, ANYONE, FIRST)];
    bench.admit(&of("one"), AdmissionMode::Enforce).unwrap();
    let (number, _) = bench.seats_of_level("one");
    bench.kernel.state().levels[number as usize].word = 3;
    // There are six numbers, three of them for the level and the mandatory ones.
    for name in ["two", "three", "four", "five", "six"] {
        bench.admit(&of(name), AdmissionMode::Enforce).unwrap();
        assert_ne!(bench.seats_of_level(name).0, number);
    }
    bench.admit(&of("one"), AdmissionMode::Enforce).unwrap();
    let (again, seats) = bench.seats_of_level("one");
    assert_eq!((again, seats.used()), (number, 3));
}

#[test]
fn what_has_no_room_leaves_everything_as_it_was() {
    let mut bench = Bench::new(ROOMY);
    bench.program(&spec(1, [1]));
    let one = [level("one"), schema("first", "one", ANYONE, FIRST)];
    bench.admit(&one, AdmissionMode::Enforce).unwrap();

    let too_many: Vec<_> = (0..7).map(|n| level(&format!("l{n}"))).collect();
    let refused = bench.admit(&too_many, AdmissionMode::Enforce);
    assert!(matches!(refused, Err(NotInForce::Level(_))), "{refused:?}");
    assert_eq!(bench.schema_at(&spec(1, [1])), "first");

    let many = |from: u32| {
        let network = |n| format!("{{kind: CIDR, cidr: {{cidr: 10.{n}.0.0/16}}}}");
        let networks: Vec<_> = (from..from + 60).map(network).collect();
        schema(&format!("many-{from}"), "one", &networks.join(", "), FIRST)
    };
    let text = [level("one"), many(0), many(100)];
    let refused = bench.admit(&text, AdmissionMode::Audit);
    assert!(
        matches!(refused, Err(NotInForce::Networks(_))),
        "{refused:?}"
    );
    assert_eq!(bench.schema_at(&spec(1, [1])), "first");
    let left = bench.kernel.state().source_classes.len();
    assert_eq!(left, 0, "nothing of it is left");
    assert_eq!(bench.verify().described, vec![], "all is as it was");

    // And there is room for others again.
    let two = [level("two"), schema("second", "two", ANYONE, FIRST)];
    bench.admit(&two, AdmissionMode::Enforce).unwrap();
    assert_eq!(bench.schema_at(&spec(1, [1])), "second");
}

#[test]
fn a_schema_goes_to_another_level_in_one_step() {
    let mut bench = Bench::new(ROOMY);
    bench.program(&spec(1, [1]));
    let levels = [level("one"), level("two")];
    let with = |name| [levels.concat(), schema("first", name, ANYONE, FIRST)];
    bench.admit(&with("one"), AdmissionMode::Enforce).unwrap();
    let writes = bench.kernel.state().frontends.clone();
    bench.admit(&with("two"), AdmissionMode::Enforce).unwrap();
    let (schema, level) = bench.taken(&spec(1, [1]), "192.0.2.1", Origin::Node);
    assert_eq!((&*schema, &*level), ("first", "two"));
    assert_eq!(bench.kernel.state().frontends, writes, "the same classes");
    let counted: Vec<FlowSchema> = bench.kernel.state().flow_schemas.clone();
    assert!(counted.iter().all(|schema| schema.admitted == 0));
}

#[test]
fn deadlines_are_in_ticks_and_end_nothing_in_an_audit() {
    let mut bench = Bench::new(ROOMY);
    let schema = schema("first", "one", ANYONE, FIRST);
    let with = schema.replace(
        "rules:",
        "deadlines: {clientIdle: 30s, lifetime: 1h}, rules:",
    );
    let rate = TickRate::of_kernel();
    let ticks = |seconds| rate.ticks(Duration::from_secs(seconds));
    let mut found = |schema: &str, mode| {
        bench
            .admit(&[level("one"), schema.to_owned()], mode)
            .unwrap();
        let known = bench.writer.numbered().known();
        let first = known.schemas.iter().find(|known| known.name == "first");
        let element = bench.kernel.state().flow_schemas[first.unwrap().number as usize];
        (element.deadlines, element.is_audited)
    };
    let all = [ticks(3), ticks(30), 0, 0, ticks(3600)];
    assert_eq!(found(&with, AdmissionMode::Enforce), (all, 0));
    assert_eq!(found(&with, AdmissionMode::Audit), (all, 1));
    let none = [ticks(3), 0, 0, 0, 0];
    assert_eq!(found(&schema, AdmissionMode::Enforce), (none, 0));
}

#[test]
fn connections_take_the_seats_that_there_are_for_so_long() {
    let mut bench = Bench::new(ROOMY);
    bench.program(&spec(1, [1]));
    let wide = |level: &str| {
        let schema = schema("first", level, ANYONE, FIRST);
        schema.replace(
            "matchingPrecedence",
            "seats: 9, linger: 10s, matchingPrecedence",
        )
    };
    // One level is too small for nine, and only levels with queues care.
    let shares = "limited: {nominalConcurrencyShares: 1, ";
    let small = with_queues("small", 8, 5).replace("limited: {", shares);
    for (name, text, seats) in [
        ("one", level("one"), 9),
        ("large", with_queues("large", 8, 5), 9),
        ("small", small, 5),
    ] {
        bench
            .admit(&[text, level("others"), wide(name)], AdmissionMode::Enforce)
            .unwrap();
        let number = bench.number(&spec(1, [1]), "192.0.2.1", Origin::Outside);
        let written = bench.kernel.state().flow_schemas[number as usize].seats;
        let moments = TickRate::of_kernel().moments(Duration::from_secs(10));
        assert_eq!(
            (written.width(), written.linger()),
            (seats, moments),
            "{name}"
        );
        assert!((500..1000).contains(&moments), "{moments}");
    }
}

#[test]
fn a_rule_by_the_services_port_holds_for_node_ports() {
    let mut bench = Bench::new(ROOMY);
    let by_port = |port: u16| {
        let to = format!("{{namespaces: ['*'], ports: [{port}]}}");
        [level("one"), schema("by-port", "one", ANYONE, &to)]
    };
    let service = Spec {
        node_port: 30_080,
        ..spec(1, [1])
    };
    bench.program(&service);
    bench.admit(&by_port(80), AdmissionMode::Enforce).unwrap();
    let classes = |bench: &Bench| -> HashSet<u16> {
        let state = bench.kernel.state();
        state.frontends.values().map(|entry| entry.class).collect()
    };
    assert_eq!(bench.schema_at(&service), "by-port");
    assert_eq!(classes(&bench).len(), 1, "all frontends");
    bench.program(&Spec {
        port: 81,
        ..service.clone()
    });
    let moved = Spec {
        port: 81,
        ..service
    };
    assert_eq!(bench.schema_at(&moved), "catch-all");
    assert_eq!(classes(&bench).len(), 1);
}

/// A level with so many queues, in each of which so many may wait.
fn with_queues(name: &str, queues: u32, length: u32) -> String {
    level(name).replace(
        "{type: Reject}",
        &format!(
            "{{type: Queue, queuing: {{queues: {queues}, handSize: 2, queueLengthLimit: {length}}}}}"
        ),
    )
}

#[test]
fn levels_have_queues_of_their_own_and_keep_them() {
    let mut bench = Bench::new(ROOMY);
    // A level's queues, after a check that they are as it asks for.
    let queues = |bench: &Bench, name: &str, wanted: (u32, u32)| {
        let (number, seats) = bench.seats_of_level(name);
        let has_queues = seats.flags & limit_flag::QUEUES != 0;
        let of = bench.kernel.state().level_queues[number as usize];
        assert_eq!((of.number, has_queues), (wanted.0, wanted.0 != 0), "{name}");
        if wanted.0 != 0 {
            assert_eq!((of.hand, of.length), (2, wanted.1), "{name}");
        }
        of.first..of.first + of.number
    };
    let admit = |bench: &mut Bench, one: String, two: String| {
        bench.admit(&[one, two], AdmissionMode::Enforce).unwrap();
    };
    let use_all = |bench: &Bench| {
        let mut state = bench.kernel.state();
        state.queues.iter_mut().for_each(|queue| queue.word = 7);
        state.level_queues.iter_mut().for_each(|of| of.waiting = 3);
    };
    let words = |bench: &Bench, range: std::ops::Range<u32>| -> Vec<u64> {
        let state = bench.kernel.state();
        range
            .map(|index| state.queues[index as usize].word)
            .collect()
    };
    let apart = |one: &std::ops::Range<u32>, two: &std::ops::Range<u32>| {
        assert!(
            one.end <= two.start || two.end <= one.start,
            "{one:?} {two:?}"
        );
    };

    admit(
        &mut bench,
        with_queues("one", 8, 5),
        with_queues("two", 16, 5),
    );
    let before = queues(&bench, "two", (16, 5));
    apart(&queues(&bench, "one", (8, 5)), &before);
    use_all(&bench);

    // One has others, and the other one stays as it is, but for what it asks for.
    admit(
        &mut bench,
        with_queues("one", 6, 5),
        with_queues("two", 16, 9),
    );
    let one = queues(&bench, "one", (6, 5));
    assert_eq!(queues(&bench, "two", (16, 9)), before);
    apart(&one, &before);
    assert_eq!(words(&bench, one), [0; 6]);
    assert_eq!(words(&bench, before.clone()), [7; 16]);
    let number = bench.seats_of_level("two").0;
    assert_eq!(
        bench.kernel.state().level_queues[number as usize].waiting,
        3
    );

    // What is free is in two pieces.
    admit(
        &mut bench,
        with_queues("one", 12, 5),
        with_queues("two", 16, 9),
    );
    let (one, two) = (
        queues(&bench, "one", (12, 5)),
        queues(&bench, "two", (16, 9)),
    );
    apart(&one, &two);
    assert_eq!(words(&bench, one), [0; 12]);
    assert_eq!(words(&bench, two), [0; 16]);

    admit(&mut bench, level("one"), with_queues("two", 16, 9));
    queues(&bench, "one", (0, 0));
    queues(&bench, "two", (16, 9));
}
