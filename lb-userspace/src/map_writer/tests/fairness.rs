//! Who gets room in maps that are short of it, and who gets an address that several claim.

use super::*;
use crate::{
    config::{Cap, Caps, MapLimits, Resource},
    map_writer::{NotProgrammed, Purpose, Reserved, Scope},
};

/// A Service with so many externalIPs.
fn greedy(number: u8, externals: u8) -> Spec {
    Spec {
        externals,
        ..spec(number, [number])
    }
}

/// Sizes with so many entries for addresses.
fn room(frontends: usize) -> Sizes {
    Sizes { frontends, ..ROOMY }
}

impl Bench {
    /// Applies all at once, as on a start with bare maps.
    fn start(&mut self, specs: &[Spec]) {
        self.note(specs, &[]);
        self.write(specs, &[]);
        self.writer.settle();
    }

    /// Whether all addresses of a kind of this Service's lead to it.
    fn serves(&self, spec: &Spec, kind: FrontendKind) -> bool {
        let plan = spec.plan();
        let claims = claims(&Key::of(&plan), &*plan.frontends).collect::<Vec<_>>();
        let mut of_kind = claims.into_iter().filter(|claim| claim.kind == kind);
        let wanted = Some(view(&plan, kind as u8));
        of_kind.all(|claim| self.kernel.state().view(&claim.address) == wanted)
    }

    fn reasons(&self) -> Vec<(String, Reason)> {
        let waiting = self.writer.waiting();
        waiting
            .map(|(key, error)| (key.name.service.name.to_string(), error.reason()))
            .collect()
    }
}

#[test]
fn a_greedy_service_is_refused_alone_and_heals() {
    let mut bench = Bench::new(room(100));
    let mut specs = vec![greedy(1, 90)];
    specs.extend((2..22).map(|number| spec(number, [number])));
    bench.start(&specs);
    assert_eq!(
        bench.waiting(),
        ["no room for 90 addresses of kind ExternalIP: FRONTENDS4 is full"]
    );
    for spec in &specs {
        assert!(bench.serves(spec, FrontendKind::ClusterIp), "{spec:?}");
    }

    bench.start(&[greedy(1, 50)]);
    bench.assert_complete();
    // One that comes later is refused, and the first one stays.
    bench.start(&[greedy(2, 50)]);
    assert_eq!(bench.reasons(), [("s2".to_owned(), Reason::MapFull)]);
    assert!(bench.serves(&greedy(1, 50), FrontendKind::ExternalIp));
    bench.note(&[], &[greedy(1, 0).key()]);
    bench.write(&[], &[greedy(1, 0).key()]);
    bench.writer.settle();
    bench.assert_complete();
}

#[test]
fn what_existed_before_goes_first() {
    let mut bench = Bench::new(room(100));
    let young = Spec {
        created: 2,
        ..greedy(1, 50)
    };
    let old = Spec {
        created: 1,
        ..greedy(2, 50)
    };
    bench.start(&[young.clone(), old.clone()]);
    assert_eq!(bench.reasons(), [("s1".to_owned(), Reason::MapFull)]);
    assert!(bench.serves(&old, FrontendKind::ExternalIp));
    assert!(bench.serves(&young, FrontendKind::ClusterIp));
}

#[test]
fn a_part_of_each_map_is_for_essential_services() {
    let mut bench = Bench::new(Sizes {
        frontends: 128,
        services: 129,
        endpoints: 128,
        endpoint_states: 129,
        ..ROOMY
    });
    let specs: Vec<_> = (0..130).map(|number| spec(number, [number])).collect();
    bench.start(&specs);
    assert!(bench.reasons().len() >= 4, "{:?}", bench.reasons());
    let dns = Spec {
        essential: true,
        ..spec(200, [200])
    };
    bench.start(std::slice::from_ref(&dns));
    assert!(bench.serves(&dns, FrontendKind::ClusterIp));
}

