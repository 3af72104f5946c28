//! The configuration suggested to operators who have none.

/// The suggested objects as YAML, with the reasons for each.
pub const SUGGESTED: &str = include_str!("suggested.yaml");
