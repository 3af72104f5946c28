//! Tests of Services: which are used, what of them is used, and what is refused.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    super::{super::Object, Outcome, Translated},
    ips, translated, used_service,
};
use crate::{
    Algorithm, Endpoint, Protocol, RemovedEndpoints, ServiceType, SharedName, TrafficPolicy,
};

#[test]
fn a_full_service() {
    let service = used_service(json!({
        "metadata": {"namespace": "shop", "name": "web",
            "creationTimestamp": "1970-01-02T00:00:07Z",
            "annotations": {"node-lb.io/algorithm": "maglev",
                "node-lb.io/removed-endpoints": "reset",
                "node-lb.io/max-connections": "250", "node-lb.io/long-running": "true"}},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": ["192.0.2.1", "192.0.2.1", "2001:db8::1"],
            "ports": [
                {"name": "http", "port": 80, "nodePort": 30080},
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "sig", "port": 80, "protocol": "SCTP"}],
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": [" 198.51.100.7/24\n", "2001:db8::/32"],
            "healthCheckNodePort": 32000, "sessionAffinity": "ClientIP"},
        "status": {"loadBalancer": {"ingress": [
            {"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "VIP"},
            {"ip": "203.0.113.3", "ipMode": "Proxy"}, {"hostname": "lb.example"}]}}
    }));
    assert_eq!(service.name.namespace, "shop");
    assert_eq!(service.created, 24 * 60 * 60 + 7);
    assert_eq!(service.service_type, ServiceType::LoadBalancer);
    assert_eq!(service.cluster_ips, ips(&["10.96.0.1", "fd00::1"]));
    assert_eq!(service.external_ips, ips(&["192.0.2.1", "2001:db8::1"]));
    assert_eq!(
        service.load_balancer_ips,
        ips(&["203.0.113.1", "203.0.113.2"])
    );
    let ports = service
        .ports
        .iter()
        .map(|port| (&*port.name, port.protocol, port.port));
    assert!(ports.eq([
        ("http", Protocol::Tcp, 80),
        ("dns", Protocol::Udp, 53),
        ("sig", Protocol::Sctp, 80)
    ]));
    assert_eq!(service.ports[0].node_port, 30080);
    assert_eq!(service.internal_traffic_policy, TrafficPolicy::Local);
    assert_eq!(service.external_traffic_policy, TrafficPolicy::Local);
    let ranges: Vec<_> = service
        .load_balancer_source_ranges
        .iter()
        .map(|r| r.to_string())
        .collect();
    assert_eq!(ranges, ["198.51.100.0/24", "2001:db8::/32"]);
    assert_eq!(service.health_check_node_port, 32000);
    assert_eq!(service.session_affinity, Some(Duration::from_secs(10_800)));
    assert_eq!(service.algorithm, Algorithm::Maglev);
    assert_eq!(service.removed_endpoints, RemovedEndpoints::Reset);
    assert_eq!((service.max_connections, service.long_running), (250, true));
}

#[test]
fn services_that_are_not_for_a_proxy() {
    let web = json!({"name": "web"});
    let cases = [
        json!({"metadata": web}),
        json!({"metadata": web, "spec": {}}),
        json!({"metadata": web, "spec": {"clusterIP": "None", "externalIPs": ["192.0.2.1"]}}),
        json!({"metadata": web, "spec": {"type": "ExternalName", "clusterIP": "10.96.0.1"}}),
        json!({"metadata": {"name": "web", "labels": {"service.kubernetes.io/service-proxy-name": ""}},
            "spec": {"clusterIP": "10.96.0.1"}}),
    ];
    for case in cases {
        let translated = translated("Service", case.clone());
        assert_eq!(translated.outcome, Outcome::Skip, "{case}");
        assert!(translated.problems.is_empty());
    }
}

