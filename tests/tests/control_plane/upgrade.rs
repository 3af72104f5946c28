//! From the real kube-proxy to node-lb and back, by the steps of `docs/migration.md`: no connection
//! is cut, and no new one fails.

use std::{mem, net::SocketAddr, thread, time::Duration};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Service;
use lb_tests::{
    Agent, Cluster, Family, Held, Host, PATIENCE, Request, balanced,
    control_plane::{ClusterSpec, ProxyMode, ProxyPorts, kube_proxy},
    eventually, http_get, patient,
    traffic::RunningLoad,
};
use serde_json::json;

use super::support::{Everywhere, WEB, cluster_ip, load, node_port, serve, ways};

/// The port that answers lines.
const LINES: u16 = 81;

/// How long traffic goes on after each step: each load makes some dozens of requests.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// How long an answer may take: what is lost for good never comes.
const ANSWER: Duration = Duration::from_secs(10);

#[test]
fn nothing_is_cut_between_kube_proxy_in_nftables_mode_and_node_lb() {
    there_and_back(ProxyMode::Nftables);
}

#[test]
fn nothing_is_cut_between_kube_proxy_in_iptables_mode_and_node_lb() {
    there_and_back(ProxyMode::Iptables);
}

fn there_and_back(mode: ProxyMode) {
    let mut ground = Ground::up(mode);
    let fresh = Everywhere::on_new_connections(&ground.cluster, &ground.service);
    let connections = ground.switch_to_node_lb();
    ground.back_to_kube_proxy(connections);
    fresh.assert_no_failures();
}

/// A cluster with a Service, whose nodes have a kube-proxy, node-lb or both.
struct Ground {
    /// A kube-proxy on each node.
    kube_proxies: Vec<Agent>,
    mode: ProxyMode,
    service: Service,
    cluster: Cluster,
}

impl Ground {
    /// Has kube-proxy on all nodes.
    fn up(mode: ProxyMode) -> Self {
        let mut cluster = Cluster::without_agents(ClusterSpec::default()).unwrap();
        let kube_proxies = start_kube_proxies(&cluster, mode, ProxyPorts::USUAL);
        let service = serve(&mut cluster, WEB, 3, json!({ "type": "NodePort" }));
        let ground = Self {
            kube_proxies,
            mode,
            service,
            cluster,
        };
        // What `serve` waits for is one address on one node.
        for (from, target) in ground.routes() {
            eventually(|| Request::tcp(target).send(from));
        }
        ground
    }

    /// "To node-lb, without cutting connections". Returns connections of node-lb.
    fn switch_to_node_lb(&mut self) -> Connections {
        let mut old = Connections::open(self);

        // Steps 1 and 2: node-lb beside kube-proxy, which handles every new connection.
        self.start_agents("in", ProxyPorts::BESIDE);
        old.go_on();
        let mut new = Connections::open(self);
        self.assert_taken_by_node_lb(&new);
        assert!(self.counted(ProxyPorts::BESIDE) > 0.0);
        self.assert_left_to_kube_proxy(&old);

        // Steps 3 and 4: kube-proxy ends, its rules and its connections stay.
        self.stop_kube_proxies();
        thread::sleep(AFTERWARDS);
        old.go_on();
        new.go_on();

        // Step 5: the old connections have ended.
        old.end();
        for node in self.cluster.lab().nodes() {
            kube_proxy::clean_up(node).unwrap();
            let rules = node.run("nft list ruleset").unwrap();
            assert!(!rules.contains("KUBE-SVC") && !rules.contains("kube-proxy"));
        }
        thread::sleep(AFTERWARDS);
        new.go_on();

        // Step 6.
        self.stop_agents();
        self.start_agents("off", ProxyPorts::USUAL);
        thread::sleep(AFTERWARDS);
        new.go_on();
        new
    }

    /// "Back to kube-proxy, without cutting connections", with those that node-lb has.
    fn back_to_kube_proxy(&mut self, mut old: Connections) {
        // Step 1: kube-proxy beside node-lb. Its rules see nothing until node-lb is told `out`.
        self.kube_proxies = start_kube_proxies(&self.cluster, self.mode, ProxyPorts::BESIDE);
        thread::sleep(AFTERWARDS);
        old.go_on();
        self.stop_agents();
        self.start_agents("out", ProxyPorts::USUAL);
        let mut new = Connections::open(self);
        self.assert_left_to_kube_proxy(&new);
        thread::sleep(AFTERWARDS);
        old.go_on();
        self.assert_taken_by_node_lb(&old);

        // Step 2: no connection of node-lb's matters any more.
        old.end();
        eventually(|| {
            for index in 1..=self.cluster.lab().nodes().len() {
                let flows = self.cluster.ground.flows(index)?;
                let alive = flows.iter().find(|flow| {
                    flow.protocol == "TCP" && ["handshake", "established"].contains(&flow.stage)
                });
                ensure!(alive.is_none(), "node-lb has {alive:?}");
            }
            Ok(())
        });
        self.stop_agents();
        for node in self.cluster.lab().nodes() {
            balanced::clean_up(node).unwrap();
        }
        thread::sleep(AFTERWARDS);
        new.go_on();

        // Step 3: kube-proxy gets its usual ports again.
        self.stop_kube_proxies();
        self.kube_proxies = start_kube_proxies(&self.cluster, self.mode, ProxyPorts::USUAL);
        thread::sleep(AFTERWARDS);
        new.end();
    }

