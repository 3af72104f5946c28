//! Rules for the limits of Namespaces.

use lb_objects::kubernetes::{
    field,
    namespace::{MAX_CONNECTIONS_ANNOTATION, PRIORITY_LEVEL_ANNOTATION},
};

use super::{Valid, outcome, subdomain};
use crate::{
    level::{CATCH_ALL, EXEMPT},
    objects::{
        finding::{Finding, Findings, Path},
        namespace::{self, NamespaceSpec},
    },
    schema::{Destination, Listed, NAMESPACE_PRECEDENCE, Rule, Schema, Services},
};

/// The schema that a Namespace's limit stands for: all connections to its Services are one flow. The
/// priority level it names may be missing.
///
/// # Errors
/// Everything that is wrong with the annotations.
pub fn namespace(name: &str, spec: &NamespaceSpec) -> Result<Valid<Schema>, Vec<Finding>> {
    let mut findings = Findings::default();
    findings.check(field::label("metadata.name", name));
    let annotations = Path::metadata().field("annotations");
    let path = annotations.key(MAX_CONNECTIONS_ANNOTATION);
    let most = findings.check(field::connections(&path, &spec.max_connections, ""));
    let level = spec.priority_level.as_deref().unwrap_or(CATCH_ALL);
    let path = annotations.key(PRIORITY_LEVEL_ANNOTATION);
    findings.check(subdomain(&path, level));
    if level == EXEMPT {
        findings.error(&path, format!("must not be {EXEMPT}, which limits nothing"));
    }
    let services = Services {
        namespaces: Listed::Only(vec![name.to_owned()]),
        names: Listed::Any,
    };
    let destination = Destination {
        service: Some(services),
        ..Destination::any()
    };
    let value = Schema {
        rules: vec![Rule::new(destination)],
        max_connections_per_flow: most.filter(|most| *most > 0),
        ..Schema::new(&namespace::schema(name), NAMESPACE_PRECEDENCE, level)
    };
    outcome(value, findings)
}
