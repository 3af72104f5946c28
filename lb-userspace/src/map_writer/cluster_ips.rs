//! The ClusterIPs of Services, and the ranges of addresses that only Services have: what is to none
//! of their ports is refused, and what is to no Service is dropped.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem::{offset_of, take},
    net::IpAddr,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use lb_common::{
    abi::{ClusterIp, SERVICE_RANGES, ServiceRange, cluster_ip_flag, service_range_flag},
    addr::Ip6,
};
use lb_datapath::maps::{Maps, WriteError};
use lb_objects::{IpFamily, Protocol};

use super::{
    Key,
    verify::{Findings, Scan, wrong},
};
use crate::plan::Plan;

/// ServiceCIDRs of a family whose addresses without a Service are dropped. One range more is for
/// ClusterIPs that are in none of them.
const CIDRS: usize = SERVICE_RANGES as usize - 1;

/// Which ClusterIPs there are.
#[derive(Debug, Default)]
pub struct ClusterIps {
    /// The address of each service port.
    claims: HashMap<Key, IpAddr>,
    known: HashMap<IpAddr, Ports>,
    /// What the maps hold.
    present: HashMap<IpAddr, ClusterIp>,
    /// Where the two may differ.
    changed: HashSet<IpAddr>,
    /// ServiceCIDRs, without those that others contain.
    cidrs: BTreeSet<IpNet>,
    /// Addresses in the maps that are in none of them, by family.
    outside: [BTreeSet<IpAddr>; 2],
    /// What the maps say of both.
    ranges: Vec<ServiceRange>,
    /// Whether the maps say which of them have ports of SCTP, because that passes untouched.
    passes_sctp: bool,
}

/// Service ports with the same address.
#[derive(Clone, Copy, Debug, Default)]
struct Ports {
    all: usize,
    sctp: usize,
}

impl ClusterIps {
    /// None yet. SCTP may pass untouched.
    pub fn new(passes_sctp: bool) -> Self {
        Self {
            passes_sctp,
            ..Self::default()
        }
    }

    /// Takes over what the maps hold, which nobody claims yet.
    pub fn read(maps: &Maps, passes_sctp: bool) -> Result<Self, WriteError> {
        let entries = maps.cluster_ips.all()?.into_iter();
        let ranges = (0..maps.service_ranges.len()).map(|index| maps.service_ranges.read(index));
        let mut found = Self {
            present: entries.map(|(ip, entry)| (ip.into(), entry)).collect(),
            ranges: ranges.collect(),
            ..Self::new(passes_sctp)
        };
        let cidrs = [IpFamily::V4, IpFamily::V6].map(|family| {
            let ranges = of_family(&found.ranges, family).iter();
            let used = ranges.take_while(|range| range.flags != 0);
            let cidrs = used.filter(|range| range.flags & service_range_flag::SERVICE_CIDR != 0);
            cidrs.filter_map(network).collect::<Vec<_>>()
        });
        found.cidrs = cidrs.into_iter().flatten().collect();
        found.sort_out();
        Ok(found)
    }

    /// Whether packets to a service port pass untouched, so that there is nothing to look up for it.
    pub fn passes(&self, key: &Key) -> bool {
        self.passes_sctp && key.name.protocol == Protocol::Sctp
    }

    /// A service port has its plan's ClusterIP from now on, or none; the maps have it after
    /// [`Self::flush`].
    pub fn claim(&mut self, key: &Key, plan: &Plan) {
        let wanted = plan.cluster_ip();
        if self.claims.get(key) == wanted.as_ref() {
            return;
        }
        self.give_up(key);
        if let Some(ip) = wanted {
            let passes = self.passes(key);
            self.claims.insert(key.clone(), ip);
            let ports = self.known.entry(ip).or_default();
            ports.all += 1;
            ports.sctp += usize::from(passes);
            self.changed.insert(ip);
        }
    }

    /// A service port has no ClusterIP any more.
    pub fn give_up(&mut self, key: &Key) {
        let Some(ip) = self.claims.remove(key) else {
            return;
        };
        let passes = self.passes(key);
        self.changed.insert(ip);
        if let Some(ports) = self.known.get_mut(&ip) {
            ports.all -= 1;
            ports.sctp -= usize::from(passes);
            if ports.all == 0 {
                self.known.remove(&ip);
            }
        }
    }

