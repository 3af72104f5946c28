//! Admission for every selection × policy × frontend × family × place of the endpoint × kind of client:
//! who waits for a seat gets it as soon as there is one, at the right endpoint and with the right
//! address, and who finds no place to wait is refused.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    Balanced, Held, Host, PATIENCE, PodNetwork, Service, Topology,
    traffic::{Protocol, allow_many_files},
};

use crate::{
    ground::{Frontend, Ground, Vips, harsh},
    matrix::{Case, Client, Expected, ON_NODE_1, ON_NODE_2, Policies, State, cases},
};

/// Seats of each level.
const SEATS: usize = 2;
/// How long a connection waits here before there is a seat for it; less than until its SYN is first sent
/// again.
const WAIT: Duration = Duration::from_millis(200);

/// How a Service chooses endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selection {
    Random,
    Maglev,
    Affinity,
}

impl Selection {
    const ALL: [Self; 3] = [Self::Random, Self::Maglev, Self::Affinity];

    fn of(self, service: Service<'_>) -> Service<'_> {
        match self {
            Self::Random => service,
            Self::Maglev => service.annotation("node-lb.io/algorithm", "maglev"),
            Self::Affinity => service.client_ip_affinity(100),
        }
    }
}

/// A Service with a level of its own on each node.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    vips: Vips,
    selection: Selection,
    state: State,
    policies: Policies,
}

impl Tenant {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for selection in Selection::ALL {
            for state in [ON_NODE_1, ON_NODE_2] {
                for policies in Policies::BOTH {
                    all.push(Self {
                        vips: Vips(1 + all.len() as u8),
                        selection,
                        state,
                        policies,
                    });
                }
            }
        }
        all
    }

    fn publish(&self, ground: &Ground) -> Result<()> {
        let endpoints = self.state.endpoints(ground.lab());
        ground.publish(
            self.vips,
            |service| self.selection.of(self.policies.of(service)),
            endpoints,
        )
    }

    /// One connection may wait, and the next one is refused.
    fn objects(&self) -> String {
        let name = self.vips.name();
        format!(
            "---
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {{name: {name}}}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 10
    borrowingLimitPercent: 0
    limitResponse: {{type: Queue, queuing: {{queues: 1, handSize: 1, queueLengthLimit: 1}}}}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {{name: {name}}}
spec:
  priorityLevelConfiguration: {{name: {name}}}
  rejectAnswer: {{queueFull: RST}}
  rules: [{{subjects: [{{kind: Any}}], destinations: [{{namespaces: ['*'], services: [{name}]}}]}}]
"
        )
    }

    /// Cases of this Service in which somebody answers. Processes of a node do not wait: their sockets are
    /// translated.
    fn cases(&self) -> Vec<Case> {
        let mut cases = cases(&[self.state]);
        cases.retain(|case| {
            case.policies == self.policies
                && case.protocol == Protocol::Tcp
                && [Frontend::ClusterIp, Frontend::NodePort].contains(&case.frontend)
                && ![Client::Process, Client::HostNetworkPod].contains(&case.client)
                && matches!(case.expected(), Expected::Answer { .. })
        });
        cases
    }
}

#[test]
fn native_xdp() -> Result<()> {
    holds(Topology::default(), "native")
}

#[test]
fn no_xdp() -> Result<()> {
    holds(Topology::default(), "off")
}

/// Every foreign rule that a node may have, all at once.
#[test]
fn native_xdp_among_other_rules() -> Result<()> {
    holds(harsh(PodNetwork::Routed), "native")
}

#[test]
fn no_xdp_among_other_rules() -> Result<()> {
    holds(harsh(PodNetwork::Bridge), "off")
}

