//! Programs on the node's devices and sockets, following the devices as they come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    os::fd::BorrowedFd,
    path::Path,
};

use anyhow::Context as _;
use lb_common::abi::{self, device_flag};
use lb_datapath::{
    AttachError, Attacher, Cgroup, Direction, SocketHook, TcFlavor, XdpMode,
    devices::{
        Device, DeviceKind, Devices, Event as DeviceEvent, PatternError, Role, RoleRules, Unserved,
        WayBack,
    },
    hooks::{Framing, tc_programs},
};

use super::{kernel::Kernel, status};
use crate::{
    config::{self, DatapathConfig, SocketLb},
    map_writer::{Findings, Wrong},
    metrics::{self, DeviceMode},
    plan::LocalDetector,
};

/// What of the data plane an attached program is ([`Difference::part`]).
///
/// [`Difference::part`]: crate::map_writer::Difference::part
const PROGRAM: &str = "program";

/// What is attached to which device and to which cgroup.
pub struct Attachments {
    rules: RoleRules,
    best: config::XdpMode,
    detector: LocalDetector,
    tc: TcFlavor,
    attached: BTreeMap<u32, Attached>,
}

/// The state of a device that programs are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub name: String,
    pub role: Role,
    pub xdp: XdpMode,
    /// Why XDP is not in the mode asked for, or nothing is attached.
    pub reason: Option<String>,
    /// Whether the device has, or may have, programs other than the latest.
    pub failed: bool,
}

impl Attached {
    /// A device that does not take its programs.
    fn refused(device: &Device, role: Role, error: &anyhow::Error) -> Self {
        Self {
            name: device.name.clone(),
            role,
            xdp: XdpMode::Off,
            reason: Some(format!("{error:#}")),
            failed: true,
        }
    }

    /// For metrics: how an external device's packets come in.
    pub fn mode(&self) -> Option<DeviceMode> {
        (self.role == Role::External).then(|| DeviceMode {
            device: self.name.clone(),
            mode: match self.xdp {
                XdpMode::Native => metrics::XdpMode::Native,
                XdpMode::Generic => metrics::XdpMode::Generic,
                XdpMode::Off => metrics::XdpMode::Tc,
            },
            fell_back: self.reason.is_some(),
        })
    }
}

impl From<&Attached> for status::Device {
    fn from(attached: &Attached) -> Self {
        Self {
            name: attached.name.clone(),
            role: status::role_name(attached.role).to_owned(),
            mode: status::mode_name(attached.xdp).to_owned(),
            reason: attached.reason.clone(),
        }
    }
}

