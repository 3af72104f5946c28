//! Addresses of the agent's servers that another process has.

use std::net::SocketAddr;

use anyhow::Result;
use lb_tests::{Agent, PATIENCE, Readiness, Serve, balanced, eventually, http_get};
use lb_tests::{Lab, Node};

use crate::support::{SMALL, line_with};

const METRICS: SocketAddr = local(10249);
const HEALTH: SocketAddr = local(10256);

#[test]
fn taken_addresses_are_said_and_opened_once_free() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let node = lab.node(1);
    let squatter = Serve::new("squatter").http(METRICS.port());
    let squatter = squatter.http(HEALTH.port()).start(node)?;
    let ready = Readiness::Log("the first state is in the maps".to_owned());
    let agent = Agent::start(node, balanced::spec(node, &[])?.ready(ready))?;
    for (address, purpose) in [(HEALTH, "healthz"), (METRICS, "metrics")] {
        eventually(|| {
            let log = agent.log().map_err(|e| format!("{e:#}"))?;
            let said = |line: &&str| {
                line.contains(&format!(":{}", address.port())) && line.contains(purpose)
            };
            let line = log.lines().find(said).map(str::to_owned);
            line.ok_or_else(|| format!("nothing about {purpose} in\n{log}"))
        });
        assert_eq!(ask(node, address)?, None, "the agent answers on {address}");
    }
    line_with(&agent.log()?, "WARN");

    drop(squatter);
    for address in [HEALTH, METRICS] {
        eventually(|| match ask(node, address) {
            Ok(Some(200)) => Ok(()),
            other => Err(format!("{address}: {other:?}")),
        });
    }
    assert!(agent.stop(PATIENCE)?.success());
    Ok(())
}

/// The answer of the agent's server; `None` if another process answers.
fn ask(node: &Node, address: SocketAddr) -> Result<Option<u16>> {
    let path = match address {
        METRICS => "/metrics",
        _ => "/healthz",
    };
    let answer = http_get::get(node, address, path)?;
    Ok((!answer.body.contains("squatter")).then_some(answer.status))
}

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port)
}
