//! healthCheckNodePort servers on real addresses and ports.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lb_objects::{IpFamily, ObjectName};
use node_lb::{
    health::{
        addresses::ListenAddresses,
        clock::SystemClock,
        proxy::ProxyHealth,
        service::{Options, ServiceHealth, ServiceHealthServers},
    },
    http::bind,
    metrics::Metrics,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::sleep};

use crate::{
    client::{PATIENCE, get, is_refused, read_reply, read_to_close, request},
    support::stack,
};

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[tokio::test]
async fn each_family_answers_on_the_same_port_with_its_own_count() {
    let servers = servers(Options::new(ListenAddresses::all(), stack()));
    let port = free_port();
    let desired = [
        health("web", IpFamily::V4, port, 2),
        health("web", IpFamily::V6, port, 0),
    ];
    assert_eq!(servers.sync(desired).await, []);

    let v4 = get((LOOPBACK, port).into(), "/").await;
    assert_eq!(
        (v4.status, v4.json()["localEndpoints"].as_u64()),
        (200, Some(2))
    );
    let v6 = get((Ipv6Addr::LOCALHOST, port).into(), "/").await;
    assert_eq!(
        (v6.status, v6.json()["localEndpoints"].as_u64()),
        (503, Some(0))
    );
}

#[tokio::test]
async fn every_path_and_method_gets_the_same_answer() {
    let servers = servers(on_loopback());
    let port = free_port();
    servers.sync([health("web", IpFamily::V4, port, 1)]).await;
    for path in ["/", "/healthz", "/a/b?c=d"] {
        for method in ["GET", "POST", "DELETE", "OPTIONS", "BREW"] {
            let reply = request((LOOPBACK, port).into(), method, path).await;
            assert_eq!(reply.status, 200, "{method} {path}");
            assert_eq!(reply.json()["service"]["name"], "web");
        }
    }
    let reply = request((LOOPBACK, port).into(), "HEAD", "/").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, ""));
    assert_eq!(reply.headers["x-load-balancing-endpoint-weight"], "1");
}

#[tokio::test]
async fn a_count_changes_on_a_live_connection_which_ends_with_the_service() {
    let servers = servers(on_loopback());
    let port = free_port();
    let mut probe = None;
    for (count, status) in [(3, 200), (0, 503), (1, 200)] {
        let desired = [health("web", IpFamily::V4, port, count)];
        assert_eq!(servers.sync(desired).await, []);
        let probe = match &mut probe {
            Some(probe) => probe,
            none => none.insert(TcpStream::connect((LOOPBACK, port)).await.unwrap()),
        };
        let head = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n";
        probe.write_all(head).await.unwrap();
        assert_eq!(read_reply(probe).await.status, status);
    }
    servers.sync([]).await;
    assert_eq!(read_to_close(&mut probe.unwrap()).await, b"");
    assert!(is_refused((LOOPBACK, port).into()).await);
}

#[tokio::test]
async fn ports_may_change_hands_in_one_sync() {
    let servers = servers(on_loopback());
    let (one, two) = (free_port(), free_port());
    let first = [
        health("a", IpFamily::V4, one, 1),
        health("b", IpFamily::V4, two, 1),
    ];
    assert_eq!(servers.sync(first).await, []);
    let swapped = [
        health("a", IpFamily::V4, two, 1),
        health("b", IpFamily::V4, one, 1),
    ];
    assert_eq!(servers.sync(swapped).await, []);
    for (port, name) in [(two, "a"), (one, "b")] {
        let reply = get((LOOPBACK, port).into(), "/").await;
        assert_eq!(reply.json()["service"]["name"], name);
    }
}

#[tokio::test]
async fn a_service_listens_on_all_its_addresses_or_on_none() {
    let other = Ipv4Addr::new(127, 0, 0, 2);
    let port = free_port();
    let taken = bind((other, port).into()).unwrap();
    let servers = servers(on(&[LOOPBACK.into(), other.into()]));
    let desired = [health("web", IpFamily::V4, port, 1)];

    let problems = servers.sync(desired.clone()).await;
    let [problem] = &*problems else {
        panic!("{problems:?}");
    };
    assert_eq!(
        problem.to_string(),
        format!(
            "Service shop/web: cannot listen on 127.0.0.2:{port} for its healthCheckNodePort: \
             Address already in use (os error 98); free the port on this node or give the \
             Service another one"
        )
    );
    assert!(is_refused((LOOPBACK, port).into()).await);

    drop(taken);
    assert_eq!(servers.sync(desired).await, []);
    for ip in [LOOPBACK, other] {
        assert_eq!(get((ip, port).into(), "/").await.status, 200);
    }
}

