//! The cluster as this node sees it, and which Services have changed since the planner last looked.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
    time::SystemTime,
};

use ipnet::IpNet;
use lb_objects::{
    AsWritten, EndpointSlice, IpFamily, Kind, Node, Object, ObjectName, ObjectRef, Pod, Problem,
    Service, ServiceCidr,
};

use crate::{by_name::ByName, source::Event};

/// Services, their slices and this node, as the source last sent them. It does no I/O.
///
/// Changes are collected until [`Store::take_changes`], and held back until the source has
/// delivered everything once.
#[derive(Debug)]
pub struct Store {
    node_name: String,
    services: ByName<Service>,
    /// Slices by owning Service, sorted by the slices' names. Few Services have more than one.
    slices: HashMap<ObjectName, Vec<Arc<EndpointSlice>>>,
    /// The same slices by their own names: the Service that one belongs to may change.
    slices_by_name: ByName<EndpointSlice>,
    node: Option<Arc<Node>>,
    /// Objects of connection admission, Namespaces with limits among them, and whether all there are
    /// have come.
    admission: BTreeMap<ObjectRef, Arc<AsWritten>>,
    admission_synced: bool,
    admission_changed: bool,
    namespaces_synced: bool,
    /// This node's pods, and whether all there are have come.
    pods: BTreeMap<ObjectName, Arc<Pod>>,
    pods_synced: bool,
    pods_changed: bool,
    service_cidrs: BTreeMap<ObjectName, Arc<ServiceCidr>>,
    service_cidrs_changed: bool,
    problems: BTreeMap<String, Vec<Problem>>,
    problems_total: u64,
    synced: bool,
    changes: Changes,
}

/// What must be planned again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that are new, deleted or changed, or have other endpoints.
    pub services: BTreeSet<ObjectName>,
    /// Whether this node has changed, which may affect every Service.
    pub node: bool,
    /// For these Services, when their endpoints changed, if that is known.
    pub triggers: BTreeMap<ObjectName, Vec<(IpFamily, SystemTime)>>,
}

/// How many objects of a batch were new, deleted or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub services: usize,
    pub endpoint_slices: usize,
}

impl Changes {
    /// Whether nothing must be planned again.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node
    }
}

