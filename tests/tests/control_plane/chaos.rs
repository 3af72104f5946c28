//! Faults drawn at random, two at once, on a cluster under load. Whatever happens: no request to a
//! Service that does not change fails, no Service is served by another one's pods, what changed
//! meanwhile is in force soon after the faults are mended, and everything is pinned again then.
//!
//! `NODE_LB_CHAOS_SEED` repeats a run, `NODE_LB_CHAOS_MINUTES` makes it longer.

mod fault;

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use lb_tests::{Balanced, Cluster, Family, Request, patient};
use serde_json::json;

use self::fault::{Fault, Faults};
use super::support::{Everywhere, WEB, choices, cluster, cluster_ip, scale, serve, servers_at};

/// The Service whose pods come and go.
const CHURN: &str = "churn";
/// How long a run takes unless told otherwise.
const SHORT: Duration = Duration::from_secs(30);
/// A change is in force so long after the faults are mended and the API server has it.
const CONVERGED: Duration = Duration::from_secs(10);
/// The same where agents start again: most of it goes to the kernel, which verifies the programs.
const STARTED: Duration = Duration::from_secs(30);
/// The longest that faults last.
const LONGEST: u64 = 4;

/// A seed that has always been tried, and a new one.
#[test]
fn faults_at_random_lose_nothing_and_mislead_nobody() {
    let (time, seeds) = choices("CHAOS", SHORT, &[1, fastrand::u64(..)]);
    let mut cluster = cluster();
    let steady = serve(&mut cluster, WEB, 2, json!({ "type": "NodePort" }));
    let churn = serve(&mut cluster, CHURN, 1, json!({}));
    let churn = SocketAddr::new(cluster_ip(&churn, Family::V4), 80);
    for seed in seeds {
        println!("NODE_LB_CHAOS_SEED={seed}");
        let load = Everywhere::start(&cluster, &steady);
        let (mut rng, began) = (Rng::with_seed(seed), Instant::now());
        while began.elapsed() < time {
            let faults = Fault::draw(&mut rng);
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
    let pins = pins(&cluster.ground);
    let struck = Faults::begin(faults, cluster).unwrap();
    let began = Instant::now();
    while began.elapsed() < lasts {
        not_misled(cluster, churn);
        thread::sleep(Duration::from_millis(50));
    }
    struck.mend(cluster).unwrap();
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
    let limit = match faults.iter().any(|fault| fault.ends_agents()) {
        true => STARTED,
        false => CONVERGED,
    };
    assert!(took < patient(limit), "{faults:?}: {took:?}");
    // The next faults find agents that hold what there is.
    cluster.ground.wait_until_ready().unwrap();
    let pinned_again = cluster.until(|cluster| {
        let found = self::pins(&cluster.ground);
        let missing: Vec<_> = pins.difference(&found).collect();
        ensure!(missing.is_empty(), "not pinned any more: {missing:?}");
        Ok(())
    });
    pinned_again.unwrap();
}

/// The pins on all nodes, but for those of devices, which may be those of pods that have ended.
fn pins(ground: &Balanced) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for node in 1..=ground.lab.nodes().len() {
        let Ok(maps) = ground.map_dir(node) else {
            continue;
        };
        let directories = [maps.clone(), maps.with_file_name("links")];
        let entries = directories.iter().flat_map(fs::read_dir).flatten();
        let names = entries.map(|entry| entry.unwrap().path().display().to_string());
        let lasting = |name: &String| !name.contains("/tcx-") && !name.contains("/xdp-");
        all.extend(names.filter(lasting));
    }
    all
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