#[tokio::test]
async fn a_taken_port_costs_its_own_service_only_and_is_retried_between_syncs() {
    let (taken_port, port) = (free_port(), free_port());
    let taken = bind((LOOPBACK, taken_port).into()).unwrap();
    let options = Options {
        retry_interval: Duration::from_millis(20),
        ..on_loopback()
    };
    let metrics = Metrics::new();
    let servers = ServiceHealthServers::new(options, healthy(), &metrics);
    let desired = [
        health("unlucky", IpFamily::V4, taken_port, 4),
        health("web", IpFamily::V4, port, 1),
    ];
    let problems = servers.sync(desired).await;
    assert_eq!(problems.len(), 1);
    assert_eq!(&*problems[0].service.name, "unlucky");
    assert_eq!(get((LOOPBACK, port).into(), "/").await.status, 200);
    assert_eq!(metrics.health_servers_failed.get(), 1);
    assert_eq!(metrics.health_servers_listening.get(), 1);

    sleep(Duration::from_millis(100)).await; // retried in vain
    assert_eq!(servers.problems().await, problems);
    drop(taken);
    wait_until(async || servers.problems().await.is_empty()).await;
    let reply = get((LOOPBACK, taken_port).into(), "/").await;
    assert_eq!(reply.headers["x-load-balancing-endpoint-weight"], "4");
    assert_eq!(metrics.health_servers_failed.get(), 0);
    assert_eq!(metrics.health_servers_listening.get(), 2);
}

#[tokio::test]
async fn no_matching_address_means_no_listener_and_no_problem() {
    let servers = servers(on(&[]));
    let port = free_port();
    assert_eq!(
        servers.sync([health("web", IpFamily::V4, port, 1)]).await,
        []
    );
    assert_eq!(servers.listening().await, []);
    assert!(is_refused((LOOPBACK, port).into()).await);
}

#[tokio::test]
async fn dropping_the_servers_closes_them() {
    let servers = servers(on_loopback());
    let port = free_port();
    servers.sync([health("web", IpFamily::V4, port, 1)]).await;
    drop(servers);
    wait_until(async || is_refused((LOOPBACK, port).into()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_probes_at_once_are_all_answered() {
    let servers = servers(on_loopback());
    let port = free_port();
    servers.sync([health("web", IpFamily::V4, port, 7)]).await;
    let mut probes = JoinSet::new();
    for _ in 0..1000 {
        probes.spawn(get((LOOPBACK, port).into(), "/healthz"));
    }
    let replies = probes.join_all().await;
    assert_eq!(replies.len(), 1000);
    let weight =
        |reply: &crate::client::Reply| reply.headers["x-load-balancing-endpoint-weight"].clone();
    assert!(replies.iter().all(|reply| reply.status == 200));
    assert!(replies.iter().all(|reply| weight(reply) == "7"));
}

fn servers(options: Options) -> ServiceHealthServers {
    ServiceHealthServers::new(options, healthy(), &Metrics::new())
}

fn healthy() -> Arc<ProxyHealth> {
    Arc::new(ProxyHealth::new(Duration::from_secs(30), SystemClock))
}

fn on_loopback() -> Options {
    on(&[LOOPBACK.into()])
}

/// Listens on these IPv4 addresses, which are all in 127.0.0.0/8.
fn on(local: &[IpAddr]) -> Options {
    let networks = ["127.0.0.0/8".parse().unwrap()];
    let addresses = ListenAddresses::select(&networks, Ok(local.to_vec()));
    Options::new(addresses, stack())
}

fn health(name: &str, family: IpFamily, port: u16, local_endpoints: usize) -> ServiceHealth {
    ServiceHealth {
        service: ObjectName::new("shop", name),
        family,
        port,
        local_endpoints,
    }
}

/// A port that is free on every address of both families.
///
/// It is none that Linux gives a client: clients of the tests beside this one, a thousand of them
/// at times, would take it on one address or another. Each process begins with other ports.
fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    const PORTS: u32 = 10_000;
    const OF_ONE_PROCESS: u32 = 16;
    let first = std::process::id() * OF_ONE_PROCESS;
    loop {
        let nth = first + TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(20_000 + nth % PORTS).unwrap();
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, port).into();
        if TcpListener::bind(any).is_ok() {
            return port;
        }
    }
}

async fn wait_until(condition: impl AsyncFn() -> bool) {
    let begun = std::time::Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "waited in vain");
        sleep(Duration::from_millis(10)).await;
    }
}
