//! The fields of a rule of a `FlowSchema`. What is said here is also what `kubectl explain` says.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::wire::or_default;

/// A rule takes connections from any of its subjects to any of its destinations, except for its
/// exceptions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["subjects", "destinations"]))]
pub struct RuleSpec {
    /// Sources of connections: at least one.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(min = 1, max = 64))]
    pub subjects: Vec<SubjectSpec>,

    /// Sources that the rule does not take.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 64))]
    pub except_subjects: Vec<SubjectSpec>,

    /// Where the connection enters the node: `External` (from outside the node, including
    /// other nodes), `Pod` (from a pod of this node), `Node` (from the node itself or a pod on its
    /// network), or `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 3), extend("default" = ["*"],
        "items" = json!({"type": "string", "enum": ["*", "External", "Pod", "Node"]})))]
    pub ingress: Option<Vec<String>>,

    /// Destinations of connections: at least one.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(min = 1, max = 64))]
    pub destinations: Vec<DestinationSpec>,

    /// Destinations that the rule does not take.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 64))]
    pub except_destinations: Vec<DestinationSpec>,
}

/// A source of connections. Give the field of the kind, and no field of another kind.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["kind"], "x-kubernetes-validations" = json!([
    {"rule": "has(self.cidr) == (self.kind == 'CIDR')", "fieldPath": ".cidr",
     "message": "must be given for kind CIDR, and for no other"},
    {"rule": "has(self.namespace) == (self.kind == 'Namespace')", "fieldPath": ".namespace",
     "message": "must be given for kind Namespace, and for no other"},
    {"rule": "has(self.serviceAccount) == (self.kind == 'ServiceAccount')", "fieldPath": ".serviceAccount",
     "message": "must be given for kind ServiceAccount, and for no other"},
    {"rule": "has(self.workload) == (self.kind == 'Workload')", "fieldPath": ".workload",
     "message": "must be given for kind Workload, and for no other"},
])))]
pub struct SubjectSpec {
    /// `Any` is every source. `Namespace`, `ServiceAccount` and `Workload` take pods whose identity
    /// the node knows.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(extend("enum" = super::validate::SUBJECT_KINDS))]
    pub kind: String,

    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrSubject>,

    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<NamespaceSubject>,

    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountSubject>,

    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadSubject>,
}

/// Source addresses.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["cidr"]))]
pub struct CidrSubject {
    /// A range like `192.0.2.0/24`.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(min = 1, max = 49))]
    pub cidr: String,

    /// Ranges inside it that are left out.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = 64), inner(length(min = 1, max = 49)))]
    pub except: Vec<String>,
}

/// Pods of a namespace.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["name"]))]
pub struct NamespaceSubject {
    /// A namespace, or `*` for all.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// Pods of a service account.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["namespace", "name"]))]
pub struct ServiceAccountSubject {
    /// The namespace of the service account.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,

    /// The service account, or `*` for all service accounts of the namespace.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Pods by labels.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["namespace", "matchLabels"]))]
pub struct WorkloadSubject {
    /// The pods' namespace, or `*` for all.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,

    /// Labels that each pod must have: at least one.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16))]
    pub match_labels: BTreeMap<String, String>,
}

/// A destination of connections. Every given field must match.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([
    {"rule": "has(self.namespaces) || has(self.addresses)", "fieldPath": ".namespaces",
     "message": "is required unless addresses are given"},
    {"rule": "has(self.namespaces) || !has(self.services)", "fieldPath": ".services",
     "message": "must not be given without namespaces"},
    {"rule": "!has(self.namespaces) || !self.namespaces.exists(name, name == '*') || size(self.namespaces) == 1",
     "fieldPath": ".namespaces", "message": "must be alone if it has '*'"},
    {"rule": "!has(self.services) || !self.services.exists(name, name == '*') || size(self.services) == 1",
     "fieldPath": ".services", "message": "must be alone if it has '*'"},
])))]
pub struct DestinationSpec {
    /// Namespaces of Services, or `*` alone for all. Optional if there are addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)))]
    pub namespaces: Option<Vec<String>>,

    /// Names of Services, or `*` alone for all, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)))]
    pub services: Option<Vec<String>>,

    /// Ports of the Services (not node ports or target ports): numbers, ranges like `"8000-8080"`,
    /// or `*` alone for all, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), extend("default" = ["*"]))]
    pub ports: Option<Vec<PortSpec>>,

    /// `TCP`, `UDP`, `SCTP`, or `*` alone for all, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 3), extend("default" = ["*"],
        "items" = json!({"type": "string", "enum": ["*", "TCP", "UDP", "SCTP"]})))]
    pub protocols: Option<Vec<String>>,

    /// Ranges of addresses that clients connect to (cluster IPs, load balancers' addresses, the
    /// node's own for node ports), or `*` alone for all, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 49)))]
    pub addresses: Option<Vec<String>>,
}

/// A port or a range of ports.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PortSpec {
    Number(i64),
    Text(String),
}

impl JsonSchema for PortSpec {
    fn schema_name() -> Cow<'static, str> {
        "PortSpec".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
        })
    }
}
