//! The metrics address.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::bail;
use lb_common::abi::Latencies;
use lb_objects::{IpFamily, ObjectName};
use node_lb::{
    agent::metrics_server::MetricsServer,
    health::readiness::Readiness,
    http::{Limits, Server, bind},
    latency::Answered,
    map_writer::MapFill,
    metrics::{
        DeviceMode, FlowTableFill, KernelSource, LevelCount, LimitCount, Metrics, PacketCount,
        Sample, SchemaCount, ServiceTraffic, XdpMode, set_to_now,
    },
    waiting::{Counts, Waits},
};

use crate::{
    client::{any_port, get},
    support::stack,
};

#[tokio::test]
async fn the_paths_kube_proxy_has_are_there() {
    let server = start(&Arc::new(Metrics::new()));
    for (path, status, body) in [
        ("/healthz", 200, "ok"),
        ("/proxyMode", 200, "node-lb"),
        ("/configz", 200, r#"{"node-lb":{}}"#),
        ("/readyz", 200, "ok"),
        ("/readyzz", 404, "404 page not found\n"),
        ("/debug/requests", 200, "[]"),
        ("/debug/pprof", 404, "404 page not found\n"),
    ] {
        let reply = get(server.address(), path).await;
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (status, body),
            "{path}"
        );
    }
    let reply = get(server.address(), "/metrics").await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["content-type"], "text/plain; version=0.0.4");
}

#[tokio::test]
async fn kube_proxys_series_have_its_names_labels_and_buckets() {
    let metrics = Arc::new(Metrics::new());
    let v4 = metrics.family(IpFamily::V4);
    v4.sync_duration.observe(0.003);
    v4.network_programming.observe(0.3);
    v4.no_local_endpoints_external.set(2);
    v4.terminating_endpoints_serving.set(4);
    metrics.endpoint_changes.inc_by(3);
    metrics.endpoint_changes_pending.set(1);
    let text = scrape(&metrics).await;

    assert_has(
        &text,
        &[
            "# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram",
            r#"kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.002"} 0"#,
            r#"kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.004"} 1"#,
            r#"kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="16.384"} 1"#,
            r#"kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 0.3"#,
            r#"kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 2"#,
            r#"kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 0"#,
            r#"node_lb_terminating_endpoints_serving{ip_family="IPv4"} 4"#,
            r#"node_lb_services_served_by_terminating_endpoints{ip_family="IPv4"} 0"#,
            "# TYPE kubeproxy_sync_proxy_rules_endpoint_changes_total counter",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 3",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 1",
            "kubeproxy_sync_proxy_rules_service_changes_total 0",
        ],
    );
    assert!(!text.contains("IPv6"), "no IPv6 has been reported");

    let sync = bounds(&text, "kubeproxy_sync_proxy_rules_duration_seconds");
    assert_eq!(sync.len(), 15 + 1);
    let programming = bounds(&text, "kubeproxy_network_programming_duration_seconds");
    assert_eq!(programming.len(), 2 + 59 + 12 + 7 + 1);
    for bound in [
        "0.25", "0.5", "1", "59", "60", "65", "115", "120", "150", "300",
    ] {
        assert!(programming.contains(&bound), "{bound}");
    }
}

#[tokio::test]
async fn timestamps_are_unix_seconds() {
    let metrics = Metrics::new();
    let last_sync = metrics.family(IpFamily::V6).last_sync;
    set_to_now(&last_sync);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    assert!((now.unwrap().as_secs_f64() - last_sync.get()).abs() < 60.0);
}

#[tokio::test]
async fn the_process_and_the_build_are_described() {
    let text = scrape(&Arc::new(Metrics::new())).await;
    let version = env!("CARGO_PKG_VERSION");
    assert_has(
        &text,
        &[&format!("node_lb_build_info{{version=\"{version}\"}} 1")],
    );
    assert!(text.contains("\nprocess_resident_memory_bytes "));
}

