//! Which endpoint a socket of the node's own gets: another one with each `connect`, the same one with
//! each datagram of an unconnected socket.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use lb_common::{
    abi::{SocketSeats, config_flag},
    addr::{Address, Ip4, Ip6},
    parse::{TCP, Tuple, UDP, tcp_flag},
    pipeline::{seat_socket, unseat_socket},
    socket::{self, Call, Caller, Outcome},
    tables::Tables,
    verdict::Reason,
};
use lb_datapath::memory::Hook;
use lb_objects::{Algorithm, IpFamily};
use lb_packet::SCTP;
use node_lb::{memory::ProgrammedTables, plan::FrontendKind};

use crate::{
    hooks::ingress,
    scene::{Place, Scene},
};

/// A socket, and what it holds, as the programs at sockets keep it.
pub struct AskingSocket<'a> {
    tables: &'a ProgrammedTables,
    cookie: u64,
    /// Whether it is a pod's.
    is_pods: bool,
    held: RefCell<SocketSeats>,
}

impl<'a> AskingSocket<'a> {
    pub fn new(tables: &'a ProgrammedTables, cookie: u64) -> Self {
        Self {
            tables,
            cookie,
            is_pods: false,
            held: RefCell::default(),
        }
    }

    fn of_pod(tables: &'a ProgrammedTables) -> Self {
        Self {
            is_pods: true,
            ..Self::new(tables, 1)
        }
    }

    /// What it holds.
    pub fn held(&self) -> SocketSeats {
        *self.held.borrow()
    }

    /// Where it goes now, and whether it has gone there before.
    pub fn ask(&self, scene: &Scene, call: Call) -> Result<(SocketAddr, bool), Reason> {
        self.ask_for(scene, scene.target(), call)
    }

    fn ask_for(
        &self,
        scene: &Scene,
        target: SocketAddr,
        call: Call,
    ) -> Result<(SocketAddr, bool), Reason> {
        if call == Call::Connect {
            self.close();
        }
        match scene.family {
            IpFamily::V4 => self.ask_by::<Ip4>(scene, target, call),
            IpFamily::V6 => self.ask_by::<Ip6>(scene, target, call),
        }
    }

    /// Gives back what it holds, as if it were closed.
    pub fn close(&self) {
        unseat_socket::<Ip4, _>(&self.tables.tc(), &mut self.held.borrow_mut());
    }

    fn ask_by<A: Address + Default>(
        &self,
        scene: &Scene,
        target: SocketAddr,
        call: Call,
    ) -> Result<(SocketAddr, bool), Reason>
    where
        for<'b> Hook<'b, true>: Tables<A>,
    {
        let tuple = Tuple {
            source: A::from_mapped(scene.node().into()),
            destination: A::from_mapped(target.ip().into()),
            destination_port: target.port(),
            protocol: scene.protocol,
            ..Tuple::default()
        };
        match socket::destination(&self.tables.tc(), &tuple, call, self) {
            Outcome::Replace {
                address,
                port,
                is_known,
                ..
            } => Ok((SocketAddr::new(address.to_mapped().into(), port), is_known)),
            Outcome::Keep(reason) | Outcome::Refuse(reason) => Err(reason),
        }
    }
}

impl<A: Address> Caller<A> for AskingSocket<'_>
where
    for<'b> Hook<'b, true>: Tables<A>,
{
    fn cookie(&self) -> u64 {
        self.cookie
    }

    fn is_own(&self) -> bool {
        !self.is_pods
    }

    fn holds(&self, service: u32, endpoint: u32) -> bool {
        let held = self.held();
        (held.service, held.endpoint) == (service, endpoint)
    }

    fn take_seats(&self, tuple: &Tuple<A>, endpoint: u32) -> Option<Reason> {
        self.close();
        let mut held = self.held.borrow_mut();
        held.ports = self.cookie as u32;
        seat_socket(&self.tables.tc(), tuple, endpoint, &mut held)
    }
}

/// As long as the kernel's connection tracking keeps an answered UDP flow.
const SILENCE: u32 = 120;
/// Sockets of a node.
const SOCKETS: u64 = 400;

