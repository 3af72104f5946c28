//! What packets to each address meet, as maps say: read without what the map writer knows, so that
//! numbers and places in the maps do not matter.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map::Entry},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::{IpAddr, SocketAddr},
};

use lb_common::abi::{self, CLASSES, MAGLEV_ROWS, cluster_ip_flag, plan_flag, service_range_flag};
use lb_datapath::maps::{Maps, WriteError};
use lb_objects::Protocol;

use super::Difference;
use crate::plan::{FrontendKind, Plan, ServicePlan};

/// Longer lists are shortened.
const SHOWN: usize = 300;

/// What is at each subject: an address with port and protocol, a ClusterIP, or a range.
pub struct Views(BTreeMap<String, View>);

/// Properties and their values, in an order.
type View = Vec<(&'static str, String)>;

impl Views {
    /// What these maps say.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn of(maps: &Maps) -> Result<Self, WriteError> {
        let reader = Reader::new(maps)?;
        let mut views = BTreeMap::new();
        for (key, entry) in maps.frontends4.all()? {
            let subject = subject(key.address.into(), key.port, key.protocol);
            views.insert(subject, reader.view(&entry));
        }
        for (key, entry) in maps.frontends6.all()? {
            // Not `IpAddr::from`, which takes mapped addresses for IPv4.
            let address = IpAddr::V6(key.address.octets.into());
            let subject = subject(address, key.port, key.protocol);
            views.insert(subject, reader.view(&entry));
        }
        for (ip, entry) in maps.cluster_ips.all()? {
            let sctp = entry.flags & cluster_ip_flag::SCTP != 0;
            let view = vec![("has SCTP ports", sctp.to_string())];
            views.insert(format!("ClusterIP {}", IpAddr::from(ip)), view);
        }
        for index in 0..maps.service_ranges.len() {
            let range = maps.service_ranges.read(index);
            if range.flags & service_range_flag::USED != 0 {
                let cidr = range.flags & service_range_flag::SERVICE_CIDR != 0;
                let network = IpAddr::from(range.network);
                let view = vec![("is a ServiceCIDR", cidr.to_string())];
                views.insert(format!("range {network}/{}", range.prefix), view);
            }
        }
        Ok(Self(views))
    }

    /// How many addresses of Services there are.
    pub fn frontends(&self) -> usize {
        self.0.values().filter(|view| view[0].0 == KIND).count()
    }

    /// What differs from what is wanted. Weights are not compared at addresses of Services with slow
    /// start: the agent that writes them knows since when each endpoint is ready.
    pub fn differences(self, wanted: &Self, plans: &[ServicePlan]) -> BTreeSet<Difference> {
        let ports = plans.iter().flat_map(|service| &service.ports);
        let ports = ports.filter(|plan| plan.slow_start.is_some());
        let starting: HashSet<_> = ports.flat_map(subjects).collect();
        let mut found = self.0;
        let mut differences = BTreeSet::new();
        for (subject, wanted) in &wanted.0 {
            match found.entry(subject.clone()) {
                Entry::Vacant(_) => {
                    differences.insert(only(subject, "nothing", &wanted[0].1));
                }
                Entry::Occupied(entry) => {
                    let found = entry.remove();
                    let is_open = starting.contains(subject);
                    let first = found.iter().zip(wanted).find(|(found, wanted)| {
                        found != wanted && !(is_open && BY_WEIGHT.contains(&wanted.0))
                    });
                    if let Some(((what, found), (_, wanted))) = first {
                        differences.insert(Difference {
                            subject: subject.clone(),
                            what: (*what).to_owned(),
                            found: shortened(found),
                            wanted: shortened(wanted),
                        });
                    }
                }
            }
        }
        for (subject, view) in &found {
            differences.insert(only(subject, &view[0].1, "nothing"));
        }
        differences
    }
}

