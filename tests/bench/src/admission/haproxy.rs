//! HAProxy in TCP mode, on the node.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result};
use lb_tests::{Agent, AgentSpec, Lab, Readiness};

use super::{
    CAPACITY, PER_CLIENT, WAIT,
    ground::{PORT, SERVICE, addresses},
};
use crate::cluster::services::TARGET_PORT;

/// Its program, and the Debian package that contains it.
pub const PROGRAM: &str = "haproxy";
/// Where it says that it is ready.
const HEALTH: ([u8; 4], u16) = ([127, 0, 0, 1], 10_256);
/// Connections that a client may have before its next ones come after those of others.
const FEW: u32 = 10;

/// What it does when clients want more than the server can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Connections wait in one queue, in their order.
    Queue,
    /// Connections of clients that have many come after those of others.
    Priority,
    /// Each client may have so many connections.
    Limit,
}

/// Starts it.
///
/// # Errors
///
/// If it does not get ready.
pub fn start(lab: &Lab, policy: Policy) -> Result<Agent> {
    let node = lab.node(1);
    let path = node.dir.join("haproxy.cfg");
    fs::write(&path, configuration(policy, addresses(lab)))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let ready = Readiness::Http {
        address: SocketAddr::from(HEALTH),
        path: "/healthz".to_owned(),
    };
    // In the foreground.
    let arguments = ["-db".into(), "-f".into(), path.into_os_string()];
    let spec = AgentSpec::new(PROGRAM, arguments, ready).log("haproxy.log");
    Agent::start(node, spec)
}

fn configuration(policy: Policy, [node, pod]: [IpAddr; 2]) -> String {
    let counted = "
    stick-table type ip size 100k expire 1m store conn_cur
    tcp-request connection track-sc0 src";
    let (rules, server) = match policy {
        Policy::Queue => (String::new(), format!(" maxconn {CAPACITY}")),
        Policy::Priority => (
            format!(
                "{counted}
    tcp-request content set-priority-class int(1) if {{ sc0_conn_cur gt {FEW} }}"
            ),
            format!(" maxconn {CAPACITY}"),
        ),
        Policy::Limit => (
            format!(
                "{counted}
    tcp-request connection reject if {{ sc0_conn_cur gt {PER_CLIENT} }}"
            ),
            String::new(),
        ),
    };
    let health = SocketAddr::from(HEALTH);
    format!(
        "global
    maxconn 4000
defaults
    mode tcp
    maxconn 4000
    timeout connect {wait}s
    timeout queue {wait}s
    timeout client 1m
    timeout server 1m
frontend {SERVICE}
    bind {node}:{PORT}{rules}
    default_backend endpoints
backend endpoints
    server endpoint {pod}:{TARGET_PORT}{server}
frontend health
    mode http
    bind {health}
    monitor-uri /healthz
",
        wait = WAIT.as_secs(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_limited_at_the_server_and_others_by_their_address() {
        let of = |policy| configuration(policy, [[192, 0, 2, 1].into(), [10, 0, 0, 1].into()]);
        let waits = "server endpoint 10.0.0.1:8080 maxconn 100\n";
        let counts = "tcp-request connection track-sc0 src\n";
        let [queue, priority, limit] = [Policy::Queue, Policy::Priority, Policy::Limit].map(of);
        for (text, is_waiting, is_counting) in [
            (&queue, true, false),
            (&priority, true, true),
            (&limit, false, true),
        ] {
            assert!(text.contains("    bind 192.0.2.1:30080\n"), "{text}");
            assert_eq!(text.contains(waits), is_waiting, "{text}");
            assert_eq!(text.contains(counts), is_counting, "{text}");
        }
        assert!(priority.contains("set-priority-class int(1) if { sc0_conn_cur gt 10 }\n"));
        assert!(limit.contains("connection reject if { sc0_conn_cur gt 80 }\n"));
    }
}
