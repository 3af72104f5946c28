//! Whose pods connections come from: all pods of a namespace are one flow with one part of a level, pods
//! come and go under load, an address changes hands, and agents are killed.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lb_common::flow::party::Members;
use lb_datapath::bpf::MappedArray;
use lb_tests::{Family, Held, Load, Pod, Request, Topology, traffic::allow_many_files};
use serde_json::{Value, json};

use super::{
    levels::{NOISY, SEATS, Tenants, tenant, with_field},
    support::{Findings, SOON, attack_time, cluster_ip, within},
    waiting::{self, HOLD, OF_LEVEL, with_queues},
};

/// The endpoint and three clients.
const PODS: Topology = Topology {
    nodes: 1,
    pods_per_node: 4,
    ..Topology::DEFAULT
};
/// How many connections a flow may have.
const MOST: usize = 20;

/// A level, a schema that tells flows apart by namespace, and one before that for pods of the namespace
/// `friends`, who have no limit.
fn objects() -> String {
    let connections = format!("connections: {{maxConnectionsPerFlow: {MOST}}}, limitResponse");
    let by_namespace = tenant(NOISY, 10).replace("limitResponse", &connections);
    let method = "distinguisherMethod: {type: BySourceNamespace}";
    let by_namespace = with_field(&by_namespace, method);
    let friends = "---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: friends}
spec:
  priorityLevelConfiguration: {name: exempt}
  matchingPrecedence: 10
  rules:
  - subjects: [{kind: Namespace, namespace: {name: friends}}]
    destinations: [{namespaces: ['*']}]
";
    by_namespace + friends
}

/// A pod of node 1 as the API server has it.
fn pod(name: &str, namespace: &str, ips: &[Value]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": "node-1", "serviceAccountName": "default", "containers": []},
        "status": {"phase": "Running", "podIPs": ips},
    })
}

/// Says whose pod it is.
fn belongs(tenants: &Tenants, of_lab: &Pod, namespace: &str) -> Result<()> {
    let ips = Family::BOTH.map(|family| json!({"ip": of_lab.ip(family).to_string()}));
    let manifests = tenants.ground.balanced.lab.manifests();
    manifests.apply(&pod(of_lab.name(), namespace, &ips))
}

/// Connections of each flow, by name.
fn shown(tenants: &Tenants, flow: &str) -> Result<Option<usize>> {
    let shown = tenants.ground.balanced.connections(1)?;
    let mut rows = shown.lines().map(|line| line.split_whitespace().collect());
    let row = rows.find(|cells: &Vec<_>| cells.get(2) == Some(&flow));
    row.map(|cells| cells[3].parse().context(shown.clone()))
        .transpose()
}

/// Waits until so many connections are counted in flows, by what programs say.
fn counted(tenants: &Tenants, wanted: usize) -> Result<Result<Duration, String>> {
    let maps = tenants.ground.balanced.map_dir(1)?;
    let parties = MappedArray::<u64>::from_pin(&maps.join("PARTIES"))?;
    Ok(within(SOON, || {
        let members = parties.iter(0..parties.len());
        let members = members.map(|(index, element)| Members::read(index, element));
        match members
            .map(|members| members.connections as usize)
            .sum::<usize>()
        {
            all if all == wanted => Ok(()),
            other => Err(other.to_string()),
        }
    }))
}

