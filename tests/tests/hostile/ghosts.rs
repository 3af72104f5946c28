//! A client's port is reused after the pod of its old connection has vanished. Nothing has closed
//! that connection, and nothing ever will.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::lab::Addresses;
use lb_tests::{Balanced, Endpoint, FailureKind, Family, Held, Host, Node, Pod, Request};

use super::support::{Findings, Ground, SMALL_TABLE, Source, cluster_ip, serve};

const SERVICE: u8 = 10;
const STRANGERS: u8 = 11;
const CLIENT_PORT: u16 = 45_000;
/// A client without answers to its segments has been told by then: it sends one after 3 to 7
/// seconds.
const TOLD_BY: Duration = Duration::from_secs(10);

#[test]
fn a_port_used_again_reaches_a_living_pod() -> Result<()> {
    let mut ground = Ground::new(&SMALL_TABLE)?;
    let clients = old_connections(&mut ground)?;
    let pod = ground
        .balanced
        .lab
        .add_pod(ground.balanced.lab.node(2), "living")?;
    ground.serve(&pod)?;
    ground.endpoints(SERVICE, vec![Endpoint::ready(&pod)])?;
    assert_reached(&ground, clients, &pod)
}

/// The dead pod's address now belongs to a pod of another Service, which would answer.
#[test]
fn a_port_used_again_does_not_reach_a_stranger() -> Result<()> {
    let mut ground = Ground::new(&SMALL_TABLE)?;
    let address = Addresses {
        v4: "10.244.2.77".parse()?,
        v6: "fd00:10:244:2::77".parse()?,
    };
    let clients = old_connections_to(&mut ground, address)?;
    let node = ground.balanced.lab.node(2).clone();
    let living = ground.balanced.lab.add_pod(&node, "living")?;
    let stranger = ground.balanced.lab.add_pod(&node, "stranger")?;
    take_address(&node, &stranger, address)?;
    ground.serve(&living)?;
    ground.serve(&stranger)?;
    ground.endpoints(SERVICE, vec![Endpoint::ready(&living)])?;
    ground.service(STRANGERS, Source::Translated, &[])?;
    ground.endpoints(STRANGERS, vec![Endpoint::ready(&stranger).at(address)])?;
    let mut there = Held::open(ground.client(), ground.outside(Family::V4, STRANGERS))?;
    ensure!(
        there.ask()?.server == "stranger",
        "the stranger has the address"
    );
    assert_reached(&ground, clients, &living)
}

/// The endpoint has gone, and there is no other one: the client is told at its second SYN at the
/// latest.
#[test]
fn a_port_used_again_is_refused_where_no_pod_is_left() -> Result<()> {
    let mut ground = Ground::new(&SMALL_TABLE)?;
    let clients = old_connections(&mut ground)?;
    ground.endpoints(SERVICE, Vec::new())?;
    let mut findings = Findings::default();
    for Client { host, port, target } in clients {
        let request = Request::tcp(target).from_port(port);
        let outcome = request.deadline(Duration::from_millis(1_900)).send(&host);
        let outcome = outcome
            .map(|reply| reply.server)
            .map_err(|failure| failure.kind);
        findings.note(
            outcome == Err(FailureKind::Refused),
            format!("{host} from port {port} to {target}: {outcome:?}"),
        );
    }
    findings.assert_good();
    Ok(())
}

