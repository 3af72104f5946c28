use std::io::Write;

use clap::{Args as _, Parser};
use tempfile::NamedTempFile;

use super::*;

#[test]
fn defaults() {
    let config = config(&[]).unwrap();
    assert_eq!(config.plan, PlanOptions::default());
    assert_eq!(config.timeouts, FlowTimeouts::default());
    assert_eq!(config.detect_local, DetectLocal::Auto(Vec::new()));
    assert_eq!(config.healthz_bind_address.to_string(), "0.0.0.0:10256");
    assert_eq!(config.metrics_bind_address.to_string(), "127.0.0.1:10249");
    assert!(!config.masquerade_all);
}

/// The agent accepts the settings in deploy/.
#[test]
fn deployed_settings_are_settings() {
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let text = fs::read_to_string(deploy.join("base/config.yaml")).unwrap();
    let object: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let mut file = NamedTempFile::new().unwrap();
    let settings = object["data"]["config.yaml"].as_str().unwrap();
    file.write_all(settings.as_bytes()).unwrap();
    let arguments = file::arguments(file.path(), |_| false).unwrap();
    assert_eq!(arguments, [""; 0]);
}

/// The agent accepts the settings on each page about a distribution or a CNI, and has the flags
/// that it names.
#[test]
fn documented_settings_are_settings() {
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = fs::read_dir(manifest.join("../docs/distributions")).unwrap();
    let mut tried = 0;
    for page in pages {
        let path = page.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        for block in text.split("```yaml\n").skip(1) {
            let values = block.split("```").next().unwrap();
            let values: serde_json::Value = serde_saphyr::from_str(values).unwrap();
            // JSON is YAML.
            let settings = match &values["config"] {
                serde_json::Value::Null => "{}".to_owned(),
                config => config.to_string(),
            };
            let given = arguments(&settings, &[]).unwrap();
            let given: Vec<_> = given.iter().map(String::as_str).collect();
            let config = config(&given);
            assert!(config.is_ok(), "{}: {config:?}", path.display());
            tried += 1;
        }
        for flag in text.split("`--").skip(1) {
            let name = flag.split(['`', '=', ' ']).next().unwrap();
            let known = Flags::augment_args(clap::Command::new("settings"))
                .get_arguments()
                .any(|argument| argument.get_long() == Some(name));
            assert!(known, "{}: there is no --{name}", path.display());
        }
    }
    assert!(tried >= 13, "{tried} pages have settings");
}

#[test]
fn a_limit_of_connections_is_not_negative() {
    assert_eq!(config(&[]).unwrap().max_connections, 0);
    assert_eq!(config(&["--max-connections=7"]).unwrap().max_connections, 7);
    for given in ["--max-connections=-1", "--max-connections -1"] {
        let given: Vec<_> = given.split(' ').collect();
        let error = config(&given).unwrap_err().to_string();
        let said = "must not be negative; 0 means no limit";
        assert!(error.contains(said), "{error}");
    }
    for wrong in ["2147483648", "many", "1.5"] {
        assert!(config(&[&format!("--max-connections={wrong}")]).is_err());
    }
}

#[test]
fn levels_need_seats_to_share() {
    let admission = |given: &[&str]| config(given).map(|config| config.admission.mode);
    assert_eq!(admission(&[]).unwrap(), AdmissionMode::Off);
    let error = admission(&["--admission=enforce"]).unwrap_err().to_string();
    assert!(error.contains("--max-connections"), "{error}");
    let given = [
        "--admission=audit",
        "--max-connections=1",
        "--admission-objects=/a",
    ];
    assert_eq!(admission(&given).unwrap(), AdmissionMode::Audit);
}

#[test]
fn http_servers_are_limited_by_flags_and_a_feature_gate() {
    assert_eq!(config(&[]).unwrap().http, HttpConfig::default());
    let http = config(&[
        "--request-timeout=1m",
        "--max-requests-inflight=0",
        "--max-mutating-requests-inflight=7",
        "--cache-initialization-timeout=0",
        "--feature-gates=PerRequestDeadline=false,AllowServiceExternalIPs=true",
    ]);
    let expected = HttpConfig {
        request_timeout: Duration::from_secs(60),
        per_request_deadline: false,
        max_requests_inflight: 0,
        max_mutating_requests_inflight: 7,
        cache_initialization_timeout: Duration::ZERO,
    };
    assert_eq!(http.unwrap().http, expected);
    assert!(config(&["--request-timeout=0"]).is_err());
}

