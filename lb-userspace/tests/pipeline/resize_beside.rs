//! Flow tables that change their size: programs with the old and with the new table run at the same
//! time.

use lb_common::{flow::Stage, pipeline::Copied, verdict::Reason};
use lb_packet::{
    Tcp,
    tcp_flag::{ACK, FIN, SYN},
};
use node_lb::{config::PortRange, memory::ProgrammedTables};

use crate::{
    conversation::{Conversation, Side},
    hooks::{Outcome, ingress_of_before},
    resize::{PORT, Progress, SIZES, established, scenes},
    scene::Scene,
};

/// After the programs of one device are exchanged and before those of another, each packet of a
/// connection may meet either kind.
#[test]
fn programs_with_either_table_handle_one_connection() {
    for scene in scenes() {
        // Which of the handshake's three segments, and of two more, meet programs with the old
        // table.
        for pattern in 0..32 {
            let mut tables = scene.tables();
            tables.begin_resize(SIZES[0]);
            let mut talk = Conversation::new(&scene, &tables, PORT);
            for (step, (side, flags)) in [
                (Side::Client, SYN),
                (Side::Endpoint, SYN | ACK),
                (Side::Client, ACK),
                (Side::Endpoint, ACK),
                (Side::Client, ACK),
            ]
            .into_iter()
            .enumerate()
            {
                let there = talk.there;
                let outcome = match pattern >> step & 1 {
                    0 => talk.send(side, flags, b""),
                    _ => send_of_before(&tables, &mut talk, side, flags),
                };
                let expected = match (step, side) {
                    (0, _) => Reason::Opened,
                    (_, Side::Client) => Reason::ToEndpoint,
                    (_, Side::Endpoint) => Reason::ToClient,
                };
                assert_eq!(outcome.reason, expected, "{pattern:b} {step}");
                assert!(there.is_none() || talk.there == there, "{pattern:b} {step}");
            }
            // From now on only the next table counts.
            tables.copy_flows();
            assert_eq!(talk.stage(), Some(Stage::Established), "{pattern:b}");
            let now = Progress::of(&talk);
            tables.end_resize();
            let mut talk = now.go_on(&scene, &tables);
            talk.send(Side::Client, ACK, b"data");
            talk.close(Side::Endpoint);
            assert_eq!(talk.stage(), Some(Stage::Closed), "{pattern:b}");
        }
    }
}

#[test]
fn an_end_that_only_the_table_of_before_has_seen_is_known_in_the_next() {
    for scene in scenes() {
        let mut tables = scene.tables();
        let before = established(&scene, &tables);
        tables.begin_resize(SIZES[0]);
        let mut talk = before.go_on(&scene, &tables);
        talk.send(Side::Client, ACK, b"data");
        send_of_before(&tables, &mut talk, Side::Endpoint, FIN | ACK);
        send_of_before(&tables, &mut talk, Side::Client, FIN | ACK);
        send_of_before(&tables, &mut talk, Side::Endpoint, ACK);
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert_eq!(tables.copy_flows(), [Copied::Merged]);
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

#[test]
fn a_connection_that_follows_a_closed_one_in_the_table_of_before_has_no_old_copy_in_its_way() {
    for scene in scenes() {
        let (tables, mut talk) = copied_and_closed_before(&scene);
        talk.next[0] = talk.next[0].wrapping_add(1 << 20);
        let mut talk = talk.go_on(&scene, &tables);
        let opened = send_of_before(&tables, &mut talk, Side::Client, SYN);
        assert_eq!(opened.reason, Reason::Opened);
        let there = talk.there;
        let answer = talk.send(Side::Endpoint, SYN | ACK, b"");
        assert_eq!(answer.reason, Reason::ToClient);
        talk.send(Side::Client, ACK, b"");
        assert_eq!(talk.there, there, "it stays with its own endpoint");
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert!(!tables.copy_flows().contains(&Copied::Left));
        assert_eq!(talk.stage(), Some(Stage::Established));
    }
}

#[test]
fn a_port_that_a_closed_flow_has_given_up_in_the_table_of_before_is_free_in_the_next() {
    for scene in scenes() {
        let scene = Scene {
            ports: PortRange {
                first: 10_000,
                last: 10_000,
            },
            ..scene
        };
        let (tables, closed) = copied_and_closed_before(&scene);
        // Another client port is needed; a flow without source NAT uses none of the node's.
        let mut talk = Conversation::new(&scene, &tables, PORT + 1);
        let opened = send_of_before(&tables, &mut talk, Side::Client, SYN);
        assert_eq!(opened.reason, Reason::Opened);
        let there = talk.there;
        let same = there.map(|(source, _)| source) == closed.there.map(|(source, _)| source);
        let translated = there.is_some_and(|(_, endpoint)| scene.source_nat(endpoint.ip()));
        assert_eq!(same, translated, "the only port");
        let copied = tables.copy_flows();
        assert!(!copied.contains(&Copied::Left), "{copied:?}");
        let answer = talk.send(Side::Endpoint, SYN | ACK, b"");
        assert_eq!(answer.reason, Reason::ToClient);
        talk.send(Side::Client, ACK, b"");
        assert_eq!(talk.there, there);
        assert_eq!(talk.stage(), Some(Stage::Established));
    }
}

/// A connection in both tables. Only programs with the old table know that it has ended.
fn copied_and_closed_before(scene: &Scene) -> (ProgrammedTables, Progress) {
    let mut tables = scene.tables();
    let before = established(scene, &tables);
    tables.begin_resize(SIZES[0]);
    let mut talk = before.go_on(scene, &tables);
    talk.send(Side::Client, ACK, b"data");
    send_of_before(&tables, &mut talk, Side::Client, FIN | ACK);
    send_of_before(&tables, &mut talk, Side::Endpoint, FIN | ACK);
    send_of_before(&tables, &mut talk, Side::Client, ACK);
    let progress = Progress::of(&talk);
    (tables, progress)
}

/// Like [`Conversation::send`], to a program with the old table as its own.
fn send_of_before(
    tables: &ProgrammedTables,
    talk: &mut Conversation<'_>,
    side: Side,
    flags: u8,
) -> Outcome {
    let segment: Tcp = talk.segment(side, flags);
    let outcome = ingress_of_before(tables, &talk.frame(side, segment, b""));
    if side == Side::Client {
        let read = outcome.read();
        talk.there = Some((read.from(), read.to()));
    }
    let ends = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    let next = &mut talk.next[side as usize];
    *next = next.wrapping_add(ends);
    outcome
}