#[tokio::test]
async fn a_scrape_shows_each_check_of_readyz() {
    let metrics = Arc::new(Metrics::new());
    let readiness = Readiness::new();
    let latch = readiness.add_latch("first-state-in-maps", "there is none");
    let server = start_with(&metrics, readiness);
    let checks = async |first_state| {
        let text = get(server.address(), "/metrics").await.body;
        let first_state = format!(
            "kubernetes_healthcheck{{name=\"first-state-in-maps\",type=\"readyz\"}} {first_state}"
        );
        let ping = r#"kubernetes_healthcheck{name="ping",type="readyz"} 1"#;
        assert_has(&text, &[&first_state, ping]);
    };
    checks(0).await;
    latch.meet();
    checks(1).await;
}

#[tokio::test]
async fn programming_is_measured_per_object_and_finely_where_the_targets_are() {
    let metrics = Arc::new(Metrics::new());
    metrics.programmed("endpointslices", 3, Duration::from_millis(15));
    metrics.programmed("endpointslices", 1, Duration::from_millis(40));
    metrics.programmed("services", 0, Duration::from_millis(40));
    metrics.set_feature("Gate", "BETA", true);
    let text = scrape(&metrics).await;
    let bucket = |le| {
        format!(
            "node_lb_programming_duration_seconds_bucket{{resource=\"endpointslices\",le=\"{le}\"}}"
        )
    };
    assert_has(
        &text,
        &[
            &format!("{} 0", bucket("0.01")),
            &format!("{} 3", bucket("0.02")),
            &format!("{} 4", bucket("0.05")),
            r#"kubernetes_feature_enabled{name="Gate",stage="BETA"} 1"#,
        ],
    );
    assert!(
        !text.contains("resource=\"services\",le="),
        "nothing happened to those"
    );
}

