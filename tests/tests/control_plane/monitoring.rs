//! The rules and dashboards of `deploy/monitoring`, in a real Prometheus that scrapes agents at work.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use lb_tests::{
    Cluster, Family, Held, Prometheus, Request,
    control_plane::{ClusterSpec, service},
    prometheus::{condition, monitoring, rules},
    traffic::allow_many_files,
};
use serde_json::{Value, json};

use super::support::{Everywhere, WEB, cluster_ip, scale, serve};

/// What dashboards need not show while nothing is wrong, and why.
const EMPTY: [(&str, &str); 7] = [
    ("Endpoints that do not answer", "all endpoints answer"),
    ("Half-open flows", "handshakes are over within a moment"),
    ("Half-open flows that gave way", "nobody floods"),
    ("Dropped connections", "there is room"),
    ("Time waited", "seats are free"),
    ("The node's limit", "priority levels share it"),
    ("Connections refused by the node's limit", "the same"),
];

/// Metrics in rules that no healthy agent has, and why. Tests of the agent's own have them.
const ABSENT: [(&str, &str); 4] = [
    ("node_lb_service_failing_endpoints", "all endpoints answer"),
    ("node_lb_service_flows_gave_way_total", "nobody floods"),
    (WAITS, "seats are free"),
    ("node_lb:connection_wait_seconds:p99_5m", "the same"),
];
const WAITS: &str = "node_lb_flowcontrol_connection_wait_duration_seconds_bucket";

/// The external IP of several Services.
const CLAIMED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 80));
/// How many claims of it to try until every rate has something in it, and the time between two of
/// them: an Event is written up to five seconds after what it tells.
const CLAIMS: u32 = 12;
const BETWEEN_CLAIMS: Duration = Duration::from_secs(6);

/// What public dashboards and alerts for kube-proxy ask for, by metric and label.
const OF_KUBE_PROXY: [(&str, &str); 12] = [
    ("running proxies", "sum(up{JOB})"),
    (
        "rules sync rate",
        "sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{JOB}[5m]))",
    ),
    (
        "rules sync latency",
        "histogram_quantile(0.99, rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{JOB}[5m]))",
    ),
    (
        "network programming rate",
        "sum(rate(kubeproxy_network_programming_duration_seconds_count{JOB}[5m]))",
    ),
    (
        "network programming latency",
        "histogram_quantile(0.99, sum by (instance, le) \
         (rate(kubeproxy_network_programming_duration_seconds_bucket{JOB}[5m])))",
    ),
    (
        "good requests",
        "sum(rate(rest_client_requests_total{JOB, code=~\"2..\"}[5m]))",
    ),
    (
        "time of GET",
        "histogram_quantile(0.99, sum by (verb, le) \
         (rate(rest_client_request_duration_seconds_bucket{JOB, verb=\"GET\"}[5m])))",
    ),
    (
        "time of POST",
        "histogram_quantile(0.99, sum by (verb, le) \
         (rate(rest_client_request_duration_seconds_bucket{JOB, verb=\"POST\"}[5m])))",
    ),
    ("memory", "process_resident_memory_bytes{JOB}"),
    ("processor", "rate(process_cpu_seconds_total{JOB}[5m])"),
    ("its instances", "group by (instance) (up{JOB})"),
    (
        "checks of /readyz",
        "kubernetes_healthcheck{JOB, type=\"readyz\"}",
    ),
];

