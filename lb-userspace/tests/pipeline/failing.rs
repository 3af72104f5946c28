//! Endpoints that refuse connections or do not answer are avoided for some seconds, if there is
//! another.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use lb_common::{
    abi::config_flag,
    flow::Stage,
    verdict::{Action, Reason},
};
use lb_objects::Algorithm;
use lb_packet::{
    Header, TCP, icmp, icmp_number,
    tcp_flag::{ACK, RST, SYN},
};
use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side},
    hooks::{Outcome, ingress},
    moving::{endpoint_of, first_syn, scenes},
    scene::Scene,
};

/// Seconds for which an endpoint is avoided.
const AVOIDED: u32 = 40;
/// Seconds after which it counts as silent.
const SILENCE: u32 = 3;

fn tables(scene: &Scene) -> ProgrammedTables {
    let mut tables = scene.tables();
    tables.config.flags |= config_flag::AVOID_FAILING;
    tables
}

/// A new connection that is refused: its endpoint, and what happened to the refusal.
fn refused(scene: &Scene, tables: &ProgrammedTables, port: u16) -> (SocketAddr, Outcome) {
    let mut talk = Conversation::new(scene, tables, port);
    talk.send(Side::Client, SYN, b"");
    let endpoint = endpoint_of(&talk);
    (endpoint, talk.send(Side::Endpoint, RST | ACK, b""))
}

/// The endpoints of so many new connections, which are all served.
fn served(
    scene: &Scene,
    tables: &ProgrammedTables,
    ports: std::ops::Range<u16>,
) -> Vec<SocketAddr> {
    let serve = |port| {
        let mut talk = Conversation::new(scene, tables, port);
        talk.shake_hands();
        endpoint_of(&talk)
    };
    ports.map(serve).collect()
}

#[test]
fn a_refusal_is_withheld_and_the_next_syn_goes_elsewhere() {
    for scene in scenes(3) {
        let tables = tables(&scene);
        let (endpoint, refusal) = refused(&scene, &tables, 1);
        assert_eq!(refusal.action, Action::Drop);
        assert_eq!(refusal.reason, Reason::EndpointRefused);

        let mut talk = Conversation::new(&scene, &tables, 1);
        talk.shake_hands();
        assert_ne!(endpoint_of(&talk), endpoint);
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert!(!served(&scene, &tables, 2..100).contains(&endpoint));
    }
}

/// Two of ten endpoints are silent, and nothing is known about them: a client does not alternate
/// between the two.
#[test]
fn a_syn_that_is_repeated_finds_an_endpoint_that_answers() {
    for scene in scenes(10) {
        let tables = tables(&scene);
        let endpoints: HashSet<_> = (1..200)
            .map(|port| first_of(&scene, &tables, port))
            .collect();
        let silent: HashSet<_> = endpoints.into_iter().take(2).collect();
        let mut repeated = [0; 4];
        for port in 1000..1500 {
            let mut talk = Conversation::new(&scene, &tables, port);
            let repetitions = (0..repeated.len()).find(|repetition| {
                tables.set_seconds(u32::from(port) * 100 + *repetition as u32 * SILENCE);
                talk.deliver(Side::Client, first_syn(), b"");
                !silent.contains(&endpoint_of(&talk))
            });
            repeated[repetitions.expect("an endpoint that answers")] += 1;
            talk.send(Side::Endpoint, SYN | ACK, b"");
        }
        assert!(repeated[0] > 300 && repeated[1] > 50, "{repeated:?}");
    }
}

/// The endpoint that a new connection goes to.
fn first_of(scene: &Scene, tables: &ProgrammedTables, port: u16) -> SocketAddr {
    let mut talk = Conversation::new(scene, tables, port);
    talk.send(Side::Client, SYN, b"");
    endpoint_of(&talk)
}

#[test]
fn the_client_is_told_once_all_have_refused() {
    for scene in scenes(2) {
        let tables = tables(&scene);
        let (first, _) = refused(&scene, &tables, 1);
        let (second, refusal) = refused(&scene, &tables, 1);
        assert_ne!(first, second);
        assert_eq!(refusal.action, Action::Redirect);
    }
}

#[test]
fn a_refusal_of_the_only_endpoint_is_the_clients() {
    for scene in scenes(1) {
        let tables = tables(&scene);
        for port in 1..=4 {
            let (_, refusal) = refused(&scene, &tables, port);
            assert_eq!(refusal.action, Action::Redirect);
        }
    }
}