#[tokio::test]
async fn the_kernels_counters_are_read_at_each_scrape() {
    struct Kernel;
    impl KernelSource for Kernel {
        fn sample(&self) -> anyhow::Result<Sample> {
            Ok(sample())
        }
    }
    let metrics = Arc::new(Metrics::new());
    assert!(!scrape(&metrics).await.contains("node_lb_flows"));
    metrics.set_kernel_source(Arc::new(Kernel));
    let text = scrape(&metrics).await;
    assert_has(
        &text,
        &[
            "# TYPE node_lb_packets_total counter",
            r#"node_lb_packets_total{hook="xdp",reason="no_endpoints"} 18014398509481984"#,
            r#"node_lb_service_connections_total{namespace="shop",service="web",port="",protocol="TCP"} 5"#,
            r#"node_lb_service_half_open_flows{namespace="shop",service="web",port="",protocol="TCP"} 3"#,
            r#"node_lb_service_flows_gave_way_total{namespace="shop",service="web",port="",protocol="TCP"} 2"#,
            r#"node_lb_service_snat_ports_exhausted_total{namespace="shop",service="web",port="",protocol="TCP"} 7"#,
            r#"node_lb_service_failing_endpoints{namespace="shop",service="web",port="",protocol="TCP"} 1"#,
            "# TYPE node_lb_service_latency_seconds histogram",
            r#"node_lb_service_latency_seconds_bucket{namespace="shop",service="web",port="",protocol="TCP",le="0.000065536"} 2"#,
            r#"node_lb_service_latency_seconds_bucket{namespace="shop",service="web",port="",protocol="TCP",le="0.000262144"} 2"#,
            r#"node_lb_service_latency_seconds_bucket{namespace="shop",service="web",port="",protocol="TCP",le="0.001048576"} 3"#,
            r#"node_lb_service_latency_seconds_bucket{namespace="shop",service="web",port="",protocol="TCP",le="1.073741824"} 3"#,
            r#"node_lb_service_latency_seconds_bucket{namespace="shop",service="web",port="",protocol="TCP",le="+Inf"} 4"#,
            r#"node_lb_service_latency_seconds_count{namespace="shop",service="web",port="",protocol="TCP"} 4"#,
            r#"node_lb_connection_limit{scope="node",namespace="",service=""} 100"#,
            r#"node_lb_connection_limit_in_use{scope="node",namespace="",service=""} 40"#,
            r#"node_lb_connection_limit_highest{scope="node",namespace="",service=""} 50"#,
            r#"node_lb_connection_limit_refused_total{scope="node",namespace="",service=""} 6"#,
            r#"node_lb_connection_limit_recovered_total{scope="node",namespace="",service=""} 7"#,
            r#"node_lb_connection_limit_exempted_total{scope="node",namespace="",service=""} 8"#,
            r#"node_lb_connection_limit_slow_handshakes{scope="node",namespace="",service=""} 26"#,
            r#"node_lb_connection_limit_pressed{scope="node",namespace="",service=""} 1"#,
            r#"node_lb_connection_limit_in_use{scope="service",namespace="shop",service="db"} 3"#,
            r#"node_lb_long_running_connections{scope="service",namespace="shop",service="db"} 3"#,
            "node_lb_connection_limit_corrected_total 2",
            r#"node_lb_flowcontrol_nominal_limit_seats{priority_level="exempt"} 100"#,
            r#"node_lb_flowcontrol_current_limit_seats{priority_level="tenants"} 110"#,
            r#"node_lb_flowcontrol_lower_limit_seats{priority_level="tenants"} 60"#,
            r#"node_lb_flowcontrol_upper_limit_seats{priority_level="tenants"} 120"#,
            r#"node_lb_flowcontrol_current_executing_seats{priority_level="exempt"} 3"#,
            r#"node_lb_flowcontrol_current_executing_seats{priority_level="tenants"} 9"#,
            "# TYPE node_lb_flowcontrol_recovered_connections_total counter",
            r#"node_lb_flowcontrol_kept_seats{priority_level="tenants"} 7"#,
            r#"node_lb_flowcontrol_lingering_seats{priority_level="tenants"} 14"#,
            r#"node_lb_flowcontrol_slow_handshakes{priority_level="tenants"} 11"#,
            r#"node_lb_flowcontrol_pressed{priority_level="tenants"} 0"#,
            r#"node_lb_flowcontrol_connection_seats{flow_schema="shop",priority_level="tenants"} 8"#,
            r#"node_lb_flowcontrol_dispatched_connections_total{flow_schema="shop",priority_level="tenants"} 30"#,
            r#"node_lb_flowcontrol_over_limit_connections_total{flow_schema="shop",priority_level="tenants"} 4"#,
            r#"node_lb_flowcontrol_rejected_connections_total{flow_schema="shop",priority_level="tenants",reason="concurrency-limit"} 5"#,
            r#"node_lb_flowcontrol_rejected_connections_total{flow_schema="shop",priority_level="tenants",reason="flow-limit"} 6"#,
            r#"node_lb_flowcontrol_rejected_connections_total{flow_schema="shop",priority_level="tenants",reason="time-out"} 15"#,
            r#"node_lb_flowcontrol_waited_connections_total{flow_schema="shop",priority_level="tenants"} 3"#,
            "# TYPE node_lb_flowcontrol_connection_wait_duration_seconds histogram",
            &waits_up_to("true", "0", 1),
            &waits_up_to("true", "0.005", 1),
            &waits_up_to("true", "0.02", 2),
            &waits_up_to("true", "0.05", 3),
            &waits_up_to("true", "+Inf", 3),
            &waits_up_to("false", "0.5", 0),
            &waits_up_to("false", "1", 1),
            &waits_up_to("false", "30", 1),
            &waits_up_to("false", "+Inf", 2),
            r#"node_lb_flowcontrol_connection_wait_duration_seconds_sum{execute="true",flow_schema="shop",priority_level="tenants"} 0.041"#,
            r#"node_lb_flowcontrol_connection_wait_duration_seconds_count{execute="false",flow_schema="shop",priority_level="tenants"} 2"#,
            r#"node_lb_flowcontrol_uncounted_connections_total{flow_schema="shop",priority_level="tenants"} 7"#,
            r#"node_lb_flowcontrol_expired_connections_total{deadline="client-idle",flow_schema="shop",priority_level="tenants"} 2"#,
            r#"node_lb_flowcontrol_expired_connections_total{deadline="lifetime",flow_schema="shop",priority_level="tenants"} 5"#,
            "node_lb_flowcontrol_unclassified_addresses 0",
            r#"node_lb_device_xdp_mode{device="eth\"0",mode="generic"} 1"#,
            r#"node_lb_device_xdp_fallback{device="eth\"0"} 1"#,
            r#"node_lb_map_entries{map="FRONTENDS4"} 7"#,
            r#"node_lb_map_capacity{map="FRONTENDS4"} 131072"#,
            r#"node_lb_flows{ip_family="IPv4"} 0"#,
            r#"node_lb_flow_table_size{ip_family="IPv4"} 65536"#,
            r#"node_lb_service_port_flows_highest{ip_family="IPv4"} 12"#,
            r#"node_lb_service_port_flows_limit{ip_family="IPv4"} 32768"#,
            "node_lb_sync_running_seconds 3.2",
            "node_lb_state_age_seconds 0.25",
            "node_lb_kernel_read_errors_total 0",
        ],
    );
    assert!(
        !text.contains("node_lb_service_flow_table_full_total"),
        "there are none"
    );
    assert!(!text.contains(r#"node_lb_connection_limit{scope="service""#));
    assert!(!text.contains(r#"current_limit_seats{priority_level="exempt""#));
    assert!(
        !text.contains(r#"wait_duration_seconds_count{execute="true",flow_schema="idle""#)
            && text.contains(r#"{flow_schema="idle""#),
        "nobody waited there"
    );
}

/// The line that says how many waits of `shop` were not longer than so many seconds.
fn waits_up_to(execute: &str, seconds: &str, number: u32) -> String {
    format!(
        "node_lb_flowcontrol_connection_wait_duration_seconds_bucket{{execute=\"{execute}\",\
         flow_schema=\"shop\",priority_level=\"tenants\",le=\"{seconds}\"}} {number}"
    )
}

#[tokio::test]
async fn a_kernel_that_cannot_be_read_is_counted_and_costs_only_its_own_metrics() {
    struct Broken;
    impl KernelSource for Broken {
        fn sample(&self) -> anyhow::Result<Sample> {
            bail!("the maps are gone")
        }
    }
    let metrics = Arc::new(Metrics::new());
    metrics.set_kernel_source(Arc::new(Broken));
    for scrapes in 1..3 {
        let text = scrape(&metrics).await;
        assert_has(
            &text,
            &[&format!("node_lb_kernel_read_errors_total {scrapes}")],
        );
        assert!(text.contains("node_lb_build_info"));
    }
}

fn node_limit() -> LimitCount {
    LimitCount {
        service: None,
        limit: 100,
        long_running: false,
        in_use: 40,
        highest: 50,
        refused: 6,
        recovered: 7,
        exempted: 8,
        slow_handshakes: 26,
        is_pressed: true,
    }
}

/// Of a Service without a limit.
fn long_running() -> LimitCount {
    LimitCount {
        service: Some(ObjectName::new("shop", "db")),
        limit: 0,
        long_running: true,
        in_use: 3,
        ..node_limit()
    }
}

fn level(name: &str, is_exempt: bool) -> LevelCount {
    LevelCount {
        name: name.into(),
        is_exempt,
        limits: lb_admission::limits::Limits {
            nominal: 100,
            lendable: 40,
            borrowing: 20,
            min: 60,
            max: 120,
            max_seats: None,
        },
        limit: 110,
        in_use: 3,
        highest: 12,
        refused: 5,
        over: 4,
        recovered: 1,
        exempted: 2,
        kept: 7,
        lingering: 14,
        waiting: 12,
        queue_full: 13,
        slow_handshakes: 11,
        is_pressed: false,
    }
}

fn schema(name: &str, waited: Counts) -> SchemaCount {
    SchemaCount {
        name: name.into(),
        level: "tenants".into(),
        seats: 8,
        admitted: 30,
        over: 4,
        refused: 5,
        flow_limit: 6,
        uncounted: 7,
        expired: [1, 2, 3, 4, 5],
        waited,
    }
}

/// Of so many milliseconds.
fn waits(all: &[u64]) -> Waits {
    let mut waits = Waits::default();
    for wait in all {
        waits.add(Duration::from_millis(*wait));
    }
    waits
}

/// So many flows in each of these buckets.
fn answered(buckets: &[(usize, u32)]) -> Answered {
    let mut counted = Latencies::default();
    for (bucket, flows) in buckets {
        counted.buckets[*bucket] = *flows;
    }
    let mut answered = Answered::default();
    answered.add(&counted);
    answered
}

fn sample() -> Sample {
    Sample {
        packets: vec![PacketCount {
            hook: "xdp",
            reason: "no_endpoints",
            packets: 1 << 54,
        }],
        services: vec![ServiceTraffic {
            connections: 5,
            half_open: 3,
            gave_way: 2,
            snat_ports_exhausted: 7,
            failing: vec!["10.0.1.5:8080".parse().unwrap()],
            answered: answered(&[(0, 2), (5, 1), (31, 1)]),
            ..ServiceTraffic::none(ObjectName::new("shop", "web"))
        }],
        limits: vec![node_limit(), long_running()],
        limits_corrected: 2,
        levels: vec![
            level("exempt", true),
            LevelCount {
                in_use: 9,
                ..level("tenants", false)
            },
        ],
        schemas: vec![
            schema(
                "shop",
                Counts {
                    let_in: waits(&[0, 20, 21]),
                    in_vain: waits(&[1000, 31_000]),
                    timed_out: 15,
                    flow_limit: 0,
                },
            ),
            schema("idle", Counts::default()),
        ],
        unclassified: 0,
        devices: vec![DeviceMode {
            device: "eth\"0".into(),
            mode: XdpMode::Generic,
            fell_back: true,
        }],
        maps: vec![MapFill {
            map: "FRONTENDS4",
            entries: 7,
            capacity: 131_072,
        }],
        flow_tables: vec![FlowTableFill {
            family: IpFamily::V4,
            flows: 0,
            room: 65536,
            busiest: 12,
            flows_of_one: 32768,
        }],
        sync_running: Duration::from_millis(3200),
        state_age: Duration::from_millis(250),
    }
}

fn start(metrics: &Arc<Metrics>) -> Server {
    start_with(metrics, Readiness::new())
}

fn start_with(metrics: &Arc<Metrics>, readiness: Readiness) -> Server {
    let stack = stack();
    let endpoints = MetricsServer {
        metrics: metrics.clone(),
        readiness: Arc::new(readiness),
        post_timeout: stack.post_timeout().clone(),
        configz: r#"{"node-lb":{}}"#.into(),
    };
    let listener = bind(any_port()).unwrap();
    let limits = Limits::default();
    stack.serve(listener, "metrics", endpoints, limits).unwrap()
}

async fn scrape(metrics: &Arc<Metrics>) -> String {
    let server = start(metrics);
    get(server.address(), "/metrics").await.body
}

fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|found| found == *line),
            "{line} not in\n{text}"
        );
    }
}

/// The upper bounds of a histogram's buckets as printed.
fn bounds<'a>(text: &'a str, histogram: &str) -> Vec<&'a str> {
    text.lines()
        .filter_map(|line| line.strip_prefix(histogram)?.strip_prefix("_bucket"))
        .map(|line| line.split("le=\"").nth(1).unwrap())
        .map(|line| line.split('"').next().unwrap())
        .collect()
}
