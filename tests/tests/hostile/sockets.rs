//! A pod whose processes open sockets without number, where pods' sockets are translated.

use anyhow::{Context as _, Result};
use lb_common::abi::{Affinity, AffinityKey};
use lb_datapath::bpf::BatchMap;
use lb_tests::{
    Family, Topology,
    attack::{Flood, FloodKind, Sockets},
};

use super::support::{Findings, Ground, Source, cluster_ip, filter_input};

/// Has session affinity.
const STICKY: u8 = 1;
const PLAIN: u8 = 2;
/// Of the Service with session affinity.
const CLIENTS: u64 = 5_000;
/// More than any map has entries that remembers sockets.
const SOCKETS: u32 = 400_000;
const TRANSLATED: &str = r#"node_lb_packets_total{hook="socket",reason="socket-translated"}"#;

#[test]
fn sockets_of_a_pod_push_out_no_clients_affinity() -> Result<()> {
    let ground = Ground::with(Topology::DEFAULT, &["--socket-lb=all"])?;
    let pods: Vec<_> = ground.balanced.lab.pods().iter().collect();
    for pod in &pods {
        filter_input(pod, "udp length 8 drop")?;
    }
    ground.service_that(STICKY, Source::Translated, &pods, |service| {
        service.client_ip_affinity(10_800)
    })?;
    ground.service(PLAIN, Source::Translated, &pods)?;
    let mut findings = Findings::default();
    let map = ground.balanced.map_dir(1)?.join("AFFINITY");
    let clients = || -> Result<usize> {
        let map = BatchMap::<AffinityKey, Affinity>::from_pin(&map)?;
        Ok(map.entries()?.iter().filter(|(key, _)| key.set < 2).count())
    };
    let target = ground.outside(Family::V4, STICKY);
    let flood = Flood::new(FloodKind::Syn, [target]).limit(CLIENTS);
    flood.start(&ground.attacker)?.wait()?;
    let before = clients()?;
    findings.note(
        before > CLIENTS as usize / 2,
        format!("{before} clients have affinity"),
    );
    let sent = Sockets::new(cluster_ip(Family::V4, PLAIN), SOCKETS).run(ground.pod("pod-1-1"))?;
    let translated = ground.balanced.metric(1, TRANSLATED)?;
    findings.note(
        sent == SOCKETS && translated >= f64::from(SOCKETS),
        format!("{sent} sockets have sent, {translated} datagrams were translated"),
    );
    let after = clients().context("after the sockets")?;
    findings.note(after == before, format!("{after} clients have it still"));
    findings.assert_good();
    Ok(())
}