/// There is something on one side only.
fn only(subject: &str, found: &str, wanted: &str) -> Difference {
    Difference {
        subject: subject.to_owned(),
        what: "all of it".to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The subjects of a service port.
fn subjects(plan: &Plan) -> impl Iterator<Item = String> {
    let frontends = plan.frontends.iter();
    frontends.map(|frontend| format!("{} {}", frontend.address, plan.name.protocol))
}

fn subject(ip: IpAddr, port: u16, protocol: u8) -> String {
    let address = SocketAddr::new(ip, port);
    match Protocol::from_number(protocol) {
        Some(known) => format!("{address} {known}"),
        None => format!("{address} protocol {protocol}"),
    }
}

/// The property that a frontend's view begins with.
const KIND: &str = "kind of address";

/// The properties that weights decide.
const BY_WEIGHT: [&str; 2] = [WEIGHTS, TABLES];
const WEIGHTS: &str = "weights";
const TABLES: &str = "Maglev tables";

/// Follows frontends through the maps.
struct Reader<'a> {
    maps: &'a Maps,
    /// Networks of each set of source ranges.
    sources: HashMap<u32, BTreeSet<String>>,
}

impl<'a> Reader<'a> {
    fn new(maps: &'a Maps) -> Result<Self, WriteError> {
        let mut sources: HashMap<u32, BTreeSet<String>> = HashMap::new();
        for (key, _) in maps.source_ranges.all()? {
            let address = IpAddr::from(key.data().address);
            let network = format!("{address} ({} bits)", key.prefix_len());
            let set = u32::from_be(key.data().set);
            sources.entry(set).or_default().insert(network);
        }
        Ok(Self { maps, sources })
    }

    fn view(&self, entry: &abi::Frontend) -> View {
        let kind = [
            FrontendKind::ClusterIp,
            FrontendKind::ExternalIp,
            FrontendKind::LoadBalancerIp,
            FrontendKind::NodePort,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == entry.kind);
        let kind = kind.map_or_else(|| entry.kind.to_string(), |kind| format!("{kind:?}"));
        let mut view = vec![(KIND, kind)];
        match self.plan(entry.service) {
            Ok(plan) => view.extend(self.of_plan(&plan)),
            Err(why) => view.push(("plan", why)),
        }
        view
    }

    /// The plan of a service, if it leads to one.
    fn plan(&self, service: u32) -> Result<abi::Plan, String> {
        let (services, plans) = (&self.maps.services, &self.maps.plans);
        if service >= services.len() {
            return Err(format!("there is no service {service}"));
        }
        let index = services.read(service).plan;
        if index == 0 || index >= plans.len() {
            return Err(format!("service {service} has no plan"));
        }
        let plan = plans.read(index);
        let slots = plan
            .counts
            .iter()
            .try_fold(plan.first, |slot, count| slot.checked_add(*count));
        if plan.service != service || slots.is_none_or(|end| end > self.maps.endpoints.len()) {
            return Err(format!("plan {index} is not one of service {service}"));
        }
        Ok(plan)
    }

    fn of_plan(&self, plan: &abi::Plan) -> View {
        let endpoints = self.endpoints(plan);
        let tables = [plan.maglev_cluster, plan.maglev_local];
        let drawn = match plan.flags & plan_flag::DRAWN {
            0 => "",
            _ => "drawn from: ",
        };
        let tables = match plan.maglev_rows {
            0 => "none".to_owned(),
            rows => tables.map(|first| self.table(first, rows)).join(", "),
        };
        let limit = match plan.seats {
            0 => "none".to_owned(),
            index if index < self.maps.seats.len() => self.maps.seats.read(index).limit.to_string(),
            index => format!("element {index} of SEATS, which does not exist"),
        };
        let sources = match plan.source_set {
            0 => "all".to_owned(),
            set => {
                let networks = self.sources.get(&set).into_iter().flatten();
                networks.cloned().collect::<Vec<_>>().join(", ")
            }
        };
        vec![
            ("plan", "is there".to_owned()),
            ("endpoints", endpoints),
            (
                "traffic policies and algorithm (bits)",
                format!("{:#x}", plan.flags & !plan_flag::DRAWN),
            ),
            (
                "session affinity in seconds",
                plan.affinity_seconds.to_string(),
            ),
            ("source ranges", sources),
            (WEIGHTS, self.weights(plan)),
            (TABLES, format!("{drawn}{tables}")),
            ("limit of connections", limit),
            (
                "limit of each endpoint's connections",
                plan.most.to_string(),
            ),
        ]
    }

    /// The endpoints of each class, with their flags.
    fn endpoints(&self, plan: &abi::Plan) -> String {
        let mut slot = plan.first;
        let mut classes = Vec::with_capacity(CLASSES);
        for count in plan.counts {
            let endpoints = (slot..slot + count).map(|slot| {
                let endpoint = self.maps.endpoints.read(slot);
                let address = SocketAddr::new(endpoint.address.into(), endpoint.port);
                let is_placed = endpoint.id < self.maps.endpoint_states.len()
                    && self
                        .maps
                        .endpoint_states
                        .read(endpoint.id)
                        .slots
                        .contains(&slot);
                let place = if is_placed { "" } else { " out of its place" };
                format!("{address} ({:#x}){place}", endpoint.flags)
            });
            classes.push(endpoints.collect::<Vec<_>>().join(", "));
            slot += count;
        }
        classes.join("; ")
    }

    /// The weights of all endpoints, in the order of classes.
    fn weights(&self, plan: &abi::Plan) -> String {
        let slots = plan.first..plan.first + plan.counts.iter().sum::<u32>();
        let weights = slots.map(|slot| self.weight(self.maps.endpoints.read(slot).id));
        let weights: Vec<_> = weights.map(|weight| weight.to_string()).collect();
        weights.join(", ")
    }

    /// The weight of an endpoint; 0 if it has none, or does not exist.
    fn weight(&self, endpoint: u32) -> u32 {
        match endpoint < self.maps.endpoint_loads.len() {
            true => self.maps.endpoint_loads.read(endpoint).weight,
            false => 0,
        }
    }

    /// A lookup table, whose rows are positions among the plan's endpoints.
    fn table(&self, first: u32, rows: u32) -> String {
        if first == u32::MAX {
            return "empty".to_owned();
        }
        let elements = first / MAGLEV_ROWS..(first.saturating_add(rows)).div_ceil(MAGLEV_ROWS);
        if elements.end > self.maps.maglev.len() {
            return format!("row {first} of MAGLEV, which does not exist");
        }
        let positions = elements.flat_map(|element| self.maps.maglev.read(element).positions);
        let mut hasher = DefaultHasher::new();
        for position in positions.take(rows as usize) {
            position.hash(&mut hasher);
        }
        format!("{rows} rows, sum {:016x}", hasher.finish())
    }
}
