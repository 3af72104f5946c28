//! Priority levels: a tenant that takes all of its level's seats is refused alone, objects change
//! under load, levels go while they have connections, and agents that are killed leave no seat
//! behind.

use std::{fs, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use lb_common::flow::party::Members;
use lb_datapath::bpf::MappedArray;
use lb_tests::{
    Family, Held, Load, Request, Topology,
    attack::{Flood, FloodKind},
    traffic::{RunningLoad, allow_many_files},
};
use node_lb::{
    agent::status::{FlowSchema, PriorityLevel},
    trace::Packet,
};

use super::support::{
    FLOOD, Findings, Ground, ONE_NODE, SOON, Source, attack_time, unlucky, within,
};

pub const NOISY: u8 = 1;
pub const QUIET: u8 = 2;
/// Seats of the node. Three levels with the same shares divide them; catch-all has half as many.
pub const SEATS: u32 = 700;
pub const OF_LEVEL: usize = 200;

/// A node with a noisy and a quiet tenant, and a directory of objects that its agent follows.
pub struct Tenants {
    pub ground: Ground,
    pub objects: tempfile::TempDir,
}

impl Tenants {
    pub fn new(mode: &str, more: &[&str]) -> Result<Self> {
        Self::with(&tenant(NOISY, 10), SEATS, mode, more)
    }

    /// With these objects for the noisy one, on a node with so many seats.
    pub fn with(noisy: &str, seats: u32, mode: &str, more: &[&str]) -> Result<Self> {
        Self::on(ONE_NODE, noisy, seats, mode, more)
    }

    /// The same with more pods.
    pub fn on(
        topology: Topology,
        noisy: &str,
        seats: u32,
        mode: &str,
        more: &[&str],
    ) -> Result<Self> {
        let objects = tempfile::tempdir()?;
        let seats = format!("--max-connections={seats}");
        let path = format!("--admission-objects={}", objects.path().display());
        let mode = format!("--admission={mode}");
        fs::write(file(&objects, NOISY), noisy)?;
        fs::write(file(&objects, QUIET), tenant(QUIET, 10))?;
        fs::write(objects.path().join("other.yaml"), level("other", 10))?;
        let arguments = [&[&*seats, &*path, &*mode], more].concat();
        let ground = Ground::with(topology, &arguments)?;
        for (number, pod) in [(NOISY, "pod-1-1"), (QUIET, "pod-1-2")] {
            ground.service(number, Source::Kept, &[ground.pod(pod)])?;
        }
        Ok(Self { ground, objects })
    }

    /// What the agent counts of a tenant's level.
    pub fn level(&self, number: u8) -> Result<PriorityLevel> {
        let status = self.ground.balanced.status(1)?;
        let name = name(number);
        let found = status.priority_level(&name).cloned();
        found.with_context(|| format!("no level {name}"))
    }

    pub fn schema(&self, name: &str) -> Result<FlowSchema> {
        let status = self.ground.balanced.status(1)?;
        let found = status.flow_schema(name).cloned();
        found.with_context(|| format!("no schema {name}"))
    }

    /// Waits until a tenant's level has so many connections.
    pub fn in_use(&self, number: u8, wanted: usize) -> Result<Duration, String> {
        within(SOON, || {
            let level = self.level(number).map_err(|error| format!("{error:#}"))?;
            match level.in_use as usize == wanted {
                true => Ok(()),
                false => {
                    let flows = self.ground.balanced.flows(1);
                    let left = flows.unwrap_or_default().into_iter().take(3);
                    let left: Vec<_> = left.collect();
                    let in_use = level.in_use;
                    Err(format!("{in_use} in use, not {wanted}; flows: {left:?}"))
                }
            }
        })
    }

    /// As many connections to the noisy one as are let in, of so many that are tried; the number of
    /// those that were refused by a reset, and not by silence.
    pub fn open(&self, family: Family, tries: usize) -> (Vec<Held>, usize) {
        self.ground.open(self.ground.outside(family, NOISY), tries)
    }

    /// Connections to the quiet one.
    fn quiet_load(&self, family: Family) -> Result<RunningLoad> {
        self.load(family, QUIET)
    }

    /// Connections to a tenant, each for a request.
    pub fn load(&self, family: Family, number: u8) -> Result<RunningLoad> {
        let target = self.ground.outside(family, number);
        let load = Load::new(Request::tcp(target).deadline(Duration::from_secs(1)));
        load.workers(2).start(self.ground.client())
    }
}

pub fn name(number: u8) -> String {
    format!("tenant-{number}")
}

fn file(objects: &tempfile::TempDir, number: u8) -> PathBuf {
    objects.path().join(name(number) + ".yaml")
}

fn level(name: &str, shares: u32) -> String {
    format!(
        "apiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\nmetadata: {{name: {name}}}\n\
         spec: {{type: Limited, limited: {{nominalConcurrencyShares: {shares}, \
         borrowingLimitPercent: 0, limitResponse: {{type: Reject}}}}}}\n"
    )
}

/// A level with so many shares, and a schema for the Service of a tenant.
pub fn tenant(number: u8, shares: u32) -> String {
    let name = name(number);
    let level = level(&name, shares);
    format!(
        "{level}---\napiVersion: node-lb.io/v1alpha1\nkind: FlowSchema\nmetadata: {{name: {name}}}\n\
         spec: {{priorityLevelConfiguration: {{name: {name}}}, rules: [{{subjects: [{{kind: Any}}], \
         destinations: [{{namespaces: ['*'], services: [service-{number}]}}]}}]}}\n"
    )
}

/// These objects, with one more field of their schema.
pub fn with_field(objects: &str, field: &str) -> String {
    assert!(objects.contains("rules:"), "{objects}");
    objects.replace("rules:", &format!("{field}, rules:"))
}

/// The same, where each client may have so many connections, and the level bears many handshakes.
fn with_parts(number: u8, most: usize) -> String {
    let objects = tenant(number, 10).replace(
        "limitResponse",
        &format!(
            "connections: {{maxConnectionsPerFlow: {most}, maxHalfOpenSeats: {OF_LEVEL}}}, \
             limitResponse"
        ),
    );
    let objects = with_field(&objects, "distinguisherMethod: {type: BySourceIP}");
    assert!(objects.contains("maxConnectionsPerFlow") && objects.contains("BySourceIP"));
    objects
}

fn a_noisy_tenant_is_refused_alone(xdp: &str) -> Result<()> {
    allow_many_files()?;
    let tenants = Tenants::new("enforce", &[xdp])?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let quiet = tenants.quiet_load(family)?;
        let (held, refused) = tenants.open(family, OF_LEVEL + 50);
        findings.note(
            (held.len(), refused) == (OF_LEVEL, 50),
            format!("{family:?}: {} let in, {refused} reset", held.len()),
        );
        let found = tenants.level(NOISY)?;
        findings.note(
            found.in_use as usize == OF_LEVEL && found.limit as usize == OF_LEVEL,
            format!("{found:?}"),
        );
        let flood = Flood::new(FloodKind::Syn, [tenants.ground.outside(family, NOISY)]);
        let before = tenants.ground.lost_frames()?;
        let flood = flood.rate(FLOOD);
        let flood = flood.run_for(
            attack_time(Duration::from_secs(2)),
            &tenants.ground.attacker,
        )?;
        let found = tenants.level(NOISY)?;
        findings.note(
            found.in_use as usize <= OF_LEVEL,
            format!("{flood}: {found:?}"),
        );
        let quiet = quiet.stop()?;
        let lost = tenants.ground.lost_frames()? - before;
        findings.note(
            quiet.failed == 0
                && quiet.ok > 0
                && quiet.repeated_syns.len() <= unlucky(quiet.ok, lost),
            format!("quiet: {quiet}; the lab itself lost {lost} frames"),
        );
        drop(held);
        let empty = tenants.in_use(NOISY, 0);
        findings.note(empty.is_ok(), format!("empty: {empty:?}"));
        // In the second of the flood, most are refused without an answer.
        thread::sleep(Duration::from_secs(1));
    }
    let schema = tenants.schema(&name(NOISY))?;
    findings.note(
        schema.admitted >= 2 * OF_LEVEL as u64 && schema.refused >= 100 && schema.over == 0,
        format!("{schema:?}"),
    );
    findings.assert_good();
    Ok(())
}

