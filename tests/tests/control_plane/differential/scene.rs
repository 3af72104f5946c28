//! Services and endpoints drawn at random, as objects of the API server, and what addresses they have.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use lb_packet::{Read, SCTP, TCP, UDP};
use lb_tests::{Family, control_plane::Client, patience::try_eventually};
use serde_json::{Value, json};

use super::{
    super::support::cluster_ip,
    ground::{LOCAL_PODS, NAME, NODE, Twin, Twins, ZONE, is_nodes, outer, remote_pod},
    message::{Kind, Message},
    wires::Wire,
};

/// Services of a scene, at most.
const SERVICES: u8 = 8;
/// The pod that only the last Service of a scene leads to.
const LAST_POD: u8 = 200;

/// What is in force at both twins.
pub struct Scene {
    pub targets: Vec<Target>,
    /// All endpoints.
    pub endpoints: BTreeSet<SocketAddr>,
    /// The Service of each name, and then its slices.
    pub objects: BTreeMap<String, Vec<Value>>,
}

/// Where a client may send something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: SocketAddr,
    pub protocol: u8,
    /// Whose it is, and what.
    pub service: String,
    pub what: String,
    /// Whether the Service sticks to the endpoint that a client has got.
    pub is_sticky: bool,
    /// How many endpoints the Service has, whether or not they serve.
    pub endpoints: usize,
    /// Whether the node itself is one of them, which answers instead.
    pub may_be_node: bool,
}

impl Scene {
    /// Writes objects, in place of those of the scene before, and waits until they are in force.
    pub fn set(twins: &Twins, before: Option<Self>, number: u32, rng: &mut Rng) -> Result<Self> {
        let client = twins.control_plane.client();
        if let Some(before) = before {
            before.remove(client)?;
        }
        let mut scene = Self {
            targets: Vec::new(),
            endpoints: BTreeSet::new(),
            objects: BTreeMap::new(),
        };
        for index in 0..rng.u8(2..=SERVICES) {
            scene.add_random(client, number, index, rng)?;
        }
        scene.add_last(twins, &format!("last-{number}"))?;
        Ok(scene)
    }

    fn remove(self, client: &Client) -> Result<()> {
        for (name, objects) in self.objects {
            client.of::<Service>().delete(&name)?;
            for slice in &objects[1..] {
                let name = slice["metadata"]["name"].as_str();
                let name = name.context("a slice without name")?;
                client.of::<EndpointSlice>().delete(name)?;
            }
        }
        Ok(())
    }

    fn add_random(&mut self, client: &Client, scene: u32, index: u8, rng: &mut Rng) -> Result<()> {
        let name = &format!("s{scene}-{index}");
        // Two Services with one address are served as each proxy likes.
        let manifest = random_service(name, index, rng);
        let objects = self.objects.entry(name.clone()).or_default();
        objects.push(manifest.clone());
        let made = client.of::<Service>().create(manifest)?;
        let mut ingress = Vec::new();
        if type_of(&made) == "LoadBalancer" {
            for family in families(&made) {
                let ip = outer(10 * index + rng.u8(1..=2)).of(family);
                let mode = if rng.u8(..) < 200 { "VIP" } else { "Proxy" };
                ingress.push(json!({ "ip": ip, "ipMode": mode }));
            }
            let status = json!({ "loadBalancer": { "ingress": ingress } });
            client.of::<Service>().patch_status(name, status)?;
        }
        let mut own = BTreeSet::new();
        for family in families(&made) {
            // Which of two entries of one endpoint counts, kube-proxy leaves to chance.
            let mut taken = BTreeSet::new();
            for part in 0..rng.usize(0..=2) {
                let slice = format!("{name}-{}-{part}", family.name().to_lowercase());
                let (manifest, endpoints) = random_slice(&slice, &made, family, &mut taken, rng);
                objects.push(manifest.clone());
                client.of::<EndpointSlice>().create(manifest)?;
                own.extend(endpoints);
            }
        }
        self.targets.extend(targets(name, &made, &ingress, &own)?);
        self.endpoints.extend(own);
        Ok(())
    }

