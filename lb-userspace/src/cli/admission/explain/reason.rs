//! Why a rule does not take a connection, in words.

use lb_admission::{
    classify::{
        Connection,
        matching::{DestinationMismatch, Mismatch},
    },
    schema::{Ingress, Schema},
};

/// The reasons why rules of a schema do not match, one per rule.
pub fn reasons(schema: &Schema, connection: &Connection<'_>) -> Vec<String> {
    if schema.rules.is_empty() {
        return vec!["it has no rules".to_owned()];
    }
    let rules = schema.rules.iter().enumerate();
    rules
        .filter_map(|(index, rule)| {
            let mismatch = rule.mismatch(connection)?;
            Some(format!("rules[{index}]: {}", text(mismatch, connection)))
        })
        .collect()
}

/// `external`, `pod` or `node`, as the command line has it.
pub fn ingress(ingress: Ingress) -> &'static str {
    match ingress {
        Ingress::External => "external",
        Ingress::Pod => "pod",
        Ingress::Node => "node",
    }
}

fn text(mismatch: Mismatch, connection: &Connection<'_>) -> String {
    let to = &connection.destination;
    match mismatch {
        Mismatch::Ingress => format!(
            "ingress {} is not among its own",
            ingress(connection.ingress)
        ),
        Mismatch::Source => match connection.identity {
            Some(_) => format!("{} is not among the subjects", connection.source),
            None => format!(
                "{}, of unknown identity, is not among the subjects",
                connection.source
            ),
        },
        Mismatch::ExceptSource(index) => {
            format!(
                "{} is left out by exceptSubjects[{index}]",
                connection.source
            )
        }
        Mismatch::Destination(mismatch) => match mismatch {
            DestinationMismatch::Nothing => "it has no destinations".to_owned(),
            DestinationMismatch::Namespace => {
                format!("namespace {} is not among the destinations", to.namespace)
            }
            DestinationMismatch::Service => {
                format!(
                    "Service {}/{} is not among the destinations",
                    to.namespace, to.service
                )
            }
            DestinationMismatch::Protocol => {
                format!("protocol {} is not among the destination's", to.protocol)
            }
            DestinationMismatch::Port if to.port == 0 => {
                "it is for certain ports, and none is given".to_owned()
            }
            DestinationMismatch::Port => format!("port {} is not among the destination's", to.port),
            DestinationMismatch::Address => match to.address {
                Some(address) => format!("address {address} is not among the destination's"),
                None => "it is for certain addresses, and none is given".to_owned(),
            },
        },
        Mismatch::ExceptDestination(index) => {
            format!(
                "{}/{} is left out by exceptDestinations[{index}]",
                to.namespace, to.service
            )
        }
    }
}
