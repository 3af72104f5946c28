//! Every frontend × policy × family × protocol × endpoint state × kind of client: which server
//! answers, and which client address it sees.

use std::{fmt, net::IpAddr, time::Duration};

use anyhow::Result;
use lb_tests::{
    Endpoint, Failure, FailureKind, Family, Lab, PodNetwork, Reply, Request, Service, Topology,
    Tunnel, lab::Host, patient, traffic::Protocol,
};
use serde_json::Value;

use crate::ground::{Frontend, Ground, Vips, harsh};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::UdpUnconnected];
/// Requests under way at a time.
const AT_ONCE: usize = 48;

#[test]
fn native_xdp() -> Result<()> {
    holds(Topology::default(), "native", &cases(&STATES))
}

#[test]
fn generic_xdp() -> Result<()> {
    holds(Topology::default(), "generic", &cases(&CORE_STATES))
}

#[test]
fn bridged_pods() -> Result<()> {
    let topology = Topology {
        pod_network: PodNetwork::Bridge,
        ..Topology::default()
    };
    holds(topology, "native", &cases(&CORE_STATES))
}

/// Every foreign rule that a node may have, all at once.
#[test]
fn routed_pods_among_other_rules() -> Result<()> {
    holds(harsh(PodNetwork::Routed), "native", &cases(&CORE_STATES))
}

#[test]
fn bridged_pods_among_other_rules() -> Result<()> {
    holds(harsh(PodNetwork::Bridge), "native", &cases(&CORE_STATES))
}

#[test]
fn no_xdp_among_other_rules() -> Result<()> {
    holds(harsh(PodNetwork::Routed), "off", &cases(&CORE_STATES))
}

#[test]
fn pods_behind_vxlan() -> Result<()> {
    behind(Tunnel::Vxlan, Topology::default(), "native")
}

#[test]
fn pods_behind_vxlan_among_other_rules() -> Result<()> {
    behind(Tunnel::Vxlan, harsh(PodNetwork::Bridge), "off")
}

#[test]
fn pods_behind_wireguard() -> Result<()> {
    behind(Tunnel::WireGuard, Topology::default(), "native")
}

#[test]
fn pods_behind_wireguard_among_other_rules() -> Result<()> {
    behind(Tunnel::WireGuard, harsh(PodNetwork::Bridge), "off")
}

fn behind(tunnel: Tunnel, topology: Topology, xdp_mode: &str) -> Result<()> {
    let topology = Topology {
        tunnel: Some(tunnel),
        ..topology
    };
    holds(topology, xdp_mode, &cases(&CORE_STATES))
}

/// A request, and everything that its outcome depends on.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub state: State,
    pub policies: Policies,
    pub frontend: Frontend,
    pub family: Family,
    pub protocol: Protocol,
    pub client: Client,
}

pub fn cases(states: &[State]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &state in states {
        for policies in Policies::BOTH {
            for frontend in Frontend::ALL {
                for family in Family::BOTH {
                    for protocol in PROTOCOLS {
                        cases.extend(Client::ALL.map(|client| Case {
                            state,
                            policies,
                            frontend,
                            family,
                            protocol,
                            client,
                        }));
                    }
                }
            }
        }
    }
    cases
}

/// Endpoints on either node and each kind of client, once for either protocol.
pub fn brief_cases() -> Vec<Case> {
    let mut cases = cases(&[ON_NODE_1, ON_NODE_2]);
    cases.retain(|case| {
        case.policies == Policies::ExternalLocal
            && case.protocol != Protocol::UdpUnconnected
            && case.client != Client::HostNetworkPod
    });
    cases
}

/// Where a Service's endpoints are, and their conditions: at most one pod on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    node_1: Option<Condition>,
    node_2: Option<Condition>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Ready,
    Terminating,
    Unready,
}

const READY: Option<Condition> = Some(Condition::Ready);
const TERMINATING: Option<Condition> = Some(Condition::Terminating);
const UNREADY: Option<Condition> = Some(Condition::Unready);

const STATES: [State; 9] = [
    state(READY, READY),
    state(READY, None),
    state(None, READY),
    state(TERMINATING, READY),
    state(READY, TERMINATING),
    state(TERMINATING, None),
    state(None, TERMINATING),
    state(UNREADY, UNREADY),
    state(None, None),
];

/// One state for each thing that can happen to a packet.
const CORE_STATES: [State; 3] = [ON_NODE_1, ON_NODE_2, state(None, None)];