    /// Adds a Service that shows that all before it are in force as well, since proxies hear of them
    /// in order: of both families, which kube-proxy deals with apart from each other.
    fn add_last(&mut self, twins: &Twins, name: &str) -> Result<()> {
        let client = twins.control_plane.client();
        let manifest = json!({
            "metadata": { "name": name },
            "spec": {
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [{ "name": "p0", "port": 80, "protocol": "TCP" }],
            },
        });
        let objects = self.objects.entry(name.to_owned()).or_default();
        objects.push(manifest.clone());
        let made = client.of::<Service>().create(manifest)?;
        for family in Family::BOTH {
            let endpoint = json!({
                "addresses": [remote_pod(LAST_POD).of(family)],
                "conditions": { "ready": true },
            });
            let slice = format!("{name}-{}", family.name().to_lowercase());
            let manifest = slice_of(&made, &slice, family, vec![endpoint]);
            objects.push(manifest.clone());
            client.of::<EndpointSlice>().create(manifest)?;
        }
        for twin in [&twins.kube_proxy, &twins.node_lb] {
            for family in Family::BOTH {
                wait_for_last(twin, SocketAddr::new(cluster_ip(&made, family), 80))?;
            }
        }
        Ok(())
    }
}

/// Waits until a twin sends what is to this address to the last pod.
fn wait_for_last(twin: &Twin, target: SocketAddr) -> Result<()> {
    let mut port = 1024;
    let family = Family::of(target.ip());
    let (wire, pod) = LOCAL_PODS[0];
    let last = remote_pod(LAST_POD).of(family);
    try_eventually(|| {
        port += 1;
        let syn = Message::first(Kind::Tcp);
        let packets = syn.packets(SocketAddr::new(pod.of(family), port), target);
        let sent = twin.wires.exchange(wire, &packets)?;
        let mut sent = sent.iter().filter(|sent| sent.wire == Wire::Out);
        let is_there = sent.any(|sent| Read::packet(&sent.packet).destination == last);
        ensure!(is_there, "{} does not know {target}", twin.name);
        Ok(())
    })
    .with_context(|| twin.agent.log().unwrap_or_default())
}

fn random_service(name: &str, index: u8, rng: &mut Rng) -> Value {
    let kind = *choose(
        rng,
        &[
            "ClusterIP",
            "NodePort",
            "NodePort",
            "LoadBalancer",
            "LoadBalancer",
        ],
    );
    let both = ("RequireDualStack", None);
    let one = |family| ("SingleStack", Some(family));
    let (policy, family) = *choose(rng, &[both, both, one(Family::V4), one(Family::V6)]);
    let has = |other| family.is_none_or(|family| family == other);
    let families = Family::BOTH.into_iter().filter(|family| has(*family));
    let families: Vec<_> = families.collect();
    let protocols = *choose(
        rng,
        &[
            &["TCP"][..],
            &["UDP"],
            &["SCTP"],
            &["TCP", "UDP"],
            &["TCP", "TCP", "SCTP"],
        ],
    );
    let ports = protocols.iter().enumerate().map(|(index, protocol)| {
        json!({ "name": format!("p{index}"), "protocol": protocol, "port": 80 + index })
    });
    let mut spec = json!({
        "type": kind,
        "ipFamilyPolicy": policy,
        "ipFamilies": families.iter().copied().map(Family::name).collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
    });
    if rng.u8(..) < 60 {
        spec["sessionAffinity"] = json!("ClientIP");
    }
    if rng.u8(..) < 80 {
        spec["internalTrafficPolicy"] = json!("Local");
    }
    if kind != "ClusterIP" && rng.bool() {
        spec["externalTrafficPolicy"] = json!("Local");
    }
    if rng.u8(..) < 80 {
        let number = 10 * index + rng.u8(3..=4);
        let externals = families.iter().map(|family| outer(number).of(*family));
        spec["externalIPs"] = json!(externals.collect::<Vec<_>>());
    }
    if kind == "LoadBalancer" && rng.u8(..) < 80 {
        spec["loadBalancerSourceRanges"] =
            json!(["203.0.113.0/25", "2001:db8::/121", "10.244.77.11/32"]);
    }
    if rng.u8(..) < 50 {
        spec["trafficDistribution"] = json!("PreferSameZone");
    }
    json!({ "metadata": { "name": name }, "spec": spec })
}