#[test]
fn families_without_a_cluster_ip_have_no_other_addresses() {
    let service = used_service(json!({
        "metadata": {"name": "web"},
        "spec": {"ipFamilies": ["IPv6"], "clusterIPs": ["fd00::1"], "clusterIP": "fd00::1",
            "externalIPs": ["192.0.2.1"],
            "loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8::/32"]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}, {"ip": "2001:db8::2"}]}}
    }));
    assert_eq!(service.cluster_ips, ips(&["fd00::1"]));
    assert!(service.external_ips.is_empty());
    assert_eq!(service.load_balancer_ips, ips(&["2001:db8::2"]));
    assert_eq!(service.load_balancer_source_ranges.len(), 1);
}

#[test]
fn cluster_ips_follow_the_families() {
    let cases = [
        (json!({"clusterIP": "10.96.0.1"}), vec!["10.96.0.1"]),
        // Without families, only the primary address is used.
        (
            json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"]}),
            vec!["10.96.0.1"],
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"]}),
            vec!["10.96.0.1"],
        ),
        (
            json!({"clusterIPs": ["fd00::1"], "ipFamilies": ["IPv6"]}),
            vec!["fd00::1"],
        ),
        (
            json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "10.96.0.1"], "ipFamilies": ["IPv6"]}),
            vec!["fd00::1"],
        ),
        (json!({"clusterIP": "010.096.000.001"}), vec!["10.96.0.1"]),
        (json!({"clusterIP": "::ffff:10.96.0.1"}), vec!["10.96.0.1"]),
    ];
    for (spec, expected) in cases {
        let service = used_service(json!({"metadata": {"name": "web"}, "spec": spec.clone()}));
        assert_eq!(service.cluster_ips, ips(&expected), "{spec}");
    }
}

#[test]
fn invalid_services_are_refused_by_name_field_value_and_rule() {
    let affinity = |seconds: i64| {
        json!({"clusterIP": "10.96.0.1", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
    };
    let port = |port: Value| json!({"clusterIP": "10.96.0.1", "ports": [{"port": 1}, port]});
    let cases = [
        (
            json!({"clusterIP": "10.96.0.300"}),
            r#"spec.clusterIP: "10.96.0.300" must be an IP"#,
        ),
        (
            json!({"clusterIP": "127.0.0.1"}),
            r#"spec.clusterIP: "127.0.0.1" must not be"#,
        ),
        (
            json!({"clusterIP": 5}),
            "spec.clusterIP: invalid type: integer `5`, expected a string",
        ),
        (
            json!({"clusterIP": "fd00::1", "ipFamilies": ["IPv4"]}),
            r#"spec.clusterIPs[0]: "fd00::1" must be an IPv4 address"#,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ipFamilies": ["IPv5"]}),
            r#"spec.ipFamilies[0]: "IPv5""#,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "type": "Magic"}),
            r#"spec.type: "Magic" must be"#,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "externalIPs": ["x"]}),
            r#"spec.externalIPs[0]: "x""#,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "healthCheckNodePort": 65536}),
            "spec.healthCheckNodePort: 65536 must be between 1 and 65535",
        ),
        (
            port(json!({"name": "b", "port": 0})),
            "spec.ports[1].port: 0 must be between 1 and 65535",
        ),
        (
            port(json!({"name": "b", "port": 65536})),
            "spec.ports[1].port: 65536 must be",
        ),
        (
            port(json!({"name": "b", "port": 9999999999u64})),
            "spec.ports[1].port: invalid value",
        ),
        (
            port(json!({"name": "b", "port": "http"})),
            "spec.ports[1].port: invalid type",
        ),
        (
            port(json!({"name": "b", "port": 2, "nodePort": -1})),
            "spec.ports[1].nodePort: -1 must be",
        ),
        (
            port(json!({"name": "b", "port": 2, "protocol": "tcp"})),
            r#"spec.ports[1].protocol: "tcp" must be TCP, UDP or SCTP"#,
        ),
        (
            port(json!({"name": "", "port": 2})),
            r#"spec.ports[1].name: "" must differ"#,
        ),
        (
            port(json!({"name": "b", "port": 1})),
            "spec.ports[1].port: 1 must differ",
        ),
        (
            port(json!({"name": "B!", "port": 1})),
            r#"spec.ports[1].name: "B!" must be 1 to 63"#,
        ),
        (
            affinity(-1),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: -1 must be between 1 and 86400",
        ),
        (affinity(0), "timeoutSeconds: 0 must be"),
        (affinity(86_401), "timeoutSeconds: 86401 must be"),
        (json!([]), "spec: invalid type: sequence"),
    ];
    for (spec, expected) in cases {
        let manifest =
            json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec.clone()});
        let translated = translated("Service", manifest);
        assert_eq!(translated.outcome, Outcome::Refuse, "{spec}");
        let [problem] = &translated.problems[..] else {
            panic!("{spec}: {:?}", translated.problems);
        };
        let message = problem.to_string();
        assert!(message.starts_with("Service shop/web: "), "{message}");
        assert!(message.contains(expected), "{spec}: {message}");
    }
}

