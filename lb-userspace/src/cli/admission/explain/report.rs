//! The result of `explain`, as JSON and as text.

use std::fmt::Write;

use lb_admission::{
    classify::{Connection, Distinguisher, MAX_DISTINGUISHER},
    configuration::InForce,
    flow_hash::FlowHasher,
    level::Queuing,
    shuffle::Dealer,
};
use serde::Serialize;

use super::reason::{ingress, reasons};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report<'a> {
    /// The connection, in words.
    #[serde(skip)]
    connection: String,
    flow_schema: &'a str,
    matching_precedence: u32,
    priority_level: &'a str,
    /// `Exempt` or `Limited`.
    #[serde(rename = "type")]
    type_: &'static str,
    /// `Queue` or `Reject`; `None` for an exempt level.
    limit_response: Option<&'static str>,
    /// Empty if flows are not told apart.
    distinguisher: String,
    /// The hash of the flow, without a salt, as used in a workload of `simulate`. `None` without
    /// queues.
    hash: Option<u64>,
    /// Numbers of the queues that the flow may use, by the hash without a salt. An agent hashes
    /// with its own secret. `None` without queues.
    hand: Option<Vec<u32>>,
    /// Seats of the connection, as many as its level allows.
    seats: u32,
    /// The schemas that were asked before and did not match, in order.
    passed_over: Vec<PassedOver<'a>>,
    /// Schemas that match nothing because their level is missing.
    dangling: Vec<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PassedOver<'a> {
    flow_schema: &'a str,
    matching_precedence: u32,
    /// One for each rule.
    reasons: Vec<String>,
}

impl<'a> Report<'a> {
    /// The report for a node with so many seats.
    ///
    /// # Errors
    /// If the level's queues cannot be dealt, which does not happen with a valid level.
    pub fn new(
        in_force: &'a InForce,
        server_limit: u32,
        connection: &Connection<'_>,
    ) -> anyhow::Result<Self> {
        let index = in_force.classify(connection);
        let active = &in_force.schemas[index];
        let (schema, level) = (&active.schema, &in_force.levels[active.level]);
        let distinguisher = Distinguisher::new(schema, level, connection);
        let queuing = level.queuing();
        let hash = match queuing {
            Some(Queuing { queues: 2.., .. }) => FlowHasher::Exact.hash(
                &schema.name,
                distinguisher.text(&mut [0; MAX_DISTINGUISHER]),
            ),
            // Without queues, nothing is dealt.
            _ => 0,
        };
        let passed_over = in_force.schemas[..index].iter().map(|active| PassedOver {
            flow_schema: &active.schema.name,
            matching_precedence: active.schema.precedence,
            reasons: reasons(&active.schema, connection),
        });
        Ok(Self {
            connection: in_words(connection),
            flow_schema: &schema.name,
            matching_precedence: schema.precedence,
            priority_level: &level.name,
            type_: level.kind.as_str(),
            limit_response: level.limited().map(|limited| limited.response.as_str()),
            distinguisher: distinguisher.to_string(),
            hash: queuing.map(|_| hash),
            hand: queuing.map(|queuing| hand(queuing, hash)).transpose()?,
            seats: schema.seats(&in_force.limits(server_limit)[active.level]),
            passed_over: passed_over.collect(),
            dangling: in_force
                .dangling
                .iter()
                .map(|schema| schema.name.as_str())
                .collect(),
        })
    }

    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.connection);
        let mut line = |label: &str, content: &str| {
            writeln!(text, "  {label:14}  {content}").expect("a String takes any text");
        };
        let schema = format!(
            "{}, precedence {}",
            self.flow_schema, self.matching_precedence
        );
        line("Flow schema", &schema);
        let level = match self.limit_response {
            None => format!(
                "{}, exempt: never waits, never refused",
                self.priority_level
            ),
            Some("Reject") => format!(
                "{}, refuses connections without a free seat",
                self.priority_level
            ),
            Some(_) => format!(
                "{}, queues connections without a free seat",
                self.priority_level
            ),
        };
        line("Priority level", &level);
        if let Some(hand) = &self.hand {
            let flow = match self.distinguisher.as_str() {
                "" => "all connections of the schema",
                distinguisher => distinguisher,
            };
            line("Flow", flow);
            let hand: Vec<_> = hand.iter().map(ToString::to_string).collect();
            line("Queues", &format!("{} (unsalted)", hand.join(", ")));
        }
        for schema in &self.passed_over {
            for reason in &schema.reasons {
                line("Not by", &format!("{}: {reason}", schema.flow_schema));
            }
        }
        for schema in &self.dangling {
            line(
                "Not by",
                &format!("{schema}: dangling, its priority level is missing"),
            );
        }
        text
    }
}

fn hand(queuing: Queuing, hash: u64) -> anyhow::Result<Vec<u32>> {
    let dealer = Dealer::new(queuing.queues.try_into()?, queuing.hand_size.try_into()?)?;
    Ok(dealer.deal(hash).to_vec())
}

fn in_words(connection: &Connection<'_>) -> String {
    let to = &connection.destination;
    let from = match connection.identity {
        Some(identity) => format!(" of {}/{}", identity.namespace, identity.service_account),
        None => String::new(),
    };
    let port = match to.port {
        0 => String::new(),
        port => format!(":{port}"),
    };
    format!(
        "{} ({}{from}) to {}/{}{port} {}",
        connection.source,
        ingress(connection.ingress),
        to.namespace,
        to.service,
        to.protocol
    )
}
