//! Translates Kubernetes' types to node-lb's model: which objects matter to a service proxy, and
//! what of an object can be used.

mod endpoint_slice;
pub mod field;
pub mod namespace;
mod node;
mod pod;
mod service;
mod service_cidr;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{AsWritten, Kind, Object, ObjectName, ObjectRef, Problem, Refused, Standing};
use field::{Findings, Invalid};

/// The namespace of an object without one, as in kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// The result of translating one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Translated {
    pub reference: ObjectRef,
    pub outcome: Outcome,
    /// What of the object was refused, or why all of it was. Without file and line.
    pub problems: Vec<Problem>,
}

/// Whether an object is used.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Use(Object),
    /// It is valid, but not meant for a service proxy, such as a headless Service.
    Skip,
    /// It is invalid. What was in force for this reference should stay.
    Refuse,
}

/// A Kubernetes type that can be translated to the model.
pub trait Translate: DeserializeOwned {
    /// The kind of the objects.
    const KIND: Kind;

    #[doc(hidden)]
    fn metadata(&self) -> &ObjectMeta;

    /// `None` if the object is not for a service proxy.
    #[doc(hidden)]
    fn to_model(
        &self,
        name: ObjectName,
        findings: &mut Findings,
    ) -> Result<Option<Object>, Invalid>;
}

/// Translates an object of the Kubernetes API.
pub fn translate<T: Translate>(resource: &T) -> Translated {
    let meta = resource.metadata();
    let reference = object_ref(
        T::KIND,
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    );
    let mut findings = Findings::default();
    let outcome = field::object_name(&reference)
        .and_then(|()| resource.to_model(reference.name.clone(), &mut findings));

    let outcome = match outcome {
        Ok(Some(object)) => Outcome::Use(object),
        Ok(None) => Outcome::Skip,
        Err(invalid) => {
            // Errors inside a refused object do not matter any more.
            findings = Findings::default();
            findings.refuse(Refused::Object, invalid);
            Outcome::Refuse
        }
    };
    Translated {
        problems: findings.into_problems(&reference),
        reference,
        outcome,
    }
}

/// Translates a manifest; `None` if node-lb does not read objects of its kind.
///
/// A missing apiVersion counts as the right one. A Service of another group is not a Service here.
pub fn translate_manifest(manifest: Value) -> Option<Translated> {
    let text = |key| {
        manifest
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    match (text("kind"), text("apiVersion")) {
        ("Service", "" | "v1") => Some(decode::<core::Service>(manifest)),
        ("Node", "" | "v1") => Some(decode::<core::Node>(manifest)),
        ("Pod", "" | "v1") => Some(decode::<core::Pod>(manifest)),
        ("EndpointSlice", version) if version.is_empty() || version.starts_with(DISCOVERY) => {
            Some(decode::<discovery::EndpointSlice>(manifest))
        }
        ("ServiceCIDR", version) if version.is_empty() || version.starts_with(NETWORKING) => {
            Some(decode::<networking::ServiceCIDR>(manifest))
        }
        _ => None,
    }
}

/// An object from the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// `metadata.resourceVersion`; empty if it is missing, which API servers do not do.
    pub resource_version: String,
    /// When the endpoints of an EndpointSlice last changed, if its controller says so.
    pub endpoints_changed: Option<SystemTime>,
    pub translated: Translated,
}

/// Translates an object of a known kind from its JSON.
///
/// # Errors
/// If it is not JSON. Every other error is a [`Problem`].
pub fn translate_json(kind: Kind, json: &[u8]) -> serde_json::Result<Versioned> {
    match kind {
        Kind::Service => from_json::<core::Service>(json),
        Kind::EndpointSlice => from_json::<discovery::EndpointSlice>(json),
        Kind::Node => from_json::<core::Node>(json),
        Kind::Pod => from_json::<core::Pod>(json),
        Kind::ServiceCidr => from_json::<networking::ServiceCIDR>(json),
        Kind::Namespace => from_json::<core::Namespace>(json),
        Kind::PriorityLevel | Kind::FlowSchema => as_written(kind, json),
    }
}

