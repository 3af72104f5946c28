//! The neighbours' link-layer addresses, to distinguish changes from mere news of reachability.

use std::{collections::HashMap, net::IpAddr};

/// Last known link-layer address per device and neighbour.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(HashMap<(u32, IpAddr), Vec<u8>>);

impl Neighbours {
    /// Records a neighbour. Returns whether packets may have been sent to another address before;
    /// for an unknown neighbour they cannot have been.
    pub fn note(&mut self, device: u32, ip: IpAddr, link_layer: Option<Vec<u8>>) -> bool {
        let key = (device, ip);
        match link_layer {
            Some(address) => match self.0.get_mut(&key) {
                Some(known) if *known == address => false,
                Some(known) => {
                    *known = address;
                    true
                }
                None => {
                    self.0.insert(key, address);
                    false
                }
            },
            None => self.0.remove(&key).is_some(),
        }
    }

    /// Forgets the neighbours on a device.
    pub fn forget(&mut self, device: u32) {
        self.0.retain(|(index, _), _| *index != device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_changed_or_lost_address_matters() {
        let ip = "192.0.2.7".parse().unwrap();
        let mut neighbours = Neighbours::default();
        assert!(!neighbours.note(2, ip, None));
        assert!(!neighbours.note(2, ip, Some(vec![1; 6])));
        assert!(!neighbours.note(2, ip, Some(vec![1; 6])));
        assert!(neighbours.note(2, ip, Some(vec![2; 6])));
        assert!(!neighbours.note(3, ip, Some(vec![3; 6])));
        assert!(neighbours.note(2, ip, None));
        assert!(!neighbours.note(2, ip, None));

        neighbours.forget(3);
        assert!(!neighbours.note(3, ip, Some(vec![4; 6])));
    }
}
