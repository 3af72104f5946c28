//! Values of other crates in JSON, by their names.

use lb_common::{
    abi::{FrontendKind, RejectAnswer},
    service::Origin,
    verdict::Reason,
};
use lb_objects::{Algorithm, Protocol, TrafficPolicy};
use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// What has one name for each value.
pub trait Named: Copy + 'static {
    const ALL: &'static [Self];

    fn name(self) -> &'static str;
}

/// Writes the name.
pub fn serialize<T: Named, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(value.name())
}

/// Reads the name; unknown ones are errors.
pub fn deserialize<'de, T: Named, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let name = String::deserialize(from)?;
    let found = T::ALL.iter().find(|value| value.name() == name);
    found
        .copied()
        .ok_or_else(|| D::Error::custom(format_args!("unknown name {name:?}")))
}

/// The same for what need not be there.
pub mod option {
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    use super::Named;

    /// Writes the name, or null.
    pub fn serialize<T: Named, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        value.map(Named::name).serialize(to)
    }

    /// Reads the name, or null; unknown names are errors.
    pub fn deserialize<'de, T: Named, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        struct Value<T>(T);
        impl<'de, T: Named> Deserialize<'de> for Value<T> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                super::deserialize(from).map(Self)
            }
        }
        let value = Option::<Value<T>>::deserialize(from)?;
        Ok(value.map(|Value(value)| value))
    }
}

/// As in metrics.
impl Named for Reason {
    const ALL: &'static [Self] = Self::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Named for Origin {
    const ALL: &'static [Self] = &[Self::Pod, Self::Node, Self::Outside];

    fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Node => "node",
            Self::Outside => "outside",
        }
    }
}

/// As in the API's field names.
impl Named for FrontendKind {
    const ALL: &'static [Self] = &[
        Self::ClusterIp,
        Self::NodePort,
        Self::LoadBalancerIp,
        Self::ExternalIp,
    ];

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Named for Protocol {
    const ALL: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Named for TrafficPolicy {
    const ALL: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Named for Algorithm {
    const ALL: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Named for RejectAnswer {
    const ALL: &'static [Self] = &[Self::Reset, Self::Icmp, Self::Drop];

    fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Icmp => "icmp",
            Self::Drop => "drop",
        }
    }
}