#[test]
fn the_youngest_make_way_for_an_essential_service() {
    let mut bench = Bench::new(room(10));
    let specs: Vec<_> = (0..10)
        .map(|number| Spec {
            created: i64::from(number),
            ..spec(number, [number])
        })
        .collect();
    bench.start(&specs);
    bench.assert_complete();
    let dns = Spec {
        essential: true,
        created: 99,
        ..spec(200, [200])
    };
    bench.start(std::slice::from_ref(&dns));
    assert!(bench.serves(&dns, FrontendKind::ClusterIp));
    assert_eq!(bench.reasons(), [("s9".to_owned(), Reason::MapFull)]);
}

#[test]
fn a_service_has_limits() {
    let mut service = Caps::default();
    service.set(Resource::Addresses, Cap::Count(11));
    service.set(Resource::Endpoints, Cap::Count(5));
    let limits = MapLimits {
        service,
        ..MapLimits::default()
    };
    let mut bench = Bench::limited(ROOMY, limits);
    bench.start(&[greedy(1, 20), greedy(2, 10), spec(3, 1..7)]);
    let waiting: Vec<_> = bench.writer.waiting().map(|(_, error)| error).collect();
    let over = |resource, wanted, limit| NotProgrammed::Limit {
        scope: Scope::Service,
        resource,
        wanted,
        limit,
    };
    assert_eq!(
        waiting,
        [
            over(Resource::Addresses, 21, 11),
            over(Resource::Endpoints, 6, 5)
        ]
    );
    assert!(bench.serves(&greedy(1, 20), FrontendKind::ClusterIp));
    assert!(bench.serves(&greedy(2, 10), FrontendKind::ExternalIp));
    bench.start(&[greedy(1, 10), spec(3, 1..6)]);
    bench.assert_complete();
}

#[test]
fn source_ranges_are_limited_and_shared() {
    let mut service = Caps::default();
    service.set(Resource::SourceRanges, Cap::Count(3));
    let mut namespace = Caps::default();
    namespace.set(Resource::SourceRanges, Cap::Count(5));
    let limits = MapLimits { service, namespace };
    let mut bench = Bench::limited(ROOMY, limits);
    let ranged = |number, sources: std::ops::Range<u8>| Spec {
        load_balancer: Some(number),
        sources: sources.collect(),
        ..spec(number, [number])
    };
    // Who wants too many is refused alone; the same ranges count once.
    let greedy = ranged(1, 0..4);
    let shared = [ranged(2, 0..3), ranged(3, 0..3)];
    bench.start(&[&shared[..], &[greedy.clone(), ranged(4, 10..12)]].concat());
    let over = |scope, wanted, limit| NotProgrammed::Limit {
        scope,
        resource: Resource::SourceRanges,
        wanted,
        limit,
    };
    let waiting = |bench: &Bench| {
        let waiting = bench.writer.waiting();
        waiting.map(|(_, error)| error).collect::<Vec<_>>()
    };
    assert_eq!(waiting(&bench), [over(Scope::Service, 4, 3)]);
    for spec in &shared {
        assert!(bench.serves(spec, FrontendKind::LoadBalancerIp));
    }
    // The namespace has five now.
    let more = ranged(5, 20..21);
    bench.start(&[more.clone(), ranged(1, 0..3)]);
    assert_eq!(waiting(&bench), [over(Scope::Namespace, 1, 5)]);
    assert!(bench.serves(&ranged(1, 0..3), FrontendKind::LoadBalancerIp));
    // A change needs no more room than it frees; what another one gives up is to be had.
    bench.start(&[ranged(4, 12..14)]);
    assert!(bench.serves(&ranged(4, 12..14), FrontendKind::LoadBalancerIp));
    bench.start(&[ranged(4, 12..13)]);
    bench.writer.tidy();
    bench.assert_complete();
}

