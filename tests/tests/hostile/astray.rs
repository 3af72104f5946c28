//! Frames that a node receives although they are for another host: a switch sends them to all its
//! ports while it does not know where that host is. Only that host may answer, or the client gets
//! two answers.

use anyhow::Result;
use lb_tests::{Family, Held, eventually};

use super::support::{Findings, Ground, SMALL_TABLE, Source};

const SERVICE: u8 = 10;
/// An Ethernet address that no host has.
const NOBODY: &str = "02:00:5e:00:53:01";

#[test]
fn a_frame_for_another_host_opens_nothing_by_xdp() -> Result<()> {
    frames_for_another_host("native", "xdp")
}

#[test]
fn a_frame_for_another_host_opens_nothing_by_tc() -> Result<()> {
    frames_for_another_host("off", "tc-ingress")
}

fn frames_for_another_host(mode: &str, hook: &str) -> Result<()> {
    let mode = format!("--xdp-mode={mode}");
    let ground = Ground::new(&[SMALL_TABLE.as_slice(), &[&mode]].concat())?;
    ground.service(SERVICE, Source::Translated, &[ground.pod("pod-2-1")])?;
    let (attacker, node) = (&ground.attacker, ground.balanced.lab.node(1));
    let astray = || {
        let name = format!("node_lb_packets_total{{hook=\"{hook}\",reason=\"other-host\"}}");
        ground.balanced.metric(1, &name)
    };
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = ground.outside(family, SERVICE);
        Held::open(attacker, target)?.ask()?;
        let (ip, before) = (node.ip(family), astray()?);
        attacker.run(&format!("ip neigh replace {ip} lladdr {NOBODY} dev eth0"))?;
        let opened = Held::open(attacker, target);
        findings.note(
            opened.is_err(),
            format!(
                "{family:?}: {:?}",
                opened.err().map(|error| error.to_string())
            ),
        );
        eventually(|| {
            let now = astray().map_err(|error| format!("{error:#}"))?;
            let came = now > before;
            came.then_some(())
                .ok_or(format!("{now} frames were for another host"))
        });

        // A device above may have the address, as with VRRP.
        node.run(&format!(
            "ip link add vrrp link eth0 address {NOBODY} type macvlan"
        ))?;
        node.run("ip link set vrrp up")?;
        eventually(|| {
            let mut held = Held::open(attacker, target).map_err(|error| error.to_string())?;
            held.ask().map(drop).map_err(|error| error.to_string())
        });
        node.run("ip link del vrrp")?;
        attacker.run(&format!("ip neigh del {ip} dev eth0"))?;
        Held::open(attacker, target)?.ask()?;
    }
    findings.assert_good();
    Ok(())
}