#[test]
fn a_limit_of_connections_that_is_no_number_sets_none() {
    for text in [
        "",
        "-1",
        "+1",
        "1e3",
        "many",
        "2147483648",
        "99999999999999999999",
    ] {
        let translated = translated(
            "Service",
            json!({
                "metadata": {"name": "web", "annotations": {"node-lb.io/max-connections": text,
                    "node-lb.io/long-running": "yes"}},
                "spec": {"clusterIP": "10.96.0.1"}
            }),
        );
        let Outcome::Use(Object::Service(service)) = translated.outcome else {
            panic!("{translated:?}");
        };
        assert_eq!(
            (service.max_connections, service.long_running),
            (0, false),
            "{text}"
        );
        let problems = translated.problems.iter().map(ToString::to_string);
        let problems: Vec<_> = problems.collect();
        assert!(problems[0].contains("metadata.annotations[node-lb.io/max-connections]"));
        assert!(problems[0].contains("must be a whole number from 0 to 2147483647"));
        assert!(problems[1].contains("must be false or true, and is taken as false"));
    }
    let most = json!({"metadata": {"name": "web",
        "annotations": {"node-lb.io/max-connections": "2147483647"}},
        "spec": {"clusterIP": "10.96.0.1"}});
    assert_eq!(used_service(most).max_connections, 2_147_483_647);
}

#[test]
fn endpoints_may_have_a_limit_and_get_connections_by_load() {
    let service = used_service(json!({"metadata": {"name": "web",
        "annotations": {"node-lb.io/max-connections-per-endpoint": "40",
            "node-lb.io/algorithm": "least-connections"}},
        "spec": {"clusterIP": "10.96.0.1"}}));
    assert_eq!(service.max_connections_per_endpoint, 40);
    assert_eq!(service.max_connections, 0);
    assert_eq!(service.algorithm, Algorithm::LeastConnections);

    let translated = translated(
        "Service",
        json!({"metadata": {"name": "web",
            "annotations": {"node-lb.io/max-connections-per-endpoint": "few",
                "node-lb.io/algorithm": "leastconn"}},
            "spec": {"clusterIP": "10.96.0.1"}}),
    );
    let Outcome::Use(Object::Service(service)) = translated.outcome else {
        panic!("{translated:?}");
    };
    assert_eq!(service.max_connections_per_endpoint, 0);
    assert_eq!(service.algorithm, Algorithm::Random);
    let problems = translated.problems.iter().map(ToString::to_string);
    let problems = problems.collect::<Vec<_>>().join("\n");
    for expected in [
        "annotations[node-lb.io/max-connections-per-endpoint]",
        "must be random, maglev, least-connections or least-latency, and is taken as random",
    ] {
        assert!(problems.contains(expected), "{problems}");
    }
}