impl Attachments {
    /// Starts with nothing attached. `node_addresses` help to recognise external devices.
    ///
    /// # Errors
    ///
    /// If a pattern of device names cannot be read.
    pub fn new(
        config: &DatapathConfig,
        node_addresses: Vec<IpAddr>,
        detector: LocalDetector,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            rules: RoleRules::new(config.device_names(), node_addresses)?,
            best: config.xdp_mode,
            detector,
            tc: TcFlavor::detect(),
            attached: BTreeMap::new(),
        })
    }

    /// The devices with programs, by interface index.
    pub fn devices(&self) -> &BTreeMap<u32, Attached> {
        &self.attached
    }

    /// Attaches programs to the devices that should have them and detaches them from the others,
    /// after these changes. Each pod that starts makes a handful of changes, and few of them matter
    /// here.
    ///
    /// # Errors
    ///
    /// If the devices' flags cannot be written; a device that refuses is only reported.
    pub fn follow(
        &mut self,
        kernel: &mut Kernel,
        devices: &Devices,
        changes: &[DeviceEvent],
    ) -> anyhow::Result<()> {
        let mut any = false;
        let mut changed = BTreeSet::new();
        for change in changes.iter().filter(|change| matters(&self.rules, change)) {
            any = true;
            changed.extend(match change {
                DeviceEvent::Added(device) | DeviceEvent::Changed { after: device, .. } => {
                    Some(device.index)
                }
                DeviceEvent::AddressAdded { index, .. }
                | DeviceEvent::AddressRemoved { index, .. } => Some(*index),
                DeviceEvent::Removed(_)
                | DeviceEvent::SourceRulesChanged
                | DeviceEvent::NextHopsChanged => None,
            });
        }
        match any {
            true => self.attach_all(kernel, devices, Some(&changed)),
            false => Ok(()),
        }
    }

    /// Attaches programs to the devices that should have them, and exchanges those that are already
    /// attached.
    ///
    /// # Errors
    ///
    /// As [`Self::follow`].
    pub fn renew(&mut self, kernel: &mut Kernel, devices: &Devices) -> anyhow::Result<()> {
        self.attach_all(kernel, devices, None)
    }

    /// Describes a device where programs could not be attached or exchanged, if there is one.
    pub fn failed(&self) -> Option<String> {
        let mut attached = self.attached.values();
        let failed = attached.find(|attached| attached.failed)?;
        Some(failed.name.clone())
    }

    /// The devices that should have programs and cannot, if there are any.
    pub fn unserved(&self, devices: &Devices, detector: &LocalDetector) -> Option<Unserved> {
        Unserved::among(devices, &self.rules, |ip| detector.is_local_pod(ip, None))
    }

    /// All devices have to be looked at, or those that have nothing attached and those `changed`:
    /// what a device is to have depends on the device alone.
    fn attach_all(
        &mut self,
        kernel: &mut Kernel,
        devices: &Devices,
        changed: Option<&BTreeSet<u32>>,
    ) -> anyhow::Result<()> {
        let pins = kernel.pins.clone();
        let attacher = Attacher::new(&pins, self.tc);
        let mut wanted = BTreeSet::new();
        for device in devices.iter() {
            let Some(framing) = device.framing() else {
                continue;
            };
            let known = self.attached.get(&device.index);
            let is_settled = changed.is_some_and(|changed| !changed.contains(&device.index));
            if known.is_some() && is_settled {
                wanted.insert(device.index);
                continue;
            }
            let known = known
                .filter(|known| known.name == device.name)
                .map(|known| known.role);
            let role = match self.rules.role(device) {
                Role::Other if stays_external(known, device) => Role::External,
                Role::Other => continue,
                role => role,
            };
            if known == Some(role) && changed.is_some() {
                wanted.insert(device.index);
                continue;
            }
            let attached = match self.attach(kernel, &attacher, device, framing, role) {
                Ok(attached) => attached,
                // The device is gone, but the watcher has not reported it yet.
                Err(error) if is_gone(&error) => continue,
                Err(error) => Attached::refused(device, role, &error),
            };
            if self.attached.get(&device.index) != Some(&attached) {
                report(&attached);
            }
            wanted.insert(device.index);
            self.attached.insert(device.index, attached);
        }
        let gone: Vec<_> = self
            .attached
            .keys()
            .filter(|index| !wanted.contains(index))
            .copied()
            .collect();
        for index in gone {
            self.attached.remove(&index);
            attacher.detach_device(index)?;
        }
        kernel.set_devices(self.entries(devices))?;
        kernel.set_ways_back(self.ways_back(devices))?;
        kernel.set_tunnel_sources(self.tunnel_sources(devices))
    }

    /// Forgets a device that is gone, and removes its pins. A later device with its index is
    /// another one.
    pub fn forget(&mut self, kernel: &Kernel, ifindex: u32) {
        if let Some(attached) = self.attached.remove(&ifindex)
            && let Err(error) = Attacher::new(&kernel.pins, self.tc).forget_device(ifindex)
        {
            let device = attached.name;
            tracing::warn!(
                device,
                "the device is gone, but not all of its pins: {error}"
            );
        }
    }

    /// Removes what earlier agents left on devices that are gone or no longer of interest.
    ///
    /// # Errors
    ///
    /// If pins cannot be read or removed.
    pub fn sweep(&self, kernel: &Kernel) -> anyhow::Result<()> {
        let attacher = Attacher::new(&kernel.pins, self.tc);
        attacher.sweep(|index| self.attached.contains_key(&index))?;
        Ok(())
    }

    /// Attaches the programs for sockets to a cgroup, or detaches them.
    ///
    /// # Errors
    ///
    /// If the cgroup cannot be opened or the kernel refuses.
    pub fn sockets(
        &self,
        kernel: &Kernel,
        config: &DatapathConfig,
        cgroup_root: Option<&Path>,
    ) -> anyhow::Result<()> {
        let attacher = Attacher::new(&kernel.pins, self.tc);
        if config.socket_lb == SocketLb::Off {
            return Ok(attacher.detach_sockets()?);
        }
        let cgroup = cgroup(config, cgroup_root)?;
        for hook in SocketHook::ALL {
            attacher
                .socket(&cgroup, hook, kernel.program(hook.name())?)
                .with_context(|| format!("cannot translate sockets at {hook}"))?;
        }
        Ok(())
    }

    /// Compares what is attached to a device with what should be, and attaches it again. A device
    /// that has refused its programs is left alone, as it is known not to have them.
    pub fn verify(
        &mut self,
        kernel: &mut Kernel,
        devices: &Devices,
        index: u32,
        findings: &mut Findings,
    ) {
        let (Some(attached), Some(device)) = (self.attached.get(&index), devices.get(index)) else {
            return;
        };
        let (false, Some(framing)) = (attached.failed, device.framing()) else {
            return;
        };
        let (role, mode) = (attached.role, attached.xdp);
        let pins = kernel.pins.clone();
        let attacher = Attacher::new(&pins, self.tc);
        let mut found = Vec::new();
        for direction in [Direction::Ingress, Direction::Egress] {
            let is_there = has(kernel, direction.program(framing), |program| {
                attacher.has_tc(index, direction, program)
            });
            let is_there = findings.read(is_there);
            found.extend(is_there.map(|is_there| (direction.to_string(), is_there)));
        }
        if mode != XdpMode::Off {
            let is_there = has(kernel, device.xdp_program(), |program| {
                attacher.has_xdp(index, mode, program)
            });
            let is_there = findings.read(is_there);
            found.extend(is_there.map(|is_there| (format!("{mode} XDP"), is_there)));
        }
        if found.iter().all(|(_, is_there)| *is_there) {
            findings.records += found.len() as u64;
            return;
        }
        let attached = match self.attach(kernel, &attacher, device, framing, role) {
            Ok(attached) => attached,
            // The watcher has not reported it yet.
            Err(error) if is_gone(&error) => return,
            Err(error) => Attached::refused(device, role, &error),
        };
        for (hook, is_there) in found {
            let wrong = (!is_there).then_some(Wrong::Missing);
            findings.compared(PROGRAM, wrong, || format!("for {hook} of {}", device.name));
        }
        report(&attached);
        self.attached.insert(index, attached);
    }

    /// Compares what is attached to sockets with what should be. Returns whether it has to be
    /// attached again.
    pub fn verify_sockets(
        &self,
        kernel: &Kernel,
        config: &DatapathConfig,
        cgroup_root: Option<&Path>,
        findings: &mut Findings,
    ) -> bool {
        if config.socket_lb == SocketLb::Off {
            return false;
        }
        let attacher = Attacher::new(&kernel.pins, self.tc);
        let Some(cgroup) = findings.read(cgroup(config, cgroup_root)) else {
            return false;
        };
        let mut is_whole = true;
        for hook in SocketHook::ALL {
            let is_there = has(kernel, hook.name(), |program| {
                attacher.has_socket(&cgroup, hook, program)
            });
            let Some(is_there) = findings.read(is_there) else {
                continue;
            };
            let wrong = (!is_there).then_some(Wrong::Missing);
            findings.compared(PROGRAM, wrong, || format!("for {hook} of sockets"));
            is_whole &= is_there;
        }
        !is_whole
    }

    fn attach(
        &self,
        kernel: &mut Kernel,
        attacher: &Attacher<'_>,
        device: &Device,
        framing: Framing,
        role: Role,
    ) -> anyhow::Result<Attached> {
        let (mut xdp, mut reason) = (XdpMode::Off, None);
        if role == Role::External {
            let (best, why) = best_mode(self.best, device);
            match best {
                XdpMode::Off => {
                    attacher.detach_xdp(device.index)?;
                    reason = why;
                }
                best => {
                    let program = device.xdp_program();
                    kernel.ensure(program)?;
                    let outcome = attacher.xdp(device.index, kernel.program(program)?, best)?;
                    xdp = outcome.mode;
                    reason = outcome.reason.or(why);
                }
            }
        }
        for direction in [Direction::Ingress, Direction::Egress] {
            let name = direction.program(framing);
            kernel.ensure(name)?;
            let program = kernel.program(name)?;
            attacher.tc(device.index, direction, program)?;
        }
        Ok(Attached {
            name: device.name.clone(),
            role,
            xdp,
            reason,
            failed: false,
        })
    }

    /// What programs must know about the devices.
    fn entries(&self, devices: &Devices) -> Vec<(u32, abi::Device)> {
        // A driver's XDP can redirect frames only to devices that have native XDP too.
        let modes = || self.attached.values().map(|attached| attached.xdp);
        let target = modes().max().unwrap_or(XdpMode::Off);
        let below: BTreeSet<_> = devices.iter().filter_map(|device| device.below).collect();
        let has_pods = |device: &Device| self.detector.is_device_of_pods(&device.name);
        devices
            .iter()
            .filter_map(|device| {
                let (mut flags, mut address) = (0, 0);
                let attached = self.attached.get(&device.index);
                if target != XdpMode::Off && attached.is_some_and(|a| a.xdp == target) {
                    flags |= device_flag::XDP_TARGET;
                }
                // A bridge's packets are seen at its ports already.
                let bridge = device.master.and_then(|index| devices.get(index));
                if has_pods(device) || bridge.is_some_and(has_pods) {
                    flags |= device_flag::PODS;
                }
                if attached.is_some() && (device.master.is_some() || below.contains(&device.index))
                {
                    flags |= device_flag::PORT;
                } else if attached.is_some_and(|a| a.xdp != XdpMode::Off) {
                    address = abi::Device::address_of(device.mac.unwrap_or_default());
                }
                if attached.is_some() && !devices.source_rules(device).0.accept_local {
                    flags |= device_flag::NO_OWN_SOURCES;
                }
                if self.way_back(devices, device).0 != WayBack::NotAsked {
                    flags |= device_flag::WAY_BACK;
                }
                let special = flags != 0 || address != 0;
                special.then_some((device.index, abi::Device { flags, address }))
            })
            .collect()
    }

    /// The devices that ways back must lead to, for devices where not every way back counts.
    fn ways_back(&self, devices: &Devices) -> Vec<(u32, u32)> {
        let must = |device: &Device| match self.way_back(devices, device) {
            (WayBack::ByTheDevice, receiver) => Some((device.index, receiver)),
            _ => None,
        };
        devices.iter().filter_map(must).collect()
    }

    /// This node's addresses on tunnels.
    fn tunnel_sources(&self, devices: &Devices) -> Vec<(u32, abi::TunnelSource)> {
        let is_tunnel = |device: &&Device| {
            let attached = self.attached.get(&device.index);
            attached.is_some_and(|attached| attached.role == Role::Overlay)
        };
        let source = |device: &Device| {
            let mut source = abi::TunnelSource::default();
            // Backwards, so that the first address of each family remains.
            let addresses = device.addresses.iter().filter(|address| address.global);
            for address in addresses.rev() {
                match address.ip {
                    IpAddr::V4(ip) => source.v4 = ip.into(),
                    IpAddr::V6(ip) => source.v6 = ip.into(),
                }
            }
            (source != abi::TunnelSource::default()).then_some((device.index, source))
        };
        devices
            .iter()
            .filter(is_tunnel)
            .filter_map(source)
            .collect()
    }

    /// Whether a device's packets need a way back to their source, and the device that it must lead
    /// to. This is asked only of pods' devices: there may well be several ways back to other
    /// sources.
    fn way_back(&self, devices: &Devices, device: &Device) -> (WayBack, u32) {
        let role = self
            .attached
            .get(&device.index)
            .map(|attached| attached.role);
        match role {
            Some(Role::Pod | Role::PodBridge) => {
                let (rules, receiver) = devices.source_rules(device);
                (rules.way_back, receiver)
            }
            _ => (WayBack::NotAsked, 0),
        }
    }
}

