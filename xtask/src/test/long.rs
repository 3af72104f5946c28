//! Tests that take so long that they start before the others.

/// Their names. If one of them started last, it would still run when the other workers have nothing
/// left to do.
const LONG: [&str; 5] = [
    // They compute for the greater part of a minute, on one processor.
    "model::scenarios::a_claim_that_is_given_back_leaves_one_flow",
    "model::mutations::claims_look_for_rivals",
    "pipeline::connections::flows_are_counted_right",
    "source_api::events::full_maps_on_many_nodes_are_one_event_for_each_service_and_few_requests",
    // It waits for half a minute.
    "source_api::connection::server_that_hangs_is_left_within_45_seconds",
];

/// Whether the test with this name starts early.
pub fn is(name: &str) -> bool {
    LONG.contains(&name)
}
