//! Endpoints that are silent or refuse, and answers that get lost.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::{FailureKind, Family, Host, Request};

use super::support::{Findings, Ground, SMALL_TABLE, Source, cluster_ip, filter_input};

const SERVICE: u8 = 10;
const FIRST_CLIENT_PORT: u16 = 46_000;
const CLIENTS: u16 = 16;
/// A client repeats its SYN after one second, and again two seconds later. The latter is too late.
const SECOND_SYN: Duration = Duration::from_millis(2_500);

#[test]
fn a_repeated_syn_goes_to_another_endpoint_when_one_is_silent() -> Result<()> {
    served_by_the_living("tcp dport 9090 drop")
}

#[test]
fn a_client_is_served_though_one_endpoint_refuses() -> Result<()> {
    served_by_the_living("tcp dport 9090 reject with tcp reset")
}

/// One of two endpoints does not serve. Every client is served by the other one.
fn served_by_the_living(verdict: &str) -> Result<()> {
    let ground = Ground::new(&SMALL_TABLE)?;
    let pods = ["pod-2-1", "pod-2-2"].map(|pod| ground.pod(pod));
    ground.service(SERVICE, Source::Translated, &pods)?;
    filter_input(pods[0], verdict)?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let ways: [(&Host, SocketAddr); 2] = [
            (ground.client(), ground.outside(family, SERVICE)),
            (ground.pod("pod-1-1"), cluster_ip(family, SERVICE)),
        ];
        for (from, to) in ways {
            let under_way: Vec<_> = (0..CLIENTS)
                .map(|_| Request::tcp(to).deadline(SECOND_SYN).start(from))
                .collect();
            let replies = under_way.into_iter().map(|request| request?.reply());
            let replies: Vec<_> = replies.collect();
            let served = replies
                .iter()
                .flatten()
                .filter(|reply| reply.server == "pod-2-2");
            let slowest = served.clone().map(|reply| reply.latency).max();
            let (served, failure) = (
                served.count(),
                replies.iter().find_map(|r| r.as_ref().err()),
            );
            findings.note(
                served == usize::from(CLIENTS),
                format!(
                    "{from} to {to}: {served} of {CLIENTS} served within {SECOND_SYN:?}, \
                     slowest {slowest:?}, first failure {failure:?}"
                ),
            );
        }
    }
    findings.assert_good();
    Ok(())
}

/// If there is no other endpoint, a client gets the refusal at once.
#[test]
fn a_client_is_refused_once_all_endpoints_have() -> Result<()> {
    let ground = Ground::new(&SMALL_TABLE)?;
    let pods = ["pod-2-1", "pod-2-2"].map(|pod| ground.pod(pod));
    ground.service(SERVICE, Source::Translated, &pods)?;
    ground.service(SERVICE + 1, Source::Translated, &pods[..1])?;
    for pod in pods {
        filter_input(pod, "tcp dport 9090 reject with tcp reset")?;
    }
    let mut findings = Findings::default();
    for (service, limit) in [
        (SERVICE, SECOND_SYN),
        (SERVICE + 1, Duration::from_millis(900)),
    ] {
        for family in Family::BOTH {
            let request = Request::tcp(ground.outside(family, service)).deadline(limit);
            let kind = request
                .send(ground.client())
                .map_err(|failure| failure.kind);
            let refused = matches!(kind, Err(FailureKind::Refused));
            let what = format!("service-{service} over {family:?}, within {limit:?}: {kind:?}");
            findings.note(refused, what);
        }
    }
    findings.assert_good();
    Ok(())
}

/// The endpoint has a half-open connection, which only it can complete.
#[test]
fn a_lost_syn_ack_does_not_send_the_client_elsewhere() -> Result<()> {
    let ground = Ground::new(&SMALL_TABLE)?;
    let pods = ["pod-1-2", "pod-2-1", "pod-2-2"].map(|pod| ground.pod(pod));
    ground.service(SERVICE, Source::Translated, &pods)?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let ways: [(&Host, SocketAddr); 2] = [
            (ground.client(), ground.outside(family, SERVICE)),
            (ground.pod("pod-1-1"), cluster_ip(family, SERVICE)),
        ];
        for (from, to) in ways {
            filter_input(from, "tcp flags & (syn | ack) == syn | ack drop")?;
            let ports = FIRST_CLIENT_PORT..FIRST_CLIENT_PORT + CLIENTS;
            let requests = ports.clone().map(|port| {
                let request = Request::tcp(to).deadline(SECOND_SYN);
                (port, request.from_port(port).start(from))
            });
            let requests: Vec<_> = requests.collect();
            thread::sleep(Duration::from_millis(500));
            let flows = ground.balanced.flows(1)?;
            from.run("nft delete table inet input")?;

            let mut stayed = 0;
            for (port, request) in requests {
                let client = SocketAddr::new(from.ip(family), port);
                let flow = flows.iter().find(|flow| flow.client == client);
                let Ok(reply) = request?.reply() else {
                    continue;
                };
                ensure!(
                    reply.latency > Duration::from_millis(500),
                    "no SYN-ACK was lost"
                );
                let first = flow.map(|flow| flow.endpoint);
                stayed += usize::from(first == Some(reply.server_address));
            }
            findings.note(
                stayed == usize::from(CLIENTS),
                format!("{from} to {to}: {stayed} of {CLIENTS} stayed with their endpoint"),
            );
        }
    }
    findings.assert_good();
    Ok(())
}