/// Brings up a lab with all tenants, and has each of their clients wait for a seat.
fn holds(topology: Topology, xdp: &str) -> Result<()> {
    allow_many_files()?;
    let tenants = Tenant::all();
    let objects = tempfile::tempdir()?;
    let text: String = tenants.iter().map(Tenant::objects).collect();
    fs::write(objects.path().join("objects.yaml"), text)?;
    // Catch-all has half as many shares as each of them.
    let seats = tenants.len() * SEATS + SEATS / 2;
    let arguments = [
        format!("--xdp-mode={xdp}"),
        "--admission=enforce".to_owned(),
        format!("--max-connections={seats}"),
        format!("--admission-objects={}", objects.path().display()),
    ];
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let ground = Ground::with(topology, &arguments)?;
    for tenant in &tenants {
        tenant.publish(&ground)?;
    }
    ground.settle()?;

    let lab = ground.lab();
    let balanced = ground.balanced();
    let hosts = &Client::ALL.map(|client| (client, client.host(lab)));
    let problems: Vec<String> = thread::scope(|scope| {
        let work: Vec<_> = tenants
            .iter()
            .map(|tenant| scope.spawn(|| problems_of(balanced, tenant, hosts)))
            .collect();
        let found = work.into_iter().map(|work| work.join().expect("no panic"));
        found.flatten().collect()
    });
    assert!(
        problems.is_empty(),
        "{}:\n{}",
        problems.len(),
        problems.join("\n")
    );
    for tenant in &tenants {
        assert_counted(&ground, tenant)?;
    }
    Ok(())
}

/// What is wrong about a tenant's cases, one after the other.
fn problems_of(balanced: &Balanced, tenant: &Tenant, hosts: &[(Client, Host)]) -> Vec<String> {
    let mut problems = Vec::new();
    for case in tenant.cases() {
        let host = hosts.iter().find(|(client, _)| *client == case.client);
        let (_, host) = host.expect("all are there");
        if let Err(error) = waits(balanced, tenant, case, host) {
            problems.push(format!("{:?}, {case:?}: {error:#}", tenant.selection));
        }
    }
    problems
}

/// Takes all seats of a level, has one more client wait, and gives it a seat.
fn waits(balanced: &Balanced, tenant: &Tenant, case: Case, host: &Host) -> Result<()> {
    let lab = &balanced.lab;
    let node = lab.node(case.client.node().into());
    let target = tenant.vips.at(case.frontend, case.family, node);
    let mut held = Vec::new();
    for _ in 0..SEATS {
        held.push(Held::open(host, target).context("a seat is free")?);
    }
    for held in &mut held {
        held.ask().context("it has a seat")?;
    }
    let (mut waited, took) = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let began = Instant::now();
            Held::open(host, target).map(|held| (held, began.elapsed()))
        });
        until_one_waits(balanced, tenant, case.client.node())?;
        let refused = match Held::open(host, target) {
            Ok(_) => "let in".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        thread::sleep(WAIT / 2);
        drop(held.pop());
        let waited = waiter.join().expect("no panic").context("it waits")?;
        ensure!(refused.contains("refused"), "beside it: {refused}");
        anyhow::Ok(waited)
    })?;
    ensure!(took > WAIT / 2, "let in after {took:?}");
    let answer = waited.ask().context("it has waited")?;
    let Expected::Answer { by, seen } = case.expected() else {
        unreachable!("left out");
    };
    ensure!(
        by.contains(&&*answer.server) && case.sees(lab, seen, &answer.server, answer.peer.ip()),
        "expected {by:?} to see {seen:?}, got {answer:?}"
    );
    let repeated = waited.retransmissions()?;
    ensure!(repeated == 0, "{repeated} segments were sent again");
    for mut held in held {
        held.ask().context("it keeps its seat")?;
    }
    Ok(())
}

/// Its place in the queue is the only one. On a busy machine its thread begins late.
fn until_one_waits(balanced: &Balanced, tenant: &Tenant, node: u8) -> Result<()> {
    let since = Instant::now();
    loop {
        let status = balanced.status(node.into())?;
        let level = status.priority_level(&tenant.vips.name());
        match level.context("no level")?.waiting {
            1 => return Ok(()),
            waiting => ensure!(since.elapsed() < PATIENCE, "{waiting} wait"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Asserts that the agents have counted a tenant's cases.
fn assert_counted(ground: &Ground, tenant: &Tenant) -> Result<()> {
    let name = tenant.vips.name();
    for node in 1..=2 {
        let cases = tenant.cases();
        let cases = cases.iter().filter(|case| case.client.node() == node);
        let cases = cases.count() as u64;
        let status = ground.status(node)?;
        let schema = status.flow_schema(&name).context("no schema")?;
        let level = status.priority_level(&name).context("no level")?;
        assert!(
            schema.waited >= cases && level.queue_full == cases && level.highest as usize <= SEATS,
            "node {node}, {cases} cases: {schema:?}, {level:?}"
        );
        assert_eq!((schema.refused, schema.timed_out), (0, 0), "{schema:?}");
    }
    Ok(())
}
