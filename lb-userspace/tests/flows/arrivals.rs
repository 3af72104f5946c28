//! Connections that come and go, as recordings see them.

use std::{
    mem::offset_of,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lb_common::{
    addr::Ip4,
    flow::{
        Flow, Record,
        flow_flag::{FIN, FIN_ACKED, RST, SEEN},
        tag,
    },
};
use lb_objects::Protocol;
use node_lb::flows::{Arrivals, Records as _, arrivals::Past};

use super::table::{NewFlow, RATE, Sweeping, Table, View};

/// Looks at a table in which nothing else happens.
struct Watch {
    view: View,
    arrivals: Arrivals<Ip4>,
}

impl Watch {
    /// Begins at second 0.
    fn new(table: &Arc<Table>) -> Self {
        let view = View::new(table);
        Self {
            arrivals: Arrivals::new(&view, RATE),
            view,
        }
    }

    /// What has ended at a second: client's port, opened and ended in seconds.
    fn look(&mut self, now: u32) -> Vec<(u16, f64, f64)> {
        let mut past = Vec::new();
        let at = Duration::from_secs(now.into());
        self.arrivals
            .look(&self.view, at, now, |one| past.push(seconds(&one)));
        past
    }

    /// Has the packets of both directions have shown this, the last of them at a second.
    fn show(&self, record: Record<Ip4>, flags: [u32; 2], at: u32) {
        // SAFETY: the record is in the table, where nothing else happens.
        let peer = unsafe { record.as_ref() }.peer;
        let index = self.view.read(peer).peer;
        for (index, flags) in [index, peer].into_iter().zip(flags) {
            self.view.flags(index).fetch_or(flags, Ordering::SeqCst);
            let last_seen = self.view.word(index, offset_of!(Flow<Ip4>, last_seen));
            last_seen.store(at, Ordering::SeqCst);
        }
    }
}

fn seconds(past: &Past) -> (u16, f64, f64) {
    let (opened, ended) = (past.opened.as_secs_f64(), past.ended.as_secs_f64());
    (past.client.port(), opened, ended)
}

#[test]
fn a_connection_is_open_from_between_two_looks_to_its_last_packet() {
    let table = Table::new(64);
    let before = NewFlow::tcp(0).seen(SEEN, SEEN);
    let before = table.open(&before).unwrap();
    let over = NewFlow::tcp(7).seen(SEEN | RST, SEEN);
    table.open(&over).unwrap();
    let mut watch = Watch::new(&table);
    let one = table.open(&NewFlow::tcp(1).seen(SEEN, SEEN)).unwrap();
    assert_eq!(watch.look(10), []);
    assert_eq!(watch.arrivals.open(), 2);

    watch.show(one, [FIN, FIN], 11);
    assert_eq!(watch.look(12), [], "not acknowledged yet");
    watch.show(one, [FIN_ACKED; 2], 13);
    assert_eq!(watch.look(15), [(2, 5.0, 13.0)]);
    assert_eq!(watch.look(16), [], "once");
    table.end(one);
    assert_eq!(watch.look(17), []);

    watch.show(before, [0, RST], 18);
    assert_eq!(
        watch.look(20),
        [(1, 0.0, 18.0)],
        "from before the recording"
    );
    assert_eq!(watch.arrivals.open(), 0);
}

#[test]
fn those_of_one_look_count_as_one_after_the_other() {
    let table = Table::new(64);
    let mut watch = Watch::new(&table);
    for client in 0..4 {
        table.open(&NewFlow::tcp(client)).unwrap();
    }
    assert_eq!(watch.look(8), []);
    let mut opened: Vec<_> = watch.arrivals.end(Duration::from_secs(9)).collect();
    opened.sort_by_key(|past| past.opened);
    let opened: Vec<_> = opened.iter().map(seconds).map(|(_, at, _)| at).collect();
    assert_eq!(opened, [1.0, 3.0, 5.0, 7.0]);
    assert_eq!(watch.arrivals.open(), 0);
}

#[test]
fn a_connection_that_proves_itself_is_still_the_same() {
    let table = Table::new(64);
    let mut watch = Watch::new(&table);
    let half = table.open(&NewFlow::tcp(0).half()).unwrap();
    watch.look(1);
    // SAFETY: the record is in the table, where nothing else happens.
    let index = watch.view.read(unsafe { half.as_ref() }.peer).peer;
    let word = watch.view.tag(index);
    let proven = tag::with_state(word.load(Ordering::SeqCst), tag::LIVE);
    word.store(proven, Ordering::SeqCst);
    assert_eq!(watch.look(2), []);
    table.end(half);
    assert_eq!(watch.look(4), [(1, 0.5, 4.0)], "gone without a word");
}

#[test]
fn another_connection_in_the_same_place_is_another_one() {
    let table = Table::new(64);
    let mut watch = Watch::new(&table);
    let flow = NewFlow::tcp(0);
    let first = table.open(&flow).unwrap();
    watch.look(2);
    table.end(first);
    let mut sweeping = Sweeping::new(&table);
    (3..6).for_each(|now| sweeping.pass(now));
    let second = table.open(&flow).unwrap();
    assert_eq!(first, second, "the place of the same packets");
    assert_eq!(watch.look(8), [(1, 1.0, 8.0)]);
    assert_eq!(watch.arrivals.open(), 1);
}

#[test]
fn a_name_server_answers_once() {
    let table = Table::new(64);
    let mut watch = Watch::new(&table);
    let to = |port| {
        let mut flow = NewFlow::udp(port);
        flow.frontend.set_port(port as u16);
        table.open(&flow).unwrap()
    };
    let (dns, other) = (to(53), to(443));
    watch.look(2);
    for flow in [dns, other] {
        watch.show(flow, [SEEN; 2], 3);
    }
    let answered: Vec<_> = watch.look(4).iter().map(|past| (past.0, past.2)).collect();
    assert_eq!(answered, [(54, 3.0)]);
    let mut open = watch.arrivals.end(Duration::from_secs(5));
    let open = open.next().unwrap();
    let frontend: SocketAddr = "10.96.0.1:443".parse().unwrap();
    assert_eq!((open.frontend, open.protocol), (frontend, Protocol::Udp));
}
