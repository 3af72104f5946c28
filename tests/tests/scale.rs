//! Programs thousands of services into the kernel's maps: each service, and each change, costs the
//! same whatever else is there. `--nocapture` shows the figures. `cargo xtask bench` measures how
//! fast it is.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_datapath::{OBJECT, Settings, load, maps::Maps};
use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, RemovedEndpoints,
    Service, ServicePort, ServiceType, TrafficPolicy, Weights,
};
use lb_tests::{MapContents, PinRoot};
use nix::time::ClockId;
use node_lb::{
    map_writer::{Key, MapWriter, NodeFacts},
    plan::{LocalNode, Plan, PlanOptions, plan},
};

/// How many services count as few.
const FEW: usize = 100;
/// How much more CPU time a step may cost among all services than among few: caches are colder. A
/// step that goes through all services would cost a hundred times as much.
const FACTOR: u32 = 5;

#[test]
fn ten_thousand_services_of_ten_endpoints() -> Result<()> {
    measure(10_000, 10)
}

#[test]
fn five_thousand_services_of_fifty_endpoints() -> Result<()> {
    measure(5_000, 50)
}

fn measure(services: u32, endpoints: u32) -> Result<()> {
    let root = PinRoot::new();
    let pins = root.pins(1);
    let loaded = load(OBJECT, &pins, &[], &Settings::default())?;
    let node = LocalNode::new(&Node::default(), &[], &PlanOptions::default());
    let objects: Vec<_> = (0..services).map(|n| service(n, endpoints)).collect();
    let plan_of = |(service, slice): &(Service, EndpointSlice)| -> Plan {
        plan(service, &[slice], &node).ports.swap_remove(0)
    };
    println!("{services} services of {endpoints} endpoints:");
    let memory = resident()?;

    let start = || anyhow::Ok(MapWriter::new(Maps::open(&loaded)?, NodeFacts::default())?);
    let (mut writer, took) = timed(start)?;
    println!("  empty maps read in {took}");
    writer.finish_adoption();
    let load = |writer: &mut MapWriter, objects: &[(Service, EndpointSlice)]| {
        let ((), cost) = timed(|| {
            for objects in objects {
                let plan = plan_of(objects);
                writer.apply(Key::of(&plan), Some(&plan))?;
            }
            writer.settle();
            anyhow::Ok(())
        })?;
        println!("  {} planned and programmed in {cost}", objects.len());
        anyhow::Ok(cost.cpu / objects.len() as u32)
    };
    let change = |writer: &mut MapWriter, objects: &[(Service, EndpointSlice)], n: usize| {
        let mut changed = objects[n * 7919 % objects.len()].clone();
        changed.1.endpoints[n % endpoints as usize].ready = false;
        let (plan, cost) = timed(|| {
            let plan = plan_of(&changed);
            writer.apply(Key::of(&plan), Some(&plan))?;
            writer.settle();
            anyhow::Ok(plan)
        })?;
        anyhow::Ok((cost, plan))
    };

    let verify = |writer: &mut MapWriter| {
        let (records, cost) = timed(|| {
            let mut round = writer.begin_round();
            while writer.verify_next(&mut round) {}
            let findings = round.findings();
            ensure!(findings.differences == 0, "{findings:?}");
            Ok(findings.records)
        })?;
        println!("  {records} records compared with what was written in {cost}");
        anyhow::Ok(cost.cpu / records as u32)
    };

    let few = &objects[..FEW];
    let load_of_few = load(&mut writer, few)?;
    let verified_among_few = verify(&mut writer)?;
    let changes = (0..1000).map(|n| anyhow::Ok(change(&mut writer, few, n)?.0));
    let change_of_few = median_cpu(&changes.collect::<Result<Vec<_>>>()?);
    let load_of_all = load(&mut writer, &objects)?;
    assert!(
        load_of_all < FACTOR * load_of_few,
        "one service costs {load_of_all:?} of CPU, {load_of_few:?} where there are few"
    );
    assert_eq!(writer.len(), services as usize);
    println!("  {} KiB of memory more", (resident()? - memory) / 1024);
    let maps = pins.map("SERVICES");
    let maps = MapContents::open(maps.parent().context("maps are in a directory")?)?;
    let mut plans: Vec<_> = objects.iter().map(plan_of).collect();
    maps.check(&plans)
        .context("after programming from nothing")?;

    let mut changes = Vec::new();
    for n in 0..1000 {
        let (cost, plan) = change(&mut writer, &objects, n)?;
        changes.push(cost);
        plans[n * 7919 % objects.len()] = plan;
    }
    maps.check(&plans).context("after the changes")?;
    let verified_among_all = verify(&mut writer)?;
    assert!(
        verified_among_all < FACTOR * verified_among_few,
        "to compare a record costs {verified_among_all:?} of CPU, {verified_among_few:?} where there are few"
    );
    changes.sort_unstable_by_key(|cost| cost.wall);
    let (p50, p99, max) = (&changes[500], &changes[990], &changes[999]);
    println!("  one endpoint change: p50 {p50}, p99 {p99}, max {max}");
    let change_of_all = median_cpu(&changes);
    assert!(
        change_of_all < FACTOR * change_of_few,
        "one change costs {change_of_all:?} of CPU, {change_of_few:?} where there are few services"
    );
    let ((), tidied) = timed(|| {
        writer.tidy();
        anyhow::Ok(())
    })?;
    println!("  made ready for reuse in {tidied}");

    drop(writer);
    let (mut writer, adopted) = timed(start)?;
    println!("  taken over after a restart in {adopted}");
    maps.check(&plans).context("after a restart")?;
    let ((), applied) = timed(|| {
        for objects in &objects {
            let plan = plan_of(objects);
            writer.apply(Key::of(&plan), Some(&plan))?;
        }
        writer.settle();
        writer.finish_adoption();
        anyhow::Ok(())
    })?;
    println!("  brought into line after it in {applied}");
    assert_eq!(writer.len(), services as usize);
    assert_eq!(writer.waiting().count(), 0);
    let plans: Vec<_> = objects.iter().map(plan_of).collect();
    maps.check(&plans).context("brought into line")?;
    Ok(())
}

