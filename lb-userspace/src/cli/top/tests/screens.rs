//! What is on the screen.

use std::time::{Duration, Instant};

use ratatui::{Terminal, backend::TestBackend, crossterm::event::KeyCode};

use super::{
    carried::Bytes,
    flows::{Ask, Count, Crowd, Whose},
    frame::Frame,
    keys::{app, press, type_text, with_flows},
    screen, traffic,
};
use crate::cli::top::app::App;

const INTERVAL: Duration = Duration::from_secs(1);

/// The lines of a screen of this size.
fn lines(app: &mut App, width: u16, height: u16, later: Duration) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let now = Instant::now() + later;
    terminal
        .draw(|frame| screen::draw(frame, app, INTERVAL, now))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn usual(app: &mut App) -> Vec<String> {
    lines(app, 80, 24, Duration::ZERO)
}

#[test]
fn eighty_columns_have_what_matters_most() {
    let found = usual(&mut app());
    let expected = [
        "node-1  open 170  half-open 3  new 220.0/s  refused 82.0/s",
        "Service ports",
        "SERVICE PORT     PROTO    OPEN   HALF  NEW/Sv  REJ/S DROP/S SEATS     READY",
    ];
    assert_eq!(found[..2], expected[..2]);
    for title in ["SERVICE PORT", "OPEN", "HALF", "NEW/Sv", "REJ/S", "DROP/S"] {
        assert!(found[2].contains(title), "{title}: {}", found[2]);
    }
    assert!(found[3].starts_with("shop/web:http"), "{found:?}");
    assert!(found[3].contains(" 200.0 "), "{found:?}");
    assert!(found[4].starts_with("shop/cart:http"), "{found:?}");
    assert!(found[5].starts_with("default/api:http"), "{found:?}");
    assert!(found[6..23].iter().all(String::is_empty), "{found:?}");
    assert!(
        found[23].starts_with("q quit  Enter endpoints  / filter"),
        "{found:?}"
    );
}

#[test]
fn wide_screens_have_every_column() {
    let found = lines(&mut app(), 160, 50, Duration::ZERO);
    for title in [
        "PROTO", "P50", "P99", "SEATS", "READY", "TERM", "AVOID", "FULL/S", "SNAT/S", "TOTAL",
    ] {
        assert!(found[2].contains(title), "{title}: {}", found[2]);
    }
    assert!(found[4].contains("7/10"), "{}", found[4]);
}

#[test]
fn no_size_is_too_small() {
    for (width, height) in [(0, 0), (1, 1), (3, 2), (10, 3), (20, 4), (79, 5)] {
        let mut app = app();
        lines(&mut app, width, height, Duration::ZERO);
        for keys in ["\n", "b", "s", "/x"] {
            type_text(&mut app, keys);
            lines(&mut app, width, height, Duration::ZERO);
        }
    }
}

#[test]
fn a_node_without_services_says_so() {
    let mut app = App::new(String::new());
    assert_eq!(usual(&mut app)[0], "The agent has not answered yet.");
    app.answered(Frame::default(), Instant::now());
    assert_eq!(usual(&mut app)[3], "There are none.");
    type_text(&mut app, "/x");
    let found = usual(&mut app);
    assert_eq!(found[3], "None has this text.");
    assert_eq!(found[1], "Service ports  filter: x_");
}

#[test]
fn names_that_want_to_control_the_terminal_are_only_text() {
    let mut app = App::new(String::new());
    let mut hostile = traffic(1000, 10);
    hostile.node = "node\x1b]0;x\x07".to_owned();
    hostile.service_ports[0].service_port = "a\x1b[2J\r\n\u{202e}/\u{9b}b:\u{1f4a3}".to_owned();
    hostile.maps[0].name = "M\x1b[31m".to_owned();
    app.answered(Frame::new(&hostile, None), Instant::now());
    let mut seen = usual(&mut app);
    app.not_answered("it said \x1b[1m\r\n".to_owned());
    seen.extend(usual(&mut app));
    type_text(&mut app, "b");
    seen.extend(usual(&mut app));
    press(&mut app, &[KeyCode::Esc, KeyCode::End, KeyCode::Enter]);
    seen.extend(usual(&mut app));
    for line in &seen {
        let harmless = |c: char| c == ' ' || c.is_ascii_graphic();
        assert!(line.chars().all(harmless), "{line:?}");
    }
    assert!(
        seen.iter().any(|line| line.contains("a?[2J???/?b:?")),
        "{seen:#?}"
    );
}

