//! Flows, counted by what they have in common.

use super::{
    carried::Marks,
    flows::{Ask, By, Count, Crowd, Whose},
};
use crate::cli::flows::tests::ThreeRecords;

fn counted(services: Option<Vec<u32>>, endpoint: Option<&str>, by: By) -> Vec<(Whose, Crowd)> {
    let ask = Ask {
        services,
        endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
        by,
    };
    let mut count = Count::default();
    count.add(&ThreeRecords::new(), &ask, &mut Marks::default());
    count.crowds.into_iter().collect()
}

#[test]
fn a_flow_is_counted_once_by_whom_it_has_in_common() {
    let one = Crowd {
        open: 1,
        half_open: 0,
        source_nat: 1,
        service: Some(3),
        bytes: None,
    };
    let source = Whose::Source("192.0.2.7".parse().unwrap());
    assert_eq!(counted(None, None, By::Source), [(source, one)]);
    let endpoint = Whose::Endpoint("10.0.1.5:8080".parse().unwrap());
    assert_eq!(counted(None, None, By::Endpoint), [(endpoint, one)]);
    assert_eq!(counted(None, None, By::Service), [(Whose::Service(3), one)]);
}

#[test]
fn flows_of_other_services_and_endpoints_are_left_out() {
    let number = |services, endpoint| counted(services, endpoint, By::Source).len();
    assert_eq!(number(Some(vec![3, 4]), None), 1);
    assert_eq!(number(Some(vec![4]), None), 0);
    assert_eq!(number(Some(Vec::new()), None), 0);
    assert_eq!(number(None, Some("10.0.1.5:8080")), 1);
    assert_eq!(number(None, Some("10.0.1.5:8081")), 0);
}

#[test]
fn of_very_many_sources_those_with_the_most_flows_are_kept() {
    let crowd = |open| Crowd {
        open,
        ..Crowd::default()
    };
    let source = |n: u8| Whose::Source([192, 0, 2, n].into());
    let mut count = Count {
        crowds: (1..=100)
            .map(|n| (source(n), crowd(u64::from(n))))
            .collect(),
        ..Count::default()
    };
    count.keep_largest(2);
    assert_eq!((count.found, count.flows), (100, 5050));
    let mut kept: Vec<_> = count.crowds.into_keys().collect();
    kept.sort_unstable();
    assert_eq!(kept, [source(99), source(100)]);
}
