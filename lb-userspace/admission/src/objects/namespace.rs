//! The limit of a Namespace: an annotation that stands for a flow schema, for those who do not want to
//! write any.

use lb_objects::kubernetes::namespace::{MAX_CONNECTIONS_ANNOTATION, PRIORITY_LEVEL_ANNOTATION};
use serde_json::{Map, Value};

/// What the names of these schemas begin with. No object may have such a name.
const PREFIX: &str = "namespace:";

/// The annotations of a Namespace with a limit, as written.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceSpec {
    /// The most connections to its Services, on each node.
    pub max_connections: String,
    /// The priority level of these connections.
    pub priority_level: Option<String>,
}

impl NamespaceSpec {
    /// What an object's metadata asks for; `None` if it sets no limit.
    pub fn of(metadata: &Map<String, Value>) -> Option<Self> {
        let annotations = metadata.get("annotations")?;
        let text = |name| annotations.get(name).and_then(Value::as_str);
        let max_connections = text(MAX_CONNECTIONS_ANNOTATION).filter(|text| *text != "0")?;
        Some(Self {
            max_connections: max_connections.to_owned(),
            priority_level: text(PRIORITY_LEVEL_ANNOTATION).map(str::to_owned),
        })
    }
}

/// The name of the schema that a Namespace's limit stands for.
pub fn schema(namespace: &str) -> String {
    format!("{PREFIX}{namespace}")
}

/// The Namespace whose limit a schema of this name stands for, if one's does.
pub fn of_schema(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)
}
