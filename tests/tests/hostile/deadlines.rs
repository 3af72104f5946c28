//! Deadlines of flow schemas: connections that are held open, by whichever side, do not keep others out.

use std::time::Duration;

use anyhow::{Context as _, Result};
use lb_tests::{Family, Held, Host, traffic::allow_many_files};

use super::{
    levels::{NOISY, OF_LEVEL, SEATS, Tenants, name, tenant, with_field},
    support::{Findings, SOON, attack_time, within},
};

/// Rules as Flannel's: what is not of a pod comes to pods from the node. By these the kernel also tracks
/// connections.
const MASQUERADE: &str = "table inet to_pods {
    chain postrouting {
        type nat hook postrouting priority srcnat
        ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade
        ip6 saddr != fd00:10:244::/48 ip6 daddr fd00:10:244::/48 masquerade
    }
}";

/// What a deadline is set to.
const LIMIT: Duration = Duration::from_secs(4);

/// A tenant whose connections have these deadlines.
fn with_deadlines(deadlines: &str) -> String {
    with_field(&tenant(NOISY, 10), &format!("deadlines: {{{deadlines}}}"))
}

/// How many TCP connections a host's kernel thinks it has.
fn established(host: &Host) -> Result<usize> {
    Ok(host.run("ss -Htn state established")?.lines().count())
}

fn with(deadlines: &str, mode: &str, more: &[&str]) -> Result<Tenants> {
    allow_many_files()?;
    Tenants::with(&with_deadlines(deadlines), SEATS, mode, more)
}

/// A client takes a whole level and says nothing. Its kernel answers for it that it is there.
fn idle_connections_make_room(family: Family, xdp: &str) -> Result<()> {
    let tenants = with("clientIdle: 4s", "enforce", &[xdp])?;
    let node = tenants.ground.balanced.lab.node(1);
    node.feed("nft -f -", MASQUERADE)?;
    let mut findings = Findings::default();
    let target = tenants.ground.outside(family, NOISY);
    let mut busy = Held::open(tenants.ground.client(), target)?;
    let (mut held, refused) = tenants.open(family, OF_LEVEL);
    findings.note(
        (held.len(), refused) == (OF_LEVEL - 1, 1),
        format!("{} let in, {refused} reset", held.len()),
    );
    // In the others, neither side ever sends anything.
    for held in held.iter().step_by(2) {
        held.keep_alive(Duration::from_secs(1))?;
    }
    let freed = within(SOON, || {
        busy.ask().map_err(|error| format!("busy: {error:#}"))?;
        let level = tenants.level(NOISY).map_err(|error| format!("{error:#}"))?;
        match level.in_use {
            1 => Ok(()),
            in_use => Err(format!("{in_use} in use")),
        }
    });
    findings.note(
        freed.as_ref().is_ok_and(|after| *after > LIMIT / 2),
        format!("{family:?}: the seats are free after {freed:?}"),
    );
    // Both kernels know of it, though nobody has sent them anything: so the server is not burdened
    // by those who come after.
    let pod = tenants.ground.pod("pod-1-1");
    let told = within(SOON, || {
        busy.ask().map_err(|error| format!("busy: {error:#}"))?;
        let counts = [established(pod), established(&tenants.ground.attacker)];
        match counts.map(|count| count.unwrap_or(usize::MAX)) {
            [1, 0] => Ok(()),
            [server, client] => Err(format!(
                "{server} sockets at the server, {client} at the client"
            )),
        }
    });
    findings.note(
        told.is_ok(),
        format!("{family:?}: both sides know after {told:?}"),
    );
    let tracked = node.run("cat /proc/sys/net/netfilter/nf_conntrack_count")?;
    let tracked: usize = tracked.trim().parse()?;
    findings.note(
        tracked < OF_LEVEL / 2,
        format!("{tracked} connections are tracked by the node"),
    );
    let forgotten = within(SOON, || {
        busy.ask().map_err(|error| format!("busy: {error:#}"))?;
        let flows = tenants.ground.balanced.flows(1);
        match flows.map_err(|error| format!("{error:#}"))?.len() {
            1 => Ok(()),
            flows => Err(format!("{flows} flows")),
        }
    });
    findings.note(
        forgotten.is_ok(),
        format!("the records are free after {forgotten:?}"),
    );
    let load = tenants.load(family, NOISY)?;
    std::thread::sleep(attack_time(Duration::from_secs(2)));
    let busy = busy.ask().map(|answer| answer.server);
    let load = load.stop()?;
    findings.note(
        load.failed == 0 && load.ok > 100 && load.repeated_syns.is_empty(),
        format!("{load}"),
    );
    let alive = held.iter_mut().filter_map(|held| held.ask().ok()).count();
    let schema = tenants.schema(&name(NOISY))?;
    findings.note(
        alive == 0
            && busy.is_ok()
            && schema.expired.get("client-idle") == Some(&(OF_LEVEL as u64 - 1))
            && schema.expired.len() == 1,
        format!("{alive} alive, the busy one {busy:?}; {schema:?}"),
    );
    let told = tenants.ground.balanced.metric(
        1,
        "node_lb_flowcontrol_expired_connections_total{deadline=\"client-idle\",\
         flow_schema=\"tenant-1\",priority_level=\"tenant-1\"}",
    );
    findings.note(
        matches!(told, Ok(connections) if connections as usize == OF_LEVEL - 1),
        format!("metric: {told:?}"),
    );
    findings.assert_good();
    Ok(())
}

#[test]
fn idle_connections_make_room_by_xdp() -> Result<()> {
    idle_connections_make_room(Family::V4, "--xdp-mode=native")
}

#[test]
fn idle_connections_make_room_by_tc() -> Result<()> {
    idle_connections_make_room(Family::V6, "--xdp-mode=off")
}

/// A server that leaves its clients without an answer is given up, and so is a connection that is old.
/// Both sides are told.
#[test]
fn both_sides_of_an_old_connection_are_told() -> Result<()> {
    let tenants = with("serverIdle: 4s, lifetime: 10s", "enforce", &[])?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = tenants.ground.outside(family, NOISY);
        let mut held = Held::open(&tenants.ground.attacker, target)?;
        // It speaks all the time, and gets its answers.
        let ended = within(SOON, || match held.ask() {
            Err(error) if format!("{error:#}").contains("reset") => Ok(()),
            other => Err(format!("{other:?}")),
        });
        findings.note(
            ended
                .as_ref()
                .is_ok_and(|after| (8..16).contains(&after.as_secs())),
            format!("{family:?}: ended after {ended:?}"),
        );
        let empty = tenants.in_use(NOISY, 0);
        findings.note(empty.is_ok(), format!("empty: {empty:?}"));
    }
    let schema = tenants.schema(&name(NOISY))?;
    findings.note(
        schema.expired.get("lifetime") == Some(&2) && schema.expired.len() == 1,
        format!("{schema:?}"),
    );
    findings.assert_good();
    Ok(())
}

#[test]
fn an_audit_ends_no_connection() -> Result<()> {
    let tenants = with("clientIdle: 2s", "audit", &[])?;
    let mut held = Held::open(
        &tenants.ground.attacker,
        tenants.ground.outside(Family::V4, NOISY),
    )?;
    let counted = within(SOON, || {
        let schema = tenants.schema(&name(NOISY));
        match schema
            .map_err(|error| format!("{error:#}"))?
            .expired
            .get("client-idle")
        {
            Some(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert!(counted.is_ok(), "{counted:?}");
    held.ask().context("a connection that is only audited")?;
    Ok(())
}
