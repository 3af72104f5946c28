//! ClusterIPs, and the ranges that programs compare addresses with first.

use lb_common::{
    abi::{SERVICE_RANGES, cluster_ip_flag, service_range_flag},
    parse,
};

use super::*;

const CIDR: u32 = service_range_flag::USED | service_range_flag::SERVICE_CIDR;

/// The ranges of a family, and their flags.
fn ranges(bench: &Bench, family: IpFamily) -> Vec<(String, u32)> {
    let state = bench.kernel.state();
    let first = family as usize * SERVICE_RANGES as usize;
    let ranges = state.service_ranges[first..]
        .iter()
        .take_while(|r| r.flags != 0);
    ranges
        .take(SERVICE_RANGES as usize)
        .map(|range| {
            let network = IpAddr::from(range.network);
            (format!("{network}/{}", range.prefix), range.flags)
        })
        .collect()
}

fn cluster_ips(bench: &Bench) -> Vec<IpAddr> {
    bench.kernel.state().cluster_ips.keys().copied().collect()
}

fn cidrs(bench: &mut Bench, cidrs: &[&str]) {
    let cidrs: Vec<_> = cidrs.iter().map(|text| text.parse().unwrap()).collect();
    bench.writer.set_service_cidrs(&cidrs);
    bench.writer.settle();
}

#[test]
fn an_address_is_there_as_long_as_a_port_of_it() {
    let mut bench = Bench::new(ROOMY);
    let tcp = spec(1, [1]);
    let udp = Spec {
        protocol: Protocol::Udp,
        ..tcp.clone()
    };
    let ip = tcp.ip(96, 1);
    bench.round(&[tcp.clone(), udp.clone()], &[]);
    assert_eq!(cluster_ips(&bench), [ip]);
    bench.round(&[], &[tcp.key()]);
    assert_eq!(cluster_ips(&bench), [ip]);
    bench.round(&[], &[udp.key()]);
    assert_eq!(cluster_ips(&bench), [] as [IpAddr; 0]);
    assert_eq!(ranges(&bench, IpFamily::V4), []);
}

#[test]
fn an_address_says_if_a_port_of_it_passes() {
    let sctp = Spec {
        protocol: Protocol::Sctp,
        ..spec(1, [1])
    };
    let udp = Spec {
        protocol: Protocol::Udp,
        ..sctp.clone()
    };
    let ip = sctp.ip(96, 1);
    for (passes_sctp, flags) in [(true, cluster_ip_flag::SCTP), (false, 0)] {
        let facts = NodeFacts {
            passes_sctp,
            ..NodeFacts::default()
        };
        let mut bench = Bench::on_node(ROOMY, facts);
        bench.writer.apply(udp.key(), Some(&udp.plan())).unwrap();
        bench.writer.apply(sctp.key(), Some(&sctp.plan())).unwrap();
        bench.writer.settle();
        assert_eq!(bench.kernel.state().cluster_ips[&ip].flags, flags);
        // Its own frontends are there only if it does not pass.
        let state = bench.kernel.state();
        let of_sctp = state
            .frontends
            .keys()
            .any(|(_, protocol)| *protocol == parse::SCTP);
        assert_eq!(of_sctp, !passes_sctp);
        drop(state);
        bench.writer.apply(sctp.key(), None).unwrap();
        bench.writer.settle();
        assert_eq!(bench.kernel.state().cluster_ips[&ip].flags, 0);
    }
}

#[test]
fn ranges_are_service_cidrs_and_what_has_the_rest() {
    let mut bench = Bench::new(ROOMY);
    let specs: Vec<_> = [1, 2, 9].map(|number| spec(number, [1])).into();
    bench.round(&specs, &[]);
    let used = service_range_flag::USED;
    assert_eq!(
        ranges(&bench, IpFamily::V4),
        [("10.96.0.0/28".to_owned(), used)]
    );
    bench.round(&[], &[specs[2].key()]);
    assert_eq!(
        ranges(&bench, IpFamily::V4),
        [("10.96.0.0/30".to_owned(), used)]
    );

    cidrs(&mut bench, &["10.96.0.2/31", "fd00::/108"]);
    assert_eq!(
        ranges(&bench, IpFamily::V4),
        [
            ("10.96.0.2/31".to_owned(), CIDR),
            ("10.96.0.1/32".to_owned(), used)
        ]
    );
    assert_eq!(
        ranges(&bench, IpFamily::V6),
        [("fd00::/108".to_owned(), CIDR)]
    );
    cidrs(&mut bench, &["10.96.0.0/12", "10.97.0.0/16"]);
    assert_eq!(
        ranges(&bench, IpFamily::V4),
        [("10.96.0.0/12".to_owned(), CIDR)]
    );
    assert_eq!(ranges(&bench, IpFamily::V6), []);
}

#[test]
fn more_service_cidrs_than_there_is_room_for_still_have_their_services() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[spec(1, [1])], &[]);
    let many: Vec<_> = (0..20)
        .map(|n| format!("10.{}.0.0/16", 2 * n + 100))
        .collect();
    let many: Vec<_> = many
        .iter()
        .map(String::as_str)
        .chain(["10.96.0.0/24"])
        .collect();
    cidrs(&mut bench, &many);
    let ranges = ranges(&bench, IpFamily::V4);
    assert_eq!(ranges.len(), SERVICE_RANGES as usize);
    let last = ("10.96.0.1/32".to_owned(), service_range_flag::USED);
    assert_eq!(ranges.last(), Some(&last));
}

#[test]
fn a_later_writer_goes_on_with_what_is_there() {
    let mut bench = Bench::new(ROOMY);
    let (kept, gone) = (spec(1, [1]), spec(2, [1]));
    bench.round(&[kept.clone(), gone.clone()], &[]);
    cidrs(&mut bench, &["10.96.0.0/31"]);
    let before = (cluster_ips(&bench), ranges(&bench, IpFamily::V4));
    bench.restart();
    bench.plans.remove(&gone.key());
    assert_eq!((cluster_ips(&bench), ranges(&bench, IpFamily::V4)), before);
    bench.apply_all();
    assert_eq!(cluster_ips(&bench), [kept.ip(96, 1)]);
    assert_eq!(
        ranges(&bench, IpFamily::V4),
        [("10.96.0.0/31".to_owned(), CIDR)]
    );
}