/// Healthy agents: data everywhere, no alert. Then faults, each of which raises its alert (after
/// which Prometheus would wait, which `promtool test rules` checks).
#[test]
fn dashboards_show_agents_at_work_and_alerts_what_is_wrong_with_them() {
    allow_many_files().unwrap();
    let mut cluster = Cluster::up(ClusterSpec {
        arguments: vec![
            "--admission=enforce".to_owned(),
            "--max-connections=3000".to_owned(),
            "--metrics-bind-address=0.0.0.0:10249".to_owned(),
            "--xdp-mode=native".to_owned(),
        ],
        ..ClusterSpec::default()
    })
    .unwrap();
    let crds = concat!(
        "--kustomize=",
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/crds"
    );
    cluster.control_plane.kubectl(&["apply", crds]).unwrap();
    let web = serve(&mut cluster, WEB, 1, json!({ "type": "NodePort" }));
    limit(&cluster, 2000);
    let lab = cluster.lab();
    let targets = [
        ("node-lb", lab.node(1).at(Family::V4, 10249)),
        ("kube-proxy", lab.node(2).at(Family::V4, 10249)),
    ];
    let mut prometheus = Prometheus::start(lab.node(1), &lab.id().dir(), &targets).unwrap();

    let load = Everywhere::start(&cluster, &web);
    for replicas in [2, 3, 2] {
        cluster.live_for(Duration::from_secs(3)).unwrap();
        scale(&cluster, WEB, replicas);
    }
    let shown = cluster.until(|_| everything_is_shown(&mut prometheus));
    shown.unwrap();
    everything_asked_for_exists(&mut prometheus);
    load.assert_no_failures();
    assert_eq!(prometheus.alerts().unwrap(), [""; 0]);

    faults(&mut cluster, &mut prometheus, &web);
    everything_of_kube_proxy_is_found(&mut cluster, &mut prometheus);
    // A program in Rust has none, and docs/metrics.md says so.
    assert_eq!(prometheus.query("go_goroutines").unwrap(), []);
    let down = "absent(up{job=\"kube-proxy\"} == 1)";
    assert_eq!(prometheus.query(down).unwrap(), []);

    nothing_is_heard(&mut cluster, &mut prometheus);
    cluster.ground.kill_agents().unwrap();
    raised(
        &mut cluster,
        &mut prometheus,
        &["NodeLbAgentDown", "NodeLbNoAgent"],
    );
    assert_eq!(prometheus.query(down).unwrap().len(), 1);
}

/// Every panel of every dashboard has data, but for [`EMPTY`].
fn everything_is_shown(prometheus: &mut Prometheus) -> Result<()> {
    for dashboard in dashboards() {
        for panel in list(&dashboard["panels"]) {
            let title = panel["title"].as_str().context("a panel without a title")?;
            for target in list(&panel["targets"]) {
                let expression = target["expr"].as_str().context("a query")?;
                let found = prometheus.query(&filled_in(expression))?;
                let may_be_empty = EMPTY.iter().any(|(empty, _)| *empty == title);
                ensure!(
                    !found.is_empty() || may_be_empty,
                    "{}: {title}: nothing for {expression}",
                    dashboard["title"]
                );
            }
        }
    }
    Ok(())
}

/// Dashboards and alerts for kube-proxy find what they ask for.
fn everything_of_kube_proxy_is_found(cluster: &mut Cluster, prometheus: &mut Prometheus) {
    // A rate takes two scrapes of a series, so there are more Events and watches until all have one.
    let mut claims = 0;
    let missing = |prometheus: &mut Prometheus| {
        for (what, expression) in OF_KUBE_PROXY {
            let expression = expression.replace("JOB", "job=\"kube-proxy\"");
            if prometheus.query(&expression)?.is_empty() {
                return Ok(Some(format!("{what}: nothing for {expression}")));
            }
        }
        anyhow::Ok(None)
    };
    while let Some(missing) = missing(prometheus).unwrap() {
        assert!(claims < CLAIMS, "after {claims} more claims: {missing}");
        claims += 1;
        claim(cluster, &format!("claim-{claims}"));
        cluster.live_for(BETWEEN_CLAIMS).unwrap();
        cluster.front.close();
        cluster.front.open().unwrap();
    }
}

/// Agents have the metrics that rules ask for, but for [`ABSENT`].
fn everything_asked_for_exists(prometheus: &mut Prometheus) {
    let rules = rules().unwrap();
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let words = rules
        .iter()
        .flat_map(|rule| rule.expr.split(|c| !is_part(c)));
    let names: BTreeSet<_> = words.filter(|word| word.starts_with("node_lb")).collect();
    for name in names {
        let is_there = !prometheus.query(name).unwrap().is_empty();
        let may_be_absent = ABSENT.iter().any(|(absent, _)| *absent == name);
        assert!(is_there || may_be_absent, "no agent has {name}");
    }
}