/// A slice, and the endpoints that are in it.
fn random_slice(
    slice: &str,
    made: &Service,
    family: Family,
    taken: &mut BTreeSet<IpAddr>,
    rng: &mut Rng,
) -> (Value, Vec<SocketAddr>) {
    let spec = made.spec.as_ref().expect("a Service has a spec");
    let ports = spec.ports.iter().flatten().count();
    let mut addresses = Vec::new();
    let endpoints: Vec<_> = (0..rng.usize(0..=3))
        .filter_map(|_| {
            let (address, node) = match rng.u8(0..10) {
                0..5 => (remote_pod(rng.u8(10..14)), "other"),
                5..9 => (choose(rng, &LOCAL_PODS).1, NAME),
                _ => (NODE, NAME),
            };
            let address = address.of(family);
            if !taken.insert(address) {
                return None;
            }
            addresses.push(address);
            let (ready, serving, terminating) = *choose(
                rng,
                &[
                    (true, true, false),
                    (true, true, false),
                    (true, true, false),
                    (false, true, true),
                    (false, false, true),
                    (false, false, false),
                ],
            );
            let zone = *choose(rng, &[ZONE, "there"]);
            let mut endpoint = json!({
                "addresses": [address],
                "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
                "nodeName": node,
                "zone": zone,
            });
            if spec.traffic_distribution.is_some() {
                endpoint["hints"] = json!({ "forZones": [{ "name": zone }] });
            }
            Some(endpoint)
        })
        .collect();
    let all = addresses.into_iter().flat_map(|address| {
        (0..ports).map(move |index| SocketAddr::new(address, target_port(index)))
    });
    (slice_of(made, slice, family, endpoints), all.collect())
}

/// A slice of a Service, with all of its ports.
fn slice_of(made: &Service, name: &str, family: Family, endpoints: Vec<Value>) -> Value {
    let spec = made.spec.as_ref().expect("a Service has a spec");
    let ports = spec.ports.iter().flatten().enumerate().map(|(index, port)| {
        json!({ "name": port.name, "protocol": port.protocol, "port": target_port(index) })
    });
    let labels = json!({ "kubernetes.io/service-name": made.metadata.name });
    json!({
        "metadata": { "name": name, "labels": labels },
        "addressType": family.name(),
        "ports": ports.collect::<Vec<_>>(),
        "endpoints": endpoints,
    })
}

/// Where endpoints serve a Service's port.
fn target_port(index: usize) -> u16 {
    8080 + index as u16
}

/// All addresses and ports of a Service.
fn targets(
    name: &str,
    made: &Service,
    ingress: &[Value],
    endpoints: &BTreeSet<SocketAddr>,
) -> Result<Vec<Target>> {
    let spec = made.spec.as_ref().context("a Service without spec")?;
    let is_sticky = spec.session_affinity.as_deref() == Some("ClientIP");
    let mut targets = Vec::new();
    for port in spec.ports.iter().flatten() {
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => UDP,
            Some("SCTP") => SCTP,
            _ => TCP,
        };
        let mut add = |address: IpAddr, port: i32, what: &str| {
            targets.push(Target {
                address: SocketAddr::new(address, port as u16),
                protocol,
                service: name.to_owned(),
                what: what.to_owned(),
                is_sticky,
                endpoints: endpoints.len(),
                may_be_node: endpoints.iter().any(|one| is_nodes(one.ip())),
            });
        };
        for external in spec.external_ips.iter().flatten() {
            add(external.parse()?, port.port, "externalIP");
        }
        for ingress in ingress {
            let address = ingress["ip"]
                .as_str()
                .context("an ingress without address")?;
            add(address.parse()?, port.port, "load balancer IP");
        }
        for family in families(made) {
            add(cluster_ip(made, family), port.port, "ClusterIP");
            if let Some(node_port) = port.node_port {
                add(NODE.of(family), node_port, "node port");
            }
        }
    }
    Ok(targets)
}

fn families(made: &Service) -> Vec<Family> {
    let spec = made.spec.as_ref().expect("a Service has a spec");
    let names = spec.ip_families.iter().flatten();
    let of_name = |name: &String| {
        Family::BOTH
            .into_iter()
            .find(|family| family.name() == name)
    };
    names.filter_map(of_name).collect()
}

fn type_of(made: &Service) -> &str {
    let spec = made.spec.as_ref().expect("a Service has a spec");
    spec.type_.as_deref().unwrap_or_default()
}

/// One of several.
pub fn choose<'a, T>(rng: &mut Rng, among: &'a [T]) -> &'a T {
    &among[rng.usize(..among.len())]
}
