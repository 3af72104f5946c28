//! What keys do.

use std::{net::SocketAddr, time::Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{
    endpoints,
    flows::{Ask, By, Count, Crowd, Whose},
    frame::{self, Frame},
    table::Cell,
    traffic,
    view::View,
};
use crate::cli::top::app::{App, Asked};

pub fn app() -> App {
    let mut app = App::new(String::new());
    let frame = Frame::new(&traffic(2000, 300), Some(&traffic(1000, 100)));
    app.answered(frame, Instant::now());
    app
}

pub fn press(app: &mut App, codes: &[KeyCode]) {
    for code in codes {
        let asked = app.press(KeyEvent::new(*code, KeyModifiers::NONE));
        assert_eq!(asked, Asked::Nothing, "{code:?}");
    }
}

/// Types this text; a line feed is Enter.
pub fn type_text(app: &mut App, text: &str) {
    for character in text.chars() {
        press(
            app,
            &[match character {
                '\n' => KeyCode::Enter,
                other => KeyCode::Char(other),
            }],
        );
    }
}

/// The endpoints of `shop/web:http`, with three flows of two clients to the first one.
pub fn with_flows(app: &mut App) {
    let rows = frame::endpoints(&endpoints(1500, 30), Some(&endpoints(1000, 20)));
    app.looked("shop/web".to_owned(), rows);
    let ask = app.wants().flows.expect("the view shows flows");
    let crowds: &[(Whose, u64)] = match ask.by {
        By::Endpoint => &[(Whose::Endpoint("10.1.0.1:8080".parse().unwrap()), 3)],
        By::Service => &[],
        By::Source => &[
            (Whose::Source("192.0.2.1".parse().unwrap()), 1),
            (Whose::Source("192.0.2.2".parse().unwrap()), 2),
        ],
    };
    let crowd = |open| Crowd {
        open,
        half_open: 1,
        source_nat: open,
        service: Some(3),
        bytes: None,
    };
    let mut count = Count {
        crowds: crowds
            .iter()
            .map(|(whose, open)| (*whose, crowd(*open)))
            .collect(),
        ask: Some(ask),
        snat_ports: 10,
        ..Count::default()
    };
    count.keep_largest(10);
    app.counted(Ok(count));
}

pub fn names(app: &App) -> Vec<String> {
    let table = app.table();
    table.rows.iter().map(|row| row.cells[0].text()).collect()
}

#[test]
fn the_busiest_service_comes_first_and_keys_choose_another_order() {
    let mut app = app();
    let busiest = ["shop/web:http", "shop/cart:http", "default/api:http"];
    assert_eq!(names(&app), busiest);
    type_text(&mut app, "o");
    assert_eq!(names(&app)[0], "default/api:http");
    // To the column of names, from A.
    type_text(&mut app, "<<<<");
    let by_name = ["default/api:http", "shop/cart:http", "shop/web:http"];
    assert_eq!(names(&app), by_name);
    // Beyond the first column is the last one: connections so far.
    press(&mut app, &[KeyCode::Left]);
    assert_eq!(names(&app)[0], "shop/web:http");
    press(&mut app, &[KeyCode::Right]);
    assert_eq!(names(&app), by_name);
}

#[test]
fn a_filter_is_typed_kept_and_taken_away() {
    let mut app = app();
    type_text(&mut app, "/CARt");
    assert!(app.is_typing);
    assert_eq!(names(&app), ["shop/cart:http"]);
    press(&mut app, &[KeyCode::Backspace, KeyCode::Backspace]);
    // `q` is text as long as text is typed; so is `p`.
    type_text(&mut app, "qp");
    assert_eq!((names(&app).len(), &*app.filter), (0, "CAqp"));
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(names(&app).len(), 3);
    type_text(&mut app, "/shop\n");
    assert!(!app.is_typing);
    assert_eq!(names(&app).len(), 2);
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(names(&app).len(), 3);
}

#[test]
fn keys_lead_into_a_service_an_endpoint_and_back() {
    let mut app = app();
    assert_eq!(app.wants().service, None);
    type_text(&mut app, "\n");
    assert_eq!(app.wants().service.as_deref(), Some("shop/web"));
    let asked = Ask {
        services: Some(vec![3]),
        endpoint: None,
        by: By::Endpoint,
    };
    assert_eq!(app.wants().flows, Some(asked));
    with_flows(&mut app);
    assert_eq!(names(&app), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    let table = app.table();
    assert_eq!(table.rows[0].cells[3], Cell::Known(Some(3)));
    assert_eq!(table.rows[1].cells[3], Cell::Known(Some(0)));

    type_text(&mut app, "\n");
    let endpoint: SocketAddr = "10.1.0.1:8080".parse().unwrap();
    assert_eq!(app.wants().flows.unwrap().endpoint, Some(endpoint));
    // What was counted for endpoints is not shown as clients.
    assert!(app.is_counting());
    assert_eq!(names(&app).len(), 0);
    with_flows(&mut app);
    assert_eq!(names(&app), ["192.0.2.2", "192.0.2.1"]);
    // A client leads nowhere.
    type_text(&mut app, "\n");
    assert!(matches!(app.open().view, View::Clients(..)));

    press(&mut app, &[KeyCode::Esc]);
    assert!(matches!(app.open().view, View::Endpoints(_)));
    press(&mut app, &[KeyCode::Backspace, KeyCode::Esc]);
    assert_eq!(app.open().view, View::Services);
    assert_eq!(app.wants().flows, Some(Ask::services()));
    assert!(!app.is_counting(), "it is there without them");
}

#[test]
fn sources_budgets_and_reasons_are_a_key_away_and_so_is_the_way_back() {
    let mut app = app();
    type_text(&mut app, "s");
    with_flows(&mut app);
    assert_eq!(names(&app), ["192.0.2.2", "192.0.2.1"]);
    assert_eq!(app.table().rows[0].cells[6].text(), "shop/web:http");
    type_text(&mut app, "b");
    with_flows(&mut app);
    let budgets = names(&app);
    for budget in [
        "flow table IPv4",
        "map FRONTENDS4",
        "connections of node",
        "connections of shop/cart",
        "source NAT to 10.1.0.1:8080",
    ] {
        assert!(
            budgets.iter().any(|name| name == budget),
            "{budget}: {budgets:?}"
        );
    }
    assert_eq!(budgets[0], "map FRONTENDS4", "the fullest comes first");
    type_text(&mut app, "r");
    assert_eq!(names(&app), ["no-endpoints", "source-range"]);
    // However often one goes round, the way back is short.
    type_text(&mut app, "sbrsbr");
    press(&mut app, &[KeyCode::Esc, KeyCode::Esc, KeyCode::Esc]);
    assert_eq!(app.open().view, View::Services);
    // The same key again goes back, too.
    type_text(&mut app, "bb");
    assert_eq!(app.open().view, View::Services);
}

#[test]
fn a_stopped_screen_keeps_its_numbers_until_it_goes_on() {
    let mut app = app();
    type_text(&mut app, "p");
    assert!(app.is_stopped());
    let later = Frame::new(&traffic(3000, 900), Some(&traffic(2000, 300)));
    app.answered(later, Instant::now());
    assert_eq!(app.table().rows[0].cells[4], Cell::Rate(Some(200.0)));
    press(&mut app, &[KeyCode::Char(' ')]);
    assert_eq!(app.table().rows[0].cells[4], Cell::Rate(Some(600.0)));
    // Another view begins with the present numbers.
    type_text(&mut app, "p\n");
    assert!(!app.is_stopped());
}

#[test]
fn the_cursor_stays_on_its_service_while_rows_move() {
    let mut app = app();
    press(&mut app, &[KeyCode::Down]);
    let at = |app: &App| {
        let table = app.table();
        let (cursor, _) = app.place(&table, 10);
        table.rows[cursor].cells[0].text()
    };
    assert_eq!(at(&app), "shop/cart:http");
    type_text(&mut app, "o<<<<o");
    assert_eq!(at(&app), "shop/cart:http");
    press(&mut app, &[KeyCode::End, KeyCode::PageDown, KeyCode::Down]);
    assert_eq!(at(&app), "default/api:http");
    press(&mut app, &[KeyCode::Home, KeyCode::PageUp, KeyCode::Up]);
    assert_eq!(at(&app), "shop/web:http");
    // Its Service is gone: the first row has it.
    press(&mut app, &[KeyCode::End]);
    let mut others = traffic(3000, 300);
    others.service_ports.remove(0);
    app.answered(Frame::new(&others, None), Instant::now());
    assert_eq!(app.place(&app.table(), 10).0, 0);
}

#[test]
fn rows_scroll_under_the_cursor() {
    let mut app = app();
    let mut many = traffic(2000, 0);
    many.service_ports = (0..100)
        .map(|n| super::port(&format!("shop/web-{n:03}"), n, 0))
        .collect();
    app.answered(Frame::new(&many, None), Instant::now());
    app.page = 10;
    for (key, cursor, top) in [
        (KeyCode::Down, 1, 0),
        (KeyCode::PageDown, 11, 2),
        (KeyCode::Up, 10, 2),
        (KeyCode::End, 99, 90),
        (KeyCode::PageUp, 89, 89),
        (KeyCode::Home, 0, 0),
    ] {
        press(&mut app, &[key]);
        assert_eq!(app.place(&app.table(), 10), (cursor, top), "{key:?}");
    }
}

#[test]
fn q_and_control_c_quit_anywhere_and_a_key_let_go_does_nothing() {
    let quits = |app: &mut App, code, modifiers| app.press(KeyEvent::new(code, modifiers));
    let mut app = app();
    let none = KeyModifiers::NONE;
    assert_eq!(quits(&mut app, KeyCode::Char('q'), none), Asked::Quit);
    type_text(&mut app, "b/");
    let control = KeyModifiers::CONTROL;
    assert_eq!(quits(&mut app, KeyCode::Char('c'), control), Asked::Quit);
    let mut released = KeyEvent::new(KeyCode::Char('c'), none);
    released.kind = ratatui::crossterm::event::KeyEventKind::Release;
    app.press(released);
    assert_eq!(app.filter, "");
}
