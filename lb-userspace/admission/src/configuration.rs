//! The configuration in force: the last valid version of every object, and the objects that must
//! always exist.

use std::collections::BTreeMap;

use super::{
    level::{CATCH_ALL, EXEMPT, Level, MAX_ALL_QUEUES, MAX_LEVELS},
    limits::{Limits, limits},
    objects::{
        Finding, Kind, Object, ObjectRef, Spec, namespace,
        status::{ACCEPTED, Condition, DANGLING, SEATS_CUT},
        validate::{self, Valid},
    },
    schema::{DistinguisherMethod, Schema, Source},
};

/// The most rules of all flow schemas together. A connection is compared with 64 of them in each
/// step.
pub const MAX_RULES: usize = 4096;
/// The most flow schemas: each is counted by itself.
pub const MAX_SCHEMAS: usize = 4096;

/// Of these, those that the limits of Namespaces may take. Who may create Namespaces need not be who may
/// write flow schemas, and must leave room for those.
pub const MAX_LIMITED_NAMESPACES: usize = MAX_SCHEMAS / 2;

/// The last valid version of each priority level and flow schema.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    levels: BTreeMap<String, Level>,
    schemas: BTreeMap<String, Schema>,
    /// Objects whose latest version is not in force, and why.
    refused: BTreeMap<ObjectRef, Vec<Finding>>,
}

/// What connections are classified and limited by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Sorted by name; `exempt` and `catch-all` are always among them.
    pub levels: Vec<Level>,
    /// In the order in which they are asked: `exempt` first, `catch-all` last.
    pub schemas: Vec<ActiveSchema>,
    /// Flow schemas that take no connections because their level is missing.
    pub dangling: Vec<Schema>,
}

/// A flow schema whose level exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveSchema {
    pub schema: Schema,
    /// Index of its level in [`InForce::levels`].
    pub level: usize,
}

impl Configuration {
    /// Takes an object, or a new version of it, if it is valid. Returns notes for its author.
    ///
    /// # Errors
    /// Everything that is wrong with the object. An earlier version stays in force.
    pub fn apply(&mut self, object: &Object) -> Result<Vec<Finding>, Vec<Finding>> {
        let taken = match &object.spec {
            Spec::PriorityLevel(spec) => validate::level(&object.name, spec)
                .and_then(|valid| self.room_for_level(&valid.value).map(|()| valid))
                .map(|valid| {
                    self.levels.insert(object.name.clone(), valid.value);
                    valid.notes
                }),
            Spec::FlowSchema(spec) => {
                validate::schema(&object.name, spec).and_then(|valid| self.take_schema(valid))
            }
            Spec::Namespace(spec) => {
                validate::namespace(&object.name, spec).and_then(|valid| self.take_schema(valid))
            }
        };
        match &taken {
            Ok(_) => drop(self.refused.remove(&object.reference())),
            Err(errors) => self.refuse(object.reference(), errors.clone()),
        }
        taken
    }

    fn take_schema(&mut self, valid: Valid<Schema>) -> Result<Vec<Finding>, Vec<Finding>> {
        self.room_for(&valid.value)?;
        self.schemas.insert(valid.value.name.clone(), valid.value);
        Ok(valid.notes)
    }

    /// Records that the latest version of an object could not even be read. An earlier version
    /// stays in force.
    pub fn refuse(&mut self, reference: ObjectRef, errors: Vec<Finding>) {
        self.refused.insert(reference, errors);
    }

    /// Forgets an object. If it is one that must exist, the built-in version replaces it.
    pub fn delete(&mut self, reference: &ObjectRef) {
        match reference.kind {
            Kind::PriorityLevel => drop(self.levels.remove(&reference.name)),
            Kind::FlowSchema => drop(self.schemas.remove(&reference.name)),
            Kind::Namespace => drop(self.schemas.remove(&namespace::schema(&reference.name))),
        }
        self.refused.remove(reference);
    }

