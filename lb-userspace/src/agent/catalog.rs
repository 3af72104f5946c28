//! The programmed plans by Service: the agent's sync writes them, HTTP handlers read them.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use lb_objects::ObjectName;
use tokio::sync::broadcast;

use crate::plan::ServicePlan;

/// How many changes a reader may be behind before it has to start over.
const CHANGES: usize = 1024;

/// The plan of every Service that has been given to the maps, in the order of names. A reader holds
/// the agent up only for as long as it takes to clone some pointers.
pub struct Catalog {
    plans: RwLock<BTreeMap<ObjectName, Arc<ServicePlan>>>,
    changes: broadcast::Sender<Change>,
}

/// A change of one Service.
#[derive(Clone, Debug)]
pub enum Change {
    Added(Arc<ServicePlan>),
    Modified(Arc<ServicePlan>),
    /// The Service is gone; this was its last plan.
    Deleted(Arc<ServicePlan>),
}

impl Catalog {
    /// A catalog without Services.
    pub fn new() -> Self {
        Self {
            plans: RwLock::default(),
            changes: broadcast::Sender::new(CHANGES),
        }
    }

    /// The plan of a Service, if it has been given to the maps.
    pub fn get(&self, name: &ObjectName) -> Option<Arc<ServicePlan>> {
        self.plans().get(name).cloned()
    }

    /// How many Services there are.
    pub fn services(&self) -> usize {
        self.plans().len()
    }

    /// Every plan, in order.
    pub fn all(&self) -> Vec<Arc<ServicePlan>> {
        self.plans().values().cloned().collect()
    }

    /// At most `limit` plans of Services whose name comes after `after`, and how many more there
    /// are.
    pub fn page(&self, after: Option<&ObjectName>, limit: usize) -> (Vec<Arc<ServicePlan>>, usize) {
        let plans = self.plans();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = plans.range((start, Bound::Unbounded));
        let page = rest.by_ref().take(limit).map(|(_, plan)| plan.clone());
        (page.collect(), rest.count())
    }

    /// Every plan, and each change after that.
    pub fn watch(&self) -> (Vec<Arc<ServicePlan>>, broadcast::Receiver<Change>) {
        // Under the lock, so that no change is missed or sent twice.
        let plans = self.plans();
        let changes = self.changes.subscribe();
        (plans.values().cloned().collect(), changes)
    }

    /// Replaces a Service's plan; `None` removes it. If anything changed, watchers are told.
    pub fn set(&self, name: &ObjectName, plan: Option<Arc<ServicePlan>>) {
        let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        let change = match plan {
            Some(plan) => match plans.insert(name.clone(), plan.clone()) {
                Some(before) if before == plan => return,
                Some(_) => Change::Modified(plan),
                None => Change::Added(plan),
            },
            None => match plans.remove(name) {
                Some(before) => Change::Deleted(before),
                None => return,
            },
        };
        // It is no error if nobody watches.
        let _ = self.changes.send(change);
    }

    fn plans(&self) -> RwLockReadGuard<'_, BTreeMap<ObjectName, Arc<ServicePlan>>> {
        self.plans.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Catalog {
    fn default() -> Self {
        Self::new()
    }
}
