//! Endpoints that leave a Service and still answer: their connections go on, unless the Service
//! asks for a reset.

use anyhow::Result;
use lb_tests::{Endpoint, Family, Held, Host};

use super::support::{Findings, Ground, SMALL_TABLE, Source, cluster_ip};

/// A Service that asks for resets, and one that does not say.
const RESETS: u8 = 10;
const KEEPS: u8 = 11;
const LEAVES: &str = "pod-2-1";
const STAYS: &str = "pod-2-2";
/// Connections from each place: so many that an endpoint gets none at most once in thousands of
/// runs.
const CONNECTIONS: usize = 12;

#[test]
fn connections_to_an_endpoint_that_leaves_are_reset_where_their_service_wants_it() -> Result<()> {
    let ground = Ground::new(&SMALL_TABLE)?;
    let pods = [ground.pod(LEAVES), ground.pod(STAYS)];
    ground.service(KEEPS, Source::Translated, &pods)?;
    ground.service_that(RESETS, Source::Translated, &pods, |service| {
        service.annotation("node-lb.io/removed-endpoints", "reset")
    })?;
    let mut connections = Vec::new();
    for number in [RESETS, KEEPS] {
        for family in Family::BOTH {
            let pod: &Host = ground.pod("pod-1-1").as_ref();
            let ways = [
                (ground.client(), ground.outside(family, number)),
                (pod, cluster_ip(family, number)),
            ];
            for (host, target) in ways {
                for _ in 0..CONNECTIONS {
                    let mut connection = Held::open(host, target)?;
                    let server = connection.ask()?.server;
                    connections.push((number, format!("{host} to {target}"), server, connection));
                }
            }
        }
    }
    for number in [RESETS, KEEPS] {
        ground.endpoints(number, vec![Endpoint::ready(ground.pod(STAYS))])?;
    }

    let mut findings = Findings::default();
    let mut told = 0;
    for (number, way, server, mut connection) in connections {
        let answer = connection.ask();
        let text = match &answer {
            Ok(answer) => format!("served by {}", answer.server),
            Err(error) => format!("{error:#}"),
        };
        let is_told = number == RESETS && server == LEAVES;
        told += usize::from(is_told);
        let good = match answer {
            Ok(answer) => !is_told && answer.server == server,
            Err(_) => is_told && text.contains("reset by peer"),
        };
        findings.note(good, format!("{way}, at {server}: {text}"));
    }
    findings.note(told > 0, format!("{told} connections were to be reset"));
    findings.assert_good();
    // New connections are not affected.
    for family in Family::BOTH {
        Held::open(ground.client(), ground.outside(family, RESETS))?.ask()?;
    }
    Ok(())
}