    /// The configuration that connections meet now.
    ///
    /// A schema may name a mandatory level even without an object of that name: the level always
    /// exists. The mandatory schemas are first and last, also among those with the same precedence.
    pub fn in_force(&self) -> InForce {
        let mut levels = self.levels.clone();
        for mandatory in [Level::exempt(), Level::catch_all()] {
            levels.entry(mandatory.name.clone()).or_insert(mandatory);
        }
        let levels: Vec<_> = levels.into_values().collect();

        let is_mandatory = |schema: &&Schema| matches!(schema.name.as_str(), EXEMPT | CATCH_ALL);
        let mut schemas: Vec<_> = self.schemas.values().filter(|s| !is_mandatory(s)).collect();
        schemas.sort_by_key(|schema| schema.order());
        let (exempt, catch_all) = (Schema::exempt(), Schema::catch_all());
        let schemas = [&exempt].into_iter().chain(schemas).chain([&catch_all]);

        let (mut active, mut dangling) = (Vec::new(), Vec::new());
        for schema in schemas {
            match levels.binary_search_by(|level| level.name.cmp(&schema.level)) {
                Ok(level) => active.push(ActiveSchema {
                    schema: schema.clone(),
                    level,
                }),
                Err(_) => dangling.push(schema.clone()),
            }
        }
        InForce {
            levels,
            schemas: active,
            dangling,
        }
    }

    /// The status conditions of every object, on a node with `server_limit` seats.
    pub fn conditions(&self, server_limit: u32) -> BTreeMap<ObjectRef, Vec<Condition>> {
        let in_force = self.in_force();
        let limits = in_force.limits(server_limit);
        let mut conditions: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for name in self.levels.keys() {
            conditions.insert(reference(Kind::PriorityLevel, name), vec![accepted()]);
        }
        for schema in &in_force.dangling {
            let of_schema = vec![accepted(), dangling(schema)];
            conditions.insert(of_schema_named(&schema.name), of_schema);
        }
        for active in &in_force.schemas {
            let schema = &active.schema;
            if self.schemas.contains_key(&schema.name) {
                let cut = seats_cut(schema, &limits[active.level]);
                let of_schema = vec![accepted(), found(schema), cut];
                conditions.insert(of_schema_named(&schema.name), of_schema);
            }
        }
        for (reference, errors) in &self.refused {
            let of_object = conditions.entry(reference.clone()).or_default();
            let has_earlier = !of_object.is_empty();
            of_object.retain(|condition| condition.type_ != ACCEPTED);
            of_object.insert(0, refused(errors, has_earlier));
        }
        conditions
    }

    /// Whether there is room for a level and its queues beside all others.
    fn room_for_level(&self, level: &Level) -> Result<(), Vec<Finding>> {
        let queues = |level: &Level| level.queuing().map_or(0, |queuing| queuing.queues);
        let others = || {
            self.levels
                .values()
                .filter(|other| other.name != level.name)
        };
        let mandatory = [EXEMPT, CATCH_ALL];
        let written = others().filter(|other| !mandatory.contains(&other.name.as_str()));
        if !mandatory.contains(&level.name.as_str())
            && written.count() + mandatory.len() >= MAX_LEVELS
        {
            return Err(vec![Finding {
                field: "metadata.name".to_owned(),
                message: format!("there must be no more than {MAX_LEVELS} PriorityLevels"),
            }]);
        }
        if others().map(queues).sum::<u32>() + queues(level) > MAX_ALL_QUEUES {
            return Err(vec![Finding {
                field: "spec.limited.limitResponse.queuing.queues".to_owned(),
                message: format!(
                    "all PriorityLevels together must have no more than {MAX_ALL_QUEUES} queues"
                ),
            }]);
        }
        Ok(())
    }