impl Store {
    /// An empty store for the node of this name. Other Nodes and their pods are ignored.
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            services: ByName::default(),
            slices: HashMap::new(),
            slices_by_name: ByName::default(),
            node: None,
            admission: BTreeMap::new(),
            admission_synced: false,
            admission_changed: false,
            namespaces_synced: false,
            pods: BTreeMap::new(),
            pods_synced: false,
            pods_changed: false,
            service_cidrs: BTreeMap::new(),
            service_cidrs_changed: false,
            problems: BTreeMap::new(),
            problems_total: 0,
            synced: false,
            changes: Changes::default(),
        }
    }

    /// Applies a batch, and returns how much of it was new. An object that is equal to the known
    /// one changes nothing.
    pub fn apply(&mut self, events: impl IntoIterator<Item = Event>) -> Applied {
        let mut applied = Applied::default();
        for event in events {
            match event {
                Event::Apply(Object::Service(service)) => {
                    applied.services += usize::from(self.apply_service(service));
                }
                Event::Apply(Object::EndpointSlice(slice)) => {
                    applied.endpoint_slices += usize::from(self.apply_slice(slice));
                }
                Event::Apply(Object::Node(node)) => self.apply_node(node),
                Event::Apply(Object::Pod(pod)) => self.apply_pod(pod),
                Event::Apply(Object::ServiceCidr(cidr)) => {
                    self.service_cidrs_changed = true;
                    self.service_cidrs.insert(cidr.name.clone(), cidr);
                }
                Event::Apply(Object::Admission(manifest)) => {
                    self.admission_changed = true;
                    self.admission.insert(manifest.reference.clone(), manifest);
                }
                Event::Delete(reference) => self.delete(reference, &mut applied),
                Event::Problems { origin, problems } => self.note_problems(origin, problems),
                Event::EndpointsChanged { slice, at } => self.note_trigger(&slice, at),
                Event::Synced => {
                    self.synced = true;
                    self.pods_changed = true;
                    self.service_cidrs_changed = true;
                }
                Event::AdmissionSynced => {
                    self.admission_synced = true;
                    self.admission_changed = true;
                }
                Event::NamespacesSynced => {
                    self.namespaces_synced = true;
                    self.admission_changed = true;
                }
                Event::ServiceCidrsSynced => self.service_cidrs_changed = true,
                Event::PodsSynced => {
                    self.pods_synced = true;
                    self.pods_changed = true;
                }
            }
        }
        applied
    }

    /// The changes since the last call. Nothing until the source has delivered everything once,
    /// because half a cluster would look like a cluster without half of its Services.
    pub fn take_changes(&mut self) -> Changes {
        match self.synced {
            true => mem::take(&mut self.changes),
            false => Changes::default(),
        }
    }

    /// Whether the source has delivered everything once.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The Service with this name, if the source has it.
    pub fn service(&self, name: &ObjectName) -> Option<&Arc<Service>> {
        self.services.get(name)
    }

    /// Every Service, in no particular order.
    pub fn services(&self) -> impl ExactSizeIterator<Item = &Arc<Service>> {
        self.services.iter()
    }

    /// The slices of one Service, in the order of their names.
    pub fn slices<'a>(
        &'a self,
        service: &ObjectName,
    ) -> impl ExactSizeIterator<Item = &'a EndpointSlice> + use<'a> {
        let slices = self.slices.get(service).map(Vec::as_slice);
        slices.unwrap_or_default().iter().map(Arc::as_ref)
    }

    /// This node, once the source has it.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// The objects of connection admission, if they have changed since the last call; `None` also
    /// until all there are have come once.
    pub fn take_admission(&mut self) -> Option<Vec<Arc<AsWritten>>> {
        let changed = self.admission_synced && mem::take(&mut self.admission_changed);
        changed.then(|| self.admission.values().cloned().collect())
    }

    /// Whether all Namespaces have come once, if the source follows them.
    pub fn are_namespaces_synced(&self) -> bool {
        self.namespaces_synced
    }

    /// The networks of all ServiceCIDRs, if they have changed since the last call; `None` also until
    /// the source has delivered everything once.
    pub fn take_service_cidrs(&mut self) -> Option<Vec<IpNet>> {
        let changed = self.synced && mem::take(&mut self.service_cidrs_changed);
        let all = self.service_cidrs.values();
        changed.then(|| {
            all.flat_map(|object| object.cidrs.iter().copied())
                .collect()
        })
    }

    /// This node's pods, if they have changed since the last call or all have come since.
    pub fn take_pods(&mut self) -> Option<Vec<Arc<Pod>>> {
        let changed = mem::take(&mut self.pods_changed);
        changed.then(|| self.pods.values().cloned().collect())
    }

    /// Whether all of this node's pods have come once, if the source follows them by themselves.
    pub fn are_pods_synced(&self) -> bool {
        self.pods_synced
    }

    /// All present problems, sorted by origin.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.values().flatten()
    }

    /// How many problems there have been. One that persists counts once.
    pub fn problems_total(&self) -> u64 {
        self.problems_total
    }

    /// Stores a Service. Returns whether it differs from the one known before.
    fn apply_service(&mut self, service: Arc<Service>) -> bool {
        if self.services.get(&service.name) == Some(&service) {
            return false;
        }
        self.changes.services.insert(service.name.clone());
        if let Some(slices) = self.slices.remove(&service.name) {
            // They have come first, with a name of their own.
            self.slices.insert(service.name.clone(), slices);
        }
        self.services.insert(service);
        true
    }

    fn apply_slice(&mut self, slice: Arc<EndpointSlice>) -> bool {
        let owner = owner_of(&slice);
        let service = self.services.get(&owner);
        let owner = service.map_or(owner, |service| service.name.clone());
        let known = self.slices_by_name.get(&slice.name);
        if known == Some(&slice) {
            return false;
        }
        let previous = self.slices_by_name.insert(slice.clone());
        if let Some(previous) = previous.filter(|previous| previous.service != slice.service) {
            self.remove_slice(&owner_of(&previous), &slice.name.name);
        }
        let slices = self.slices.entry(owner.clone());
        let slices = slices.or_insert_with(|| Vec::with_capacity(1));
        match slices.binary_search_by(|known| known.name.name.cmp(&slice.name.name)) {
            Ok(index) => slices[index] = slice,
            Err(index) => slices.insert(index, slice),
        }
        self.mark(owner);
        true
    }

    fn apply_node(&mut self, node: Arc<Node>) {
        if node.name == self.node_name && self.node.as_ref() != Some(&node) {
            self.node = Some(node);
            self.changes.node = true;
        }
    }

    fn apply_pod(&mut self, pod: Arc<Pod>) {
        if pod.node == self.node_name && self.pods.get(&pod.name) != Some(&pod) {
            self.pods_changed = true;
            self.pods.insert(pod.name.clone(), pod);
        }
    }

    fn delete(&mut self, reference: ObjectRef, applied: &mut Applied) {
        match reference.kind {
            Kind::Service => {
                if self.services.remove(&reference.name).is_some() {
                    applied.services += 1;
                    self.changes.services.insert(reference.name);
                }
            }
            Kind::EndpointSlice => {
                if let Some(slice) = self.slices_by_name.remove(&reference.name) {
                    let owner = owner_of(&slice);
                    applied.endpoint_slices += 1;
                    // A deletion has no time, and is not finished with the other changes.
                    self.changes.triggers.remove(&owner);
                    self.remove_slice(&owner, &reference.name.name);
                }
            }
            Kind::PriorityLevel | Kind::FlowSchema | Kind::Namespace => {
                self.admission_changed |= self.admission.remove(&reference).is_some();
            }
            Kind::ServiceCidr => {
                self.service_cidrs_changed |= self.service_cidrs.remove(&reference.name).is_some();
            }
            Kind::Pod => self.pods_changed |= self.pods.remove(&reference.name).is_some(),
            Kind::Node => {
                let is_ours = *reference.name.name == *self.node_name;
                if is_ours && self.node.take().is_some() {
                    self.changes.node = true;
                }
            }
        }
    }

    /// One sample for each slice that changed something since the planner last looked, as in
    /// kube-proxy.
    fn note_trigger(&mut self, slice: &ObjectName, at: SystemTime) {
        let Some(slice) = self.slices_by_name.get(slice) else {
            return;
        };
        let owner = owner_of(slice);
        if let Some(endpoint) = slice.endpoints.first()
            && self.synced
            && self.changes.services.contains(&owner)
        {
            let family = IpFamily::of(endpoint.address);
            let triggers = self.changes.triggers.entry(owner).or_default();
            triggers.push((family, at));
        }
    }

    fn remove_slice(&mut self, owner: &ObjectName, slice: &str) {
        let Some(slices) = self.slices.get_mut(owner) else {
            return;
        };
        slices.retain(|known| *known.name.name != *slice);
        if slices.is_empty() {
            self.slices.remove(owner);
        }
        self.mark(owner.clone());
    }

    /// Slices without a Service do not matter until the Service comes.
    fn mark(&mut self, service: ObjectName) {
        if self.services.contains(&service) {
            self.changes.services.insert(service);
        }
    }

    fn note_problems(&mut self, origin: String, problems: Vec<Problem>) {
        let known = self.problems.remove(&origin).unwrap_or_default();
        let new = problems
            .iter()
            .filter(|problem| !known.contains(problem))
            .count();
        self.problems_total += new as u64;
        if !problems.is_empty() {
            self.problems.insert(origin, problems);
        }
    }
}

/// The name of the Service that a slice belongs to.
fn owner_of(slice: &EndpointSlice) -> ObjectName {
    ObjectName::new(slice.name.namespace.clone(), slice.service.clone())
}

#[cfg(test)]
mod tests;
