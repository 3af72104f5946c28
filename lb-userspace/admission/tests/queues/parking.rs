//! Room for the packets of waiting connections.

use std::net::IpAddr;

use lb_admission::{
    controller::{Controller, LevelId},
    parking::{Full, Parking, ParkingLimits},
    queueset::Policy,
    schema::Ingress,
};

use crate::support::level;

const LIMITS: ParkingLimits = ParkingLimits {
    node: 1_000_000,
    level: 500_000,
    source: 64 * 256,
};

fn levels() -> [LevelId; 2] {
    let levels = [level("one", 1, 8, 1), level("other", 1, 8, 1)];
    let controller = Controller::new(&levels, 100, Policy::Connections, 0).unwrap();
    ["one", "other"].map(|name| controller.find(name).unwrap())
}

/// How many packets of 256 octets fit, if so many come from each of some addresses.
fn parked(ingress: Ingress, address: fn(u8) -> IpAddr, sources: u8, each: u32) -> usize {
    let mut parking = Parking::new(LIMITS);
    let [level, _] = levels();
    let sources = (1..=sources).flat_map(|source| (0..each).map(move |_| source));
    let packets = sources.filter_map(|source| {
        let parked = parking.park(level, ingress, address(source), 256);
        parked.ok()
    });
    packets.collect::<Vec<_>>().len()
}

/// With a limit for every /24, as for sources outside, 64 of the pods' 300 packets would fit.
#[test]
fn pods_of_a_node_have_room_of_their_own() {
    let pod = |number| IpAddr::from([10, 244, 1, number]);
    assert_eq!(parked(Ingress::Pod, pod, 30, 10), 300);
    assert_eq!(parked(Ingress::Pod, pod, 1, 300), 64, "each has its limit");
    assert_eq!(parked(Ingress::External, pod, 30, 10), 64);
}

#[test]
fn sources_outside_share_the_room_of_their_network() {
    let v4 = |number| IpAddr::from([192, 0, 2, number]);
    assert_eq!(parked(Ingress::External, v4, 254, 2), 64);
    let v6 = |number: u8| IpAddr::from([0x2001, 0xdb8, 1, u16::from(number), 0, 0, 0, 9]);
    assert_eq!(parked(Ingress::External, v6, 254, 2), 64);
    let networks = |number: u8| IpAddr::from([192, 0, number, 1]);
    assert_eq!(parked(Ingress::External, networks, 30, 10), 300);
}

#[test]
fn room_is_bounded_and_comes_back() {
    let [one, other] = levels();
    let mut parking = Parking::new(ParkingLimits {
        node: 300,
        level: 200,
        source: 100,
    });
    let mut park =
        |level, host, octets| parking.park(level, Ingress::Pod, [10, 0, 0, host].into(), octets);
    let first = park(one, 1, 100).unwrap();
    assert_eq!(park(one, 1, 1), Err(Full::Source));
    let second = park(one, 2, 100).unwrap();
    assert_eq!(park(one, 3, 1), Err(Full::Level));
    let third = park(other, 4, 100).unwrap();
    assert_eq!(park(other, 5, 1), Err(Full::Node));
    assert_eq!(park(other, 5, u32::MAX), Err(Full::Source));
    for parked in [first, second, third] {
        parking.leave(parked);
    }
    assert_eq!((parking.octets(), parking.sources()), (0, 0));
    assert!(
        parking
            .park(one, Ingress::Pod, [10, 0, 0, 1].into(), 100)
            .is_ok()
    );
}