    /// Whether there is room for a schema and its rules beside those of all others.
    fn room_for(&self, schema: &Schema) -> Result<(), Vec<Finding>> {
        let others = self
            .schemas
            .values()
            .filter(|other| other.name != schema.name);
        let is_limit = |schema: &Schema| namespace::of_schema(&schema.name).is_some();
        let limits = others.clone().filter(|other| is_limit(other)).count();
        if is_limit(schema) && limits >= MAX_LIMITED_NAMESPACES {
            return Err(vec![Finding {
                field: "metadata.annotations".to_owned(),
                message: format!(
                    "there must be no more than {MAX_LIMITED_NAMESPACES} Namespaces with limits"
                ),
            }]);
        }
        let mandatory = [Schema::exempt(), Schema::catch_all()];
        if others.clone().count() + mandatory.len() >= MAX_SCHEMAS {
            return Err(vec![Finding {
                field: "metadata.name".to_owned(),
                message: format!("there must be no more than {MAX_SCHEMAS} FlowSchemas"),
            }]);
        }
        let others = others.chain(&mandatory).map(|other| other.rules.len());
        if others.sum::<usize>() + schema.rules.len() <= MAX_RULES {
            return Ok(());
        }
        Err(vec![Finding {
            field: "spec.rules".to_owned(),
            message: format!("all FlowSchemas together must have no more than {MAX_RULES} rules"),
        }])
    }
}

impl InForce {
    /// Whether it matters whose pods connections come from.
    pub fn asks_for_identity(&self) -> bool {
        let mut schemas = self.schemas.iter();
        schemas.any(|active| {
            let rules = active.schema.rules.iter();
            let mut sources =
                rules.flat_map(|rule| rule.sources.iter().chain(&rule.except_sources));
            sources.any(Source::needs_identity) || self.identity_method(active).is_some()
        })
    }

    /// How a schema tells flows apart, if it does by whose pods connections come from.
    pub(crate) fn identity_method(&self, active: &ActiveSchema) -> Option<DistinguisherMethod> {
        let method = active.schema.distinguisher?;
        let level = &self.levels[active.level];
        let is_asked = active.schema.tells_flows_apart(level);
        (is_asked && method.needs_identity()).then_some(method)
    }

    /// The limits of each level, on a node with `server_limit` seats.
    pub fn limits(&self, server_limit: u32) -> Vec<Limits> {
        limits(&self.levels, server_limit)
    }
}

fn reference(kind: Kind, name: &str) -> ObjectRef {
    ObjectRef {
        kind,
        name: name.to_owned(),
    }
}

/// The object that has made a schema of this name.
fn of_schema_named(name: &str) -> ObjectRef {
    match namespace::of_schema(name) {
        Some(namespace) => reference(Kind::Namespace, namespace),
        None => reference(Kind::FlowSchema, name),
    }
}

fn accepted() -> Condition {
    Condition {
        type_: ACCEPTED,
        status: true,
        reason: "Valid",
        message: "in force".to_owned(),
    }
}

fn refused(errors: &[Finding], has_earlier: bool) -> Condition {
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let rest = match has_earlier {
        true => "an earlier version stays in force",
        false => "not in force",
    };
    Condition {
        type_: ACCEPTED,
        status: false,
        reason: "Invalid",
        message: format!("{}; {rest}", errors.join("; ")),
    }
}

fn found(schema: &Schema) -> Condition {
    Condition {
        type_: DANGLING,
        status: false,
        reason: "Found",
        message: format!("PriorityLevel {:?} exists", schema.level),
    }
}

fn dangling(schema: &Schema) -> Condition {
    Condition {
        type_: DANGLING,
        status: true,
        reason: "NotFound",
        message: format!(
            "there is no PriorityLevel {:?}, so it takes no connections",
            schema.level
        ),
    }
}

fn seats_cut(schema: &Schema, limits: &Limits) -> Condition {
    let seats = schema.seats(limits);
    let is_cut = seats < schema.width;
    Condition {
        type_: SEATS_CUT,
        status: is_cut,
        reason: if is_cut {
            "LevelTooSmall"
        } else {
            "LevelLargeEnough"
        },
        message: format!(
            "a connection takes {seats} of the {} seats asked for, at PriorityLevel {:?}",
            schema.width, schema.level
        ),
    }
}
