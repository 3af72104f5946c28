//! Bytes that connections carry.

use std::time::Duration;

use lb_common::{
    addr::Ip4,
    flow::{
        Flow,
        flow_flag::{self, FIN, NUMBERED, REPLY, SEEN},
        tag,
    },
    parse::UDP,
};

use super::{
    carried::{Bytes, Marks},
    flows::{Ask, By, Count, Crowd, Whose},
    frame::Frame,
    traffic,
};
use crate::flows::Connection;

/// Records of the table.
const RECORDS: u32 = 8;

/// A connection whose sides go on with these numbers.
fn connection(client: u32, endpoint: u32) -> Connection<Ip4> {
    let flow = |next, flags| Flow {
        tag: tag::LIVE,
        flags: NUMBERED | SEEN | flags,
        next,
        ..Flow::default()
    };
    Connection {
        forward: flow(client, 0),
        reply: flow(endpoint, REPLY),
    }
}

/// What each of these looks finds, at the same record.
fn looks<const N: usize>(connections: [Connection<Ip4>; N]) -> [Option<(u64, u64)>; N] {
    let mut marks = Marks::default();
    connections.map(|connection| {
        marks.look(RECORDS);
        let bytes = marks.pass(3, &connection);
        bytes.map(|bytes| (bytes.from_clients, bytes.to_clients))
    })
}

#[test]
fn bytes_are_known_from_the_second_look_on() {
    let found = looks([
        connection(u32::MAX - 9, 5_000),
        // The client's numbers begin anew.
        connection(90, 5_000),
        connection(90, 1_005_000),
        connection(90, 1_005_000),
    ]);
    let expected = [None, Some((100, 0)), Some((0, 1_000_000)), Some((0, 0))];
    assert_eq!(found, expected);
}

#[test]
fn neither_an_end_nor_what_comes_again_is_data() {
    let mut ended = connection(101, 250);
    ended.forward.flags |= FIN;
    let found = looks([
        connection(0, 0),
        connection(100, 200),
        // Sent again from its middle on.
        connection(50, 200),
        connection(100, 250),
        ended,
    ]);
    assert_eq!(found[1..], [(100, 200), (0, 0), (0, 50), (0, 0)].map(Some));
}

#[test]
fn nothing_is_known_of_what_was_not_seen_before() {
    let first = connection(1_000, 1_000);
    let mut other = connection(9_000, 9_000);
    other.forward.tag = tag::claimed(first.forward.tag, 7) & !tag::BUSY | tag::LIVE;
    assert_eq!(looks([first, other])[1], None, "another flow has its place");

    let mut silent = connection(1_000, 0);
    silent.reply.flags &= !SEEN;
    let answered = connection(1_000, 70_000);
    assert_eq!(looks([silent, answered])[1], None, "it had not begun");

    let mut foreign = connection(1_000, 1_000);
    foreign.forward.flags &= !NUMBERED;
    assert_eq!(looks([foreign, first])[1], None, "it had no numbers");

    let mut udp = connection(1_000, 1_000);
    udp.forward.flags |= flow_flag::UDP;
    assert_eq!(udp.forward.protocol(), UDP);
    assert_eq!(looks([udp, udp])[1], None, "datagrams have no numbers");

    let mut marks = Marks::default();
    for (records, expected) in [
        (RECORDS, None),
        (RECORDS, Some(Bytes::default())),
        (2 * RECORDS, None),
    ] {
        marks.look(records);
        assert_eq!(marks.pass(3, &first), expected, "{records} records");
    }
}

#[test]
fn each_connection_goes_on_from_where_it_was() {
    let mut marks = Marks::default();
    // Some end, and others come.
    let looks = [
        &[(1, 10), (4, 40), (6, 60)][..],
        &[(2, 20), (4, 45), (5, 50), (6, 61)],
        &[(4, 46), (6, 63)],
    ];
    let found = looks.map(|connections| {
        marks.look(RECORDS);
        let carried = connections.iter().filter_map(|(index, client)| {
            let bytes = marks.pass(*index, &connection(*client, 0))?;
            Some((*index, bytes.from_clients))
        });
        carried.collect::<Vec<_>>()
    });
    assert_eq!(found, [vec![], vec![(4, 5), (6, 1)], vec![(4, 1), (6, 2)]]);
}

#[test]
fn service_ports_have_what_all_their_flows_carry() {
    let bytes = |from_clients, to_clients| Crowd {
        bytes: Some(Bytes {
            from_clients,
            to_clients,
        }),
        ..Crowd::default()
    };
    let mut count = Count {
        ask: Some(Ask::services()),
        span: Some(Duration::from_secs(2)),
        // One port has two numbers, as with two addresses; one has only new connections; one has none.
        crowds: [
            (Whose::Service(3), bytes(100, 4_000)),
            (Whose::Service(4), bytes(50, 0)),
            (Whose::Service(2), Crowd::default()),
        ]
        .into(),
        ..Count::default()
    };
    assert_eq!(count.ask.as_ref().unwrap().by, By::Service);
    let mut said = traffic(2_000, 10);
    said.service_ports[2].ids = vec![3, 4];
    let mut frame = Frame::new(&said, None);
    frame.add_bytes(&count);
    let rates = |frame: &Frame, port: usize| {
        let rates = frame.service_ports[port].per_second;
        (rates.bytes_from_clients, rates.bytes_to_clients)
    };
    assert_eq!(rates(&frame, 2), (Some(75.0), Some(2_000.0)));
    assert_eq!(rates(&frame, 1), (None, None));
    assert_eq!(rates(&frame, 0), (None, None));

    count.span = None;
    frame.add_bytes(&count);
    assert_eq!(rates(&frame, 2), (None, None), "there was no look before");
}