#[test]
fn one_connection_tries_after_some_seconds() {
    for scene in scenes(2) {
        let tables = tables(&scene);
        let (endpoint, _) = refused(&scene, &tables, 1);
        tables.set_seconds(AVOIDED - 1);
        assert!(!served(&scene, &tables, 2..100).contains(&endpoint));

        tables.set_seconds(AVOIDED);
        let tries: Vec<_> = (100..200)
            .map(|port| {
                let mut talk = Conversation::new(&scene, &tables, port);
                talk.send(Side::Client, SYN, b"");
                (endpoint_of(&talk) == endpoint).then_some(talk)
            })
            .collect();
        let mut tries: Vec<_> = tries.into_iter().flatten().collect();
        assert_eq!(tries.len(), 1);
        tries[0].send(Side::Endpoint, SYN | ACK, b"");
        assert!(served(&scene, &tables, 200..300).contains(&endpoint));
    }
}

#[test]
fn an_endpoint_that_is_silent_three_times_in_a_row_is_avoided() {
    for scene in scenes(2) {
        let tables = tables(&scene);
        let silent = endpoint_of(&{
            let mut talk = Conversation::new(&scene, &tables, 1);
            talk.send(Side::Client, SYN, b"");
            talk
        });
        let mut moved = 0;
        for port in 1..100 {
            tables.set_seconds(0);
            let mut talk = Conversation::new(&scene, &tables, port);
            talk.send(Side::Client, SYN, b"");
            if endpoint_of(&talk) != silent {
                continue;
            }
            assert!(moved < 3, "avoided after three");
            tables.set_seconds(SILENCE);
            talk.deliver(Side::Client, first_syn(), b"");
            assert_ne!(endpoint_of(&talk), silent);
            moved += 1;
        }
        assert_eq!(moved, 3);
    }
}

#[test]
fn an_answer_in_between_begins_the_count_anew() {
    for scene in scenes(2) {
        let scene = Scene {
            flow_records: 4096,
            ..scene
        };
        let tables = tables(&scene);
        let mut silent_in_a_row = HashMap::<SocketAddr, u32>::new();
        let mut chosen = HashMap::<SocketAddr, u32>::new();
        for port in 1..300 {
            tables.set_seconds(0);
            let mut talk = Conversation::new(&scene, &tables, port);
            talk.send(Side::Client, SYN, b"");
            let endpoint = endpoint_of(&talk);
            *chosen.entry(endpoint).or_default() += 1;
            let silent = silent_in_a_row.entry(endpoint).or_default();
            if *silent < 2 {
                *silent += 1;
                tables.set_seconds(SILENCE);
                talk.deliver(Side::Client, first_syn(), b"");
            } else {
                *silent = 0;
                talk.send(Side::Endpoint, SYN | ACK, b"");
            }
        }
        assert!(chosen.values().all(|count| *count > 100), "{chosen:?}");
    }
}

#[test]
fn lookup_tables_and_affinity_give_way_to_it() {
    for scene in scenes(3) {
        let maglev = Scene {
            algorithm: Algorithm::Maglev,
            ..scene.clone()
        };
        let sticky = Scene {
            affinity: Some(std::time::Duration::from_secs(10_800)),
            ..scene
        };
        for scene in [maglev, sticky] {
            let tables = tables(&scene);
            let (endpoint, refusal) = refused(&scene, &tables, 1);
            assert_eq!(refusal.reason, Reason::EndpointRefused);
            assert!(!served(&scene, &tables, 1..50).contains(&endpoint));
        }
    }
}

#[test]
fn unreachable_counts_as_a_refusal_only_with_the_number_of_the_syn() {
    for scene in scenes(2) {
        for (sequence, withheld) in [(first_syn().sequence, true), (77, false)] {
            let tables = tables(&scene);
            let mut talk = Conversation::new(&scene, &tables, 1);
            talk.send(Side::Client, SYN, b"");
            let (source, endpoint) = talk.there.unwrap();
            let mut syn = first_syn();
            syn.sequence = sequence;
            let sent = syn.segment(source, endpoint, b"");
            let quoted = Header::new(source.ip(), endpoint.ip()).packet(TCP, &sent);
            let kind = if endpoint.is_ipv4() { (3, 1) } else { (1, 3) };
            let error = icmp(endpoint.ip(), source.ip(), kind, 0, &quoted);
            let header = Header::new(endpoint.ip(), source.ip());
            let frame = header.frame(icmp_number(endpoint.ip()), &error);
            let outcome = ingress(&tables, &frame);
            assert_eq!(outcome.action == Action::Drop, withheld, "{outcome:?}");

            let mut again = Conversation::new(&scene, &tables, 1);
            again.send(Side::Client, SYN, b"");
            assert_eq!(endpoint_of(&again) != endpoint, withheld);
        }
    }
}

#[test]
fn an_endpoint_is_chosen_like_any_other_if_failing_ones_are_to_be_used() {
    for scene in scenes(2) {
        let tables = scene.tables();
        let (endpoint, refusal) = refused(&scene, &tables, 1);
        assert_eq!(refusal.action, Action::Redirect);
        assert!(served(&scene, &tables, 2..100).contains(&endpoint));
    }
}