/// A panel's expression as Grafana sends it with everything chosen.
fn filled_in(expression: &str) -> String {
    let mut filled = expression.replace("$__rate_interval", "5m");
    for variable in ["$instance", "$namespace", "$service", "$priority_level"] {
        filled = filled.replace(variable, ".*");
    }
    assert!(!filled.contains('$'), "unknown variable in {expression}");
    filled
}

/// Objects that cannot be used, a Service without endpoints, and one at its limit.
fn faults(cluster: &mut Cluster, prometheus: &mut Prometheus, web: &Service) {
    claim(cluster, "first");
    claim(cluster, "second");
    raised(cluster, prometheus, &["NodeLbServicesNotProgrammed"]);
    let target = SocketAddr::new(CLAIMED, 80);
    let pod = cluster.lab().pod("pod-1-1").clone();
    let ask = |_: &Cluster| drop(Request::tcp(target).send(&pod));
    raised_by(cluster, prometheus, &["NodeLbServiceWithoutEndpoints"], ask);

    limit(cluster, 5);
    let target = SocketAddr::new(cluster_ip(web, Family::V4), 80);
    let ask = |_: &Cluster| drop(Held::open_all(&pod, target, 8));
    raised_by(cluster, prometheus, &["NodeLbConnectionLimitReached"], ask);
}

/// The API server is out of reach. That is to last for five minutes until the alert is raised, which this does not wait
/// for.
fn nothing_is_heard(cluster: &mut Cluster, prometheus: &mut Prometheus) {
    let later = condition("NodeLbSourceOutOfDate").unwrap();
    let sooner = later.replace("> 300", "> 10");
    assert_ne!(later, sooner);
    let resources = "node_lb_api_last_sync_timestamp_seconds";
    let resources = prometheus.query(resources).unwrap().len();
    cluster.front.close();
    let found = cluster.until(|_| {
        let found = prometheus.query(&sooner)?;
        let is_all = found.len() == resources && resources > 0;
        ensure!(is_all, "{found:?} of {resources}");
        Ok(())
    });
    found.unwrap();
}

/// Creates a Service with the external IP that all of these have, and only one of them gets.
fn claim(cluster: &Cluster, name: &str) {
    let spec = json!({ "externalIPs": [CLAIMED], "selector": { "app": name } });
    let services = cluster.client().of::<Service>();
    services.create(service(name, spec)).unwrap();
}

/// Limits the connections to the Service.
fn limit(cluster: &Cluster, connections: u32) {
    let annotations = json!({ "node-lb.io/max-connections": connections.to_string() });
    let patch = json!({ "metadata": { "annotations": annotations } });
    cluster.client().of::<Service>().patch(WEB, patch).unwrap();
}

/// Waits until these alerts are at least pending.
#[track_caller]
fn raised(cluster: &mut Cluster, prometheus: &mut Prometheus, names: &[&str]) {
    raised_by(cluster, prometheus, names, |_| ());
}

/// The same while something is done again and again.
#[track_caller]
fn raised_by(
    cluster: &mut Cluster,
    prometheus: &mut Prometheus,
    names: &[&str],
    act: impl Fn(&Cluster),
) {
    let found = cluster.until(|cluster| {
        act(cluster);
        let alerts = prometheus.alerts()?;
        let missing = names
            .iter()
            .find(|name| !alerts.iter().any(|alert| alert == *name));
        ensure!(missing.is_none(), "no {missing:?} among {alerts:?}");
        Ok(())
    });
    found.unwrap();
}

fn dashboards() -> Vec<Value> {
    let files = fs::read_dir(monitoring().join("dashboards")).unwrap();
    let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    let read = |file: &PathBuf| serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let dashboards: Vec<Value> = files.iter().map(read).collect();
    assert!(!dashboards.is_empty());
    dashboards
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