fn service(n: u32, endpoints: u32) -> (Service, EndpointSlice) {
    let name = ObjectName::new("scale", format!("service-{n}"));
    let service = Service {
        name: name.clone(),
        uid: None,
        created: 0,
        service_type: ServiceType::ClusterIp,
        cluster_ips: vec![Ipv4Addr::from_bits(0x0a60_0000 + n).into()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: 0,
        }],
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        load_balancer_source_ranges: Vec::new(),
        health_check_node_port: 0,
        session_affinity: None,
        algorithm: Algorithm::Random,
        weights: Weights::default(),
        slow_start: None,
        removed_endpoints: RemovedEndpoints::Keep,
        max_connections: 0,
        hash_balance_factor: 0,
        max_connections_per_endpoint: 0,
        long_running: false,
    };
    let endpoint = |i| Endpoint {
        address: Ipv4Addr::from_bits(0x0a80_0000 + n * endpoints + i).into(),
        ready: true,
        serving: true,
        terminating: false,
        node_name: None,
        zone_hints: Box::default(),
        node_hints: Box::default(),
    };
    let slice = EndpointSlice {
        service: name.name.to_string(),
        name,
        weight: 1,
        ports: vec![EndpointPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: (0..endpoints).map(endpoint).collect(),
    };
    (service, slice)
}

/// How long a step took.
struct Cost {
    wall: Duration,
    cpu: Duration,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1?} ({:.1?} of CPU)", self.wall, self.cpu)
    }
}

/// The median: it leaves out interruptions, and work that is put off until one of many changes.
fn median_cpu(costs: &[Cost]) -> Duration {
    let mut times: Vec<_> = costs.iter().map(|cost| cost.cpu).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn timed<T, E: Into<anyhow::Error>>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, Cost)> {
    let (since, cpu) = (Instant::now(), cpu()?);
    let done = work().map_err(Into::into)?;
    let cost = Cost {
        wall: since.elapsed(),
        cpu: self::cpu()?.saturating_sub(cpu),
    };
    Ok((done, cost))
}

/// CPU time of this thread.
fn cpu() -> Result<Duration> {
    Ok(ClockId::CLOCK_THREAD_CPUTIME_ID.now()?.into())
}

/// Bytes of this process in memory, without what it shares with the kernel.
fn resident() -> Result<i64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: i64 = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("no RssAnon in /proc/self/status")?
        .parse()?;
    Ok(kib * 1024)
}