    /// Says which ServiceCIDRs there are. The maps have that after [`Self::flush`].
    pub fn set_cidrs(&mut self, cidrs: &[IpNet]) {
        // Those that contain others come first.
        let mut aggregated = IpNet::aggregate(&cidrs.to_vec());
        aggregated.sort_by_key(|cidr| (cidr.prefix_len(), *cidr));
        let mut kept = BTreeSet::new();
        for family in [IpFamily::V4, IpFamily::V6] {
            let of_family = aggregated
                .iter()
                .filter(|c| IpFamily::of_net(**c) == family);
            kept.extend(of_family.take(CIDRS).copied());
        }
        if kept.len() < aggregated.len() {
            tracing::warn!(
                "there are {} ServiceCIDRs: packets to addresses without a Service are dropped in {CIDRS} \
                 of each family only",
                aggregated.len()
            );
        }
        if kept != self.cidrs {
            self.cidrs = kept;
            self.sort_out();
        }
    }

    /// Looks again at what the maps held at the start and nobody has claimed since.
    pub fn reconsider(&mut self) {
        self.changed.extend(self.present.keys());
    }

    /// Brings the maps into line with the claims. What the kernel refuses is tried again by the next
    /// call: until then, nothing is refused at such an address.
    pub fn flush(&mut self, maps: &Maps) {
        let (mut added, mut gone) = (Vec::new(), Vec::new());
        for ip in take(&mut self.changed) {
            let wanted = self.known.get(&ip).map(|ports| ClusterIp {
                flags: match ports.sctp {
                    0 => 0,
                    _ => cluster_ip_flag::SCTP,
                },
            });
            match (wanted, self.present.get(&ip)) {
                (Some(wanted), present) if present != Some(&wanted) => added.push((ip, wanted)),
                (None, Some(_)) => gone.push(ip),
                _ => {}
            }
        }
        if !gone.is_empty() {
            self.remove(&gone, maps);
        }
        if !added.is_empty() {
            self.insert(&added, maps);
        }
        self.write_ranges(maps);
    }

    /// Compares the next entries with what was written; some of them nobody may have written. In the
    /// end, looks for what is missing. After a difference, [`Self::flush`] has the map hold what it
    /// should.
    pub fn verify(&mut self, scan: &mut Scan, maps: &Maps, findings: &mut Findings) {
        for (ip, entry) in scan.part(&*maps.cluster_ips, findings) {
            scan.right += usize::from(self.found(ip.into(), Some(entry), findings));
        }
        if scan.is_over() && scan.right < self.present.len() {
            let all: Vec<_> = self.present.keys().copied().collect();
            for ip in all {
                if let Some(found) = findings.read(maps.cluster_ips.get(&ip.into())) {
                    self.found(ip, found, findings);
                }
            }
        }
    }

    /// The same for the ranges of addresses that only Services have.
    pub fn verify_ranges(&mut self, maps: &Maps, findings: &mut Findings) {
        for (index, written) in (0..).zip(&mut self.ranges) {
            let found = maps.service_ranges.read(index);
            let wrong = wrong(Some(&found), Some(written));
            findings.compared("SERVICE_RANGES", wrong, || index.to_string());
            *written = found;
        }
    }

    /// Takes over what the map holds at an address, if it is not what was written. Returns whether
    /// it is.
    fn found(&mut self, ip: IpAddr, found: Option<ClusterIp>, findings: &mut Findings) -> bool {
        let wrong = wrong(found.as_ref(), self.present.get(&ip));
        findings.compared("CLUSTER_IPS", wrong, || ip.to_string());
        if wrong.is_none() {
            return true;
        }
        self.changed.insert(ip);
        match found {
            Some(entry) => drop(self.present.insert(ip, entry)),
            None => drop(self.present.remove(&ip)),
        }
        false
    }

    fn insert(&mut self, added: &[(IpAddr, ClusterIp)], maps: &Maps) {
        let (keys, values): (Vec<_>, Vec<_>) = added
            .iter()
            .map(|(ip, entry)| (Ip6::from(*ip), *entry))
            .unzip();
        let done = match maps.cluster_ips.insert(&keys, &values) {
            Ok(()) => added.len(),
            Err(incomplete) => {
                tracing::warn!(
                    "cannot note which addresses are ClusterIPs: {}",
                    incomplete.error
                );
                incomplete.done
            }
        };
        for (ip, entry) in &added[..done] {
            self.present.insert(*ip, *entry);
            if self.is_outside(ip) {
                self.outside[IpFamily::of(*ip) as usize].insert(*ip);
            }
        }
        self.changed.extend(added[done..].iter().map(|(ip, _)| *ip));
    }

