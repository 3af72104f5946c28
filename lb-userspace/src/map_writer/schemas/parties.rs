//! How the kernel tells the flows of a flow schema apart, which it calls parties.

use lb_admission::{
    level::Level,
    schema::{DistinguisherMethod, PrefixLengths, Schema},
};
use lb_common::flow::party::{ANY, PartyRule, party_by};

/// The rule for connections that a schema takes and a level serves. Services are told apart by their
/// ports, and sources by their addresses; those of [tenants](super::Tenant) have a rule of their own.
pub fn rule(schema: &Schema, level: &Level) -> PartyRule {
    let by = match schema.distinguisher {
        None => 0,
        Some(DistinguisherMethod::DestinationService) => party_by::SERVICE,
        Some(DistinguisherMethod::SourcePrefix(lengths)) => bits(lengths),
        // One IPv6 client outside the cluster has a /64.
        Some(DistinguisherMethod::SourceIp) => {
            bits(PrefixLengths { ipv4: 32, ipv6: 64 }) | party_by::WHOLE_INSIDE
        }
        // Without a known identity, as in `lb_admission::classify`.
        Some(
            DistinguisherMethod::SourceNamespace
            | DistinguisherMethod::SourceServiceAccount
            | DistinguisherMethod::SourceNode,
        ) => bits(PrefixLengths::default()) | party_by::WHOLE_INSIDE,
    };
    // Who waits does so in a queue of its flow's hand.
    let uncounted = if level.queuing().is_some() { ANY } else { 0 };
    PartyRule {
        most: schema.most_per_flow(level).unwrap_or(uncounted),
        by,
    }
}

/// The rule for the connections of a tenant, which are one flow.
pub fn of_tenant(rule: PartyRule) -> PartyRule {
    PartyRule { by: 0, ..rule }
}

fn bits(lengths: PrefixLengths) -> u32 {
    u32::from(lengths.ipv4) | u32::from(lengths.ipv6) << 8
}
