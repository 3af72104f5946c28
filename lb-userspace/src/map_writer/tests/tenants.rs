//! Whose pods connections come from: what programs find in the maps, as pods come and go.

use lb_admission::classify::Identities;
use lb_common::service::Origin;
use lb_objects::Pod;

use super::{
    schemas::{ANYONE, FIRST, level, schema},
    *,
};
use crate::{admission::pods::identities, config::AdmissionMode};

/// Pods by address, namespace and service account.
fn pods(pods: &[(&str, &str, &str)]) -> Identities {
    let pods: Vec<_> = pods
        .iter()
        .map(|(address, namespace, service_account)| Pod {
            name: ObjectName::new(*namespace, address.replace('.', "-")),
            node: "worker-1".to_owned(),
            service_account: (*service_account).to_owned(),
            labels: BTreeMap::new(),
            addresses: vec![address.parse().unwrap()],
        })
        .collect();
    identities(&pods)
}

/// A schema and its level: a flow may have three connections, and has those that `by` puts together.
fn by(by: &str) -> [String; 2] {
    let limits = "limitResponse: {type: Reject}, connections: {maxConnectionsPerFlow: 3}";
    [
        level("one").replace("limitResponse: {type: Reject}", limits),
        schema("first", "one", ANYONE, FIRST).replace(
            "rules:",
            &format!("distinguisherMethod: {{type: {by}}}, rules:"),
        ),
    ]
}

impl Bench {
    fn program_first(&mut self) {
        self.program(&spec(1, [1]));
    }

    fn schema_of(&self, source: &str) -> String {
        self.taken(&spec(1, [1]), source, Origin::Pod).0
    }

    /// Whose flow a connection belongs to, and its number.
    fn tenant_of(&self, source: &str) -> (Option<String>, u32) {
        let number = self.number(&spec(1, [1]), source, Origin::Pod);
        let known = self.writer.numbered().known();
        let (_, tenant) = known.schema(number).unwrap();
        (tenant.map(str::to_owned), number)
    }
}

#[test]
fn rules_by_namespace_hold_for_the_pods_of_this_moment() {
    let mut bench = Bench::new(ROOMY);
    bench.program_first();
    let shop = "{kind: Namespace, namespace: {name: shop}}";
    let text = [level("one"), schema("first", "one", shop, FIRST)];
    let first = pods(&[("10.0.0.1", "shop", "cart"), ("10.0.0.2", "blog", "web")]);
    assert_eq!(bench.writer.set_identities(first.clone()), Ok(false));
    bench.admit(&text, AdmissionMode::Enforce).unwrap();
    let schemas = |bench: &Bench| {
        let of = |last| bench.schema_of(&format!("10.0.0.{last}"));
        [1, 2, 3].map(of)
    };
    assert_eq!(schemas(&bench), ["first", "catch-all", "catch-all"]);

    // One that is like another one needs no new class.
    let frontends = bench.kernel.state().frontends.clone();
    let second = pods(&[("10.0.0.3", "shop", "other"), ("10.0.0.2", "blog", "web")]);
    assert_eq!(bench.writer.set_identities(second), Ok(true));
    assert_eq!(schemas(&bench), ["catch-all", "catch-all", "first"]);
    assert_eq!(bench.writer.set_identities(first), Ok(true));
    assert_eq!(schemas(&bench), ["first", "catch-all", "catch-all"]);
    assert_eq!(bench.kernel.state().frontends, frontends);

    // The last one goes, and its set with the configuration.
    assert_eq!(bench.writer.set_identities(pods(&[])), Ok(true));
    assert_eq!(schemas(&bench), ["catch-all"; 3]);
    bench.admit(&[], AdmissionMode::Enforce).unwrap();
    assert_eq!(bench.kernel.state().source_classes.len(), 0);
}

#[test]
fn an_address_of_a_rule_is_its_networks_again_after_its_pod() {
    let mut bench = Bench::new(ROOMY);
    bench.program_first();
    let shop = "{kind: Namespace, namespace: {name: shop}}";
    let host = "{kind: CIDR, cidr: {cidr: 10.0.0.1/32}}";
    let text = [
        level("one"),
        schema("a-shop", "one", shop, FIRST),
        schema("b-host", "one", host, FIRST),
    ];
    bench
        .writer
        .set_identities(pods(&[("10.0.0.1", "shop", "cart")]))
        .unwrap();
    bench.admit(&text, AdmissionMode::Enforce).unwrap();
    assert_eq!(bench.schema_of("10.0.0.1"), "a-shop");
    assert_eq!(bench.writer.set_identities(pods(&[])), Ok(true));
    assert_eq!(bench.schema_of("10.0.0.1"), "b-host");
}

