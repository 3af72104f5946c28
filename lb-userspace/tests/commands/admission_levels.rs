//! `node-lb admission levels`, beside an agent.

use node_lb::agent::status::{FlowSchema, PriorityLevel, Status};

use crate::{Files, beside_an_agent, stdout};

fn status() -> Status {
    let level = |name: &str, exempt, in_use, limit| PriorityLevel {
        name: name.to_owned(),
        exempt,
        in_use,
        highest: in_use + 1,
        limit,
        nominal: 100,
        min: 50,
        max: 1000,
        refused: 4,
        over: 5,
        kept: 6,
        lingering: 7,
        waiting: 8,
        queue_full: 9,
        slow_handshakes: limit,
        pressed: limit > 0,
    };
    Status {
        admission: "enforce".to_owned(),
        priority_levels: vec![
            level("exempt", true, 7, 0),
            level("tenants", false, 100, 120),
        ],
        flow_schemas: vec![FlowSchema {
            name: "shop".to_owned(),
            priority_level: "tenants".to_owned(),
            seats: 4,
            admitted: 1000,
            over: 3,
            refused: 40,
            flow_limit: 6,
            waited: 70,
            mean_wait_ms: 12,
            timed_out: 2,
            expired: [("client-idle", 7), ("lifetime", 1)]
                .map(|(deadline, connections)| (deadline.to_owned(), connections))
                .into(),
        }],
        admission_problems: vec!["a.yaml: cannot be read: no permission".to_owned()],
        ..Status::default()
    }
}

#[test]
fn levels_and_schemas_are_shown_as_the_agent_tells_them() {
    let files = Files::new(&[]);
    let shown = beside_an_agent(&status(), |socket| {
        files.run(&["admission", "levels", "--socket", socket])
    });
    assert_eq!(
        stdout(&shown),
        "\
Mode: enforce

PRIORITY LEVEL  IN USE  HIGHEST  LIMIT  NOMINAL  MIN  MAX   REFUSED  OVER LIMIT  KEPT  WAITING  QUEUE FULL  SLOW HANDSHAKES
exempt          7       8        -      100      -    -     4        5           6     8        9           0
tenants         100     101      120    100      50   1000  4        5           6     8        9           120 (pressed)

FLOW SCHEMA  PRIORITY LEVEL  SEATS EACH  ADMITTED  REFUSED  FLOW LIMIT  OVER LIMIT  WAITED           TIME-OUT  EXPIRED
shop         tenants         4           1000      40       6           3           70 (12 ms each)  2         7 client-idle, 1 lifetime

Problem: a.yaml: cannot be read: no permission
"
    );
    let (json, _) = beside_an_agent(&status(), |socket| {
        files.json(&["admission", "levels", "--socket", socket])
    });
    assert_eq!(json["priorityLevels"][1]["limit"], 120);
    assert_eq!(json["flowSchemas"][0]["refused"], 40);
}

#[test]
fn an_agent_that_classifies_nothing_says_how_it_would() {
    let files = Files::new(&[]);
    let off = Status {
        admission: "off".to_owned(),
        ..Status::default()
    };
    let shown = beside_an_agent(&off, |socket| {
        files.run(&["admission", "levels", "--socket", socket])
    });
    let said = String::from_utf8_lossy(&shown.stderr);
    assert!(
        !shown.status.success() && said.contains("--admission audit"),
        "{said}"
    );
}
