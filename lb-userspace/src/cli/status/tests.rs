use super::*;
use crate::agent::status::NotProgrammed;

/// A status, and what it needs, as text.
fn text(status: Status) -> String {
    render(&Report::of(status))
}

fn of_worker_1() -> Status {
    Status {
        node: "worker-1".to_owned(),
        ..Status::default()
    }
}

#[test]
fn a_healthy_agent_needs_no_attention() {
    let text = text(of_worker_1());
    assert!(text.starts_with("Nothing needs attention on worker-1.\n\nNode            worker-1\n"));
}

#[test]
fn what_needs_attention_comes_first_then_the_figures() {
    let not_programmed = |number: u32| NotProgrammed {
        service_port: format!("shop/web-{number}:"),
        protocol: "TCP".to_owned(),
        family: "IPv4".to_owned(),
        reason: "SERVICES is full".to_owned(),
        remedy: "delete what fills the map".to_owned(),
    };
    let text = text(Status {
        source_problems: vec!["a broken\u{1b}[2J manifest".to_owned()],
        not_programmed: (0..7).map(not_programmed).collect(),
        ..of_worker_1()
    });
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "6 things need attention on worker-1:");
    assert!(lines[1].starts_with("FAILURE  Services  shop/web-0: TCP IPv4"));
    assert!(lines[9].ends_with("(and 2 more like this)"));
    let section = lines[11].trim_start();
    assert_eq!(section, "see docs/alerts.md#nodelbservicesnotprogrammed");
    assert_eq!(lines[12], "warning  Source    a broken?[2J manifest");
    assert!(lines[13].trim_start().starts_with("-> "));
    assert!(lines[14].trim_start().starts_with("see docs/"));
    assert_eq!(lines[15], "");
    assert!(text.contains("Not programmed  shop/web-6: TCP IPv4: SERVICES is full"));
}
