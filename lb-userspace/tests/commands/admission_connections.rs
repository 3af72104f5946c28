//! `node-lb admission connections`: who holds seats, as the agent tells it.

use node_lb::agent::local_api::connections::{FlowConnections, Page};

use crate::{Files, beside_an_agent_of, stdout};

fn page() -> Page {
    let flow = |flow: &str, connections, limit, handshakes| FlowConnections {
        flow_schema: "shop".to_owned(),
        priority_level: "tenants".to_owned(),
        flow: flow.to_owned(),
        connections,
        seats: 3 * connections,
        limit,
        handshakes,
    };
    Page {
        items: vec![
            flow("203.0.113.9", 200, Some(200), 3),
            flow("2001:db8:c::/64", 7, None, 0),
        ],
        truncated: true,
    }
}

#[test]
fn those_who_hold_seats_are_shown_as_the_agent_tells_them() {
    let files = Files::new(&[]);
    let shown = beside_an_agent_of("/connections?limit=20", &page(), |socket| {
        files.run(&["admission", "connections", "--socket", socket])
    });
    assert_eq!(
        stdout(&shown),
        "\
FLOW SCHEMA  PRIORITY LEVEL  FLOW             CONNECTIONS  LIMIT  SEATS  HANDSHAKES
shop         tenants         203.0.113.9      200          200    600    3
shop         tenants         2001:db8:c::/64  7            -      21     0
There are more; see --limit.
"
    );
    let (json, _) = beside_an_agent_of("/connections?limit=2", &page(), |socket| {
        files.json(&[
            "admission",
            "connections",
            "--limit",
            "2",
            "--socket",
            socket,
        ])
    });
    assert_eq!(json["items"][0]["connections"], 200);
    assert!(json["items"][1].get("limit").is_none());
}
