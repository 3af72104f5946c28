//! Shared by the tests here: Services with addresses from the API server, and requests to them.

use std::{
    collections::BTreeSet,
    env,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Service},
};
use lb_tests::{
    Cluster, Family, Host, Load, Reply, Request,
    control_plane::{ClusterSpec, deployment, service},
    traffic::Loads,
};
use serde_json::{Value, json};

/// The Service of most tests, and its Deployment.
pub const WEB: &str = "web";
/// How many resources an agent follows: Services, EndpointSlices, its Node and ServiceCIDRs.
pub const FOLLOWED: usize = 4;

/// A cluster with the default configuration.
pub fn cluster() -> Cluster {
    Cluster::up(ClusterSpec::default()).unwrap()
}

/// Creates a Service, and waits until its pods can be reached by its ClusterIP.
pub fn serve(cluster: &mut Cluster, name: &str, replicas: u32, spec: Value) -> Service {
    let made = cluster.client().of::<Service>().create(service(name, spec));
    let made = made.unwrap();
    let deployments = cluster.client().of::<Deployment>();
    deployments.create(deployment(name, replicas)).unwrap();
    let ip = cluster_ip(&made, Family::V4);
    answers(cluster, SocketAddr::new(ip, 80), replicas as usize);
    made
}

/// Waits until exactly `servers` servers answer at `target`, and returns their names.
#[track_caller]
pub fn answers(cluster: &mut Cluster, target: SocketAddr, servers: usize) -> BTreeSet<String> {
    let found = cluster.until(|cluster| {
        let found = servers_at(cluster.lab().node(1), target)?;
        ensure!(found.len() == servers, "{target} is served by {found:?}");
        Ok(found)
    });
    found.unwrap()
}

/// The servers that answer at `target`, after enough requests to reach each of them.
pub fn servers_at(from: impl AsRef<Host>, target: SocketAddr) -> Result<BTreeSet<String>> {
    let from = from.as_ref();
    let replies = (0..40).map(|_| Request::http(target).send(from));
    let replies: Result<Vec<Reply>, _> = replies.collect();
    let replies = replies.with_context(|| format!("{from} to {target}"))?;
    Ok(replies.into_iter().map(|reply| reply.server).collect())
}

/// A Service's ClusterIP of a family.
pub fn cluster_ip(service: &Service, family: Family) -> IpAddr {
    let spec = service.spec.as_ref().expect("a Service has a spec");
    let ips = spec.cluster_ips.iter().flatten();
    ips.map(|ip| ip.parse().unwrap())
        .find(|ip| Family::of(*ip) == family)
        .unwrap_or_else(|| panic!("no {family:?} address in {:?}", spec.cluster_ips))
}

/// The node port of a Service's port.
pub fn node_port(service: &Service, port: i32) -> u16 {
    let spec = service.spec.as_ref().expect("a Service has a spec");
    let mut ports = spec.ports.iter().flatten();
    let found = ports.find(|candidate| candidate.port == port);
    let node_port = found.and_then(|port| port.node_port);
    node_port.expect("a node port").try_into().unwrap()
}

/// Load to a Service from outside, from a pod and from a node, in both families.
pub struct Everywhere(Loads);

impl Everywhere {
    /// Starts load with new connections and with persistent ones. The Service must have node ports.
    pub fn start(cluster: &Cluster, service: &Service) -> Self {
        let mut everywhere = Self::on_new_connections(cluster, service);
        for (from, request) in ways(cluster, service) {
            let load = load(request).persistent();
            everywhere.0.start(from, load).unwrap();
        }
        everywhere
    }

    /// Starts it on new connections only.
    pub fn on_new_connections(cluster: &Cluster, service: &Service) -> Self {
        let mut loads = Loads::beside(cluster.lab().router()).unwrap();
        for (from, request) in ways(cluster, service) {
            loads.start(from, load(request)).unwrap();
        }
        for family in Family::BOTH {
            let target = SocketAddr::new(cluster_ip(service, family), 53);
            let from = cluster.lab().pod("pod-1-1");
            loads.start(from, load(Request::udp(target))).unwrap();
        }
        Self(loads)
    }

    /// Ends the load. No request may have failed, and no SYN may have been lost.
    #[track_caller]
    pub fn assert_no_failures(self) {
        self.0.stop().unwrap().assert_flawless();
    }
}

/// Who asks a Service over TCP, and what: from outside by a node port, and inside by the ClusterIP.
pub fn ways<'a>(cluster: &'a Cluster, service: &Service) -> Vec<(&'a Host, Request)> {
    let lab = cluster.lab();
    let of_family = |family| -> [(&Host, Request); 3] {
        let inside = SocketAddr::new(cluster_ip(service, family), 80);
        let outside = lab.node(1).at(family, node_port(service, 80));
        [
            (lab.client(), Request::http(outside)),
            (lab.pod("pod-2-1"), Request::http(inside)),
            (lab.node(2), Request::http(inside)),
        ]
    };
    Family::BOTH.into_iter().flat_map(of_family).collect()
}

/// One request after the other.
pub fn load(request: Request) -> Load {
    Load::new(request).workers(1).pause(PAUSE)
}

/// Between two requests of a worker.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a test with random choices runs with each seed, and the seeds: `usual` ones for `short`, unless
/// `NODE_LB_{test}_SEED` names one, or `NODE_LB_{test}_MINUTES` asks for a long run, with a new seed.
pub fn choices(test: &str, short: Duration, usual: &[u64]) -> (Duration, Vec<u64>) {
    let minutes = env::var(format!("NODE_LB_{test}_MINUTES")).ok();
    let minutes = minutes.map(|minutes| minutes.parse::<u64>().expect("a number of minutes"));
    let time = minutes.map_or(short, |minutes| Duration::from_secs(60 * minutes));
    let seeds = match env::var(format!("NODE_LB_{test}_SEED")) {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) if minutes.is_some() => vec![fastrand::u64(..)],
        Err(_) => usual.to_vec(),
    };
    (time, seeds)
}

/// Sets the number of pods of a Deployment.
pub fn scale(cluster: &Cluster, name: &str, replicas: u32) {
    let patch = json!({ "spec": { "replicas": replicas } });
    let deployments = cluster.client().of::<Deployment>();
    deployments.patch(name, patch).unwrap();
}

/// The names of a Service's pods.
pub fn pods(cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
    let pods = cluster.client().of::<Pod>().list(&format!("app={name}"))?;
    Ok(pods
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect())
}

/// A metric of the agent on node 1.
pub fn metric(cluster: &Cluster, name: &str) -> f64 {
    cluster.ground.metric(1, name).unwrap()
}

/// Restarts the agents, so that no earlier failure lengthens their waits after the next one, and
/// forgets their requests at the start.
pub fn begin_afresh(cluster: &mut Cluster) {
    cluster.ground.kill_agents().unwrap();
    cluster.ground.start_agents().unwrap();
    cluster.front.forget();
}