/// Whether a program is where it should be.
fn has<'a>(
    kernel: &'a Kernel,
    name: &str,
    is_attached: impl FnOnce(BorrowedFd<'a>) -> Result<bool, AttachError>,
) -> anyhow::Result<bool> {
    Ok(is_attached(kernel.program(name)?)?)
}

/// The cgroup whose sockets are translated: the one of the settings, or else the root.
fn cgroup(config: &DatapathConfig, root: Option<&Path>) -> anyhow::Result<Cgroup> {
    let path = config.cgroup_path.as_deref().or(root);
    Ok(Cgroup::open(
        path.context("no cgroup v2 hierarchy is mounted")?,
    )?)
}

/// Whether a change may concern what is attached, or what programs must know about devices.
fn matters(rules: &RoleRules, change: &DeviceEvent) -> bool {
    match change {
        DeviceEvent::Added(_) | DeviceEvent::Removed(_) | DeviceEvent::SourceRulesChanged => true,
        DeviceEvent::Changed { before, after } => {
            // Only tunnels of layer 3 get programs by whether they are up.
            let running = |device: &Device| Device {
                up: device.up || !device.layer3,
                carrier: true,
                ..device.clone()
            };
            running(before) != running(after)
        }
        DeviceEvent::AddressAdded { address, .. } | DeviceEvent::AddressRemoved { address, .. } => {
            address.global || rules.is_of_node(address.ip)
        }
        DeviceEvent::NextHopsChanged => false,
    }
}