/// An object that is read elsewhere. What the API server adds is left out, so that only what its
/// author changes is a change.
fn as_written(kind: Kind, json: &[u8]) -> serde_json::Result<Versioned> {
    let mut object: Value = serde_json::from_slice(json)?;
    let text = |object: &Value, key| {
        let text = object.pointer(key).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let resource_version = text(&object, "/metadata/resourceVersion");
    let name = text(&object, "/metadata/name");
    let reference = object_ref(kind, "", &name);
    let generation = object.pointer("/metadata/generation");
    let conditions = object.pointer("/status/conditions");
    let standing = Standing {
        generation: generation.and_then(Value::as_i64).unwrap_or_default(),
        resource_version: resource_version.clone(),
        conditions: conditions
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default(),
    };
    let written = json!({
        "apiVersion": object["apiVersion"].take(),
        "kind": kind.to_string(),
        "metadata": {"name": name},
        "spec": object["spec"].take(),
    });
    Ok(Versioned {
        resource_version,
        endpoints_changed: None,
        translated: Translated {
            outcome: Outcome::Use(Object::Admission(Arc::new(AsWritten {
                reference: reference.clone(),
                json: written,
                standing,
            }))),
            reference,
            problems: Vec::new(),
        },
    })
}

fn from_json<T: Translate>(json: &[u8]) -> serde_json::Result<Versioned> {
    if let Ok(resource) = serde_json::from_slice::<T>(json) {
        let version = resource.metadata().resource_version.as_deref();
        return Ok(Versioned {
            resource_version: version.unwrap_or_default().to_owned(),
            endpoints_changed: endpoints_changed(resource.metadata()),
            translated: translate(&resource),
        });
    }
    // Parsed again, more slowly, to say where the error is.
    let manifest: Value = serde_json::from_slice(json)?;
    let version = manifest.pointer("/metadata/resourceVersion");
    Ok(Versioned {
        resource_version: version
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
        endpoints_changed: None,
        translated: decode::<T>(manifest),
    })
}

fn endpoints_changed(metadata: &ObjectMeta) -> Option<SystemTime> {
    let at = field::annotation(metadata, TRIGGER_TIME_ANNOTATION)?;
    let at: Timestamp = at.parse().ok()?;
    let since_epoch = Duration::try_from(at.as_duration()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(since_epoch)
}

/// An annotation of EndpointSlices, in RFC 3339 with fractions.
const TRIGGER_TIME_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const DISCOVERY: &str = "discovery.k8s.io/";
const NETWORKING: &str = "networking.k8s.io/";

fn decode<T: Translate>(manifest: Value) -> Translated {
    let meta = |key| manifest.pointer(key).and_then(Value::as_str);
    let reference = object_ref(
        T::KIND,
        meta("/metadata/namespace").unwrap_or_default(),
        meta("/metadata/name").unwrap_or_default(),
    );
    match serde_path_to_error::deserialize::<_, T>(manifest) {
        Ok(resource) => translate(&resource),
        Err(error) => Translated {
            problems: vec![Problem {
                refused: Refused::Object,
                object: Some(reference.clone()),
                file: None,
                line: None,
                message: format!(
                    "{}: {}",
                    error.path(),
                    super::problem::shortened(&error.inner().to_string()),
                ),
            }],
            reference,
            outcome: Outcome::Refuse,
        },
    }
}

fn object_ref(kind: Kind, namespace: &str, name: &str) -> ObjectRef {
    let namespace = match namespace {
        _ if !kind.is_namespaced() => "",
        "" => DEFAULT_NAMESPACE,
        namespace => namespace,
    };
    ObjectRef {
        kind,
        name: ObjectName::new(namespace, name),
    }
}

#[cfg(test)]
mod tests;
