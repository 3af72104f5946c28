//! Explanations by the local API.

use std::sync::Arc;

use clap::Parser as _;
use node_lb::{
    agent::{
        catalog::Catalog,
        local_api::explain::{Explain, Unexplained},
    },
    config::{Config, Flags},
    explain::{InUse, Question, Report, Situation},
    plan::LocalNode,
};
use serde_json::json;

use crate::{client::get, local_api::Agent};

#[tokio::test]
async fn a_connection_is_explained() {
    let agent = Agent::start();
    agent.put("shop", "web", &["10.1.0.1", "10.1.0.2"]);
    let (status, explained) = agent.get("/explain?from=192.0.2.1&to=10.96.0.1:80").await;
    assert_eq!(status, 200);
    let expected = json!({
        "verdict": "forward",
        "reason": "opened",
        "origin": "outside",
        "protocol": "TCP",
        "from": "192.0.2.1",
        "to": "10.96.0.1:80",
        "service": "shop/web:http",
        "frontend": "ClusterIP",
        "policy": "Cluster",
        "endpoints": ["10.1.0.1:8080", "10.1.0.2:8080"],
        "algorithm": "random",
        "sourceNAT": false,
        "nodeAddress": null,
    });
    assert_eq!(explained, expected);
    // As a form sends it.
    let (_, other) = agent
        .get("/explain?from=192.0.2.1&to=10.96.0.1%3A80%2Fudp&interface=")
        .await;
    assert_eq!(
        (&other["verdict"], &other["protocol"]),
        (&json!("reject"), &json!("UDP"))
    );
}

#[tokio::test]
async fn a_connection_that_cannot_be_is_not_explained() {
    let agent = Agent::start();
    let long = "x".repeat(4000);
    for (query, named) in [
        ("", "from: "),
        ("?to=10.96.0.1:80", "from: "),
        ("?from=here&to=10.96.0.1:80", "from: "),
        ("?from=192.0.2.1", "to: "),
        ("?from=192.0.2.1&to=10.96.0.1", "to: write IP:PORT"),
        ("?from=192.0.2.1&to=10.96.0.1:0", "to: port 0"),
        (
            "?from=192.0.2.1&to=10.96.0.1:80/icmp",
            "to: unknown protocol",
        ),
        ("?from=192.0.2.1&to=[fd00::1]:80", "from and to: "),
        ("?from=%00%ff%3Cscript%3E&to=%", "from: "),
        (&format!("?from={long}&to={long}"), "from: "),
        (
            &format!("?from=192.0.2.1&to=10.96.0.1:80&interface={long}"),
            "interface: ",
        ),
    ] {
        let (status, error) = agent.get(&format!("/explain{query}")).await;
        assert_eq!(
            (status, &error["reason"]),
            (400, &json!("BadRequest")),
            "{query}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(named), "{query}: {message}");
    }
    // Flow schemas are still to come.
    let reply = get(
        agent.server.address(),
        "/explain?from=192.0.2.1&to=10.96.0.1:80&interface=unknown",
    )
    .await;
    assert_eq!((reply.status, &*reply.headers["retry-after"]), (429, "1"));
}

#[derive(clap::Parser)]
struct Settings {
    #[command(flatten)]
    flags: Flags,
}

/// Explains connections to the Services of a catalog, but for those from the device `unknown`.
pub fn explainer(catalog: Arc<Catalog>) -> Explain {
    let settings = Settings::parse_from(["node-lb", "--source=dir:/", "--node=worker-1"]);
    let config = Config::try_from(settings.flags).unwrap();
    let node = config.this_node(None);
    let situation = Situation {
        local_node: Arc::new(LocalNode::new(&node, &[], &config.plan)),
        node: Arc::new(node),
        addresses: Arc::default(),
        reserved: Arc::default(),
        service_cidrs: Arc::default(),
        in_force: None,
        pods: Arc::default(),
    };
    Arc::new(move |question: &Question| {
        if question.interface.as_deref() == Some("unknown") {
            return Err(Unexplained::NotYet);
        }
        let (facts, services) = (situation.facts(&config), catalog.all());
        let ports = services.iter().flat_map(|service| &service.ports);
        let mut tables = situation.tables(&config, facts, ports, []);
        let decision = question.ask(&mut tables, 0, &InUse::default());
        Ok(Report::from(&decision))
    })
}