#[test]
fn a_hash_balance_factor_is_above_a_hundred_percent() {
    let service = |factor: &str| {
        let translated = translated(
            "Service",
            json!({"metadata": {"name": "web", "annotations": {"node-lb.io/algorithm": "maglev",
                "node-lb.io/hash-balance-factor": factor}},
                "spec": {"clusterIP": "10.96.0.1"}}),
        );
        let Outcome::Use(Object::Service(service)) = translated.outcome else {
            panic!("{translated:?}");
        };
        let problems = translated.problems.iter().map(ToString::to_string);
        (service.hash_balance_factor, problems.collect::<Vec<_>>())
    };
    for (text, factor) in [("0", 0), ("101", 101), ("125", 125), ("10000", 10_000)] {
        assert_eq!(service(text), (factor, Vec::new()));
    }
    for text in ["100", "1", "10001", "70000", "-125", "1.25", "", "many"] {
        let (factor, problems) = service(text);
        assert_eq!((factor, problems.len()), (0, 1), "{text:?}");
        let expected = "must be 0 or a whole number from 101 to 10000, and is taken as 0";
        assert!(problems[0].contains(expected), "{problems:?}");
        assert!(
            problems[0].contains("annotations[node-lb.io/hash-balance-factor]"),
            "{problems:?}"
        );
    }
}

#[test]
fn a_slow_start_is_a_number_of_seconds_up_to_an_hour() {
    let service = |seconds: &str| {
        let translated = translated(
            "Service",
            json!({"metadata": {"name": "web", "annotations": {"node-lb.io/slow-start": seconds}},
                "spec": {"clusterIP": "10.96.0.1"}}),
        );
        let Outcome::Use(Object::Service(service)) = translated.outcome else {
            panic!("{translated:?}");
        };
        let problems = translated.problems.iter().map(ToString::to_string);
        (service.slow_start, problems.collect::<Vec<_>>())
    };
    assert_eq!(service("0"), (None, vec![]));
    for seconds in [1, 60, 3600] {
        let time = Duration::from_secs(seconds);
        assert_eq!(service(&seconds.to_string()), (Some(time), vec![]));
    }
    for text in ["", "-1", "+1", "1.5", "60s", "3601", "99999999999999999999"] {
        let (time, problems) = service(text);
        assert_eq!((time, problems.len()), (None, 1), "{text}");
        for expected in [
            "metadata.annotations[node-lb.io/slow-start]",
            "must be a whole number from 0 to 3600, and there is no slow start",
        ] {
            assert!(problems[0].contains(expected), "{problems:?}");
        }
    }
}

#[test]
fn endpoints_have_weights_by_address_and_by_node() {
    let service = |weights: &str| {
        translated(
            "Service",
            json!({"metadata": {"name": "web", "annotations": {"node-lb.io/weights": weights}},
                "spec": {"clusterIP": "10.96.0.1"}}),
        )
    };
    let weight = |translated: &Translated, address: &str, node: Option<&str>| {
        let Outcome::Use(Object::Service(service)) = &translated.outcome else {
            panic!("{translated:?}");
        };
        service.weights.of(&Endpoint {
            address: address.parse().unwrap(),
            ready: true,
            serving: true,
            terminating: false,
            node_name: node.map(SharedName::from),
            zone_hints: Box::default(),
            node_hints: Box::default(),
        })
    };
    let good = service("10.0.0.1=3, node/big = 256,fd00::7=2, ");
    assert_eq!(good.problems, []);
    for (address, node, expected) in [
        ("10.0.0.1", None, Some(3)),
        ("10.0.0.1", Some("big"), Some(3)),
        ("10.0.0.2", Some("big"), Some(256)),
        ("fd00::7", Some("small"), Some(2)),
        ("10.0.0.2", Some("small"), None),
        ("10.0.0.2", None, None),
    ] {
        assert_eq!(weight(&good, address, node), expected, "{address} {node:?}");
    }

    let bad =
        service("10.0.0.1=0,10.0.0.2=257,node/=3,big=3,10.0.0.3,node/big=2,node/a=-1,=,node/A_b=2");
    assert_eq!(
        weight(&bad, "10.0.0.1", Some("big")),
        Some(2),
        "the good one"
    );
    let problems = bad.problems.iter().map(ToString::to_string);
    let problems: Vec<_> = problems.collect();
    assert_eq!(problems.len(), 8, "{problems:#?}");
    let range = "the weight of \"10.0.0.1\": \"0\" must be a whole number from 1 to 256";
    assert!(problems[0].contains(range), "{problems:#?}");
    let many = (0..300).map(|n| format!("10.0.{}.{}=2", n / 250, n % 250));
    let many = service(&many.collect::<Vec<_>>().join(","));
    assert_eq!(
        weight(&many, "10.0.1.5", None),
        Some(2),
        "the last that counts"
    );
    assert_eq!(weight(&many, "10.0.1.6", None), None);
    let [problem] = &many.problems[..] else {
        panic!("{:?}", many.problems);
    };
    let left_out = "\"10.0.1.6=2\" and all after it are left out: at most 256 entries count";
    assert!(problem.to_string().contains(left_out), "{problem}");
    let form = "\"node/=3\" must be ADDRESS=WEIGHT or node/NAME=WEIGHT, and is left out";
    assert!(problems[2].contains(form), "{problems:#?}");
}

