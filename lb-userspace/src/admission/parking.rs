//! How many connections may wait on a node, beyond what each of its queues allows.
//!
//! A parked connection takes memory for itself and its packet, whichever level it waits at, and
//! whoever can forge addresses can be any number of flows. So the node bounds all of them together,
//! and those of each network that they come from.

use std::{collections::HashMap, net::IpAddr};

use super::queueset::Rejection;

/// Leading bits of an IPv4 address that make a source's network.
const IPV4_BITS: u32 = 24;
/// The same of an IPv6 address: what one customer of a provider commonly has.
const IPV6_BITS: u32 = 56;

/// Most connections that wait at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkingLimits {
    /// On the node, at all levels together.
    pub node: u32,
    /// From one network: a /24 of IPv4, a /56 of IPv6.
    pub source: u32,
}

/// Counts the connections that wait.
///
/// To be asked when a connection is in a queue and was not dispatched at once: if there is no room,
/// [`Controller::refuse`](super::controller::Controller::refuse) takes it out again. A connection that
/// finds a seat needs no room here, so that a full node still admits to levels with free seats.
#[derive(Clone, Debug)]
pub struct Parking {
    limits: ParkingLimits,
    parked: u32,
    /// By network, those with a waiter only.
    sources: HashMap<IpAddr, u32>,
}

impl Parking {
    /// Room for so many, whose memory is taken now.
    pub fn new(limits: ParkingLimits) -> Self {
        Self {
            limits,
            parked: 0,
            // Twice what is used: a map that full makes room in place and not by growing.
            sources: HashMap::with_capacity(2 * limits.node as usize),
        }
    }

    /// A connection begins to wait.
    ///
    /// # Errors
    /// If it must not, with the reason to tell; it is then not counted.
    pub fn park(&mut self, source: IpAddr) -> Result<(), Rejection> {
        if self.parked >= self.limits.node {
            return Err(Rejection::QueueFull);
        }
        let network = network(source);
        let of_network = self.sources.get(&network).copied().unwrap_or_default();
        if of_network >= self.limits.source {
            return Err(Rejection::QueueFull);
        }
        self.sources.insert(network, of_network + 1);
        self.parked += 1;
        Ok(())
    }

    /// A connection that was parked no longer waits, for whatever reason. To be called once for each;
    /// for a source that has none parked, nothing happens.
    pub fn leave(&mut self, source: IpAddr) {
        let network = network(source);
        let Some(of_network) = self.sources.get_mut(&network) else {
            return;
        };
        *of_network -= 1;
        if *of_network == 0 {
            self.sources.remove(&network);
        }
        self.parked -= 1;
    }

    /// How many wait.
    pub fn parked(&self) -> u32 {
        self.parked
    }

    /// How many networks those that wait come from.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }
}

/// The first address of a source's network.
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V4(address) => {
            IpAddr::V4((address.to_bits() & u32::MAX << (u32::BITS - IPV4_BITS)).into())
        }
        IpAddr::V6(address) => {
            IpAddr::V6((address.to_bits() & u128::MAX << (u128::BITS - IPV6_BITS)).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_network_does_not_take_all_room() {
        let mut parking = Parking::new(ParkingLimits { node: 5, source: 2 });
        for (source, parked) in [
            ("192.0.2.1", true),
            ("192.0.2.200", true),
            ("192.0.2.7", false),
            ("::ffff:192.0.2.7", false),
            ("192.0.3.7", true),
            ("2001:db8:0:1::1", true),
            ("2001:db8:0:ff:ffff::1", true),
            // The node is full.
            ("2001:db8:1::1", false),
        ] {
            let expected = parked.then_some(()).ok_or(Rejection::QueueFull);
            assert_eq!(parking.park(address(source)), expected, "{source}");
        }
        assert_eq!((parking.parked(), parking.sources()), (5, 3));

        parking.leave(address("192.0.2.99"));
        assert_eq!(parking.park(address("192.0.2.7")), Ok(()));
        for _ in 0..9 {
            parking.leave(address("192.0.2.7"));
        }
        assert_eq!((parking.parked(), parking.sources()), (3, 2));
    }

    #[test]
    fn nothing_is_allocated_while_sources_come_and_go() {
        const NODE: u32 = 1000;
        let mut parking = Parking::new(ParkingLimits {
            node: NODE,
            source: NODE,
        });
        let source = |number: u32| IpAddr::V4((number << (32 - IPV4_BITS)).into());
        let counted = allocation_counter::measure(|| {
            for number in 0..100 * NODE {
                if number >= NODE {
                    parking.leave(source(number - NODE));
                }
                parking.park(source(number)).unwrap();
            }
        });
        assert_eq!(counted.count_total, 0);
        assert_eq!(parking.parked(), NODE);
    }

    proptest! {
        #[test]
        fn no_bound_is_exceeded_and_no_room_is_lost(
            steps in prop::collection::vec((any::<bool>(), 0..6_u32), 1..200),
            node in 0..12_u32,
            source in 0..6_u32,
        ) {
            let limits = ParkingLimits { node, source };
            let mut parking = Parking::new(limits);
            let mut parked = [0; 6];
            for (enters, number) in steps {
                let address = IpAddr::V4((number << 8).into());
                let own = &mut parked[number as usize];
                let others = parking.parked() - *own;
                if enters {
                    let has_room = *own < source && *own + others < node;
                    prop_assert_eq!(parking.park(address).is_ok(), has_room);
                    *own += u32::from(has_room);
                } else if *own > 0 {
                    parking.leave(address);
                    *own -= 1;
                }
                prop_assert_eq!(parking.parked(), parked.iter().sum::<u32>());
            }
        }
    }
}
