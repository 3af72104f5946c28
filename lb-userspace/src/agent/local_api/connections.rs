//! `/connections`: who holds the seats of priority levels.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    flows::{FlowSource, service_names},
    page,
};
use crate::{
    agent::catalog::Catalog,
    flows::holders::{Held, Holder, Whose},
    http::{Request, Response},
    map_writer::Numbered,
};

/// How many are told of without `?limit=`.
const USUAL: usize = 20;

/// The connections of one flow of a flow schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowConnections {
    pub flow_schema: String,
    pub priority_level: String,
    /// What they have in common: an address, a network, a service port (`namespace/name:port`), or `*`
    /// for all connections of the schema.
    pub flow: String,
    /// Those that hold seats, and how many seats they hold.
    pub connections: u32,
    pub seats: u32,
    /// The most that the flow may have (`maxConnectionsPerFlow`); absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// TCP connections whose handshake is not complete, with a seat or without.
    pub handshakes: u32,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Those with the most seats first.
    pub items: Vec<FlowConnections>,
    /// Whether there are more.
    pub truncated: bool,
}

/// At most `?limit=` flows, those with the most seats first.
pub async fn list(
    request: &Request,
    flows: Arc<dyn FlowSource>,
    catalog: Arc<Catalog>,
    numbered: Arc<Numbered>,
) -> Response {
    page(request, USUAL, move |limit| {
        let (holders, truncated) = flows.holders(limit)?;
        let items = named(&holders, &catalog, &numbered);
        Ok(Page { items, truncated })
    })
    .await
}

/// The same with names. Schemas that are not in force any more are told by their numbers.
fn named(
    holders: &[(Holder, Held)],
    catalog: &Catalog,
    numbered: &Numbered,
) -> Vec<FlowConnections> {
    let frontends = holders.iter().map(|(_, held)| held.frontend).collect();
    let services = service_names(&frontends, catalog);
    let known = numbered.known();
    let name = |(holder, held): &(Holder, Held)| {
        let found = known.schema(holder.schema);
        let tenant = found.and_then(|(_, tenant)| tenant);
        let schema = found.map(|(schema, _)| schema);
        FlowConnections {
            flow_schema: schema.map_or_else(
                || format!("#{}", holder.schema),
                |schema| schema.name.clone(),
            ),
            priority_level: schema.map_or_else(String::new, |schema| schema.level.clone()),
            flow: match holder.whose {
                Whose::Schema => tenant.unwrap_or("*").to_owned(),
                Whose::Source(network) if network.prefix_len() == network.max_prefix_len() => {
                    network.addr().to_string()
                }
                Whose::Source(network) => network.to_string(),
                Whose::Service(id) => match services.get(&held.frontend) {
                    Some(service) => service.clone(),
                    None => format!("service {id}"),
                },
            },
            connections: held.connections,
            seats: held.seats,
            limit: schema.and_then(|schema| schema.most_per_flow),
            handshakes: held.handshakes,
        }
    };
    holders.iter().map(name).collect()
}
