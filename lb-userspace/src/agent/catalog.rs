//! What is programmed, by Service: written by the agent's sync, read by whoever asks.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use lb_objects::ObjectName;
use tokio::sync::broadcast;

use crate::plan::ServicePlan;

/// Changes a reader may be behind before it has to start over.
const CHANGES: usize = 1024;

/// The plan of every Service that the maps have been given, in the order of their names. A reader
/// never holds the agent up for longer than it takes to clone some pointers.
pub struct Catalog {
    plans: RwLock<BTreeMap<ObjectName, Arc<ServicePlan>>>,
    changes: broadcast::Sender<Change>,
}

/// What became of one Service.
#[derive(Clone, Debug)]
pub enum Change {
    Added(Arc<ServicePlan>),
    Modified(Arc<ServicePlan>),
    /// Its last plan.
    Deleted(Arc<ServicePlan>),
}

impl Catalog {
    pub fn new() -> Self {
        Self {
            plans: RwLock::default(),
            changes: broadcast::Sender::new(CHANGES),
        }
    }

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
        // Under the lock, so that nothing is missed or told twice.
        let plans = self.plans();
        let changes = self.changes.subscribe();
        (plans.values().cloned().collect(), changes)
    }

    /// Replaces a Service's plan; `None` takes it out. Tells who watches if anything changed.
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
        // Nobody need be watching.
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