/// A ready endpoint on one node.
pub const ON_NODE_1: State = state(READY, None);
pub const ON_NODE_2: State = state(None, READY);

const fn state(node_1: Option<Condition>, node_2: Option<Condition>) -> State {
    State { node_1, node_2 }
}

impl State {
    /// The servers that get connections, as seen from a node, under a policy.
    fn set(self, node: u8, local: bool) -> Vec<&'static str> {
        let serving = |condition| {
            let pods = [(1, self.node_1, "pod-1-1"), (2, self.node_2, "pod-2-1")];
            pods.into_iter()
                .filter(|(at, is, _)| *is == Some(condition) && (!local || *at == node))
                .map(|(_, _, pod)| pod)
                .collect::<Vec<_>>()
        };
        match serving(Condition::Ready) {
            ready if ready.is_empty() => serving(Condition::Terminating),
            ready => ready,
        }
    }

    pub fn endpoints(self, lab: &Lab) -> Vec<Endpoint> {
        let pods = [(self.node_1, "pod-1-1"), (self.node_2, "pod-2-1")];
        pods.into_iter()
            .filter_map(|(condition, pod)| {
                let pod = lab.pod(pod);
                Some(match condition? {
                    Condition::Ready => Endpoint::ready(pod),
                    Condition::Terminating => Endpoint::terminating(pod),
                    Condition::Unready => Endpoint::unready(pod),
                })
            })
            .collect()
    }
}

/// One policy is always Local, so that a test notices if the two are confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policies {
    ExternalLocal,
    InternalLocal,
}

impl Policies {
    pub const BOTH: [Self; 2] = [Self::ExternalLocal, Self::InternalLocal];

    pub fn of(self, service: Service<'_>) -> Service<'_> {
        match self {
            Self::ExternalLocal => service.external_local(),
            Self::InternalLocal => service.internal_local(),
        }
    }
}

/// The client. All but the pod on node 2 ask node 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Outside,
    PodOnNode1,
    PodOnNode2,
    Process,
    HostNetworkPod,
}

impl Client {
    pub const ALL: [Self; 5] = [
        Self::Outside,
        Self::PodOnNode1,
        Self::PodOnNode2,
        Self::Process,
        Self::HostNetworkPod,
    ];

    /// The node that translates.
    pub fn node(self) -> u8 {
        match self {
            Self::PodOnNode2 => 2,
            _ => 1,
        }
    }

    fn is_pod(self) -> bool {
        matches!(self, Self::PodOnNode1 | Self::PodOnNode2)
    }
}

/// What a client sees, and which address of it the server sees.
#[derive(Debug)]
pub enum Expected {
    Answer { by: Vec<&'static str>, seen: Seen },
    Refused,
    Silence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Client,
    Node,
}

impl Case {
    /// kube-proxy's verdict.
    pub fn expected(&self) -> Expected {
        let outside = self.client == Client::Outside;
        let node = self.client.node();
        if self.state.set(node, false).is_empty() {
            return Expected::Refused;
        }
        let external_local = self.policies == Policies::ExternalLocal;
        let local = match self.frontend {
            Frontend::ClusterIp => self.policies == Policies::InternalLocal,
            _ => external_local && outside,
        };
        let by = self.state.set(node, local);
        if by.is_empty() {
            return Expected::Silence;
        }
        let kept = match self.frontend {
            Frontend::ClusterIp => self.client.is_pod(),
            _ => external_local && (self.client.is_pod() || outside),
        };
        let seen = if kept { Seen::Client } else { Seen::Node };
        Expected::Answer { by, seen }
    }

    fn request(&self, lab: &Lab, vips: Vips) -> Request {
        let node = lab.node(self.client.node().into());
        let request = Request::new(self.protocol, vips.at(self.frontend, self.family, node));
        match self.expected() {
            Expected::Answer { .. } => request.deadline(patient(Duration::from_secs(5))),
            Expected::Refused if self.protocol != Protocol::UdpUnconnected => {
                request.deadline(patient(Duration::from_secs(5)))
            }
            _ => request.in_vain(),
        }
    }

