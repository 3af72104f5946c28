//! What is in the maps of flow schemas and priority levels, for those who read what is counted there.

use std::{
    collections::{BTreeMap, HashMap},
    mem::take,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use lb_admission::{level::Level, limits::Limits};

/// What is in the maps, shared with those who read.
#[derive(Debug, Default)]
pub struct Numbered(RwLock<Arc<Known>>);

/// Priority levels and flow schemas with their numbers.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// In the order of names.
    pub levels: Vec<NumberedLevel>,
    /// Names and numbers of levels that are not configured any more. They take no connections, but
    /// may have some.
    pub leaving: BTreeMap<String, u32>,
    /// In the order in which they are asked.
    pub schemas: Vec<NumberedSchema>,
    /// Index of the schema of each number, and of the tenant there if it is one's.
    by_number: HashMap<u32, (usize, Option<usize>)>,
    /// Addresses that no class could be made for: their connections belong to the level
    /// `catch-all`.
    pub unclassified: usize,
    /// Tenants that no number was left for: their connections are told apart by their addresses.
    pub undivided: usize,
}

/// A priority level.
#[derive(Clone, Debug)]
pub struct NumberedLevel {
    pub level: Level,
    /// What it may have.
    pub limits: Limits,
    /// Index into `LEVELS`.
    pub number: u32,
}

/// A flow schema.
#[derive(Clone, Debug)]
pub struct NumberedSchema {
    pub name: String,
    /// Name of its level.
    pub level: String,
    /// Index into `FLOW_SCHEMAS`.
    pub number: u32,
    /// The flows of known pods, if the schema tells flows apart by whose pods they come from: each has an
    /// element of its own.
    pub tenants: Vec<Tenant>,
    /// The most connections of one of its flows; `None` means no limit.
    pub most_per_flow: Option<u32>,
    /// How long its connections wait for a seat, at most.
    pub longest_wait: Duration,
    /// Seats that each of its connections takes.
    pub seats: u32,
}

/// All pods of a namespace, of a service account or of the node: one flow of a flow schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// As a distinguisher says it: `shop`, `shop/cart`.
    pub name: String,
    /// Index into `FLOW_SCHEMAS`.
    pub number: u32,
}

impl NumberedSchema {
    /// All that is counted of the schema is in the elements of these numbers.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        let tenants = self.tenants.iter().map(|tenant| tenant.number);
        [self.number].into_iter().chain(tenants)
    }
}

impl Known {
    /// Levels and schemas, and what is known of those before: what these leave behind.
    pub(super) fn after(
        before: &mut Self,
        levels: Vec<NumberedLevel>,
        schemas: Vec<NumberedSchema>,
        undivided: usize,
    ) -> Self {
        let mut leaving = take(&mut before.leaving);
        let gone = take(&mut before.levels).into_iter();
        leaving.extend(gone.map(|known| (known.level.name, known.number)));
        // A number that another level has now was nobody's any more.
        leaving.retain(|name, number| {
            let is_it =
                |known: &NumberedLevel| known.level.name == *name || known.number == *number;
            !levels.iter().any(is_it)
        });
        let mut by_number = HashMap::new();
        for (index, schema) in schemas.iter().enumerate() {
            by_number.insert(schema.number, (index, None));
            for (tenant, known) in schema.tenants.iter().enumerate() {
                by_number.insert(known.number, (index, Some(tenant)));
            }
        }
        Self {
            levels,
            leaving,
            schemas,
            by_number,
            unclassified: 0,
            undivided,
        }
    }

    /// The flow schema with this number, and whose of its flows it is if that is a tenant's.
    pub fn schema(&self, number: u32) -> Option<(&NumberedSchema, Option<&str>)> {
        let (schema, tenant) = self.by_number.get(&number)?;
        let schema = self.schemas.get(*schema)?;
        let tenant = tenant.and_then(|tenant| schema.tenants.get(tenant));
        Some((schema, tenant.map(|tenant| &*tenant.name)))
    }
}

impl Numbered {
    /// What is in the maps now.
    pub fn known(&self) -> Arc<Known> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    /// Changes it as a whole, so a thread that panicked leaves nothing half done.
    pub(super) fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut known));
    }
}
