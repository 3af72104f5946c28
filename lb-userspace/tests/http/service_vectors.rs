//! healthCheckNodePort servers follow kube-proxy's sequences of steps.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::Duration,
};

use lb_objects::{IpFamily, ObjectName};
use node_lb::{
    health::{
        addresses::ListenAddresses,
        proxy::ProxyHealth,
        service::{Options, Problem, ServiceHealth, ServiceHealthServers},
    },
    http::{Bind, bind},
    metrics::Metrics,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    client::{Reply, get, is_refused},
    clock::ManualClock,
    vectors,
};

#[tokio::test]
async fn sequences_of_steps_leave_the_servers_and_answers_upstream_has() {
    for sequence in vectors()["serviceHealth"].as_array().unwrap() {
        assert_eq!(sequence["nodePortAddresses"], json!([]));
        let mut node = Node::new();
        for (number, step) in sequence["steps"].as_array().unwrap().iter().enumerate() {
            let name = format!("{} step {number}", sequence["id"]);
            let problems = node.apply(step).await;
            node.check(&step["expect"], &problems, &name).await;
        }
    }
}

/// kube-proxy tells its servers of Services and of counts in two calls, one right after the other.
/// node-lb does both in one call, and each call of the sequence adds its part here.
struct Node {
    servers: ServiceHealthServers,
    binder: MovingBinder,
    health: Arc<ProxyHealth>,
    clock: ManualClock,
    ports: BTreeMap<String, u16>,
    counts: BTreeMap<String, usize>,
}

impl Node {
    fn new() -> Self {
        let binder = MovingBinder::default();
        let clock = ManualClock::new();
        let health = Arc::new(ProxyHealth::new(STALE_AFTER / 2, clock.clone()));
        health.updated(IpFamily::V4);
        let options = Options {
            bind: Box::new(binder.clone()),
            retry_interval: Duration::from_secs(3600),
            ..Options::new(ListenAddresses::all(), crate::support::stack())
        };
        Self {
            servers: ServiceHealthServers::new(options, health.clone(), &Metrics::new()),
            binder,
            health,
            clock,
            ports: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    async fn apply(&mut self, step: &Value) -> Vec<Problem> {
        self.binder.refuse(&step["bindFails"]);
        match step["do"].as_str().unwrap() {
            "syncServices" => {
                let ports: BTreeMap<String, u16> =
                    serde_json::from_value(step["services"].clone()).unwrap();
                // A new server has not been given a count.
                self.counts
                    .retain(|name, _| self.ports.get(name) == ports.get(name));
                self.ports = ports;
            }
            "syncEndpoints" => {
                self.counts = serde_json::from_value(step["endpoints"].clone()).unwrap();
            }
            "setProxyHealthy" => {
                match step["healthy"].as_bool().unwrap() {
                    true => self.health.updated(IpFamily::V4),
                    false => self.health.queued(IpFamily::V4),
                }
                self.clock.advance(STALE_AFTER);
                return self.servers.problems().await;
            }
            other => panic!("unknown step {other}"),
        }
        let counts = &self.counts;
        let desired = self.ports.iter().map(|(name, port)| ServiceHealth {
            service: object_name(name),
            family: IpFamily::V4,
            port: *port,
            local_endpoints: counts.get(name).copied().unwrap_or_default(),
        });
        self.servers.sync(desired).await
    }

    async fn check(&self, expect: &Value, problems: &[Problem], step: &str) {
        let known = ["open", "probe", "event"];
        let unknown = expect.as_object().unwrap().keys();
        assert!(unknown.into_iter().all(|key| known.contains(&&**key)));
        if let Some(open) = expect.get("open") {
            self.check_open(open, step).await;
        }
        for (service, probe) in expect["probe"].as_object().into_iter().flatten() {
            let asked = (Ipv4Addr::UNSPECIFIED, self.ports[service]).into();
            let reply = get(self.binder.moved_to(asked), "/healthz").await;
            let got = tuple(&reply, &object_name(service));
            assert_eq!(&got, probe, "{step}: {service}");
        }
        match expect.get("event") {
            Some(event) => check_event(event, problems, step),
            None => assert_eq!(problems, [], "{step}"),
        }
    }

    async fn check_open(&self, open: &Value, step: &str) {
        let open: BTreeSet<SocketAddr> = serde_json::from_value(open.clone()).unwrap();
        let listening = self.servers.listening().await;
        assert_eq!(
            listening.into_iter().collect::<BTreeSet<_>>(),
            open,
            "{step}"
        );
        for (asked, actual) in self.binder.all() {
            let refused = is_refused(actual).await;
            assert_eq!(refused, !open.contains(&asked), "{step}: {asked}");
        }
    }
}

const STALE_AFTER: Duration = Duration::from_secs(60);

/// Status, count and health of a reply. All parts of the reply must agree.
fn tuple(reply: &Reply, service: &ObjectName) -> Value {
    let body = reply.json();
    let count = body["localEndpoints"].as_u64().unwrap();
    let healthy = body["serviceProxyHealthy"].as_bool().unwrap();
    let (namespace, name) = (&service.namespace, &service.name);
    assert_eq!(
        reply.body,
        format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \
             \"{name}\"\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": \
             {healthy}\n}}"
        )
    );
    let format = &vectors()["serviceHealthProbeFormat"]["headers"];
    for name in ["Content-Type", "X-Content-Type-Options"] {
        assert_eq!(reply.headers[&name.to_lowercase()], format[name]);
    }
    let weight = &reply.headers["x-load-balancing-endpoint-weight"];
    assert_eq!(*weight, count.to_string());
    json!([reply.status, count, healthy])
}

fn check_event(event: &Value, problems: &[Problem], step: &str) {
    let [problem] = problems else {
        panic!("{step}: {problems:?}");
    };
    let (reason, action) = Problem::EVENT;
    let got = json!({
        "kind": "Service",
        "name": problem.service.to_string(),
        "type": "Warning",
        "reason": reason,
        "action": action,
    });
    assert_eq!(&got, event, "{step}");
}

fn object_name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name)
}

/// Listens on a free loopback port instead of the requested one, and refuses ports on demand.
#[derive(Clone, Default)]
struct MovingBinder(Arc<Mutex<Moves>>);

#[derive(Default)]
struct Moves {
    refused: Vec<SocketAddr>,
    moved: HashMap<SocketAddr, SocketAddr>,
}

impl MovingBinder {
    fn refuse(&self, addresses: &Value) {
        let addresses = Option::deserialize(addresses).unwrap();
        self.0.lock().unwrap().refused = addresses.unwrap_or_default();
    }

    fn moved_to(&self, asked: SocketAddr) -> SocketAddr {
        self.0.lock().unwrap().moved[&asked]
    }

    fn all(&self) -> Vec<(SocketAddr, SocketAddr)> {
        let moves = self.0.lock().unwrap();
        moves
            .moved
            .iter()
            .map(|(asked, at)| (*asked, *at))
            .collect()
    }
}

impl Bind for MovingBinder {
    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let mut moves = self.0.lock().unwrap();
        if moves.refused.contains(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let loopback = match address.is_ipv4() {
            true => "127.0.0.1:0",
            false => "[::1]:0",
        };
        let listener = bind(loopback.parse().unwrap())?;
        moves.moved.insert(address, listener.local_addr()?);
        Ok(listener)
    }
}
