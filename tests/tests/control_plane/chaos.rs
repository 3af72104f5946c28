//! Faults drawn at random, two at once, on a cluster under load. Whatever happens: no request to a
//! Service that does not change fails, no Service is served by another one's pods, and what changed
//! meanwhile is in force soon after the faults are mended.
//!
//! `NODE_LB_CHAOS_SEED` repeats a run, `NODE_LB_CHAOS_MINUTES` makes it longer.

use std::{
    collections::BTreeSet,
    env,
    net::SocketAddr,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use lb_tests::{Cluster, Family, Request, patient};
use nix::sys::signal::Signal;
use serde_json::json;

use super::support::{Everywhere, WEB, cluster, cluster_ip, scale, serve, servers_at};

/// The Service whose pods come and go.
const CHURN: &str = "churn";
/// How long a run takes unless told otherwise.
const SHORT: Duration = Duration::from_secs(30);
/// A change is in force so long after the faults are mended and the API server has it.
const CONVERGED: Duration = Duration::from_secs(10);
/// The longest that faults last.
const LONGEST: u64 = 4;

/// In the order in which two of them can be mended, and begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    EtcdKilled,
    ApiServerKilled,
    ConnectionsRefused,
    AgentsStopped,
    /// No new descriptors (EMFILE).
    NoFiles,
    AgentsKilled,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::ApiServerKilled,
        Self::EtcdKilled,
        Self::ConnectionsRefused,
        Self::AgentsStopped,
        Self::AgentsKilled,
        Self::NoFiles,
    ];

    fn begin(self, cluster: &mut Cluster) -> Result<()> {
        match self {
            Self::ApiServerKilled => cluster.control_plane.kill_api(),
            Self::EtcdKilled => cluster.control_plane.kill_etcd(),
            Self::ConnectionsRefused => {
                cluster.front.close();
                Ok(())
            }
            Self::AgentsStopped => signal(cluster, Signal::SIGSTOP),
            Self::AgentsKilled => cluster.ground.kill_agents(),
            Self::NoFiles => limit_files(cluster, "3"),
        }
    }

    fn mend(self, cluster: &mut Cluster) -> Result<()> {
        match self {
            Self::ApiServerKilled => cluster.control_plane.start_api(),
            Self::EtcdKilled => cluster.control_plane.start_etcd(),
            Self::ConnectionsRefused => cluster.front.open(),
            Self::AgentsStopped => signal(cluster, Signal::SIGCONT),
            // Ready or not: that is what is measured.
            Self::AgentsKilled => cluster.ground.launch_agents(),
            Self::NoFiles => limit_files(cluster, "1024"),
        }
    }
}

fn signal(cluster: &Cluster, signal: Signal) -> Result<()> {
    let mut agents = cluster.ground.agents.iter();
    agents.try_for_each(|agent| agent.signal(signal))
}

fn limit_files(cluster: &Cluster, limit: &str) -> Result<()> {
    for agent in &cluster.ground.agents {
        let pid = format!("--pid={}", agent.pid());
        let status = Command::new("prlimit")
            .args([pid, format!("--nofile={limit}:")])
            .status()?;
        ensure!(status.success(), "prlimit ends with {status}");
    }
    Ok(())
}

/// A seed that has always been tried, and a new one.
#[test]
fn faults_at_random_lose_nothing_and_mislead_nobody() {
    let minutes = env::var("NODE_LB_CHAOS_MINUTES").ok();
    let minutes = minutes.map(|minutes| minutes.parse::<u64>().expect("a number of minutes"));
    let time = minutes.map_or(SHORT, |minutes| Duration::from_secs(60 * minutes));
    let seeds = match env::var("NODE_LB_CHAOS_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) if minutes.is_some() => vec![fastrand::u64(..)],
        Err(_) => vec![1, fastrand::u64(..)],
    };
    let mut cluster = cluster();
    let steady = serve(&mut cluster, WEB, 2, json!({ "type": "NodePort" }));
    let churn = serve(&mut cluster, CHURN, 1, json!({}));
    let churn = SocketAddr::new(cluster_ip(&churn, Family::V4), 80);
    for seed in seeds {
        println!("NODE_LB_CHAOS_SEED={seed}");
        let load = Everywhere::start(&cluster, &steady);
        let (mut rng, began) = (Rng::with_seed(seed), Instant::now());
        while began.elapsed() < time {
            let mut faults = Fault::ALL.to_vec();
            rng.shuffle(&mut faults);
            faults.truncate(rng.usize(1..=2));
            faults.sort();
            round(&mut cluster, &mut rng, &faults, churn);
        }
        load.assert_no_failures();
    }
}

/// Faults, a change, and what has become of it.
#[track_caller]
fn round(cluster: &mut Cluster, rng: &mut Rng, faults: &[Fault], churn: SocketAddr) {
    let before_faults = rng.bool();
    let replicas = rng.u32(1..=3);
    let lasts = Duration::from_millis(rng.u64(500..1000 * LONGEST));
    if before_faults {
        scale(cluster, CHURN, replicas);
    }
    for fault in faults {
        fault.begin(cluster).unwrap();
    }
    let began = Instant::now();
    while began.elapsed() < lasts {
        not_misled(cluster, churn);
        thread::sleep(Duration::from_millis(50));
    }
    for fault in faults {
        fault.mend(cluster).unwrap();
    }
    cluster.control_plane.wait_until_ready().unwrap();
    let mended = Instant::now();
    if !before_faults {
        scale(cluster, CHURN, replicas);
    }
    // The control plane takes its time for what is its own part.
    let ready = cluster.until(|cluster| {
        let ready = endpoints(cluster)?;
        ensure!(ready.len() == replicas as usize, "ready are {ready:?}");
        Ok(ready)
    });
    ready.unwrap();
    let known = Instant::now();
    cluster
        .until(|cluster| {
            let found = servers_at(cluster.lab().node(1), churn)?;
            ensure!(found.len() == replicas as usize, "served by {found:?}");
            Ok(())
        })
        .unwrap();
    let took = known.elapsed();
    println!(
        "{faults:?} for {lasts:.1?}, then {replicas} pods: {took:.1?} after they were ready, {:.1?} after all",
        mended.elapsed()
    );
    assert!(took < patient(CONVERGED), "{faults:?}: {took:?}");
}

/// Whoever answers is a pod of that Service; that nobody does may be, since pods end meanwhile.
#[track_caller]
fn not_misled(cluster: &Cluster, churn: SocketAddr) {
    if let Ok(reply) = Request::http(churn).send(cluster.lab().node(1)) {
        let server = &reply.server;
        assert!(server.starts_with(CHURN), "{churn} is served by {server}");
    }
}

/// The addresses of ready endpoints, as the API server has them.
fn endpoints(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let slices = cluster.client().of::<EndpointSlice>();
    let slices = slices.list(&format!("kubernetes.io/service-name={CHURN}"))?;
    let of_family = slices
        .into_iter()
        .filter(|slice| slice.address_type == "IPv4");
    let all = of_family.flat_map(|slice| slice.endpoints.unwrap_or_default());
    let ready = all.filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready) == Some(true)
    });
    Ok(ready.flat_map(|endpoint| endpoint.addresses).collect())
}