#[test]
fn an_unconnected_socket_stays_with_its_endpoint() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut sockets = BTreeMap::<SocketAddr, u64>::new();
        for cookie in 0..SOCKETS {
            let (first, is_known) = datagram(&scene, &tables, cookie);
            assert!(!is_known);
            for _ in 0..20 {
                assert_eq!(datagram(&scene, &tables, cookie), (first, true));
            }
            *sockets.entry(first).or_default() += 1;
        }
        // Each socket is counted as one connection.
        for index in 0..4 {
            let endpoint = *tables.endpoint(index).unwrap();
            let address = SocketAddr::new(endpoint.address.into(), endpoint.port);
            let of_endpoint = sockets.get(&address).copied().unwrap_or_default();
            assert_eq!(tables.connections(endpoint.id), of_endpoint);
            assert!((50..150).contains(&of_endpoint), "{scene:?}: {sockets:?}");
        }
    }
}

#[test]
fn a_socket_that_connects_draws_anew() {
    for scene in scenes().filter(|scene| scene.algorithm == Algorithm::Random) {
        for protocol in [TCP, UDP] {
            let scene = Scene {
                protocol,
                ..scene.clone()
            };
            let tables = scene.tables();
            let connect = || ask(&scene, &tables, Call::Connect, 1);
            let endpoints: BTreeSet<_> = (0..100).map(|_| connect()).collect();
            assert!(endpoints.iter().all(|(_, is_known)| !is_known));
            assert_eq!(endpoints.len(), 4, "{scene:?}");
        }
    }
}

#[test]
fn a_socket_leaves_an_endpoint_that_no_longer_serves() {
    for scene in scenes() {
        let mut tables = scene.tables();
        let (first, _) = datagram(&scene, &tables, 7);
        let index = (0..4).position(|index| scene.endpoint(index) == first);
        let index = index.expect("an endpoint of the Service");

        // It ends what it has begun.
        let mut ending = scene.clone();
        ending.endpoints[index] = Place::RemoteTerminating;
        tables.program(&[ending.plan()]);
        assert_eq!(datagram(&scene, &tables, 7), (first, true), "{scene:?}");
        let others = (100..200).map(|cookie| datagram(&scene, &tables, cookie).0);
        assert!(!others.collect::<BTreeSet<_>>().contains(&first));

        let without = Scene {
            absent: Some(index),
            ..scene.clone()
        };
        tables.program(&[without.plan()]);
        let (second, is_known) = datagram(&scene, &tables, 7);
        assert!(second != first && !is_known, "{scene:?}");
        assert_eq!(datagram(&scene, &tables, 7), (second, true));
    }
}

#[test]
fn a_socket_that_was_silent_draws_anew() {
    let scene = scenes().next().unwrap();
    let tables = scene.tables();
    let (first, _) = datagram(&scene, &tables, 1);
    for round in 1..10 {
        tables.set_seconds(round * SILENCE);
        assert_eq!(datagram(&scene, &tables, 1), (first, true));
    }
    tables.set_seconds(10 * SILENCE + 1);
    assert!(!datagram(&scene, &tables, 1).1);
}

#[test]
fn under_session_affinity_a_node_is_one_client() {
    for scene in scenes() {
        let scene = Scene {
            affinity: Some(Duration::from_secs(10_800)),
            ..scene
        };
        let tables = scene.tables();
        let sent = (0..50).map(|cookie| datagram(&scene, &tables, cookie));
        let connected = (50..100).map(|cookie| ask(&scene, &tables, Call::Connect, cookie));
        let endpoints: BTreeSet<_> = sent
            .chain(connected)
            .map(|(endpoint, _)| endpoint)
            .collect();
        assert_eq!(endpoints.len(), 1, "{scene:?}");
    }
}

