//! What one Service and one namespace may take of the maps: `--service-limits` and
//! `--namespace-limits`.

use std::str::FromStr;

/// Something that there is only so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Service ports, in each family.
    ServicePorts,
    /// Addresses times ports: entries of `FRONTENDS4` and `FRONTENDS6`.
    Addresses,
    /// Endpoints times ports: elements of `ENDPOINTS`.
    Endpoints,
    /// Maglev lookup tables.
    MaglevTables,
    /// Entries of `SOURCE_RANGES`, in each family. Service ports with the same ranges share them.
    SourceRanges,
    /// Elements of `SEATS`, one for each Service with a limit of connections.
    ConnectionLimits,
}

impl Resource {
    pub const ALL: [Self; 6] = [
        Self::ServicePorts,
        Self::Addresses,
        Self::Endpoints,
        Self::MaglevTables,
        Self::SourceRanges,
        Self::ConnectionLimits,
    ];

    /// As people call it, and settings with hyphens.
    pub fn name(self) -> &'static str {
        match self {
            Self::ServicePorts => "service ports",
            Self::Addresses => "addresses",
            Self::Endpoints => "endpoints",
            Self::MaglevTables => "Maglev tables",
            Self::SourceRanges => "source ranges",
            Self::ConnectionLimits => "connection limits",
        }
    }
}

/// How much of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cap {
    #[default]
    None,
    /// One in so many of what the map holds.
    Part(u32),
    Count(u32),
}

/// How much of each [`Resource`], in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps([Cap; Resource::ALL.len()]);

impl Caps {
    /// The same part of each.
    pub const fn part(of: u32) -> Self {
        Self([Cap::Part(of); Resource::ALL.len()])
    }

    pub fn set(&mut self, resource: Resource, cap: Cap) {
        self.0[resource as usize] = cap;
    }

    /// How much of a resource.
    pub fn get(&self, resource: Resource) -> Cap {
        self.0[resource as usize]
    }
}

/// What a Service and a namespace may have of the maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapLimits {
    pub service: Caps,
    pub namespace: Caps,
}

/// Of each map, the part that one Service may have unless settings say otherwise.
const OF_SERVICE: Caps = Caps::part(8);
/// The same of a namespace.
const OF_NAMESPACE: Caps = Caps::part(2);

/// One entry of either setting: `RESOURCE=NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    resource: Resource,
    cap: Cap,
}

impl FromStr for ResourceLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text
            .split_once('=')
            .ok_or("write RESOURCE=NUMBER, like addresses=1000")?;
        let resource = Resource::ALL
            .into_iter()
            .find(|resource| setting_name(*resource) == name);
        let known = Resource::ALL.map(setting_name).join(", ");
        let resource =
            resource.ok_or_else(|| format!("no such resource {name:?}; known are {known}"))?;
        let cap = match number.parse() {
            Ok(0) => Cap::None,
            Ok(count) => Cap::Count(count),
            Err(_) => return Err(format!("{name} is a number; 0 means no limit")),
        };
        Ok(Self { resource, cap })
    }
}

/// The limits of a Service, where settings say no others.
pub fn of_service(given: &[ResourceLimit]) -> Caps {
    changed(OF_SERVICE, given)
}

/// The limits of a namespace, where settings say no others.
pub fn of_namespace(given: &[ResourceLimit]) -> Caps {
    changed(OF_NAMESPACE, given)
}

/// Every limit as settings have it; a part of a map as `1/8`.
pub fn texts(caps: &Caps) -> Vec<String> {
    let text = |resource| {
        let cap = match caps.get(resource) {
            Cap::None => "0".to_owned(),
            Cap::Part(part) => format!("1/{part}"),
            Cap::Count(count) => count.to_string(),
        };
        format!("{}={cap}", setting_name(resource))
    };
    Resource::ALL.into_iter().map(text).collect()
}

fn changed(mut caps: Caps, given: &[ResourceLimit]) -> Caps {
    for ResourceLimit { resource, cap } in given {
        caps.set(*resource, *cap);
    }
    caps
}

fn setting_name(resource: Resource) -> String {
    resource.name().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_changed_one_by_one() {
        let given = ["addresses=1000", "maglev-tables=0"].map(|text| text.parse().unwrap());
        assert_eq!(
            texts(&of_service(&given)),
            [
                "service-ports=1/8",
                "addresses=1000",
                "endpoints=1/8",
                "maglev-tables=0",
                "source-ranges=1/8",
                "connection-limits=1/8"
            ]
        );
        for text in ["addresses", "addresses=many", "addresses=-1", "pods=3"] {
            assert!(text.parse::<ResourceLimit>().is_err(), "{text}");
        }
    }
}
