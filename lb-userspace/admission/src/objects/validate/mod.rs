//! Turns an object, with its zeros already replaced by [defaults](super::defaults), into what
//! admission uses, or lists everything that is wrong with it.

mod destination;
mod namespace;
mod priority_level;
mod rule;
mod schema;
mod subject;

use std::ops::RangeInclusive;

use lb_objects::kubernetes::field::{self, Invalid};

use super::{
    Object, Spec,
    finding::{Finding, Findings, Path},
};
use crate::{
    level::{CATCH_ALL, EXEMPT},
    schema::{Listed, NameOrAny},
};

pub use self::{
    namespace::namespace,
    priority_level::{MAX_QUEUES, level},
    schema::{ANSWERS, DISTINGUISHERS, schema},
    subject::KINDS as SUBJECT_KINDS,
};

/// Stands for everything in lists and names.
const ANY: &str = "*";
/// The most entries of a list.
const MAX_ENTRIES: usize = 64;

/// A valid object, in the form that admission uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Valid<T> {
    pub value: T,
    /// Notes for its author.
    pub notes: Vec<Finding>,
}

/// Everything that is wrong with an object.
pub fn errors(object: &Object) -> Vec<Finding> {
    let result = match &object.spec {
        Spec::PriorityLevel(spec) => level(&object.name, spec).map(drop),
        Spec::FlowSchema(spec) => schema(&object.name, spec).map(drop),
        Spec::Namespace(spec) => namespace(&object.name, spec).map(drop),
    };
    result.err().unwrap_or_default()
}

/// The value if there are no errors. If there are, the value means nothing.
fn outcome<T>(value: T, findings: Findings) -> Result<Valid<T>, Vec<Finding>> {
    match findings.errors.is_empty() {
        true => Ok(Valid {
            value,
            notes: findings.notes,
        }),
        false => Err(findings.errors),
    }
}

fn object_name(name: &str, findings: &mut Findings) {
    findings.check(field::subdomain("metadata.name", name));
}

/// Refuses an object that cannot be changed, unless it is as built in.
fn fixed<T: PartialEq>(name: &str, value: &T, built_in: &T, findings: &mut Findings) {
    debug_assert!(matches!(name, EXEMPT | CATCH_ALL));
    if findings.errors.is_empty() && value != built_in {
        let message = format!("must be as built in: {name} cannot be changed");
        findings.error(&Path::spec(), message);
    }
}

/// A number of a range. If it is outside, the error is recorded and the result is zero.
fn number(path: &Path, value: i32, range: RangeInclusive<i32>, findings: &mut Findings) -> u32 {
    let (min, max) = range.clone().into_inner();
    if range.contains(&value) {
        return u32::try_from(value).unwrap_or_default();
    }
    findings.error(
        path,
        match (min, max) {
            (0, i32::MAX) => format!("{value} must not be negative"),
            (1, i32::MAX) => format!("{value} must be positive"),
            _ => format!("{value} must be between {min} and {max}"),
        },
    );
    0
}

/// Records an error for a list that can be empty only by mistake.
fn not_empty<T>(path: &Path, list: &[T], findings: &mut Findings) {
    if list.is_empty() {
        findings.error(path, "must have at least one entry");
    }
}

fn at_most(path: &Path, len: usize, findings: &mut Findings) {
    if len > MAX_ENTRIES {
        findings.error(path, format!("has {len} entries, more than {MAX_ENTRIES}"));
    }
}

/// Reads the entries of a list, at most [`MAX_ENTRIES`].
fn each<S, T>(
    path: &Path,
    list: &[S],
    read: impl Fn(&Path, &S, &mut Findings) -> Option<T>,
    findings: &mut Findings,
) -> Vec<T> {
    at_most(path, list.len(), findings);
    let items = list.iter().take(MAX_ENTRIES).enumerate();
    items
        .filter_map(|(index, item)| read(&path.index(index), item, findings))
        .collect()
}

/// A list in which `*` stands for everything and must be alone. An absent list means everything
/// too.
fn listed<S, T>(
    path: &Path,
    list: Option<&[S]>,
    is_any: impl Fn(&S) -> bool,
    read: impl Fn(&Path, &S, &mut Findings) -> Option<T>,
    findings: &mut Findings,
) -> Listed<T> {
    let Some(list) = list else {
        return Listed::Any;
    };
    not_empty(path, list, findings);
    if !list.iter().any(is_any) {
        return Listed::Only(each(path, list, read, findings));
    }
    if list.len() > 1 {
        findings.error(path, format!("must have nothing beside {ANY:?}"));
    }
    Listed::Any
}

/// A list of words or names.
fn listed_names(
    path: &Path,
    list: Option<&[String]>,
    check: fn(&Path, &str) -> Result<(), Invalid>,
    findings: &mut Findings,
) -> Listed<String> {
    let read = |path: &Path, name: &String, findings: &mut Findings| {
        findings.check(check(path, name)).map(|()| name.clone())
    };
    listed(path, list, |name| name == ANY, read, findings)
}

/// A name, or `*` for all.
fn name_or_any(
    path: &Path,
    name: &str,
    check: fn(&Path, &str) -> Result<(), Invalid>,
    findings: &mut Findings,
) -> NameOrAny {
    if name == ANY {
        return NameOrAny::Any;
    }
    findings.check(check(path, name));
    NameOrAny::Only(name.to_owned())
}

fn label(path: &Path, name: &str) -> Result<(), Invalid> {
    field::label(path, name)
}

fn subdomain(path: &Path, name: &str) -> Result<(), Invalid> {
    field::subdomain(path, name)
}
