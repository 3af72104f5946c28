//! When freed records become clean, so that a search may end at them.

use lb_common::flow::{
    flow_flag::{RST, SEEN},
    tag,
};

use super::table::{NewFlow, Sweeping, Table};

/// So few records that the flows of any two clients can be in each other's way.
const RECORDS: usize = 32;

#[test]
fn a_flow_behind_a_tomb_is_still_found() {
    let table = Table::new(RECORDS);
    let mut sweeping = Sweeping::new(&table);
    let open = |flow: &NewFlow| table.open(flow).is_some();
    let short: Vec<_> = (0..7)
        .map(|n| NewFlow::tcp(n).seen(SEEN | RST, 0))
        .filter(open)
        .collect();
    let long: Vec<_> = (10..14).map(NewFlow::tcp).filter(open).collect();
    assert!(!short.is_empty() && !long.is_empty());

    for now in 6..60 {
        sweeping.pass(now);
        assert!(long.iter().all(|flow| table.has(flow)), "second {now}");
        assert!(!short.iter().any(|flow| table.has(flow)));
    }
    let kept = table.count(tag::TOMB);
    assert!(
        kept > 0,
        "nothing was in the way of anything: this shows nothing"
    );
    assert!(
        kept < 2 * short.len(),
        "tombs that nothing passes over are cleaned"
    );

    // A day later all flows are over.
    sweeping.pass(90_000);
    for now in 90_000..90_035 {
        sweeping.pass(now);
    }
    assert_eq!(table.count(tag::CLEAN), RECORDS);
}

#[test]
fn a_tomb_is_not_cleaned_before_programs_of_before_it_have_returned() {
    let table = Table::new(RECORDS);
    let mut sweeping = Sweeping::new(&table);
    let flow = NewFlow::tcp(1).seen(SEEN | RST, 0);
    table.open(&flow).unwrap();

    sweeping.pass(6);
    assert_eq!(table.count(tag::TOMB), 2, "just made");
    sweeping.pass(7);
    assert_eq!(table.count(tag::TOMB), 2, "seen for the first time");
    sweeping.pass(8);
    assert_eq!(table.count(tag::TOMB), 0);
}

#[test]
fn nothing_is_cleaned_while_a_claim_is_under_way() {
    let table = Table::new(RECORDS);
    let mut sweeping = Sweeping::new(&table);
    table.open(&NewFlow::tcp(1).seen(SEEN | RST, 0)).unwrap();
    sweeping.pass(6);
    sweeping.pass(7);

    table.claim_only(&NewFlow::tcp(2));
    let tombs = table.count(tag::TOMB);
    sweeping.pass(8);
    assert_eq!(table.count(tag::TOMB), tombs);
}
