//! Packets that the kernel would drop are not sent to endpoints: they open nothing, and pass to the
//! kernel.

use std::net::{IpAddr, SocketAddr};

use lb_common::{
    abi::device_flag,
    verdict::{Action, Reason},
};
use lb_datapath::memory::Route;
use lb_objects::IpFamily;
use lb_packet::tcp_flag::SYN;

use crate::{
    hooks::{ingress, ingress_by},
    scene::{Scene, hop},
};

#[test]
fn nothing_opens_for_addresses_that_nobody_sends_from() {
    for scene in Scene::each() {
        let sources = match scene.family {
            IpFamily::V4 => [
                "0.0.0.0",
                "127.0.0.1",
                "224.0.0.1",
                "239.1.2.3",
                "255.255.255.255",
            ],
            IpFamily::V6 => ["::", "::1", "ff02::1", "ff0e::1", "ff00::"],
        };
        let martians = sources.map(|source| source.parse::<IpAddr>().expect("an address"));
        for source in martians {
            passes(&scene, &from(&scene, source), Reason::MartianSource);
        }
    }
}

#[test]
fn addresses_beside_those_are_served() {
    for scene in Scene::each() {
        let sources = match scene.family {
            IpFamily::V4 => [
                "1.0.0.0",
                "126.255.255.255",
                "128.0.0.1",
                "223.255.255.255",
                "240.0.0.1",
            ],
            IpFamily::V6 => ["::2", "1::", "0:1::1", "fe80::1", "feff::1"],
        };
        for source in sources {
            let source = source.parse().expect("an address");
            let outcome = ingress(&scene.tables(), &from(&scene, source));
            assert_eq!(outcome.reason, Reason::Opened, "{source}");
        }
    }
}

#[test]
fn nothing_opens_for_frames_to_a_group() {
    for scene in Scene::each() {
        for first in [0xff, 0x01, 0x33] {
            let mut frame = scene.opening(4000);
            frame[0] = first;
            passes(&scene, &frame, Reason::LinkMulticast);
        }
    }
}

/// A switch floods a frame to all ports while it does not know where the receiver is.
#[test]
fn nothing_opens_for_frames_to_another_host() {
    for scene in Scene::each() {
        let mut tables = scene.tables();
        let device = tables.add_device("wire", 0);
        let opening = scene.opening(4000);
        tables.set_ethernet_address(device, opening[..6].try_into().expect("an address"));
        for octet in 2..6 {
            let mut frame = opening.clone();
            frame[octet] ^= 0x10;
            let outcome = ingress_by(device, &tables, &frame);
            let found = (outcome.action, outcome.reason);
            assert_eq!(found, (Action::Pass, Reason::OtherHost));
            assert_eq!(outcome.frame, frame);
        }
        let opened = ingress_by(device, &tables, &opening);
        assert_eq!(opened.reason, Reason::Opened);
        assert_eq!(tables.stats(1).connections, 1);
    }
}

#[test]
fn nothing_opens_for_the_nodes_own_address_from_elsewhere() {
    for scene in Scene::each() {
        let mut tables = scene.tables();
        let opening = from(&scene, scene.node());
        let device = tables.add_device("veth", device_flag::NO_OWN_SOURCES);
        let outcome = ingress_by(device, &tables, &opening);
        // The kernel looks for that with IPv4 only.
        assert_eq!(outcome.reason, v4_or_opened(&scene, Reason::MartianSource));
        let outcome = ingress_by(device + 1, &tables, &opening);
        assert_ne!(outcome.reason, Reason::MartianSource, "any is taken there");
    }
}

#[test]
fn nothing_opens_where_the_way_back_is_another() {
    const FORGED: Reason = Reason::MartianSource;
    const OPENED: Reason = Reason::Opened;
    let cases = [
        // The way back to the client, the device that it must lead to, and the expected result.
        (Route::To(hop(DEVICE)), DEVICE, OPENED),
        (Route::Unresolved(DEVICE), DEVICE, OPENED),
        (Route::To(hop(DEVICE + 1)), DEVICE, FORGED),
        (Route::None, DEVICE, FORGED),
        (Route::To(hop(DEVICE + 1)), 0, OPENED),
        (Route::None, 0, FORGED),
    ];
    for scene in Scene::each() {
        for (route, device, expected) in cases {
            let mut tables = scene.tables();
            let client = scene.client(4000).ip();
            tables.add_route(client.into(), route);
            assert_eq!(tables.add_device("veth", device_flag::WAY_BACK), DEVICE);
            tables.set_way_back(DEVICE, device);
            let opening = scene.opening(4000);
            let outcome = ingress_by(DEVICE, &tables, &opening);
            assert_eq!(outcome.reason, v4_or_opened(&scene, expected));
            let opened = u64::from(outcome.reason == OPENED);
            assert_eq!(tables.stats(1).connections, opened);
        }
    }
}

/// The device after the scene's own.
const DEVICE: u32 = 2;

/// IPv6 has no such settings.
fn v4_or_opened(scene: &Scene, v4: Reason) -> Reason {
    match scene.family {
        IpFamily::V4 => v4,
        IpFamily::V6 => Reason::Opened,
    }
}

/// The first packet of a connection from this address.
fn from(scene: &Scene, source: IpAddr) -> Vec<u8> {
    scene.frame(SocketAddr::new(source, 4000), scene.target(), SYN, b"hello")
}

/// Asserts that a packet passes unchanged for this reason, and leaves nothing behind.
fn passes(scene: &Scene, frame: &[u8], reason: Reason) {
    let tables = scene.tables();
    let outcome = ingress(&tables, frame);
    assert_eq!((outcome.action, outcome.reason), (Action::Pass, reason));
    assert_eq!(outcome.frame, frame);
    // The first packet of a genuine client.
    assert_eq!(
        ingress(&tables, &scene.opening(4000)).reason,
        Reason::Opened
    );
    assert_eq!(tables.stats(1).connections, 1);
}