/// Clients that were connected when the pod vanished, and still send.
#[test]
fn a_client_whose_pod_was_deleted_is_told() -> Result<()> {
    let mut ground = Ground::new(&SMALL_TABLE)?;
    let node = ground.balanced.lab.node(2).clone();
    let dying = ground.balanced.lab.add_pod(&node, "dying")?;
    let living = ground.balanced.lab.add_pod(&node, "living")?;
    let server = serve(&dying)?;
    ground.serve(&living)?;
    ground.service(SERVICE, Source::Translated, &[&dying])?;
    let mut connections = Vec::new();
    for family in Family::BOTH {
        for (host, target) in ways(&ground, family) {
            let mut connection = Held::open(&host, target)?;
            ensure!(connection.ask()?.server == "dying", "there is one pod");
            connections.push((format!("{host} to {target}"), connection));
        }
    }
    ground.endpoints(SERVICE, vec![Endpoint::ready(&living)])?;
    // The pod is told to end, and answers as long as it exists.
    for (_, connection) in &mut connections {
        ensure!(connection.ask()?.server == "dying", "the connection stays");
    }
    ground.balanced.lab.remove_pod(&dying)?;
    drop(server);

    let mut findings = Findings::default();
    let asked = Instant::now();
    let told: Vec<_> = thread::scope(|scope| {
        let ask = |(name, mut connection): (String, Held)| {
            scope.spawn(move || (name, wait(&mut connection, asked), asked.elapsed()))
        };
        let asking: Vec<_> = connections.into_iter().map(ask).collect();
        asking
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    for (name, end, after) in told {
        let reset = end.contains("reset by peer");
        findings.note(
            reset && after < TOLD_BY,
            format!("{name}: {end} after {after:?}"),
        );
    }
    findings.assert_good();
    Ok(())
}

/// Sends, and waits for an answer or an error as long as a client may have to.
fn wait(connection: &mut Held, asked: Instant) -> String {
    loop {
        match connection.ask() {
            Ok(answer) => return format!("served by {}", answer.server),
            Err(error) => {
                let error = format!("{error:#}");
                if !error.contains("temporarily unavailable") || asked.elapsed() > TOLD_BY {
                    return error;
                }
            }
        }
    }
}

/// A client that had a connection from this port.
struct Client {
    host: Host,
    port: u16,
    target: SocketAddr,
}

/// See [`old_connections_to`]; here the pod has only its own address.
fn old_connections(ground: &mut Ground) -> Result<Vec<Client>> {
    let next = Addresses {
        v4: "10.244.2.77".parse()?,
        v6: "fd00:10:244:2::77".parse()?,
    };
    old_connections_to(ground, next)
}

/// Connections with and without source NAT, over both families, that neither end has closed: the
/// clients have lost power, and the only pod is gone with its device. It served at `address`.
fn old_connections_to(ground: &mut Ground, address: Addresses) -> Result<Vec<Client>> {
    let Balanced { lab, .. } = &ground.balanced;
    let node = lab.node(2);
    let dying = lab.add_pod(node, "dying")?;
    take_address(node, &dying, address)?;
    let server = serve(&dying)?;
    ground.service(SERVICE, Source::Translated, &[])?;
    ground.endpoints(SERVICE, vec![Endpoint::ready(&dying).at(address)])?;

    let mut clients = Vec::new();
    for (port, family) in (CLIENT_PORT..).zip(Family::BOTH) {
        for (host, target) in ways(ground, family) {
            let mut connection = Held::open_from(&host, port, target)?;
            ensure!(connection.ask()?.server == "dying", "there is one pod");
            connection.vanish()?;
            clients.push(Client { host, port, target });
        }
    }
    lab.remove_pod(&dying)?;
    drop(server);
    // A client's port is not reused at once.
    thread::sleep(Duration::from_millis(250));
    Ok(clients)
}

/// A client with source NAT and one without, each with what it connects to.
fn ways(ground: &Ground, family: Family) -> [(Host, SocketAddr); 2] {
    let pod: &Host = ground.pod("pod-1-1").as_ref();
    [
        (ground.client().clone(), ground.outside(family, SERVICE)),
        (pod.clone(), cluster_ip(family, SERVICE)),
    ]
}

/// Gives a pod one more address of each family.
fn take_address(node: &Node, pod: &Pod, Addresses { v4, v6 }: Addresses) -> Result<()> {
    pod.run(&format!("ip addr add {v4}/32 dev eth0"))?;
    pod.run(&format!("ip addr add {v6}/128 dev eth0 nodad"))?;
    for address in [format!("{v4}/32"), format!("{v6}/128")] {
        node.run(&format!("ip route replace {address} dev {}", pod.host_end))?;
    }
    Ok(())
}

/// Each client connects again from its port, and is served by this pod at its first SYN.
fn assert_reached(ground: &Ground, clients: Vec<Client>, pod: &Pod) -> Result<()> {
    let mut findings = Findings::default();
    for Client { host, port, target } in clients {
        let answer = Held::open_from(&host, port, target).and_then(|mut again| again.ask());
        let server = answer.map(|answer| answer.server);
        let client = SocketAddr::new(host.ip(Family::of(target.ip())), port);
        let flow = ground.balanced.flow_of(1, client, target)?;
        let server = server.map_err(|error| format!("{error:#}; its flow: {flow:?}"));
        let good = server.as_ref().is_ok_and(|server| server == pod.name());
        findings.note(
            good,
            format!("{host} from port {port} to {target}: {server:?}"),
        );
    }
    findings.assert_good();
    Ok(())
}