    fn remove(&mut self, gone: &[IpAddr], maps: &Maps) {
        let keys: Vec<_> = gone.iter().map(|ip| Ip6::from(*ip)).collect();
        if let Err(error) = maps.cluster_ips.remove(&keys) {
            tracing::warn!("cannot forget addresses that are no ClusterIPs any more: {error}");
            self.changed.extend(gone);
            return;
        }
        for ip in gone {
            self.present.remove(ip);
            self.outside[IpFamily::of(*ip) as usize].remove(ip);
        }
    }

    fn is_outside(&self, ip: &IpAddr) -> bool {
        !self.cidrs.iter().any(|cidr| cidr.contains(ip))
    }

    /// Finds anew which addresses are outside all ServiceCIDRs.
    fn sort_out(&mut self) {
        self.outside = Default::default();
        let outside: Vec<_> = self
            .present
            .keys()
            .filter(|ip| self.is_outside(ip))
            .copied()
            .collect();
        for ip in outside {
            self.outside[IpFamily::of(ip) as usize].insert(ip);
        }
    }

    fn write_ranges(&mut self, maps: &Maps) {
        let wanted: Vec<_> = [IpFamily::V4, IpFamily::V6]
            .into_iter()
            .flat_map(|family| self.ranges_of(family))
            .collect();
        if wanted == self.ranges {
            return;
        }
        let offset = offset_of!(ServiceRange, flags);
        for (index, range) in (0..maps.service_ranges.len()).zip(&wanted) {
            if maps.service_ranges.read(index) == *range {
                continue;
            }
            // A program that finds it without flags finds none: it never finds half of it.
            maps.service_ranges.publish(index, offset, 0);
            let unused = ServiceRange { flags: 0, ..*range };
            maps.service_ranges.write(index, &unused);
            maps.service_ranges.publish(index, offset, range.flags);
        }
        self.ranges = wanted;
    }

    /// The ranges of a family: the ServiceCIDRs, then what has the rest of the ClusterIPs.
    fn ranges_of(&self, family: IpFamily) -> Vec<ServiceRange> {
        let cidrs = self
            .cidrs
            .iter()
            .filter(|cidr| IpFamily::of_net(**cidr) == family);
        let cidrs = cidrs.map(|cidr| {
            range(
                cidr,
                service_range_flag::USED | service_range_flag::SERVICE_CIDR,
            )
        });
        let outside = &self.outside[family as usize];
        let ends = outside.first().zip(outside.last());
        let rest =
            ends.map(|(first, last)| range(&enclosing(*first, *last), service_range_flag::USED));
        let mut ranges: Vec<_> = cidrs.chain(rest).collect();
        ranges.resize(SERVICE_RANGES as usize, ServiceRange::default());
        ranges
    }
}

fn of_family(ranges: &[ServiceRange], family: IpFamily) -> &[ServiceRange] {
    let room = SERVICE_RANGES as usize;
    let mut families = ranges.chunks(room);
    families.nth(family as usize).unwrap_or_default()
}

fn range(network: &IpNet, flags: u32) -> ServiceRange {
    ServiceRange {
        network: network.network().into(),
        prefix: network.prefix_len().into(),
        flags,
    }
}

fn network(range: &ServiceRange) -> Option<IpNet> {
    let prefix = u8::try_from(range.prefix).ok()?;
    IpNet::new(range.network.into(), prefix).ok()
}

/// The smallest network that has both addresses, which are of one family.
fn enclosing(first: IpAddr, last: IpAddr) -> IpNet {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let differing = first.to_bits() ^ last.to_bits();
            Ipv4Net::new_assert(first, differing.leading_zeros() as u8)
                .trunc()
                .into()
        }
        (first, last) => {
            let bits = |ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let differing = bits(first).to_bits() ^ bits(last).to_bits();
            Ipv6Net::new_assert(bits(first), differing.leading_zeros() as u8)
                .trunc()
                .into()
        }
    }
}