/// The names of the programs that sockets and the present devices need: the verifier takes its time
/// for each.
///
/// # Errors
///
/// If a pattern of device names cannot be read.
pub fn programs(
    config: &DatapathConfig,
    node_addresses: Vec<IpAddr>,
    devices: &Devices,
) -> Result<Vec<&'static str>, PatternError> {
    let rules = RoleRules::new(config.device_names(), node_addresses)?;
    let mut programs = BTreeSet::from(tc_programs(Framing::Ethernet));
    programs.extend(SocketHook::ALL.map(SocketHook::name));
    for device in devices.iter() {
        let role = rules.role(device);
        let Some(framing) = device.framing().filter(|_| role != Role::Other) else {
            continue;
        };
        programs.extend(tc_programs(framing));
        if role == Role::External && best_mode(config.xdp_mode, device).0 != XdpMode::Off {
            programs.insert(device.xdp_program());
        }
    }
    Ok(programs.into_iter().collect())
}

/// The best XDP mode to try on a device, and the reason if it is not the one asked for.
fn best_mode(wanted: config::XdpMode, device: &Device) -> (XdpMode, Option<String>) {
    if device.layer3 && wanted != config::XdpMode::Off {
        let reason = "no Ethernet header: TC does the work".to_owned();
        return (XdpMode::Off, Some(reason));
    }
    match wanted {
        config::XdpMode::Off => (XdpMode::Off, None),
        config::XdpMode::Generic => (XdpMode::Generic, None),
        config::XdpMode::Native => (XdpMode::Native, None),
        config::XdpMode::Auto => match device.kind {
            DeviceKind::Physical | DeviceKind::Bond => (XdpMode::Native, None),
            DeviceKind::Veth => {
                let reason = "veth: sends from XDP get lost unless the far end has a program too; \
                              --xdp-mode=native if it has";
                (XdpMode::Off, Some(reason.to_owned()))
            }
            kind => (
                XdpMode::Off,
                Some(format!("{kind:?}: no driver of its own")),
            ),
        },
    }
}

