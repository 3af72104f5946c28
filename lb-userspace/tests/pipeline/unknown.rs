//! Ports that a ClusterIP does not have are refused, and addresses of Services that no Service has
//! lead nowhere, as in kube-proxy's nftables mode.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use lb_common::{
    abi::config_flag,
    verdict::{Action, Reason},
};
use lb_objects::IpFamily;
use lb_packet::{
    Fragment, Header, TCP, UDP, icmp, icmp_number, tcp,
    tcp_flag::{ACK, FIN, RST, SYN},
    udp,
};
use node_lb::memory::ProgrammedTables;

use crate::{
    hooks::{Outcome, egress, ingress},
    scene::Scene,
};

const GRE: u8 = 47;

/// The scene's tables on a node that refuses what it does not know.
fn tables(scene: &Scene) -> ProgrammedTables {
    let mut tables = scene.tables();
    tables.config.flags |= config_flag::REFUSE_UNKNOWN;
    tables
}

fn other_port(scene: &Scene) -> SocketAddr {
    let to = scene.target();
    SocketAddr::new(to.ip(), to.port() + 1)
}

/// A network of so many bits with the scene's ClusterIP.
fn network(scene: &Scene, bits: u8) -> IpNet {
    IpNet::new(scene.target().ip(), bits).unwrap().trunc()
}

/// The last address of that network, which no Service has.
fn unused(scene: &Scene, bits: u8) -> SocketAddr {
    SocketAddr::new(network(scene, bits).broadcast(), 80)
}

/// A prefix length that a ServiceCIDR may have.
fn cidr_bits(scene: &Scene) -> u8 {
    match scene.family {
        IpFamily::V4 => 20,
        IpFamily::V6 => 112,
    }
}

fn echo_request(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 8 } else { 128 }
}

fn assert_refused(scene: &Scene, tables: &ProgrammedTables, to: IpAddr, outcome: &Outcome) {
    let seen = (outcome.action, outcome.reason);
    assert_eq!(seen, (Action::Answer, Reason::UnknownPort), "{scene:?}");
    let answer = outcome.read();
    answer.assert_checksums();
    let (source, destination) = (answer.source, answer.destination);
    assert_eq!((source, destination), (to, scene.client(4000).ip()));
    let unreachable = match scene.family {
        IpFamily::V4 => (3, 3),
        IpFamily::V6 => (1, 4),
    };
    assert_eq!(answer.icmp_kind(), unreachable);
    assert_no_state(tables);
}

fn assert_no_state(tables: &ProgrammedTables) {
    use lb_common::addr::{Ip4, Ip6};
    assert_eq!(tables.flows::<Ip4>().live().count(), 0);
    assert_eq!(tables.flows::<Ip6>().live().count(), 0);
}

#[test]
fn other_ports_and_protocols_of_a_cluster_ip_are_closed() {
    for scene in Scene::each() {
        let tables = tables(&scene);
        let from = scene.client(4000);
        let (own, other) = (scene.target(), other_port(&scene));
        let (to_own, other_protocol): (Vec<u8>, u8) = match scene.protocol {
            TCP => (udp(from, own, b"x"), UDP),
            _ => (tcp(from, own, SYN, b""), TCP),
        };
        let frames = [
            scene.frame(from, other, SYN, b""),
            Header::new(from.ip(), own.ip()).frame(other_protocol, &to_own),
        ];
        for frame in frames {
            for hook in [ingress, egress] {
                let outcome = hook(&tables, &frame);
                assert_refused(&scene, &tables, own.ip(), &outcome);
            }
        }
        // The Service itself is served.
        let served = ingress(&tables, &scene.opening(4000));
        assert_eq!(served.reason, Reason::Opened);
    }
}

#[test]
fn what_has_no_ports_is_refused_where_it_leaves() {
    for scene in Scene::each() {
        let tables = tables(&scene);
        let (from, to) = (scene.client(4000).ip(), scene.target().ip());
        let number = icmp_number(to);
        let message = |kind| icmp(from, to, (kind, 0), 0, &[0; 16]);
        let frame = |protocol, bytes: &[u8]| Header::new(from, to).frame(protocol, bytes);
        for sent in [
            frame(number, &message(echo_request(to))),
            frame(GRE, &[0; 16]),
        ] {
            let arrived = ingress(&tables, &sent);
            let passed = (arrived.action, arrived.reason);
            assert_eq!(passed, (Action::Pass, Reason::OtherProtocol));
            assert_refused(&scene, &tables, to, &egress(&tables, &sent));
        }
        // Answers, errors and neighbour discovery begin nothing.
        let others: &[u8] = match scene.family {
            IpFamily::V4 => &[0, 3, 5, 11, 14],
            IpFamily::V6 => &[1, 2, 3, 129, 133, 134, 135, 136],
        };
        for kind in others {
            let sent = frame(number, &message(*kind));
            assert_eq!(egress(&tables, &sent).action, Action::Pass, "type {kind}");
        }
    }
}

