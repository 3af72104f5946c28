//! `node-lb check`: it finds problems of a node before the agent starts, and says what to do.

use anyhow::{Context, Result};
use lb_tests::{Agent, Balanced, Lab, Node, Serve, balanced};
use node_lb::check::Level;
use serde_json::Value;

use crate::support::SMALL;

/// kube-proxy's table in nftables mode, and the chains that `iptables-nft` makes for its iptables
/// mode.
const KUBE_PROXY: &str = "
table ip kube-proxy {
    chain services {
    }
}
table ip6 nat {
    chain KUBE-SERVICES {
    }
}
table ip filter {
    chain KUBE-FIREWALL {
    }
}
";

#[test]
fn a_fit_node_has_no_failures() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let report = Report::of(lab.node(1), "exec \"$@\"")?;
    assert_eq!(report.code, Some(0), "{}", report.said);
    let programs = report.finding("programs");
    assert!(
        programs.found.contains("the kernel accepts all"),
        "{programs:?}"
    );
    assert!(report.finding("device eth0").found.starts_with("external"));
    for check in [
        "kernel",
        "BTF",
        "capabilities",
        "BPF file system",
        "kube-proxy, nftables",
    ] {
        let found = report.finding(check);
        assert_eq!(found.level, Level::Ok, "{found:?}");
        assert_eq!(found.remedy, None, "{found:?}");
    }
    // Nothing of the trial is left.
    let pins = &lab.node(1).pin_root;
    assert!(!pins.exists(), "{} is left", pins.display());
    Ok(())
}

#[test]
fn rules_of_kube_proxy_are_named_and_do_not_fail() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let node = lab.node(1);
    node.feed("nft -f -", KUBE_PROXY)?;
    let report = Report::of(node, "exec \"$@\"")?;
    assert_eq!(report.code, Some(0), "{}", report.said);
    let found = report.finding("kube-proxy, nftables");
    assert_eq!(found.level, Level::Warning);
    assert_eq!(
        found.found,
        "rules in table ip kube-proxy, table ip6 nat (iptables)"
    );
    assert!(found.remedy().contains("kube-proxy --cleanup"), "{found:?}");
    Ok(())
}

#[test]
fn a_taken_port_fails_and_says_how_to_find_its_owner() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let node = lab.node(1);
    let _squatter = Serve::new("squatter").tcp(10249).start(node)?;
    let report = Report::of(node, "exec \"$@\"")?;
    assert_eq!(report.code, Some(1), "{}", report.said);
    let found = report.finding("metrics-bind-address");
    assert_eq!(found.level, Level::Failure);
    assert!(found.found.contains("127.0.0.1:10249"), "{found:?}");
    assert!(
        found.remedy().contains("ss -lntp sport = :10249"),
        "{found:?}"
    );
    assert_eq!(report.finding("healthz-bind-address").level, Level::Ok);
    Ok(())
}

#[test]
fn ports_for_source_nat_are_what_the_node_leaves_and_few_are_a_warning() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let node = lab.node(1);
    for (own, level, found) in [
        ("32768 60999", Level::Ok, "1024-29999"),
        (
            "1024 60999",
            Level::Warning,
            "61000-65535 are only 4536 ports",
        ),
        ("1024 65535", Level::Warning, "the node's own connections"),
    ] {
        node.set_sysctl("net/ipv4/ip_local_port_range", own)?;
        let report = Report::of(node, "exec \"$@\"")?;
        assert_eq!(report.code, Some(0), "{}", report.said);
        let ports = report.finding("SNAT ports");
        assert_eq!(ports.level, level, "{ports:?}");
        assert!(ports.found.contains(found), "{ports:?}");
        if level == Level::Warning {
            assert!(ports.remedy().contains("--snat-ports"), "{ports:?}");
        }
    }
    node.set_sysctl("net/ipv4/ip_local_port_range", "1024 60999")?;
    let agent = Agent::start(node, balanced::spec(node, &[])?)?;
    let log = agent.log()?;
    assert!(
        log.contains("source NAT: 61000-65535 are only 4536 ports"),
        "{log}"
    );
    Ok(())
}

/// As in a pod: three capabilities, and only what the node has mounted.
#[test]
fn a_missing_bpf_file_system_fails_where_it_cannot_be_mounted() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let script = "umount --all --types bpf && \
                  exec setpriv --bounding-set=-all,+bpf,+net_admin,+perfmon --inh-caps=-all \"$@\"";
    let report = Report::of(lab.node(1), script)?;
    assert_eq!(report.code, Some(1), "{}", report.said);
    let found = report.finding("BPF file system");
    assert_eq!(found.level, Level::Failure);
    assert!(
        found.remedy().contains("mount -t bpf bpf /sys/fs/bpf"),
        "{found:?}"
    );
    assert_eq!(report.finding("capabilities").level, Level::Ok);
    assert!(report.finding("programs").found.starts_with("not tried"));
    Ok(())
}