#[test]
fn lesser_faults_leave_the_service_in_force() {
    let spec = json!({"clusterIP": "10.96.0.1", "loadBalancerSourceRanges": ["any", "10.0.0.0/8"],
        "sessionAffinity": "Cookie", "internalTrafficPolicy": "local"});
    let translated = translated(
        "Service",
        json!({
            "metadata": {"name": "web", "annotations": {"node-lb.io/algorithm": "best",
                "node-lb.io/removed-endpoints": "no"}},
            "spec": spec,
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3"}, {"ip": "192.0.2.1"}]}}
        }),
    );
    let Outcome::Use(Object::Service(service)) = translated.outcome else {
        panic!("{translated:?}");
    };
    assert_eq!(service.load_balancer_ips, ips(&["192.0.2.1"]));
    assert_eq!(service.load_balancer_source_ranges.len(), 1);
    assert_eq!(service.internal_traffic_policy, TrafficPolicy::Cluster);
    assert_eq!(service.session_affinity, None);
    assert_eq!(service.algorithm, Algorithm::Random);
    assert_eq!(service.removed_endpoints, RemovedEndpoints::Keep);
    let problems: Vec<_> = translated
        .problems
        .iter()
        .map(ToString::to_string)
        .collect();
    let fields = [
        "ingress[0].ip",
        "SourceRanges[0]",
        "internalTrafficPolicy",
        "sessionAffinity",
        "algorithm",
        "removed-endpoints",
    ];
    for field in fields {
        assert!(
            problems.iter().any(|problem| problem.contains(field)),
            "{field}: {problems:?}"
        );
    }
    assert_eq!(problems.len(), fields.len());
}

#[test]
fn of_very_many_faults_only_the_first_are_told_one_by_one() {
    let ranges: Vec<_> = (0..20_000).map(|number| format!("x{number}")).collect();
    let manifest = |session_affinity_timeout| {
        json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {
                "clusterIP": "10.96.0.1",
                "loadBalancerSourceRanges": ranges,
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": session_affinity_timeout}},
            },
        })
    };
    let problems = translated("Service", manifest(1)).problems;
    assert_eq!(problems.len(), 101);
    let last = problems[100].to_string();
    assert!(last.contains("19900 more of its values"), "{last}");

    // That, and why, all of it is refused is told in any case.
    let problems = translated("Service", manifest(0)).problems;
    let why = |problem: &&crate::Problem| problem.refused == crate::Refused::Object;
    let found = problems.iter().find(why).unwrap().to_string();
    assert!(found.contains("timeoutSeconds"), "{found}");
}