#[test]
fn pods_of_a_namespace_are_one_flow() {
    let mut bench = Bench::new(ROOMY);
    bench.program_first();
    let all = [
        ("10.0.0.1", "shop", "cart"),
        ("10.0.0.2", "shop", "web"),
        ("10.0.0.3", "blog", "web"),
    ];
    bench.writer.set_identities(pods(&all)).unwrap();
    bench
        .admit(&by("BySourceNamespace"), AdmissionMode::Enforce)
        .unwrap();
    let (shop, number) = bench.tenant_of("10.0.0.1");
    assert_eq!(shop.as_deref(), Some("shop"));
    assert_eq!(bench.tenant_of("10.0.0.2"), (shop, number));
    let (blog, other) = bench.tenant_of("10.0.0.3");
    assert_eq!(blog.as_deref(), Some("blog"));
    // Who is not known is told apart by address.
    let (nobody, base) = bench.tenant_of("10.0.0.4");
    assert_eq!(nobody, None);
    assert!(number != other && number != base && other != base);
    let rule = |number: u32| bench.kernel.state().flow_schemas[number as usize].rule;
    assert_eq!(
        [number, other, base].map(|number| rule(number).most),
        [3; 3]
    );
    assert_eq!([number, other].map(|number| rule(number).by), [0; 2]);
    assert_ne!(rule(base).by, 0);

    // What has been counted of those that are gone still is the schema's.
    assert_eq!(bench.writer.set_identities(pods(&all[2..])), Ok(true));
    bench
        .admit(&by("BySourceNamespace"), AdmissionMode::Enforce)
        .unwrap();
    let known = bench.writer.numbered().known();
    let first = known.schemas.iter().find(|schema| schema.name == "first");
    let numbers: BTreeSet<_> = first.unwrap().numbers().collect();
    assert_eq!(numbers, BTreeSet::from([number, other, base]));

    // The next agent finds the same numbers.
    bench.writer = MapWriter::new(bench.kernel.maps(), NodeFacts::default()).unwrap();
    bench.writer.set_identities(pods(&all)).unwrap();
    bench
        .admit(&by("BySourceNamespace"), AdmissionMode::Enforce)
        .unwrap();
    bench.program_first();
    bench.writer.finish_adoption();
    assert_eq!(bench.tenant_of("10.0.0.1").1, number);

    bench
        .admit(&by("BySourceServiceAccount"), AdmissionMode::Enforce)
        .unwrap();
    assert_eq!(bench.tenant_of("10.0.0.1").0.as_deref(), Some("shop/cart"));
    assert_eq!(bench.tenant_of("10.0.0.2").0.as_deref(), Some("shop/web"));
}

#[test]
fn who_finds_no_number_is_told_apart_by_address() {
    let mut bench = Bench::new(ROOMY);
    bench.program_first();
    let names: Vec<_> = (1..=20)
        .map(|n| (format!("10.0.0.{n}"), format!("n{n}")))
        .collect();
    let all: Vec<_> = names
        .iter()
        .map(|(ip, name)| (&**ip, &**name, "default"))
        .collect();
    bench.writer.set_identities(pods(&all)).unwrap();
    bench
        .admit(&by("BySourceNamespace"), AdmissionMode::Enforce)
        .unwrap();
    let known = bench.writer.numbered().known();
    let first = known
        .schemas
        .iter()
        .find(|schema| schema.name == "first")
        .unwrap();
    assert!(known.undivided > 0);
    assert_eq!(first.tenants.len() + known.undivided, 20);
    for (ip, name) in &names {
        let (tenant, number) = bench.tenant_of(ip);
        match tenant {
            Some(tenant) => assert_eq!(tenant, *name),
            None => assert_eq!(number, first.number),
        }
    }
}

#[test]
fn newcomers_take_nobodys_number() {
    let mut bench = Bench::new(ROOMY);
    bench.program_first();
    let first = [("10.0.0.99", "shop", "cart")];
    bench.writer.set_identities(pods(&first)).unwrap();
    let text = by("BySourceNamespace");
    bench.admit(&text, AdmissionMode::Enforce).unwrap();
    let before = bench.tenant_of("10.0.0.99");
    assert_eq!(before.0.as_deref(), Some("shop"));
    let names: Vec<_> = (1..=20)
        .map(|n| (format!("10.0.0.{n}"), format!("n{n}")))
        .collect();
    let newcomers = names.iter().map(|(ip, name)| (&**ip, &**name, "default"));
    let all: Vec<_> = newcomers.chain(first).collect();
    for restarts in [false, true] {
        if restarts {
            bench.writer = MapWriter::new(bench.kernel.maps(), NodeFacts::default()).unwrap();
        }
        bench.writer.set_identities(pods(&all)).unwrap();
        bench.admit(&text, AdmissionMode::Enforce).unwrap();
        bench.program_first();
        assert!(bench.writer.numbered().known().undivided > 0);
        assert_eq!(bench.tenant_of("10.0.0.99"), before, "{restarts}");
    }
}