#[test]
fn the_ports_of_a_running_agent_are_its_own() -> Result<()> {
    let ground = Balanced::up(SMALL)?;
    let node = ground.lab.node(1);
    let report = Report::of(node, "exec \"$@\"")?;
    assert_eq!(report.code, Some(0), "{}", report.said);
    for setting in ["healthz-bind-address", "metrics-bind-address"] {
        let found = report.finding(setting);
        assert!(found.found.contains("the running agent has"), "{found:?}");
    }
    let device = report.finding("device eth0");
    assert_eq!(device.level, Level::Ok, "its own XDP program: {device:?}");
    Ok(())
}

#[test]
fn a_device_with_a_foreign_xdp_program_is_named() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    let program = lab.id().pin_root("lab").join("xdp_pass");
    let attach = format!("ip link set eth0 xdpdrv pinned {}", program.display());
    lab.node(1).run(&attach)?;
    let report = Report::of(lab.node(1), "exec \"$@\"")?;
    assert_eq!(report.code, Some(0), "{}", report.said);
    let found = report.finding("device eth0");
    assert_eq!(found.level, Level::Warning);
    assert!(found.found.contains("another XDP program"), "{found:?}");
    assert!(
        found.remedy().contains("ip link set eth0 xdp off"),
        "{found:?}"
    );
    Ok(())
}

/// With the API server as the source: one that does not exist, and one that is not named.
#[test]
fn an_unreachable_api_server_fails() -> Result<()> {
    let lab = Lab::up(SMALL)?;
    for (settings, text) in [
        (
            &["--master=http://127.0.0.1:1"][..],
            "cannot reach the API server",
        ),
        (&[], "KUBERNETES_SERVICE_HOST is empty"),
    ] {
        let mut arguments = vec!["--source=kubernetes"];
        arguments.extend(settings);
        let script = "exec env KUBERNETES_SERVICE_HOST= \"$@\"";
        let report = Report::with(lab.node(1), script, &arguments)?;
        assert_eq!(report.code, Some(1), "{}", report.said);
        let found = report.finding("API server");
        assert_eq!(found.level, Level::Failure);
        assert!(found.found.contains(text), "{found:?}");
        assert!(
            found.remedy().contains("KUBERNETES_SERVICE_HOST"),
            "{found:?}"
        );
    }
    Ok(())
}

/// What `node-lb check` says.
pub struct Report {
    pub code: Option<i32>,
    pub said: String,
    findings: Vec<Found>,
}

/// A finding in the form of its JSON.
#[derive(Clone, Debug)]
pub struct Found {
    pub level: Level,
    pub found: String,
    remedy: Option<String>,
    check: String,
}

impl Found {
    pub fn remedy(&self) -> &str {
        self.remedy.as_deref().unwrap_or_default()
    }
}

impl Report {
    /// Runs the check on a node from a shell script with its own mounts, with manifests as the
    /// source.
    pub fn of(node: &Node, script: &str) -> Result<Self> {
        let source = format!("--source=dir:{}", node.manifests().display());
        Self::with(node, script, &[&source])
    }

    pub fn with(node: &Node, script: &str, arguments: &[&str]) -> Result<Self> {
        let socket = balanced::socket(node);
        let output = node
            .command("timeout")?
            .args(["60", "unshare", "--mount", "sh", "-c", script, "sh"])
            .arg(balanced::node_lb()?)
            .args(["check", "--output=json", "--node", node.name()])
            .args(["--node-address", &node.ip(lb_tests::Family::V4).to_string()])
            .arg("--bpf-root")
            .arg(&node.pin_root)
            .arg("--socket")
            .arg(socket)
            .args(arguments)
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout).with_context(|| said.clone())?;
        let findings = report["findings"].as_array().context("no findings")?;
        let text = |found: &Value, key: &str| found[key].as_str().map(str::to_owned);
        Ok(Self {
            code: output.status.code(),
            findings: findings
                .iter()
                .map(|found| {
                    Some(Found {
                        level: match found["level"].as_str()? {
                            "ok" => Level::Ok,
                            "warning" => Level::Warning,
                            _ => Level::Failure,
                        },
                        check: text(found, "check")?,
                        found: text(found, "found")?,
                        remedy: text(found, "remedy"),
                    })
                })
                .collect::<Option<_>>()
                .with_context(|| said.clone())?,
            said,
        })
    }

    #[track_caller]
    pub fn finding(&self, check: &str) -> &Found {
        let found = self.findings.iter().find(|found| found.check == check);
        found.unwrap_or_else(|| panic!("nothing about {check:?}: {}", self.said))
    }
}