    /// What is wrong about an outcome.
    fn problem(&self, lab: &Lab, vips: Vips, outcome: Result<Reply, Failure>) -> Option<String> {
        let refused = [Err(FailureKind::Refused)];
        // A socket without a peer gets no error, unless sending itself fails.
        let unanswered = [Err(FailureKind::Refused), Err(FailureKind::Timeout)];
        let silence = [Err(FailureKind::Timeout)];
        let kind = outcome.as_ref().map(drop).map_err(|failure| failure.kind);
        let fits = match self.expected() {
            Expected::Answer { by, seen } => outcome.as_ref().is_ok_and(|reply| {
                let node = lab.node(self.client.node().into());
                by.contains(&reply.server.as_str())
                    && reply.from == vips.at(self.frontend, self.family, node)
                    && self.sees(lab, seen, &reply.server, reply.peer.ip())
            }),
            Expected::Refused if self.protocol == Protocol::UdpUnconnected => {
                unanswered.contains(&kind)
            }
            Expected::Refused => refused.contains(&kind),
            Expected::Silence => silence.contains(&kind),
        };
        let expected = self.expected();
        let got: &dyn fmt::Debug = match &outcome {
            Ok(reply) => &(&reply.server, reply.peer, reply.from),
            Err(failure) => failure,
        };
        (!fits).then(|| format!("{self:?}\n    expected {expected:?}\n    got {got:?}"))
    }

    /// Whether `peer`, the client as the server that replied has seen it, is the right address.
    pub fn sees(&self, lab: &Lab, seen: Seen, server: &str, peer: IpAddr) -> bool {
        let node = lab.node(self.client.node().into());
        let is_remote = || lab.pod(server).node != node.name();
        match seen {
            Seen::Client => peer == self.client.host(lab).ip(self.family),
            Seen::Node if lab.topology().tunnel.is_some() && is_remote() => {
                peer == lb_tests::lab::tunnel_address(node, self.family)
            }
            // For its own connections to pods on its bridge, the node uses the bridge's address.
            Seen::Node if self.client.node() == 1 && !self.client.is_pod() => {
                peer == node.ip(self.family)
                    || peer == lb_tests::lab::address::gateway_of(node.pod_networks).of(self.family)
            }
            Seen::Node => peer == node.ip(self.family),
        }
    }
}

impl Client {
    pub fn host(self, lab: &Lab) -> Host {
        match self {
            Self::Outside => lab.client().clone(),
            Self::PodOnNode1 => lab.pod("pod-1-2").as_ref().clone(),
            Self::PodOnNode2 => lab.pod("pod-2-2").as_ref().clone(),
            Self::Process => lab.node(1).as_ref().clone(),
            Self::HostNetworkPod => lab.node(1).host_network_pod("host-pod").expect("a cgroup"),
        }
    }
}

/// Brings up a lab with a Service for each state and each pair of policies, and makes all requests.
pub fn holds(topology: Topology, xdp: &str, cases: &[Case]) -> Result<()> {
    let mut services: Vec<(State, Policies)> = Vec::new();
    for case in cases {
        if !services.contains(&(case.state, case.policies)) {
            services.push((case.state, case.policies));
        }
    }
    let vips = |case: &Case| {
        let same = |service: &(State, Policies)| *service == (case.state, case.policies);
        Vips(1 + services.iter().position(same).expect("collected above") as u8)
    };
    let mode = format!("--xdp-mode={xdp}");
    let ground = Ground::prepared(topology, &[&mode], |lab| {
        let objects = services
            .iter()
            .zip(1..)
            .flat_map(|((state, policies), n)| objects(lab, Vips(n), *state, *policies));
        lab.manifests()
            .apply_list("matrix.json", &objects.collect::<Vec<_>>())
    })?;

    let lab = ground.lab();
    let hosts = Client::ALL.map(|client| (client, client.host(lab)));
    let host = |client| {
        &hosts
            .iter()
            .find(|(c, _)| *c == client)
            .expect("all are there")
            .1
    };
    let mut problems = Vec::new();
    for cases in cases.chunks(AT_ONCE) {
        let under_way: Vec<_> = cases
            .iter()
            .map(|case| case.request(lab, vips(case)).start(host(case.client)))
            .collect();
        for (case, request) in cases.iter().zip(under_way) {
            let outcome = request.and_then(|request| request.reply());
            problems.extend(case.problem(lab, vips(case), outcome));
        }
    }
    let (wrong, all) = (problems.len(), cases.len());
    assert!(
        problems.is_empty(),
        "{wrong} of {all}:\n{}",
        problems.join("\n")
    );
    Ok(())
}

fn objects(lab: &Lab, vips: Vips, state: State, policies: Policies) -> Vec<Value> {
    let service = policies.of(vips.service(lab.manifests()));
    let slices = Ground::slices(lab, vips).with_all(state.endpoints(lab));
    [vec![service.object()], slices.objects().into()].concat()
}
