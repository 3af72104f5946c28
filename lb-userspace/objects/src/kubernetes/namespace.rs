//! Namespaces whose annotations limit the connections to their Services.

use std::sync::Arc;

use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::{Map, json};

use super::{
    super::{Kind, Object},
    Translate,
    field::{Findings, Invalid},
    object_ref,
};
use crate::{AsWritten, ObjectName, Standing};

/// The annotation of Services and Namespaces that limits their connections on each node.
pub const MAX_CONNECTIONS_ANNOTATION: &str = "node-lb.io/max-connections";
/// The annotation of a Namespace that names the priority level of its connections.
pub const PRIORITY_LEVEL_ANNOTATION: &str = "node-lb.io/priority-level";

/// Longer than any valid value: a name has 253 characters at most.
const LONGEST: usize = 254;

impl Translate for core::Namespace {
    const KIND: Kind = Kind::Namespace;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    /// Others have no limit. Of one that has, only the annotations stay that set it.
    fn to_model(
        &self,
        name: ObjectName,
        _findings: &mut Findings,
    ) -> Result<Option<Object>, Invalid> {
        let annotations = self.metadata.annotations.as_ref();
        let Some(annotations) =
            annotations.filter(|all| all.contains_key(MAX_CONNECTIONS_ANNOTATION))
        else {
            return Ok(None);
        };
        let ours = [MAX_CONNECTIONS_ANNOTATION, PRIORITY_LEVEL_ANNOTATION];
        let ours = ours.into_iter().filter_map(|key| {
            // A longer one is as wrong as this much of it, and all agents keep it.
            let value: String = annotations.get(key)?.chars().take(LONGEST).collect();
            Some((key.to_owned(), value.into()))
        });
        Ok(Some(Object::Admission(Arc::new(AsWritten {
            reference: object_ref(Kind::Namespace, "", &name.name),
            json: json!({
                "apiVersion": "v1",
                "kind": Kind::Namespace.to_string(),
                "metadata": {"name": &*name.name, "annotations": ours.collect::<Map<_, _>>()},
            }),
            standing: Standing::default(),
        }))))
    }
}