#[test]
fn a_noisy_tenant_is_refused_alone_by_xdp() -> Result<()> {
    a_noisy_tenant_is_refused_alone("--xdp-mode=native")
}

#[test]
fn a_noisy_tenant_is_refused_alone_by_tc() -> Result<()> {
    a_noisy_tenant_is_refused_alone("--xdp-mode=off")
}

/// A flood to a tenant's own Service would take all of its level's seats. Its handshakes stay open, so
/// after a moment handshakes take none.
fn spoofed_syns_leave_a_level_to_its_clients(xdp: &str) -> Result<()> {
    allow_many_files()?;
    let tenants = Tenants::new("enforce", &[xdp])?;
    let mut findings = Findings::default();
    for (family, rate) in [
        (Family::V4, FLOOD),
        (Family::V6, FLOOD),
        (Family::V4, OF_LEVEL as u32),
    ] {
        let (held, _) = tenants.open(family, 3);
        let before = tenants.ground.lost_frames()?;
        let flood = Flood::new(FloodKind::Syn, [tenants.ground.outside(family, NOISY)]);
        let flood = flood.rate(rate).start(&tenants.ground.attacker)?;
        let relieved = within(SOON, || match tenants.level(NOISY) {
            Ok(level) if level.pressed && (level.in_use as usize) < OF_LEVEL => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let load = tenants.load(family, NOISY)?;
        thread::sleep(attack_time(Duration::from_secs(3)));
        let (load, level) = (load.stop()?, tenants.level(NOISY)?);
        let flood = flood.stop()?;
        let lost = tenants.ground.lost_frames()? - before;
        let told = format!(
            "{family:?}, {flood}, relieved in {relieved:?}: {load}, {level:?}; the lab itself lost {lost} \
             frames"
        );
        println!("{told}");
        findings.note(
            relieved.is_ok()
                && load.failed == 0
                && load.ok > 100
                && load.repeated_syns.len() <= unlucky(load.ok, lost)
                && level.in_use as usize <= OF_LEVEL,
            told,
        );
        // Whoever completes the handshake counts.
        let before = tenants.ground.lost_frames()?;
        let tries = OF_LEVEL + 50;
        let (more, refused) = tenants.open(family, tries);
        let lost = tenants.ground.lost_frames()? - before;
        let unanswered = tries - more.len() - refused;
        findings.note(
            (held.len(), more.len(), refused + unanswered) == (3, OF_LEVEL - 3, 53)
                && unanswered <= unlucky(tries as u64, lost),
            format!(
                "{} held, {} let in, {refused} reset, {unanswered} without an answer; the lab itself \
                 lost {lost} frames",
                held.len(),
                more.len()
            ),
        );
        drop((held, more));
        let empty = tenants.in_use(NOISY, 0);
        findings.note(empty.is_ok(), format!("empty: {empty:?}"));
    }
    findings.assert_good();
    Ok(())
}

#[test]
fn spoofed_syns_leave_a_level_to_its_clients_by_xdp() -> Result<()> {
    spoofed_syns_leave_a_level_to_its_clients("--xdp-mode=native")
}

#[test]
fn spoofed_syns_leave_a_level_to_its_clients_by_tc() -> Result<()> {
    spoofed_syns_leave_a_level_to_its_clients("--xdp-mode=off")
}

/// One client of a tenant opens all that it can. It has its own part, and the others the rest, also if
/// it was there before its limit.
fn a_greedy_client_has_its_own_part_of_a_level(family: Family, xdp: &str) -> Result<()> {
    const MOST: usize = 50;
    allow_many_files()?;
    let mut tenants = Tenants::new("enforce", &[xdp])?;
    let mut findings = Findings::default();
    let (mut held, _) = tenants.open(family, MOST + 30);
    findings.note(held.len() == MOST + 30, format!("{} let in", held.len()));
    let load = tenants.load(family, NOISY)?;
    fs::write(file(&tenants.objects, NOISY), with_parts(NOISY, MOST))?;
    let limited = within(SOON, || match tenants.open(family, 1) {
        (none, 1) if none.is_empty() => Ok(()),
        (more, refused) => Err(format!("{} let in, {refused} reset", more.len())),
    });
    let alive = held.iter_mut().filter_map(|held| held.ask().ok()).count();
    findings.note(
        limited.is_ok() && alive == MOST + 30,
        format!("{family:?}: limited {limited:?}, {alive} alive"),
    );
    held.truncate(MOST - 10);
    // Agents come and go meanwhile.
    tenants.ground.balanced.kill_agents()?;
    let back = within(SOON, || {
        let (more, refused) = tenants.open(family, MOST);
        match (more.len(), refused) {
            (10, 40) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    findings.note(
        back.is_ok(),
        format!("{family:?}: without an agent {back:?}"),
    );
    tenants.ground.balanced.start_agents()?;
    let shown = tenants.ground.balanced.connections(1)?;
    let attacker = tenants.ground.attacker.addresses().of(family);
    // Of an IPv6 client outside the cluster its network is shown.
    let named = match family {
        Family::V4 => attacker.to_string(),
        Family::V6 => IpNet::new(attacker, 64)?.trunc().to_string(),
    };
    let row = shown.lines().find(|line| line.contains(&named));
    let cells: Vec<_> = row.unwrap_or_default().split_whitespace().collect();
    findings.note(
        cells == ["tenant-1", "tenant-1", &named, "40", "50", "40", "0"],
        shown,
    );
    let schema = tenants.schema(&name(NOISY))?;
    findings.note(
        schema.flow_limit >= 40 && schema.refused == 0,
        format!("{schema:?}"),
    );
    let load = load.stop()?;
    findings.note(
        load.failed == 0 && load.ok > 0 && load.repeated_syns.is_empty(),
        format!("{family:?}: {load}"),
    );
    drop(held);
    let empty = tenants.in_use(NOISY, 0);
    findings.note(empty.is_ok(), format!("empty: {empty:?}"));
    findings.assert_good();
    Ok(())
}

#[test]
fn a_greedy_client_has_its_own_part_of_a_level_by_xdp() -> Result<()> {
    a_greedy_client_has_its_own_part_of_a_level(Family::V4, "--xdp-mode=native")
}

#[test]
fn a_greedy_client_has_its_own_part_of_a_level_by_tc() -> Result<()> {
    a_greedy_client_has_its_own_part_of_a_level(Family::V6, "--xdp-mode=off")
}

/// Somebody forges a client's address, so that its part is full. The client's own kernel resets what it
/// has not begun.
fn forged_syns_leave_a_client_its_part(family: Family, xdp: &str) -> Result<()> {
    // Enough for the client's part, and too few for the level to be under pressure.
    const MOST: usize = 10;
    const RATE: u32 = 15;
    allow_many_files()?;
    let tenants = Tenants::new("enforce", &[xdp])?;
    fs::write(file(&tenants.objects, NOISY), with_parts(NOISY, MOST))?;
    let mut findings = Findings::default();
    let client = tenants.ground.client().addresses().of(family);
    let target = tenants.ground.outside(family, NOISY);
    let flood = Flood::new(FloodKind::Syn, [target]).source(client);
    let flood = flood.rate(RATE).start(&tenants.ground.attacker)?;
    // The agent has seen it.
    thread::sleep(attack_time(Duration::from_secs(6)));
    let load = tenants.load(family, NOISY)?;
    thread::sleep(attack_time(Duration::from_secs(3)));
    let (load, level) = (load.stop()?, tenants.level(NOISY)?);
    let flood = flood.stop()?;
    let told = format!("{family:?}, {flood}: {load}, {level:?}");
    println!("{told}");
    let is_good =
        load.failed == 0 && load.ok > 100 && load.repeated_syns.is_empty() && !level.pressed;
    findings.note(is_good, told);
    let empty = tenants.in_use(NOISY, 0);
    findings.note(empty.is_ok(), format!("empty: {empty:?}"));
    findings.assert_good();
    Ok(())
}

#[test]
fn forged_syns_leave_a_client_its_part_by_xdp() -> Result<()> {
    forged_syns_leave_a_client_its_part(Family::V4, "--xdp-mode=native")
}

#[test]
fn forged_syns_leave_a_client_its_part_by_tc() -> Result<()> {
    forged_syns_leave_a_client_its_part(Family::V6, "--xdp-mode=off")
}

/// SYNs from more clients than there is room for, in a level that bears all of their handshakes. Each
/// client's part is so small that one handshake puts it under pressure.
#[test]
fn forged_clients_leave_room_for_others_to_be_counted() -> Result<()> {
    const MANY_SEATS: u32 = 400_000;
    const MOST: usize = 2;
    allow_many_files()?;
    let tenants = Tenants::with(
        &tenant(NOISY, 10),
        MANY_SEATS,
        "enforce",
        &["--xdp-mode=native"],
    )?;
    let objects = with_parts(NOISY, MOST).replace(
        &format!("maxHalfOpenSeats: {OF_LEVEL}"),
        &format!("maxHalfOpenSeats: {MANY_SEATS}"),
    );
    fs::write(file(&tenants.objects, NOISY), objects)?;
    let mut findings = Findings::default();
    let family = Family::V4;
    let target = tenants.ground.outside(family, NOISY);
    let maps = tenants.ground.balanced.map_dir(1)?;
    let parties = MappedArray::<u64>::from_pin(&maps.join("PARTIES"))?;
    let flood = Flood::new(FloodKind::Syn, [target]).rate(FLOOD);
    let flood = flood.start(&tenants.ground.attacker)?;
    thread::sleep(attack_time(Duration::from_secs(12)));
    let (held, refused) = tenants.open(family, 20);
    let level = tenants.level(NOISY)?;
    let members = parties.iter(0..parties.len());
    let members = members.map(|(index, element)| Members::read(index, element));
    let pressed = members.filter(|members| members.is_pressed).count();
    let metric = |name| tenants.ground.balanced.metric(1, name);
    let uncounted = metric("node_lb_flowcontrol_uncounted_connections_total")?;
    let told = format!(
        "{} let in, {refused} reset; {pressed} parties are under pressure, {uncounted} connections \
         uncounted; {level:?}",
        held.len(),
    );
    let flood = flood.stop()?;
    findings.note(
        (held.len(), refused) == (MOST, 20 - MOST)
            && !level.pressed
            && (1..=parties.len() as usize / 8).contains(&pressed)
            && uncounted < 1000.0,
        format!("{flood}: {told}"),
    );
    findings.assert_good();
    Ok(())
}

#[test]
fn an_audit_refuses_nobody_and_tells_who_would_be() -> Result<()> {
    allow_many_files()?;
    let tenants = Tenants::new("audit", &[])?;
    let mut findings = Findings::default();
    let (held, refused) = tenants.open(Family::V4, OF_LEVEL + 50);
    findings.note(
        (held.len(), refused) == (OF_LEVEL + 50, 0),
        format!("{} let in, {refused} reset", held.len()),
    );
    let (found, schema) = (tenants.level(NOISY)?, tenants.schema(&name(NOISY))?);
    findings.note(
        found.in_use as usize == OF_LEVEL + 50 && found.over == 50 && schema.over == 50,
        format!("{found:?}, {schema:?}"),
    );
    findings.assert_good();
    Ok(())
}

/// Objects change, levels go and come back, and an agent is killed, all with connections.
#[test]
fn levels_change_under_load() -> Result<()> {
    allow_many_files()?;
    let mut tenants = Tenants::new("enforce", &[])?;
    let mut findings = Findings::default();
    let family = Family::V4;
    let quiet = tenants.quiet_load(family)?;
    let (mut held, _) = tenants.open(family, OF_LEVEL);
    findings.note(held.len() == OF_LEVEL, format!("{} let in", held.len()));

    // Half as many shares of 30: nothing is cut, and nobody is let in.
    fs::write(file(&tenants.objects, NOISY), tenant(NOISY, 5))?;
    let limited = within(SOON, || match tenants.level(NOISY) {
        Ok(level) if (level.limit as usize) < OF_LEVEL => Ok(()),
        other => Err(format!("{other:?}")),
    });
    findings.note(limited.is_ok(), format!("limited: {limited:?}"));
    let alive = held.iter_mut().filter_map(|held| held.ask().ok()).count();
    findings.note(
        alive == OF_LEVEL,
        format!("{alive} alive under a lower limit"),
    );
    let (more, _) = tenants.open(family, 5);
    findings.note(more.is_empty(), format!("{} more let in", more.len()));

    // What is not valid changes nothing.
    fs::write(
        file(&tenants.objects, NOISY),
        tenant(NOISY, 5) + "---\nkind: [",
    )?;
    let told = within(SOON, || {
        let status = tenants.ground.balanced.status(1);
        let problems = status.map_err(|e| format!("{e:#}"))?.admission_problems;
        match problems.is_empty() {
            true => Err("no problem is told".to_owned()),
            false => Ok(()),
        }
    });
    findings.note(told.is_ok(), format!("told: {told:?}"));
    let found = tenants.level(NOISY)?;
    findings.note(found.in_use as usize == OF_LEVEL, format!("{found:?}"));

    // The level goes: its connections stay, new ones belong to catch-all.
    fs::remove_file(file(&tenants.objects, NOISY))?;
    let gone = within(SOON, || match tenants.level(NOISY) {
        Ok(level) => Err(format!("{level:?}")),
        Err(_) => Ok(()),
    });
    findings.note(gone.is_ok(), format!("gone: {gone:?}"));
    let before = tenants.schema("catch-all")?.admitted;
    let (others, _) = tenants.open(family, 5);
    let counted = tenants.schema("catch-all")?.admitted - before;
    findings.note(
        (others.len(), counted) == (5, 5),
        format!("{} let in, {counted} by catch-all", others.len()),
    );

    // It comes back, with those that it has still.
    fs::write(file(&tenants.objects, NOISY), tenant(NOISY, 10))?;
    let back = tenants.in_use(NOISY, OF_LEVEL);
    findings.note(back.is_ok(), format!("back: {back:?}"));

    // The agent is killed, and half of them end without one.
    held.truncate(OF_LEVEL / 2);
    tenants.ground.balanced.kill_agents()?;
    drop(held.split_off(OF_LEVEL / 4));
    tenants.ground.balanced.start_agents()?;
    let right = tenants.in_use(NOISY, OF_LEVEL / 4);
    findings.note(right.is_ok(), format!("after the kill: {right:?}"));
    let (more, refused) = tenants.open(family, OF_LEVEL);
    findings.note(
        more.len() == OF_LEVEL - OF_LEVEL / 4 && refused == OF_LEVEL / 4,
        format!("{} more let in, {refused} reset", more.len()),
    );
    drop((held, more, others));
    let empty = tenants.in_use(NOISY, 0);
    findings.note(empty.is_ok(), format!("empty: {empty:?}"));
    let quiet = quiet.stop()?;
    findings.note(
        quiet.failed == 0 && quiet.ok > 0 && quiet.repeated_syns.is_empty(),
        format!("quiet: {quiet}"),
    );
    findings.assert_good();
    Ok(())
}

#[test]
fn a_trace_names_the_schema_and_the_level() -> Result<()> {
    let tenants = Tenants::new("enforce", &[])?;
    let balanced = &tenants.ground.balanced;
    let trace = balanced.trace(1, &["--limit=1", "-o", "json"])?;
    within(SOON, || match balanced.is_tracing(1) {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .map_err(anyhow::Error::msg)?;
    let (held, _) = tenants.open(Family::V4, 1);
    assert_eq!(held.len(), 1);
    let traced = trace.wait_with_output()?;
    let packet: Packet = serde_json::from_slice(&traced.stdout)?;
    assert_eq!(packet.flow_schema, Some(name(NOISY)));
    assert_eq!(packet.priority_level, Some(name(NOISY)));
    Ok(())
}

/// Until its connections end, others do not get the seats that they hold.
#[test]
fn a_deleted_level_leaves_its_seats_to_others() -> Result<()> {
    const OF_FEWER: u32 = 280;
    allow_many_files()?;
    let tenants = Tenants::new("enforce", &[])?;
    let mut findings = Findings::default();
    let (held, _) = tenants.open(Family::V4, OF_LEVEL);
    findings.note(held.len() == OF_LEVEL, format!("{} let in", held.len()));
    fs::remove_file(file(&tenants.objects, NOISY))?;
    // Ten of 25 shares, where there were ten of 35.
    let limited = |limit: u32| {
        within(SOON, || match tenants.level(QUIET) {
            Ok(level) if level.nominal == OF_FEWER && level.limit == limit => Ok(()),
            other => Err(format!("{other:?}")),
        })
    };
    let while_held = limited(OF_LEVEL as u32);
    findings.note(while_held.is_ok(), format!("while held: {while_held:?}"));
    drop(held);
    let after = limited(OF_FEWER);
    findings.note(after.is_ok(), format!("after: {after:?}"));
    findings.assert_good();
    Ok(())
}
