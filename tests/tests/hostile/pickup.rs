//! A connection whose flow record was lost goes on: its next segment finds the same endpoint.

use std::mem::offset_of;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use lb_common::addr::Ip4;
use lb_common::flow::{Flow, tag};
use lb_datapath::bpf::MappedArray;
use lb_tests::{Family, Held};

use super::support::{Findings, Ground, SMALL_TABLE, Source, cluster_ip};

const SERVICE: u8 = 10;
const CONNECTIONS: usize = 12;

#[test]
fn a_lost_record_costs_no_connection_to_the_only_endpoint() -> Result<()> {
    pick_up(&["pod-2-1"])
}

#[test]
fn a_lost_record_costs_no_connection_to_one_of_several_endpoints() -> Result<()> {
    pick_up(&["pod-1-1", "pod-2-1", "pod-2-2"])
}

fn pick_up(pods: &[&str]) -> Result<()> {
    let ground = Ground::new(&SMALL_TABLE)?;
    let pods: Vec<_> = pods.iter().map(|pod| ground.pod(pod)).collect();
    ground.service(SERVICE, Source::Translated, &pods)?;
    let client = ground.pod("pod-1-2");
    let mut findings = Findings::default();
    let mut kept = 0;
    for _ in 0..CONNECTIONS {
        let mut connection = Held::open(client, cluster_ip(Family::V4, SERVICE))?;
        let before = connection.ask()?;
        lose(&ground, connection.local())?;
        let after = connection.ask();
        kept += usize::from(after.is_ok_and(|after| after.server == before.server));
    }
    let what = format!("{kept} of {CONNECTIONS} connections outlived their records");
    findings.note(kept == CONNECTIONS, what);
    findings.assert_good();
    Ok(())
}

/// Ends the records of a client's flow, as a program does.
fn lose(ground: &Ground, client: SocketAddr) -> Result<()> {
    let path = ground.balanced.map_dir(1)?.join("FLOWS4");
    let records = MappedArray::<Flow<Ip4>>::from_pin(&path)?;
    let mut lost = 0;
    for (index, flow) in records.iter(0..records.len()) {
        let ports = [flow.source_port, flow.destination_port];
        if tag::state(flow.tag) == tag::LIVE && ports.contains(&client.port()) {
            let word = records.u32_at(index, offset_of!(Flow<Ip4>, tag));
            word.store(tag::with_state(flow.tag, tag::DEAD), Ordering::SeqCst);
            lost += 1;
        }
    }
    ensure!(lost == 2, "{lost} records are of {client}, not two");
    Ok(())
}
