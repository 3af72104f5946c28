//! The agent's addresses, and which process has them.

use std::{
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use super::Finding;
use crate::{
    config::Config,
    docs::Section,
    http::{bind_all_families, get},
};

/// How long the process that has an address may take to say what it is.
const DEADLINE: Duration = Duration::from_secs(1);

pub fn check(config: &Config) -> Vec<Finding> {
    let running = is_running(&config.socket);
    let mut findings = vec![
        socket(&config.socket, running),
        port("healthz-bind-address", config.healthz_bind_address, running),
        port("metrics-bind-address", config.metrics_bind_address, running),
    ];
    let page = config.status_page_bind_address;
    findings.extend(page.map(|address| port("status-page-bind-address", address, running)));
    findings
}

fn socket(path: &Path, running: bool) -> Finding {
    let path = path.display();
    match running {
        true => Finding::ok("agent", format!("one is running and listens on {path}")),
        false => Finding::ok("agent", format!("none is running ({path})")),
    }
}

fn port(setting: &str, address: SocketAddr, running: bool) -> Finding {
    let error = match bind_all_families(address) {
        Ok(_) => return Finding::ok(setting, format!("{address} is free")),
        Err(error) => error,
    };
    let check = setting;
    match (owner(address), running) {
        (Some(Owner::NodeLb), true) => {
            Finding::ok(check, format!("the running agent has {address}"))
        }
        (Some(Owner::NodeLb), false) => Finding::failure(
            check,
            format!("another agent, with another --socket, has {address}"),
            "stop that agent, or give this one another address",
        ),
        (Some(Owner::KubeProxy), _) => Finding::failure(
            check,
            format!("kube-proxy has {address}"),
            "stop kube-proxy on this node",
        )
        .see(Section::KubeProxy),
        (None, _) => Finding::failure(
            check,
            format!("{address}: {error}"),
            format!(
                "find the process that has it (ss -lntp sport = :{}) and free it, or set --{setting}",
                address.port()
            ),
        ),
    }
}

/// A process that has one of the agent's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    NodeLb,
    KubeProxy,
}

/// Asks the process that listens on an address what it is; `None` if it is neither.
fn owner(address: SocketAddr) -> Option<Owner> {
    let mut local = address;
    if address.ip().is_unspecified() {
        local.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let ask = |path| {
        let stream = TcpStream::connect_timeout(&local, DEADLINE).ok()?;
        stream.set_read_timeout(Some(DEADLINE)).ok()?;
        get(stream, path).ok()
    };
    // Both serve the first path on the metrics address; only node-lb serves the second on the
    // health address.
    match ask("/proxyMode")? {
        (200, mode) => Some(match mode.trim() {
            "node-lb" => Owner::NodeLb,
            _ => Owner::KubeProxy,
        }),
        _ => match (ask("/readyz/ping")?, ask("/livez")?) {
            ((200, _), _) => Some(Owner::NodeLb),
            (_, (_, body)) if body.contains("lastUpdated") => Some(Owner::KubeProxy),
            _ => None,
        },
    }
}

fn is_running(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}