/// What a pod's address is, its packets say.
#[test]
fn a_pods_socket_is_left_alone_where_its_address_matters() {
    let ranges = || {
        vec![
            "10.0.9.9/32".parse().unwrap(),
            "fd00:10::9:9/128".parse().unwrap(),
        ]
    };
    for scene in Scene::each().filter(|scene| scene.protocol != SCTP) {
        let sticky = Scene {
            affinity: Some(Duration::from_secs(10_800)),
            ..scene.clone()
        };
        let ranged = Scene {
            source_ranges: ranges(),
            ..scene.clone()
        };
        let load_balanced = Scene {
            frontend: FrontendKind::LoadBalancerIp,
            ..ranged.clone()
        };
        for (scene, has_schemas, is_left) in [
            (&scene, false, false),
            (&scene, true, true),
            (&sticky, false, true),
            // Only load balancers' addresses have ranges.
            (&ranged, false, false),
            (&load_balanced, false, true),
        ] {
            let mut tables = scene.tables();
            if has_schemas {
                tables.config.flags |= config_flag::ADMISSION;
            }
            for call in [Call::Connect, Call::SendMsg] {
                let of_pod = AskingSocket::of_pod(&tables).ask(scene, call);
                match is_left {
                    true => assert_eq!(of_pod, Err(Reason::LaterHook), "{scene:?}"),
                    false => assert!(of_pod.is_ok(), "{scene:?}: {of_pod:?}"),
                }
            }
            // The node's own are outside of those ranges.
            let own = AskingSocket::new(&tables, 2).ask(scene, Call::Connect);
            match scene.frontend {
                FrontendKind::LoadBalancerIp => assert_eq!(own, Err(Reason::SourceRange)),
                _ => assert!(own.is_ok(), "{scene:?}: {own:?}"),
            }
        }
    }
}

/// Packets to such an address come from a neighbour (CVE-2020-8558).
#[test]
fn only_sockets_reach_a_node_port_at_localhost() {
    for scene in Scene::each() {
        let localhost: IpAddr = match scene.family {
            IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
            IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        let target = SocketAddr::new(localhost, 30_080);
        for localhost in [false, true] {
            let scene = Scene {
                localhost,
                ..scene.clone()
            };
            let tables = scene.tables();
            let frame = scene.frame(scene.client(1), target, tcp_flag::SYN, b"");
            assert_eq!(ingress(&tables, &frame).reason, Reason::NotService);
            for call in [Call::Connect, Call::SendMsg] {
                let outcome = ask_for(&scene, &tables, target, call, 1);
                let wanted = match localhost {
                    true => Ok((scene.endpoint(0), false)),
                    false => Err(Reason::NotService),
                };
                assert_eq!(outcome, wanted, "{scene:?}");
            }
            // Another port there is somebody else's.
            let other = SocketAddr::new(target.ip(), 80);
            let outcome = ask_for(&scene, &tables, other, Call::Connect, 1);
            assert_eq!(outcome, Err(Reason::NotService), "{scene:?}");
        }
    }
}

/// Four endpoints of a Service over UDP, in both families and with each algorithm.
fn scenes() -> impl Iterator<Item = Scene> {
    [IpFamily::V4, IpFamily::V6].into_iter().flat_map(|family| {
        [
            Algorithm::Random,
            Algorithm::Maglev,
            Algorithm::LeastConnections,
        ]
        .map(|algorithm| Scene {
            endpoints: vec![Place::Remote; 4],
            algorithm,
            ..Scene::new(family, UDP)
        })
    })
}

/// Where a datagram of an unconnected socket goes, and whether earlier ones went there.
fn datagram(scene: &Scene, tables: &ProgrammedTables, cookie: u64) -> (SocketAddr, bool) {
    ask(scene, tables, Call::SendMsg, cookie)
}

fn ask(scene: &Scene, tables: &ProgrammedTables, call: Call, cookie: u64) -> (SocketAddr, bool) {
    let outcome = ask_for(scene, tables, scene.target(), call, cookie);
    outcome.unwrap_or_else(|reason| panic!("{reason:?}"))
}

fn ask_for(
    scene: &Scene,
    tables: &ProgrammedTables,
    target: SocketAddr,
    call: Call,
    cookie: u64,
) -> Result<(SocketAddr, bool), Reason> {
    AskingSocket::new(tables, cookie).ask_for(scene, target, call)
}
