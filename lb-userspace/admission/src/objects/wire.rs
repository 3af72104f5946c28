//! Helpers to read fields: `null` counts as absent, as for the API server.

use serde::{Deserialize, Deserializer};

/// The field's value, or its type's default for `null`; to be used with `#[serde(default)]`.
pub fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