#[test]
fn configz_has_every_setting_by_the_name_of_its_flag() {
    let shown = config(&[
        "--xdp-mode=off",
        "--detect-local-mode=none",
        "--conntrack-udp-timeout=90s500ms",
        "--cache-initialization-timeout=0",
    ]);
    let shown = shown.unwrap().configz()["node-lb"].clone();
    let command = <TestCli as clap::CommandFactory>::command();
    let flags = command.get_arguments().filter_map(|flag| flag.get_long());
    for flag in flags.filter(|flag| *flag != "config") {
        assert!(shown.get(flag).is_some(), "--{flag} is not in {shown}");
    }
    assert_eq!(shown["xdp-mode"], "off");
    assert_eq!(shown["detect-local-mode"], "none");
    for (flag, duration) in [
        ("request-timeout", "10s"),
        ("conntrack-tcp-timeout-established", "24h"),
        ("conntrack-udp-timeout", "1m30s500ms"),
        ("cache-initialization-timeout", "0s"),
    ] {
        assert_eq!(shown[flag], duration, "{flag}");
    }
    assert_eq!(shown["nodeport-addresses"][0], "primary");
}

#[test]
fn source_is_the_api_server_unless_it_is_named() {
    let flags = TestCli::try_parse_from(["test"]).unwrap().flags;
    let config = Config::try_from(flags).unwrap();
    assert_eq!(config.source, SourceSpec::Kubernetes);
    assert_eq!(config.api_access, ApiAccess::default());
}

#[test]
fn api_server_is_named_as_for_kube_proxy() {
    let url = "https://192.0.2.1:6443";
    let access = config(&["--kubeconfig=/etc/k", "--master", url])
        .unwrap()
        .api_access;
    assert_eq!(access.kubeconfig, Some("/etc/k".into()));
    assert_eq!(access.master, Some(url.parse().unwrap()));
    for bad in [
        "",
        "192.0.2.1",
        "192.0.2.1:6443",
        "ftp://192.0.2.1",
        "/path",
    ] {
        assert!(config(&["--master", bad]).is_err(), "{bad:?}");
    }
}

#[test]
fn node_name_is_trimmed_and_lower_cased() {
    for flag in ["--node", "--hostname-override"] {
        assert_eq!(config(&[flag, " Worker-1 "]).unwrap().node_name, "worker-1");
    }
    assert!(config(&["--node", " "]).is_err());
}

#[test]
fn node_addresses_follow_the_node_objects() {
    let config = config(&["--node=a", "--node-address=192.0.2.9,192.0.2.1"]).unwrap();
    let object = Node {
        name: "a".into(),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        ..Node::default()
    };
    let addresses = |node: Node| {
        node.addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        addresses(config.this_node(Some(&object))),
        ["192.0.2.1", "192.0.2.9"]
    );
    assert_eq!(
        addresses(config.this_node(None)),
        ["192.0.2.9", "192.0.2.1"]
    );
    assert_eq!(config.this_node(None).name, "a");
}

#[test]
fn node_port_addresses_are_primary_or_networks() {
    let networks = config(&["--nodeport-addresses", "192.0.2.0/24,2001:db8::/64"]).unwrap();
    let expected = ["192.0.2.0/24", "2001:db8::/64"].map(|net| net.parse().unwrap());
    assert_eq!(
        networks.plan.node_port_addresses,
        NodePortAddresses::Networks(expected.into())
    );
    assert!(config(&["--nodeport-addresses", "primary,192.0.2.0/24"]).is_err());
    assert!(config(&["--nodeport-addresses", "primary,primary"]).is_err());
}

#[test]
fn detector_modes_need_their_partner() {
    let mode = |arguments: &[&str]| config(arguments).map(|config| config.detect_local).ok();
    let bridge = "--detect-local-mode=BridgeInterface";
    assert_eq!(mode(&[bridge]), None);
    assert_eq!(
        mode(&[bridge, "--pod-bridge-interface=cni0"]),
        Some(DetectLocal::BridgeInterface("cni0".into()))
    );
    let prefix = "--detect-local-mode=InterfaceNamePrefix";
    assert_eq!(mode(&[prefix]), None);
    assert_eq!(
        mode(&[prefix, "--pod-interface-name-prefix=veth"]),
        Some(DetectLocal::InterfaceNamePrefix("veth".into()))
    );
    assert_eq!(
        mode(&["--detect-local-mode=NodeCIDR"]),
        Some(DetectLocal::NodeCidr)
    );
    assert_eq!(mode(&["--detect-local-mode=none"]), Some(DetectLocal::None));
}