#[test]
fn pods_of_a_namespace_have_one_part_of_a_level() -> Result<()> {
    allow_many_files()?;
    let mut tenants = Tenants::on(PODS, &objects(), SEATS, "enforce", &["--xdp-mode=native"])?;
    let pods = ["pod-1-2", "pod-1-3", "pod-1-4"].map(|name| tenants.ground.pod(name).clone());
    let [a, b, c] = &pods;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = cluster_ip(family, NOISY);
        belongs(&tenants, a, "shop")?;
        belongs(&tenants, b, "shop")?;
        belongs(&tenants, c, "blog")?;
        let known = within(SOON, || {
            let held = Held::open_all(a, target, 1);
            match shown(&tenants, "shop") {
                Ok(Some(1)) if held.len() == 1 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        findings.note(known.is_ok(), format!("{family:?}: known {known:?}"));
        let gone = tenants.in_use(NOISY, 0);
        findings.note(gone.is_ok(), format!("{family:?}: {gone:?}"));

        let first = Held::open_all(a, target, MOST - 5);
        let second = Held::open_all(b, target, MOST);
        let others = Held::open_all(c, target, MOST + 5);
        let told = [&first, &second, &others].map(Vec::len);
        findings.note(
            told == [MOST - 5, 5, MOST],
            format!(
                "{family:?}: shop has {}, {}, blog {}",
                told[0], told[1], told[2]
            ),
        );
        let by_flow = ["shop", "blog"].map(|flow| shown(&tenants, flow).ok().flatten());
        findings.note(
            by_flow == [Some(MOST); 2],
            format!("{family:?}: {by_flow:?}"),
        );

        // The agent dies, and the next one knows the same.
        tenants.ground.balanced.kill_agents()?;
        drop(second);
        // The endpoint has to end its half, too.
        let gone = counted(&tenants, 2 * MOST - 5)?;
        findings.note(gone.is_ok(), format!("{family:?}: gone {gone:?}"));
        let again = Held::open_all(b, target, MOST);
        findings.note(
            again.len() == 5,
            format!("{family:?}: without an agent {}", again.len()),
        );
        tenants.ground.balanced.start_agents()?;
        let more = Held::open_all(b, target, 3).len() + Held::open_all(c, target, 3).len();
        findings.note(
            more == 0,
            format!("{family:?}: {more} more after the start"),
        );

        // The address is a friend's, who has no limit, and then somebody's that nobody knows.
        belongs(&tenants, b, "friends")?;
        let friends = within(SOON, || match Held::open_all(b, target, MOST + 5).len() {
            all if all == MOST + 5 => Ok(()),
            some => Err(some.to_string()),
        });
        findings.note(friends.is_ok(), format!("{family:?}: friends {friends:?}"));
        let manifests = tenants.ground.balanced.lab.manifests();
        manifests.delete("Pod", b.name())?;
        let stranger = within(SOON, || match Held::open_all(b, target, MOST + 5).len() {
            MOST => Ok(()),
            other => Err(other.to_string()),
        });
        findings.note(
            stranger.is_ok(),
            format!("{family:?}: a stranger {stranger:?}"),
        );

        // Everything that was counted is given back, also by those whose address changed hands.
        drop((first, again, others));
        let empty = tenants.in_use(NOISY, 0);
        findings.note(empty.is_ok(), format!("{family:?}: empty {empty:?}"));
        let nobody = counted(&tenants, 0)?;
        findings.note(nobody.is_ok(), format!("{family:?}: parties {nobody:?}"));
    }
    findings.assert_good();
    Ok(())
}

/// A pod of a namespace wants more than half of a level's seats, and each of two pods of another namespace
/// does, too. The others wait, and both namespaces have about as many connections.
#[test]
fn namespaces_have_their_turns_whatever_pods_they_have() -> Result<()> {
    const WANTED: usize = OF_LEVEL * 3 / 5;
    allow_many_files()?;
    let objects = with_queues(100, "BySourceNamespace");
    let tenants = Tenants::on(
        PODS,
        &objects,
        waiting::SEATS,
        "enforce",
        &["--xdp-mode=native"],
    )?;
    let pods = ["pod-1-2", "pod-1-3", "pod-1-4"].map(|name| tenants.ground.pod(name).clone());
    let [a, b, c] = &pods;
    for (pod, namespace) in [(a, "shop"), (b, "shop"), (c, "blog")] {
        belongs(&tenants, pod, namespace)?;
    }
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = cluster_ip(family, NOISY);
        for (pod, namespace) in [(b, "shop"), (c, "blog")] {
            let known = within(SOON, || {
                let _held = Held::open_all(pod, target, 1);
                match shown(&tenants, namespace) {
                    Ok(Some(1..)) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
            findings.note(
                known.is_ok(),
                format!("{family:?}: {namespace} known {known:?}"),
            );
        }
        let request = Request::tcp(target).deadline(Duration::from_secs(5));
        let loads = [a, b, c].map(|pod| {
            let load = Load::new(request.held_for(HOLD)).workers(WANTED);
            load.start(pod)
        });
        let [a, b, c] = loads;
        let (a, b, c) = (a?, b?, c?);
        // Until all seats are taken and the others wait.
        thread::sleep(5 * HOLD);
        let level = tenants.level(NOISY)?;
        let served = ["shop", "blog"].map(|flow| shown(&tenants, flow).ok().flatten());
        thread::sleep(attack_time(Duration::from_secs(4)));
        let (a, b, c) = (a.stop()?, b.stop()?, c.stop()?);
        findings.note(
            level.in_use as usize <= OF_LEVEL && level.waiting as usize > OF_LEVEL / 2,
            format!("{family:?}: {level:?}"),
        );
        // Whoever wants more than its part may have to wait for longer than it may, a second.
        findings.note(
            [&a, &b, &c]
                .iter()
                .all(|load| load.failed * 100 <= load.ok && load.repeated_syns.is_empty()),
            format!("{family:?}: {a}; {b}; {c}"),
        );
        // By address, `shop` would have had two thirds.
        let (shop, blog) = (a.ok + b.ok, c.ok);
        findings.note(
            shop.abs_diff(blog) * 6 <= shop + blog,
            format!("{family:?}: {shop} and {blog} answers, {served:?} seats at a moment"),
        );
        let empty = tenants.in_use(NOISY, 0);
        findings.note(empty.is_ok(), format!("{family:?}: empty {empty:?}"));
    }
    findings.assert_good();
    Ok(())
}

/// Somebody makes pods without end, each of another namespace, and more than there are numbers for. A
/// client of the same Service notices nothing, and what finds no number is told.
#[test]
fn pods_of_ever_new_kinds_keep_nobody_out() -> Result<()> {
    /// More than half of `FLOW_SCHEMAS`.
    const MANY: usize = 5_000;
    const FEW: usize = 200;
    allow_many_files()?;
    let tenants = Tenants::on(PODS, &objects(), SEATS, "enforce", &["--xdp-mode=native"])?;
    let client = tenants.ground.pod("pod-1-2").clone();
    belongs(&tenants, &client, "shop")?;
    let target = cluster_ip(Family::V4, NOISY);
    let known = within(SOON, || {
        let _held = Held::open_all(&client, target, 1);
        match shown(&tenants, "shop") {
            Ok(Some(1)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let mut findings = Findings::default();
    findings.note(known.is_ok(), format!("known {known:?}"));
    let load = Load::new(Request::tcp(target).deadline(Duration::from_secs(1)));
    let load = load.workers(2).start(&client)?;
    let manifests = tenants.ground.balanced.lab.manifests();
    let strangers = |round: usize, number: usize| -> Vec<Value> {
        let pod = |index: usize| {
            let ip = format!(
                "10.{}.{}.{}",
                128 + index / 65_536,
                index / 256 % 256,
                index % 256
            );
            pod(
                &format!("p{index}"),
                &format!("n{round}-{index}"),
                &[json!({"ip": ip})],
            )
        };
        (0..number).map(pod).collect()
    };
    let until = Instant::now() + attack_time(Duration::from_secs(6));
    let mut rounds = 0;
    while Instant::now() < until {
        manifests.apply_list("strangers.json", &strangers(rounds, FEW))?;
        rounds += 1;
        thread::sleep(Duration::from_millis(200));
    }
    manifests.apply_list("strangers.json", &strangers(rounds, MANY))?;
    let told = within(SOON, || {
        let status = tenants
            .ground
            .balanced
            .status(1)
            .map_err(|error| format!("{error:#}"))?;
        let problems = status.admission_problems;
        match problems.iter().any(|text| text.contains("FLOW_SCHEMAS")) {
            true => Ok(()),
            false => Err(format!("{problems:?}")),
        }
    });
    findings.note(
        told.is_ok(),
        format!("after {rounds} rounds: told {told:?}"),
    );
    let load = load.stop()?;
    findings.note(
        load.failed == 0 && load.ok > 100 && load.repeated_syns.is_empty(),
        format!("{load}"),
    );
    // Its own flow has its number still.
    let held = Held::open_all(&client, target, MOST + 5);
    let of_shop = shown(&tenants, "shop");
    findings.note(
        held.len() == MOST && matches!(of_shop, Ok(Some(MOST))),
        format!("{} let in: {of_shop:?}", held.len()),
    );
    findings.assert_good();
    Ok(())
}
