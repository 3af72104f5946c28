//! `node-lb admission queues`: where connections wait, as the agent tells it.

use node_lb::agent::local_api::queues::{LevelQueue, Page};

use crate::{Files, beside_an_agent_of, stdout};

fn page() -> Page {
    let queue = |queue, seats, waiting, oldest_ms| LevelQueue {
        priority_level: "tenants".to_owned(),
        queue,
        seats,
        waiting,
        oldest_ms,
    };
    Page {
        items: vec![queue(7, 12, 0, None), queue(40, 3, 34, Some(412))],
        truncated: true,
        queues: 64,
    }
}

#[test]
fn queues_are_shown_as_the_agent_tells_them() {
    let files = Files::new(&[]);
    let shown = beside_an_agent_of("/queues?limit=1000", &page(), |socket| {
        files.run(&["admission", "queues", "--socket", socket])
    });
    assert_eq!(
        stdout(&shown),
        "\
PRIORITY LEVEL  QUEUE  SEATS  WAITING  OLDEST
tenants         7      12     0        -
tenants         40     3      34       412 ms
There are more; see --limit.
"
    );
    let (json, _) = beside_an_agent_of("/queues?limit=2&all", &page(), |socket| {
        files.json(&[
            "admission",
            "queues",
            "--all",
            "--limit",
            "2",
            "--socket",
            socket,
        ])
    });
    assert_eq!(json["items"][1]["oldestMs"], 412);
    assert!(json["items"][0].get("oldestMs").is_none());
}

#[test]
fn without_queues_it_says_so() {
    let files = Files::new(&[]);
    let shown = beside_an_agent_of("/queues?limit=1000", &Page::default(), |socket| {
        files.run(&["admission", "queues", "--socket", socket])
    });
    assert_eq!(stdout(&shown), "No priority level has queues.\n");
}