    fn start_agents(&mut self, handover: &str, ports: ProxyPorts) {
        let [healthz, metrics] = ports.arguments();
        let handover = format!("--handover={handover}");
        let arguments = ["--xdp-mode=native", &handover, &healthz, &metrics];
        self.cluster.ground.set_arguments(&arguments);
        self.cluster.ground.start_agents().unwrap();
    }

    fn stop_agents(&mut self) {
        self.cluster.ground.stop_agents().unwrap();
    }

    fn stop_kube_proxies(&mut self) {
        for proxy in mem::take(&mut self.kube_proxies) {
            proxy.stop(PATIENCE).unwrap();
        }
    }

    /// The Service's connections that node-lb on node 1 says it has opened.
    fn counted(&self, ports: ProxyPorts) -> f64 {
        let address = SocketAddr::from(([127, 0, 0, 1], ports.metrics));
        let node = self.cluster.lab().node(1);
        let text = http_get::get(node, address, "/metrics").unwrap().body;
        let lines = text.lines();
        lines
            .filter(|line| line.starts_with("node_lb_service_connections_total{"))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    /// Whose packets nodes translate, and where they go: from outside to node ports, and from pods
    /// to the ClusterIP. Endpoints are on either node.
    fn routes(&self) -> Vec<(&Host, SocketAddr)> {
        let lab = self.cluster.lab();
        let of_family = |family| -> [(&Host, SocketAddr); 4] {
            let outside = |index| {
                lab.node(index)
                    .at(family, node_port(&self.service, LINES.into()))
            };
            [
                (lab.client(), outside(1)),
                (lab.client(), outside(2)),
                (lab.pod("pod-1-1"), self.inside(family)),
                (lab.pod("pod-2-1"), self.inside(family)),
            ]
        };
        Family::BOTH.into_iter().flat_map(of_family).collect()
    }

    /// The ClusterIP.
    fn inside(&self, family: Family) -> SocketAddr {
        SocketAddr::new(cluster_ip(&self.service, family), LINES)
    }

    /// Whether a flow of node-lb's, on any node, is that connection.
    fn has_flow(&self, connection: &Held) -> bool {
        let (client, frontend) = (connection.local(), connection.peer().unwrap());
        let mut nodes = 1..=self.cluster.lab().nodes().len();
        nodes.any(|index| {
            let flow = self.cluster.ground.flow_of(index, client, frontend);
            flow.unwrap().is_some()
        })
    }

    #[track_caller]
    fn assert_taken_by_node_lb(&self, connections: &Connections) {
        for routed in &connections.routed {
            assert!(self.has_flow(routed), "node-lb does not have {routed:?}");
        }
    }

    #[track_caller]
    fn assert_left_to_kube_proxy(&self, connections: &Connections) {
        for routed in &connections.routed {
            assert!(!self.has_flow(routed), "node-lb has {routed:?}");
        }
    }
}

fn start_kube_proxies(cluster: &Cluster, mode: ProxyMode, ports: ProxyPorts) -> Vec<Agent> {
    let launch = |node| {
        let spec = kube_proxy::spec(&cluster.control_plane, node, mode, ports).unwrap();
        Agent::launch(node, spec).unwrap()
    };
    let mut proxies: Vec<_> = cluster.lab().nodes().iter().map(launch).collect();
    for proxy in &mut proxies {
        proxy.wait_until_ready().unwrap();
    }
    proxies
}

/// Connections that were opened at about the same time.
struct Connections {
    /// From outside, from a pod and from a node's own processes, which node-lb translates when they
    /// connect.
    busy: Vec<(String, RunningLoad)>,
    /// From outside and from pods; they say something only when they are asked.
    routed: Vec<Held>,
}

impl Connections {
    fn open(ground: &Ground) -> Self {
        let start = |(from, request): (&Host, Request)| {
            let request = request.deadline(patient(ANSWER));
            let way = format!("{from} with {request:?}");
            (way, load(request).persistent().start(from).unwrap())
        };
        let open = |(from, target)| Held::open(from, target).unwrap();
        let busy = ways(&ground.cluster, &ground.service);
        let mut connections = Self {
            busy: busy.into_iter().map(start).collect(),
            routed: ground.routes().into_iter().map(open).collect(),
        };
        connections.go_on();
        connections
    }

    /// Fails if one of the quiet ones has been cut.
    #[track_caller]
    fn go_on(&mut self) {
        for connection in &mut self.routed {
            let answer = connection.ask();
            answer.unwrap_or_else(|error| panic!("{connection:?}: {error:#}"));
        }
    }

    /// Ends them; none may have been cut before.
    #[track_caller]
    fn end(mut self) {
        self.go_on();
        for (way, load) in self.busy {
            let report = load.stop().unwrap();
            let good = report.ok > 0 && report.failed == 0 && report.reconnects == 0;
            assert!(good, "{way}: {report}");
        }
    }
}
