//! Devices and routes, by way of iproute2.

use anyhow::{Context, Result, bail};

use super::host::Host;
use crate::patience::try_eventually;

/// Runs lines of `ip -batch` in a host's namespace.
pub fn ip_batch(host: &Host, lines: &str) -> Result<()> {
    let batch: String = lines
        .lines()
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    host.feed("ip -batch -", &batch)
        .map(drop)
        .with_context(|| format!("the lines were\n{batch}"))
}

/// Waits until all wires at `upper` carry packets.
///
/// The end that came up first learns of the other end in a deferred work item of the kernel, and
/// drops packets until then. So does a bridge with a port.
pub fn settle(upper: &Host) -> Result<()> {
    try_eventually(|| {
        let links = upper.run("ip -details -oneline link show type veth")?;
        match links.lines().find(|link| !carries_packets(link)) {
            Some(idle) => bail!("{upper}: a wire does not come up: {idle}"),
            None => Ok(()),
        }
    })
}

/// Judges one line of `ip -details -oneline link`.
fn carries_packets(link: &str) -> bool {
    let is_port = link.contains(" bridge_slave ");
    link.contains(" state UP ") && (!is_port || link.contains(" bridge_slave state forwarding "))
}