/// A service port of each kind of Service, and where the API server is.
#[test]
fn reserved_addresses_are_kept_from_services() {
    let mut bench = Bench::new(ROOMY);
    let own = ip(IpFamily::V4, 200, 1);
    let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
    let mut reserved = Reserved::on([own].into());
    reserved.add(at(ip(IpFamily::V4, 1, 0), 80), Purpose::ApiServer);
    reserved.add("0.0.0.0:30080".parse().unwrap(), Purpose::Healthz);
    bench.writer.set_reserved(reserved.clone());
    // Two externalIPs, the first one is the API server's.
    let claiming = greedy(1, 2);
    let udp = Spec {
        protocol: Protocol::Udp,
        ..greedy(1, 2)
    };
    let node_port = Spec {
        node_port: 30_080,
        ..spec(2, [2])
    };
    bench.start(&[claiming.clone(), udp.clone(), node_port.clone()]);
    let waiting = |bench: &Bench| -> Vec<_> {
        let waiting = bench.writer.waiting();
        waiting
            .map(|(key, error)| (key.clone(), error.to_string()))
            .collect()
    };
    let text = |address: &str, what: &str| format!("{address} is {what}, and not for Services");
    assert_eq!(
        waiting(&bench),
        [
            (
                claiming.key(),
                text("10.1.0.0:80", "where this node reaches the API server")
            ),
            (
                node_port.key(),
                text("10.200.0.1:30080", "where the agent serves /healthz")
            ),
        ]
    );
    assert!(bench.serves(&udp, FrontendKind::ExternalIp), "TCP only");
    let found = |bench: &Bench, address: SocketAddr| {
        bench
            .kernel
            .state()
            .view(&(address, lb_common::parse::TCP))
            .is_some()
    };
    assert!(!found(&bench, at(ip(IpFamily::V4, 1, 0), 80)));
    assert!(
        found(&bench, at(ip(IpFamily::V4, 1, 1), 80)),
        "its other one"
    );
    assert!(!found(&bench, at(own, 30_080)));

    // An essential Service may stand before the API server.
    let essential = Spec {
        essential: true,
        ..claiming.clone()
    };
    bench.start(std::slice::from_ref(&essential));
    assert!(found(&bench, at(ip(IpFamily::V4, 1, 0), 80)));
    bench.start(std::slice::from_ref(&claiming));
    assert!(!found(&bench, at(ip(IpFamily::V4, 1, 0), 80)));

    // The API server moves, and the agent listens elsewhere.
    bench.writer.set_reserved(Reserved::on([own].into()));
    bench.writer.settle();
    bench.assert_complete();
    assert_eq!(waiting(&bench), []);
    // And back: what is there already is taken out.
    bench.writer.set_reserved(reserved);
    bench.writer.settle();
    assert_eq!(waiting(&bench).len(), 2);
    assert!(!found(&bench, at(own, 30_080)));
}

#[test]
fn a_namespace_has_limits_but_not_for_essential_services() {
    let mut namespace = Caps::default();
    namespace.set(Resource::ServicePorts, Cap::Count(3));
    let limits = MapLimits {
        namespace,
        ..MapLimits::default()
    };
    let mut bench = Bench::limited(ROOMY, limits);
    let dns = Spec {
        essential: true,
        ..spec(9, [9])
    };
    let specs = [1, 2, 3, 4].map(|number| spec(number, [number]));
    bench.start(&specs);
    bench.start(std::slice::from_ref(&dns));
    assert_eq!(bench.reasons(), [("s4".to_owned(), Reason::NamespaceLimit)]);
    assert!(bench.serves(&dns, FrontendKind::ClusterIp));
    let gone = [specs[0].key(), dns.key()];
    bench.note(&[], &gone);
    bench.write(&[], &gone);
    bench.writer.settle();
    bench.writer.tidy();
    bench.assert_complete();
}

#[test]
fn a_contested_address_goes_to_the_older_service() {
    let mut bench = Bench::new(ROOMY);
    let claiming = |number, created| Spec {
        created,
        load_balancer: Some(1),
        ..spec(number, [number])
    };
    let (young, old) = (claiming(1, 20), claiming(2, 10));
    bench.round(&[young.clone(), old.clone()], &[]);
    assert!(bench.serves(&old, FrontendKind::LoadBalancerIp));
    let lacking: Vec<_> = bench
        .writer
        .waiting()
        .map(|(_, error)| error.to_string())
        .collect();
    assert_eq!(
        lacking,
        ["Service default/s2, which goes first, has 10.50.0.1:80"]
    );
    assert_eq!(bench.reasons(), [("s1".to_owned(), Reason::AddressTaken)]);

    bench.round(&[], &[old.key()]);
    assert!(bench.serves(&young, FrontendKind::LoadBalancerIp));
    assert_eq!(bench.reasons(), []);
}
