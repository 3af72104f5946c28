//! Numbers and how fast they grow.

use serde_json::json;

use super::{
    endpoints, frame, port,
    table::{Cell, Column, Row, Table},
    traffic,
    view::Subject,
};
use crate::{
    agent::local_api::traffic::Traffic,
    cli::{output::Output, top::once},
};

type Frame = frame::Frame;

#[test]
fn rates_are_what_was_counted_over_the_time_between() {
    let frame = Frame::new(&traffic(3000, 300), Some(&traffic(1000, 100)));
    assert_eq!(frame.seconds, Some(2.0));
    let web = &frame.service_ports[2];
    assert_eq!(web.traffic.connections, 300);
    assert_eq!(web.per_second.connections, Some(100.0));
    assert_eq!(web.per_second.rejected, Some(25.0));
    assert_eq!(web.per_second.refused(), Some(25.0 + 12.5));
    let quiet = &frame.service_ports[0].per_second;
    assert_eq!(quiet.connections, Some(0.0));
    let packets = frame.refused_packets["no-endpoints"];
    assert_eq!((packets.packets, packets.per_second), (150, Some(50.0)));
}

#[test]
fn the_first_moment_has_no_rates() {
    let frame = Frame::new(&traffic(1000, 100), None);
    assert_eq!(frame.seconds, None);
    assert_eq!(frame.service_ports[2].per_second.connections, None);
    assert_eq!(frame.refused_packets["no-endpoints"].per_second, None);
}

#[test]
fn a_counter_that_begins_anew_has_no_rate() {
    let frame = Frame::new(&traffic(2000, 50), Some(&traffic(1000, 100)));
    assert_eq!(frame.service_ports[2].per_second.connections, None);
    assert_eq!(frame.service_ports[2].per_second.refused(), None);
    assert_eq!(frame.refused_packets["no-endpoints"].per_second, None);
    // Nor does the whole clock, as after the node has started anew.
    let frame = Frame::new(&traffic(10, 100), Some(&traffic(1000, 50)));
    assert_eq!(frame.seconds, None);
    assert_eq!(frame.service_ports[2].per_second.connections, None);
    // Nor does the same answer once more.
    let frame = Frame::new(&traffic(10, 100), Some(&traffic(10, 100)));
    assert_eq!(frame.service_ports[2].per_second.connections, None);
}

#[test]
fn a_service_that_is_made_anew_under_the_same_name_has_no_rate_yet() {
    let before = Traffic {
        service_ports: vec![port("shop/web", 3, 100)],
        ..traffic(1000, 0)
    };
    let now = Traffic {
        service_ports: vec![port("shop/web", 4, 5000), port("shop/new", 3, 20)],
        ..traffic(2000, 0)
    };
    let frame = Frame::new(&now, Some(&before));
    assert_eq!(frame.service_ports[0].per_second.connections, None);
    assert_eq!(frame.service_ports[1].per_second.connections, None);
}

#[test]
fn endpoints_have_rates_too() {
    let rows = frame::endpoints(&endpoints(1500, 30), Some(&endpoints(1000, 20)));
    assert_eq!(rows[0].connections_per_second, Some(20.0));
    let rows = frame::endpoints(&endpoints(1500, 30), None);
    assert_eq!(rows[0].connections_per_second, None);
}

#[test]
fn json_is_one_line_with_counters_and_rates() {
    let frame = Frame::new(&traffic(3000, 300), Some(&traffic(1000, 100)));
    let text = once::text(&frame, Output::Json).unwrap();
    assert_eq!(text.matches('\n').count(), 1);
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    let web = &object["servicePorts"][2];
    assert_eq!(web["servicePort"], "shop/web:http");
    assert_eq!(web["open"], 150);
    assert_eq!(web["perSecond"]["connections"], 100.0);
    assert_eq!(object["seconds"], 2.0);
    assert_eq!(
        object["refusedPackets"]["no-endpoints"],
        json!({"packets": 150, "perSecond": 50.0})
    );
}

#[test]
fn text_has_the_busiest_service_first_and_only_reasons_that_occurred() {
    let frame = Frame::new(&traffic(2000, 300), Some(&traffic(1000, 100)));
    let text = once::text(&frame, Output::Table).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "Node: node-1");
    assert_eq!(
        lines[3],
        "shop/web:http     TCP    150   1     200.0  50.0   25.0    -    -    -       -        -      2/3    1     0      0.0     0.0     300"
    );
    assert!(lines[4].starts_with("shop/cart:http"), "{text}");
    assert!(lines[4].contains(" 7/10 "), "{text}");
    assert!(text.contains("no-endpoints"), "{text}");
    assert!(!text.contains("source-range"), "{text}");
    assert!(
        text.contains("map FRONTENDS4            3     4     75.0 %"),
        "{text}"
    );
}

#[test]
fn numbers_lose_digits_before_they_lose_their_size() {
    for (cell, width, expected) in [
        (Cell::Number(1234), 4, "1234"),
        (Cell::Number(12_345), 4, "12k"),
        (Cell::Number(1_234_567), 6, "1.2M"),
        (Cell::Number(999_600), 5, "1.0M"),
        (Cell::Number(u64::MAX), 9, "18446744T"),
        (Cell::Rate(Some(123.44)), 6, "123.4"),
        (Cell::Rate(Some(1234.5)), 5, "1.2k"),
        (Cell::Rate(None), 5, "-"),
        (Cell::Of(1_000_000, 2_000_000), 9, "1.0M/2.0M"),
        (Cell::Of(5, 0), 9, "5"),
        (Cell::Bar(0.5), 10, "[||||    ]"),
        (Cell::Bar(7.0), 4, "[||]"),
        (Cell::Bar(0.5), 0, "[]"),
    ] {
        assert_eq!(cell.within(width), expected, "{cell:?}");
    }
}

#[test]
fn columns_are_left_out_by_rank_until_the_others_fit() {
    const COLUMNS: &[Column] = &[
        Column {
            title: "NAME",
            width: 0,
            rank: 0,
        },
        Column {
            title: "A",
            width: 10,
            rank: 2,
        },
        Column {
            title: "B",
            width: 5,
            rank: 1,
        },
    ];
    let table = Table {
        columns: COLUMNS,
        rows: vec![Row {
            subject: Subject::Named("x".to_owned()),
            cells: vec![Cell::Number(1); 3],
        }],
    };
    assert_eq!(table.fitting(80), [(0, 63), (1, 10), (2, 5)]);
    assert_eq!(table.fitting(33), [(0, 16), (1, 10), (2, 5)]);
    assert_eq!(table.fitting(32), [(0, 26), (2, 5)]);
    assert_eq!(table.fitting(20), [(0, 20)]);
    assert_eq!(table.fitting(3), [(0, 3)]);
}