#[test]
fn an_agent_that_does_not_answer_leaves_the_last_numbers_marked_as_old() {
    let mut app = app();
    app.not_answered("cannot ask the agent".to_owned());
    let found = lines(&mut app, 100, 24, Duration::from_secs(5));
    assert_eq!(
        found[0],
        "The agent does not answer; these numbers are 5 s old: cannot ask the agent"
    );
    assert!(found[3].starts_with("shop/web:http"), "{found:?}");
    app.answered(Frame::new(&traffic(9000, 900), None), Instant::now());
    let found = lines(&mut app, 100, 24, Duration::ZERO);
    assert!(found[0].starts_with("node-1  open "), "{found:?}");
    // It is silent, and may answer still.
    let found = lines(&mut app, 100, 24, Duration::from_secs(4));
    assert!(found[0].ends_with("(4 s old)"), "{found:?}");
}

#[test]
fn a_stopped_screen_says_so() {
    let mut app = app();
    assert!(!usual(&mut app)[0].contains("STOPPED"));
    type_text(&mut app, "p");
    assert!(usual(&mut app)[0].ends_with("STOPPED"));
}

#[test]
fn endpoints_show_their_state_and_flows_once_they_are_counted() {
    let mut app = app();
    type_text(&mut app, "\n");
    assert_eq!(usual(&mut app)[3], "", "they are not known yet");
    assert_eq!(
        usual(&mut app)[1],
        "Endpoints of shop/web:http TCP  counting flows"
    );
    with_flows(&mut app);
    let found = usual(&mut app);
    assert_eq!(found[1], "Endpoints of shop/web:http TCP");
    assert!(found[3].starts_with("10.1.0.1:8080"), "{found:?}");
    assert!(found[3].contains(" ready "), "{found:?}");
    assert!(found[3].contains(" 20.0 "), "{found:?}");
    assert!(found[4].contains(" terminating avoided "), "{found:?}");
    app.counted(Err("there is no FLOWS4".to_owned()));
    assert!(usual(&mut app)[1].ends_with("flows cannot be counted: there is no FLOWS4"));
}

#[test]
fn service_ports_and_clients_show_what_they_carry() {
    let mut app = app();
    let count = |ask, whose| Count {
        ask: Some(ask),
        span: Some(Duration::from_secs(2)),
        crowds: [(
            whose,
            Crowd {
                open: 1,
                bytes: Some(Bytes {
                    from_clients: 246_000,
                    to_clients: 4_000_000,
                }),
                ..Crowd::default()
            },
        )]
        .into(),
        ..Count::default()
    };
    app.counted(Ok(count(Ask::services(), Whose::Service(3))));
    // It stays until flows are counted again.
    let later = Frame::new(&traffic(3000, 500), Some(&traffic(2000, 300)));
    app.answered(later, Instant::now());
    let found = lines(&mut app, 160, 24, Duration::ZERO);
    assert!(found[2].contains(" IN B/S OUT B/S "), "{found:?}");
    assert!(found[3].starts_with("shop/web:http"), "{found:?}");
    assert!(found[3].contains("   123k    2.0M "), "{found:?}");
    assert!(found[4].contains("      -       - "), "{found:?}");

    type_text(&mut app, "s");
    let source = Whose::Source("192.0.2.1".parse().unwrap());
    let ask = app.wants().flows.expect("the view shows flows");
    app.counted(Ok(count(ask, source)));
    let found = lines(&mut app, 160, 24, Duration::ZERO);
    assert!(found[3].starts_with("192.0.2.1"), "{found:?}");
    assert!(found[3].contains("   123k    2.0M "), "{found:?}");
}

#[test]
fn budgets_are_bars() {
    let mut app = app();
    type_text(&mut app, "b");
    let found = usual(&mut app);
    assert!(found[3].starts_with("map FRONTENDS4"), "{found:?}");
    assert!(
        found[3].contains("75.0 % [|||||||||||||||     ]"),
        "{found:?}"
    );
}