/// Whether attaching failed because the device no longer exists.
fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(AttachError::DeviceGone { .. }))
}

/// Whether a device `known` as external stays external although nothing shows it any more: while a
/// device is down, it has no default route. Its programs stay, so that the first packet finds them
/// when the device is up again. Otherwise the host would reset connections that it does not know.
/// The packets of a port are those of its master.
fn stays_external(known: Option<Role>, device: &Device) -> bool {
    known == Some(Role::External) && device.master.is_none()
}

/// Logs what is not as it was asked for.
fn report(attached: &Attached) {
    let Attached {
        name,
        role,
        xdp,
        reason,
        ..
    } = attached;
    match reason {
        Some(reason) => tracing::warn!(device = name, ?role, %xdp, "{reason}"),
        None => tracing::info!(device = name, ?role, %xdp, "programs attached"),
    }
}

#[cfg(test)]
mod tests {
    use lb_datapath::devices::{DeviceAddress, DeviceNames, SourceRules};

    use super::*;

    #[test]
    fn most_that_a_starting_pod_changes_does_not_matter() {
        let own: IpAddr = "169.254.7.7".parse().unwrap();
        let rules = RoleRules::new(DeviceNames::default(), vec![own]).unwrap();
        let device = Device {
            index: 7,
            name: "veth7".to_owned(),
            kind: DeviceKind::Veth,
            mac: Some([2; 6]),
            layer3: false,
            mtu: 1500,
            up: false,
            carrier: false,
            master: None,
            below: None,
            default_route: false,
            sources: SourceRules::default(),
            addresses: BTreeSet::new(),
        };
        let changed = |change: fn(&mut Device)| {
            let mut after = device.clone();
            change(&mut after);
            DeviceEvent::Changed {
                before: device.clone(),
                after,
            }
        };
        let address = |ip: &str, global| DeviceEvent::AddressAdded {
            index: 7,
            address: DeviceAddress {
                ip: ip.parse().unwrap(),
                prefix_length: 64,
                global,
            },
        };
        for (change, expected) in [
            (DeviceEvent::Added(device.clone()), true),
            (changed(|device| device.up = true), false),
            (changed(|device| device.carrier = true), false),
            (changed(|device| device.master = Some(3)), true),
            (changed(|device| device.name = "pod7".to_owned()), true),
            (changed(|device| device.default_route = true), true),
            (address("fe80::7", false), false),
            (address("169.254.7.7", false), true),
            (address("192.0.2.7", true), true),
            (changed(|device| device.layer3 = true), true),
            (DeviceEvent::NextHopsChanged, false),
            (DeviceEvent::SourceRulesChanged, true),
            (DeviceEvent::Removed(device.clone()), true),
        ] {
            assert_eq!(matters(&rules, &change), expected, "{change:?}");
        }
    }
}