#[test]
fn later_fragments_that_nobody_takes_do_not_leave() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene::new(family, UDP);
        let mut tables = tables(&scene);
        let bits = cidr_bits(&scene);
        tables.set_service_cidrs(&[network(&scene, bits)]);
        tables.program(&[scene.plan()]);
        let seen_by = |hook: fn(&ProgrammedTables, &[u8]) -> Outcome, to: IpAddr| {
            let header = Header {
                fragment: Some(Fragment {
                    id: 5,
                    offset: 4,
                    more: false,
                }),
                ..Header::new(scene.client(4000).ip(), to)
            };
            let sent = header.frame(UDP, &[0; 16]);
            let outcome = hook(&tables, &sent);
            assert_eq!(outcome.frame, sent);
            (outcome.action, outcome.reason)
        };
        let passed = (Action::Pass, Reason::UnknownFragment);
        for to in [scene.target().ip(), unused(&scene, bits).ip()] {
            // Rules of the node's own may put the packet together, and send it elsewhere.
            assert_eq!(seen_by(ingress, to), passed);
            let dropped = (Action::Drop, Reason::UnknownFragment);
            assert_eq!(seen_by(egress, to), dropped);
        }
        assert_eq!(seen_by(egress, scene.endpoint(0).ip()), passed);
    }
}

#[test]
fn segments_that_begin_no_connection_pass() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene::new(family, TCP);
        let tables = tables(&scene);
        for flags in [ACK, SYN | ACK, FIN | ACK, RST, RST | ACK, FIN, 0] {
            let sent = scene.frame(scene.client(4000), other_port(&scene), flags, b"");
            for hook in [ingress, egress] {
                let passed = hook(&tables, &sent);
                assert_eq!(
                    (passed.action, passed.reason, &passed.frame),
                    (Action::Pass, Reason::NotService, &sent),
                    "{flags:#x}"
                );
            }
        }
    }
}

#[test]
fn nothing_is_refused_unless_the_node_is_told_to() {
    for scene in Scene::each() {
        let mut tables = scene.tables();
        let bits = cidr_bits(&scene);
        tables.set_service_cidrs(&[network(&scene, bits)]);
        tables.program(&[scene.plan()]);
        for to in [other_port(&scene), unused(&scene, bits)] {
            let sent = scene.frame(scene.client(4000), to, SYN, b"");
            for hook in [ingress, egress] {
                let passed = hook(&tables, &sent);
                let seen = (passed.action, passed.reason);
                assert_eq!(seen, (Action::Pass, Reason::NotService));
                assert_eq!(passed.frame, sent);
            }
        }
    }
}

#[test]
fn addresses_of_no_service_lead_nowhere_but_others_rules_come_first() {
    for scene in Scene::each() {
        let mut tables = tables(&scene);
        let bits = cidr_bits(&scene);
        let sent = scene.frame(scene.client(4000), unused(&scene, bits), SYN, b"");
        assert_eq!(
            egress(&tables, &sent).action,
            Action::Pass,
            "no range is known"
        );

        tables.set_service_cidrs(&[network(&scene, bits)]);
        tables.program(&[scene.plan()]);
        let arrived = ingress(&tables, &sent);
        let passed = (arrived.action, arrived.reason);
        assert_eq!(passed, (Action::Pass, Reason::NotService));
        let left = egress(&tables, &sent);
        let dropped = (left.action, left.reason);
        assert_eq!(dropped, (Action::Drop, Reason::NoSuchService));
        assert_no_state(&tables);
        // Next to the range, and a Service within.
        let outside = unused(&scene, bits - 4);
        let sent = scene.frame(scene.client(4000), outside, SYN, b"");
        assert_eq!(egress(&tables, &sent).action, Action::Pass);
        let sent = scene.frame(scene.client(4000), other_port(&scene), SYN, b"");
        assert_refused(
            &scene,
            &tables,
            scene.target().ip(),
            &ingress(&tables, &sent),
        );

        tables.set_service_cidrs(&[]);
        tables.program(&[scene.plan()]);
        let sent = scene.frame(scene.client(4000), unused(&scene, bits), SYN, b"");
        assert_eq!(egress(&tables, &sent).action, Action::Pass, "it has gone");
    }
}

#[test]
fn a_service_that_is_gone_leaves_nothing_behind() {
    for scene in Scene::each() {
        let mut tables = tables(&scene);
        let sent = scene.frame(scene.client(4000), other_port(&scene), SYN, b"");
        assert_eq!(ingress(&tables, &sent).reason, Reason::UnknownPort);
        tables.program([]);
        assert_eq!(ingress(&tables, &sent).reason, Reason::NotService);
        tables.program(&[scene.plan()]);
        assert_eq!(ingress(&tables, &sent).reason, Reason::UnknownPort);
    }
}

#[test]
fn other_proxies_have_their_connections_during_a_handover() {
    for scene in Scene::each() {
        let mut tables = tables(&scene);
        tables.config.flags |= config_flag::HANDOVER_OUT;
        let sent = scene.frame(scene.client(4000), other_port(&scene), SYN, b"");
        for hook in [ingress, egress] {
            assert_eq!(hook(&tables, &sent).reason, Reason::NotService);
        }
    }
}

#[test]
fn a_scan_gets_as_many_answers_as_there_may_be() {
    for scene in Scene::each() {
        let tables = tables(&scene);
        tables.set_answers_left(3);
        let to = scene.target().ip();
        let outcomes = (1000..1100).map(|port| {
            let to = SocketAddr::new(to, port);
            ingress(&tables, &scene.frame(scene.client(4000), to, SYN, b""))
        });
        let reasons: Vec<_> = outcomes.map(|outcome| outcome.reason).collect();
        let answered = reasons.iter().filter(|r| **r == Reason::UnknownPort);
        let limited = reasons.iter().filter(|r| **r == Reason::AnswerRateLimited);
        assert_eq!((answered.count(), limited.count()), (3, 97));
        assert_no_state(&tables);
    }
}
