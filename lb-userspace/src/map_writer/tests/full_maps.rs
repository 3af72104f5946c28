//! Replacing endpoints in full maps: none that is gone stays in force.

use super::*;
use crate::plan::EndpointClass;

impl Bench {
    /// How many endpoints each service port in the maps has.
    pub(super) fn rooms(&self) -> BTreeMap<Key, usize> {
        let programmed = self.writer.programmed.iter();
        let published = programmed.filter(|(_, programmed)| programmed.plan != 0);
        published
            .map(|(key, programmed)| (key.clone(), programmed.endpoints.len()))
            .collect()
    }

    /// Checks that every endpoint in force is one of its plan's, in its class, and that who needs
    /// no more room than it had has all of them.
    pub(super) fn assert_none_is_gone(&self, before: &BTreeMap<Key, usize>) {
        for (key, programmed) in &self.writer.programmed {
            if programmed.plan == 0 {
                continue;
            }
            let wanted = &self.plans[key].endpoints;
            let counts = programmed.content.counts.into_iter();
            let classes = EndpointClass::ALL.iter().zip(counts);
            let mut classes =
                classes.flat_map(|(class, count)| std::iter::repeat_n(*class, count as usize));
            for endpoint in &*programmed.endpoints {
                let address = SocketAddr::new(endpoint.address.into(), endpoint.port);
                let class = classes.next().unwrap();
                assert!(
                    wanted.class(class).contains(&address),
                    "{key} has {address} as {class:?}, which it is not"
                );
            }
            let had = before.get(key).copied().unwrap_or(0);
            if wanted.slots().len() <= had {
                assert_eq!(programmed.endpoints.len(), wanted.slots().len(), "{key}");
            }
        }
    }
}

/// A map that has room for just the endpoints of one service port.
fn full(endpoints: std::ops::Range<u8>) -> Bench {
    let sizes = Sizes {
        endpoints: endpoints.len(),
        endpoint_states: endpoints.len() + 1,
        ..ROOMY
    };
    let mut bench = Bench::new(sizes);
    bench.round(&[spec(1, endpoints)], &[]);
    bench.assert_complete();
    bench
}

#[test]
fn a_rollout_needs_no_more_room_than_it_frees() {
    // At its end, at its beginning, in the middle, and all of them.
    for after in [
        vec![1, 2, 3, 9],
        vec![9, 2, 3, 4],
        vec![0, 1, 3, 9],
        vec![6, 7, 8, 9],
    ] {
        let mut bench = full(1..5);
        bench.note(&[spec(1, after.clone())], &[]);
        bench.write(&[spec(1, after.clone())], &[]);
        bench.writer.settle();
        bench.assert_complete();
        assert!(bench.kernel.state().graces <= 4, "{after:?}");
    }
}

#[test]
fn endpoints_that_are_gone_do_not_wait_for_room() {
    let mut bench = full(1..5);
    let before = bench.rooms();
    let larger = spec(1, [3, 4, 5, 6, 7, 8]);
    bench.note(std::slice::from_ref(&larger), &[]);
    bench.write(&[larger], &[]);
    bench.writer.settle();
    bench.assert_none_is_gone(&before);
    assert_eq!(bench.rooms(), before);
    assert_eq!(
        bench.waiting(),
        ["no endpoint number is free: ENDPOINT_STATES has 5 entries"]
    );
}

#[test]
fn a_change_that_keeps_the_endpoints_needs_no_room_for_them() {
    let mut bench = full(1..5);
    let graces = bench.kernel.state().graces;
    let sticky = Spec {
        affinity: 60,
        ..spec(1, 1..5)
    };
    bench.round(&[sticky], &[]);
    bench.assert_complete();
    assert_eq!(bench.kernel.state().graces, graces);
}

#[test]
fn maglev_falls_back_to_random_until_there_is_a_table() {
    let mut bench = Bench::new(Sizes {
        maglev: ROWS.div_ceil(4) as usize,
        ..ROOMY
    });
    let maglev = |endpoints: [u8; 2]| Spec {
        maglev: true,
        ..spec(1, endpoints)
    };
    bench.round(&[maglev([1, 2])], &[]);
    bench.note(&[maglev([2, 3])], &[]);
    bench.write(&[maglev([2, 3])], &[]);
    let reasons = bench.writer.waiting().map(|(_, error)| error.reason());
    assert_eq!(reasons.collect::<Vec<_>>(), [Reason::NoMaglevTable]);
    // The old table makes room.
    bench.writer.settle();
    bench.assert_complete();
}
