//! The node's devices, and network settings that matter for them.

use std::{collections::BTreeMap, fs, net::IpAddr, path::Path};

use lb_common::abi;
use lb_datapath::{
    devices::{Device, DeviceKind, Devices, Role, RoleRules, Unserved, Watcher, xdp_programs},
    hooks,
    pins::LinkPin,
};
use lb_objects::Node;

use super::Finding;
use crate::{
    config::{Config, NetfilterMode, XdpMode},
    docs::Section,
    plan::LocalDetector,
};

const CHECK: &str = "devices";

pub async fn check(config: &Config) -> Vec<Finding> {
    let watcher = match Watcher::start().await {
        Ok(watcher) => watcher,
        Err(error) => {
            let remedy = "the network namespace must have rtnetlink: run outside of sandboxes";
            return vec![Finding::failure(CHECK, error.to_string(), remedy)];
        }
    };
    let devices = watcher.devices();
    let datapath = &config.datapath;
    let addresses = config.this_node(None).addresses;
    let rules = match RoleRules::new(datapath.device_names(), addresses) {
        Ok(rules) => rules,
        Err(error) => {
            let remedy = "correct the pattern";
            return vec![Finding::failure(CHECK, error.to_string(), remedy)];
        }
    };
    let external: Vec<_> = devices
        .iter()
        .filter(|device| device.framing().is_some() && rules.role(device) == Role::External)
        .collect();
    let mut findings = Vec::new();
    if external.is_empty() {
        findings.push(Finding::warning(
            CHECK,
            "no device is external: there is no default route, and no address of this node is known yet",
            "nothing, if the Node object has the address of a device; otherwise name the device with --device",
        ));
    }
    let programs = xdp_programs().await.unwrap_or_default();
    findings.extend(external.iter().map(|device| xdp(config, device, &programs)));
    findings.extend(forwarding(devices));
    findings.extend(reverse_path(config, &external));
    let findings = findings.into_iter();
    findings
        .map(|finding| finding.see(Section::Devices))
        .collect()
}

/// Devices that should have programs and cannot; `object` is this node's. Nothing if they cannot be
/// looked at, which is a finding of [`check`].
pub async fn unserved(config: &Config, object: Option<&Node>) -> Option<Finding> {
    let node = config.this_node(object);
    let detector = LocalDetector::new(&config.detect_local, &node);
    let rules = RoleRules::new(config.datapath.device_names(), node.addresses).ok()?;
    let watcher = Watcher::start().await.ok()?;
    let is_of_pods = |ip| detector.is_local_pod(ip, None);
    let unserved = Unserved::among(watcher.devices(), &rules, is_of_pods)?;
    let finding = Finding::failure(CHECK, unserved.found(), unserved.remedy());
    Some(finding.see(Section::Devices))
}

/// The XDP mode in which packets of an external device will arrive. `programs` are the attached
/// ones.
fn xdp(config: &Config, device: &Device, programs: &BTreeMap<u32, u32>) -> Finding {
    let check = format!("device {}", device.name);
    if let Some(id) = programs.get(&device.index)
        && !is_ours(&config.datapath.bpf_root, device.index)
    {
        return Finding::warning(
            check,
            format!("external; another XDP program, {id}, is attached: TC does the work"),
            format!(
                "to have XDP, detach the other (bpftool net; ip link set {} xdp off)",
                device.name
            ),
        );
    }
    let driver = driver(&device.name);
    let driver = driver.map_or_else(String::new, |driver| format!(" ({driver})"));
    let found = match (config.datapath.xdp_mode, device.kind) {
        _ if device.layer3 => "external; TC: its packets have no Ethernet header".to_owned(),
        (XdpMode::Off, _) => "external; TC, as --xdp-mode=off wants".to_owned(),
        (XdpMode::Generic, _) => {
            "external; XDP in the stack, as --xdp-mode=generic wants".to_owned()
        }
        (XdpMode::Auto, DeviceKind::Physical | DeviceKind::Bond) | (XdpMode::Native, _) => {
            format!("external; XDP in the driver{driver} will be tried, then in the stack, then TC")
        }
        (XdpMode::Auto, kind) => format!("external; TC: {kind:?} has no driver of its own"),
    };
    Finding::ok(check, found)
}

/// Whether a device has a link of node-lb's agent.
fn is_ours(bpf_root: &Path, ifindex: u32) -> bool {
    let links = bpf_root.join(format!("v{}", abi::VERSION)).join("links");
    [hooks::XdpMode::Native, hooks::XdpMode::Generic]
        .into_iter()
        .map(|mode| links.join(LinkPin::Xdp { mode, ifindex }.to_string()))
        .any(|link| link.exists())
}

/// The name of a device's driver, if it has one.
fn driver(device: &str) -> Option<String> {
    let link = Path::new("/sys/class/net")
        .join(device)
        .join("device/driver");
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// Traffic that does not bypass the host's stack, such as that of pods, has to be forwarded by it.
fn forwarding(devices: &Devices) -> Vec<Finding> {
    let addresses = devices.iter().flat_map(|device| &device.addresses);
    let has_v6 = addresses
        .filter(|address| address.global)
        .any(|address| matches!(address.ip, IpAddr::V6(ip) if !ip.is_loopback()));
    let mut settings = vec!["net.ipv4.ip_forward"];
    if has_v6 {
        settings.push("net.ipv6.conf.all.forwarding");
    }
    settings
        .into_iter()
        .map(|setting| match sysctl(setting).as_deref() {
            Some("0") => Finding::warning(
                setting,
                "0: pods are not routed",
                format!("sysctl -w {setting}=1, and permanently in /etc/sysctl.d"),
            ),
            Some(value) => Finding::ok(setting, value),
            None => Finding::ok(setting, "not there"),
        })
        .collect()
}

/// Strict reverse path filtering drops packets that arrive on another device than answers leave by,
/// if they get as far as the host's stack.
fn reverse_path(config: &Config, external: &[&Device]) -> Vec<Finding> {
    const SETTING: &str = "net.ipv4.conf.all.rp_filter";
    let value = |device: &str| {
        let value = sysctl(&format!("net.ipv4.conf.{device}.rp_filter"))?;
        value.parse::<u8>().ok()
    };
    let all = value("all").unwrap_or(0);
    let strict: Vec<_> = external
        .iter()
        .filter(|device| all.max(value(&device.name).unwrap_or(0)) == 1)
        .map(|device| device.name.as_str())
        .collect();
    let finding = match (config.datapath.netfilter, strict.is_empty()) {
        (_, true) => Finding::ok(SETTING, "not strict"),
        (NetfilterMode::Traverse, _) if external.len() > 1 => Finding::warning(
            SETTING,
            format!(
                "strict on {}, and with --netfilter=traverse it applies to Services",
                strict.join(", ")
            ),
            format!("sysctl -w {SETTING}=2, if routes between devices are asymmetric"),
        ),
        _ => Finding::ok(
            SETTING,
            format!("strict on {}; Services are not affected", strict.join(", ")),
        ),
    };
    vec![finding]
}

/// The value of a kernel setting, by its dotted name. Names of devices may contain dots.
fn sysctl(name: &str) -> Option<String> {
    let path = match name.strip_prefix("net.ipv4.conf.") {
        Some(rest) => format!(
            "net/ipv4/conf/{}",
            rest.rsplit_once('.').map(|(d, s)| format!("{d}/{s}"))?
        ),
        None => name.replace('.', "/"),
    };
    let value = fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    Some(value.trim().to_owned())
}