#[test]
fn cluster_cidr_takes_one_network_per_family() {
    assert!(config(&["--cluster-cidr=10.0.0.0/8,fd00::/64"]).is_ok());
    assert!(config(&["--cluster-cidr=10.0.0.0/8,172.16.0.0/12"]).is_err());
}

#[test]
fn booleans_are_written_with_or_without_a_value() {
    for (argument, expected) in [
        ("--masquerade-all", true),
        ("--masquerade-all=true", true),
        ("--masquerade-all=false", false),
    ] {
        assert_eq!(config(&[argument]).unwrap().masquerade_all, expected);
    }
}

#[test]
fn zero_timeouts_mean_the_default() {
    let config = config(&[
        "--conntrack-udp-timeout=0",
        "--conntrack-udp-timeout-stream=9s",
    ]);
    let timeouts = config.unwrap().timeouts;
    assert_eq!(timeouts.udp, FlowTimeouts::default().udp);
    assert_eq!(timeouts.udp_stream, Duration::from_secs(9));
}

#[test]
fn feature_gates_change_plans() {
    let gates = "--feature-gates=AllowServiceExternalIPs=false,PreferSameTrafficDistribution=false";
    let options = config(&[gates]).unwrap().plan;
    assert!(!options.allow_external_ips);
    assert!(!options.honour_node_hints);
}

#[test]
fn file_has_the_same_settings_as_the_command_line() {
    let file = "
# Scalars, lists and words that other YAML readers take for booleans.
hostname-override: Worker-1
xdp-mode: off
masquerade-all: true
cluster-cidr: 10.0.0.0/8,fd00::/64
nodeport-addresses: [192.0.2.0/24, '2001:db8::/64']
flow-table-size: 4096
conntrack-udp-timeout: 1m30s
pod-bridge-interface:
";
    assert_eq!(
        arguments(file, &[]).unwrap(),
        [
            "--hostname-override=Worker-1",
            "--xdp-mode=off",
            "--masquerade-all=true",
            "--cluster-cidr=10.0.0.0/8,fd00::/64",
            "--nodeport-addresses=192.0.2.0/24",
            "--nodeport-addresses=2001:db8::/64",
            "--flow-table-size=4096",
            "--conntrack-udp-timeout=1m30s",
        ]
    );
}

#[test]
fn command_line_wins_over_the_file() {
    let file = "node-address: [192.0.2.1, 192.0.2.2]\nnode: a\n";
    assert_eq!(arguments(file, &["node_addresses"]).unwrap(), ["--node=a"]);
}

#[test]
fn empty_file_sets_nothing() {
    for file in ["", "# nothing\n", "---\n"] {
        assert_eq!(arguments(file, &[]).unwrap(), [""; 0]);
    }
}

#[test]
fn errors_in_the_file_name_line_and_setting() {
    for (file, expected) in [
        ("node: a\nsorce: dir:/a\n", ":2: unknown setting \"sorce\""),
        ("config: other.yaml\n", ":1: unknown setting \"config\""),
        (
            "\n\nmaglev-table-size: 16384\n",
            ":3: invalid value '16384' for '--maglev-table-size <ENTRIES>': must be a prime",
        ),
        ("xdp-mode: fast\n", ":1: invalid value 'fast'"),
        (
            "flow-table-size: [4096, 8192]\n",
            ":1: the argument '--flow-table-size <FLOWS>' cannot",
        ),
        (
            "nodeport-addresses: {a: b}\n",
            "expected a value or a list of values",
        ),
        ("node: a\nnode: b\n", "duplicate"),
        ("just text\n", "expected a mapping of settings"),
        ("a: [\n", "at line 1"),
    ] {
        let error = format!("{:#}", arguments(file, &[]).unwrap_err());
        assert!(error.contains(expected), "{file:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[derive(Parser)]
struct TestCli {
    #[command(flatten)]
    flags: Flags,
}

fn config(arguments: &[&str]) -> anyhow::Result<Config> {
    let arguments = ["test", "--source=dir:/manifests"].iter().chain(arguments);
    Config::try_from(TestCli::try_parse_from(arguments)?.flags)
}

fn arguments(file: &str, overridden: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut temporary = NamedTempFile::new()?;
    temporary.write_all(file.as_bytes())?;
    let arguments = file::arguments(temporary.path(), |flag| overridden.contains(&flag))?;
    Ok(arguments
        .into_iter()
        .map(|argument| argument.into_string().unwrap())
        .collect())
}
