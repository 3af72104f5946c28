//! node-lb, with and without admission.

use std::fs;

use anyhow::{Context, Result, ensure};
use lb_admission::level::Level;
use lb_tests::{Balanced, patience::try_eventually};

use super::{CAPACITY, PER_CLIENT, WAIT, ground::SERVICE};

/// A connection waits for a quarter of the time for which its client is patient.
const PATIENCE_PER_WAIT: u64 = 4;

/// What a connection gets that finds no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// It waits for its turn.
    Queue,
    /// It is refused, and clients may have only so many.
    Reject,
}

/// Starts node-lb with all seats in one priority level; without a response, without admission.
///
/// # Errors
///
/// If it does not get ready, or the level is not in force.
pub fn start(balanced: &mut Balanced, xdp: &str, response: Option<Response>) -> Result<()> {
    let Some(response) = response else {
        balanced.set_arguments(&[xdp]);
        return balanced.start_agents();
    };
    enforce(balanced, &[xdp], &objects(response), &[(SERVICE, CAPACITY)])
}

/// Starts node-lb with these objects, whose levels have so many seats, by their shares, and borrow none.
///
/// # Errors
///
/// If it does not get ready, or a level is not in force with its seats.
pub fn enforce(
    balanced: &mut Balanced,
    arguments: &[&str],
    objects: &str,
    levels: &[(&str, u32)],
) -> Result<()> {
    let path = balanced.lab.node(1).dir.join("admission.yaml");
    fs::write(&path, objects).with_context(|| format!("cannot write {}", path.display()))?;
    let path = format!("--admission-objects={}", path.display());
    let of_levels = levels.iter().map(|(_, seats)| seats).sum();
    let seats = format!("--max-connections={}", seats(of_levels));
    let admission = ["--admission=enforce", &seats, &path];
    balanced.set_arguments(&[arguments, &admission].concat());
    balanced.start_agents()?;
    try_eventually(|| {
        let status = balanced.status(1)?;
        for (name, seats) in levels {
            let level = status.priority_level(name);
            let level =
                level.with_context(|| format!("the priority level {name} is not in force"))?;
            let limit = level.limit;
            ensure!(limit == *seats, "the level {name} has {limit} seats");
        }
        Ok(())
    })
}

/// Seats of the node: what the levels need, and what always belongs to the level for connections that no
/// schema takes.
fn seats(of_levels: u32) -> u32 {
    of_levels + Level::catch_all().shares
}

/// The level and its schema, in which each address is a flow.
fn objects(response: Response) -> String {
    let (response, connections) = match response {
        Response::Queue => (
            "{type: Queue, queuing: {queues: 64, handSize: 6, queueLengthLimit: 100}}",
            String::new(),
        ),
        Response::Reject => (
            "{type: Reject}",
            format!("\n    connections: {{maxConnectionsPerFlow: {PER_CLIENT}}}"),
        ),
    };
    let patience = WAIT.as_secs() * PATIENCE_PER_WAIT;
    format!(
        "apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {{name: {SERVICE}}}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: {CAPACITY}
    borrowingLimitPercent: 0
    limitResponse: {response}{connections}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {{name: {SERVICE}}}
spec:
  priorityLevelConfiguration: {{name: {SERVICE}}}
  distinguisherMethod: {{type: BySourceIP}}
  deadlines: {{connectPatience: {patience}s}}
  rules:
  - subjects: [{{kind: Any}}]
    destinations: [{{namespaces: ['*'], services: [{SERVICE}]}}]
"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lb_admission::{
        configuration::Configuration, level::LimitResponse, objects::manifest::Manifest,
        schema::DistinguisherMethod,
    };

    use super::*;

    #[test]
    fn the_level_has_as_many_seats_as_the_endpoint_serves() {
        for response in [Response::Queue, Response::Reject] {
            let text = objects(response);
            let manifest = Manifest::parse(Path::new("a.yaml"), text.as_bytes()).unwrap();
            let mut configuration = Configuration::default();
            for document in manifest.documents {
                let notes = configuration.apply(&document.object.unwrap());
                assert_eq!(notes, Ok(Vec::new()), "{text}");
            }
            let in_force = configuration.in_force();
            let is_it = |level: &Level| level.name == SERVICE;
            let number = in_force.levels.iter().position(is_it).unwrap();
            let limits = in_force.limits(seats(CAPACITY))[number];
            assert_eq!([limits.min, limits.max], [CAPACITY; 2]);

            let limited = in_force.levels[number].limited().unwrap();
            let queues = matches!(limited.response, LimitResponse::Queue(_));
            assert_eq!(queues, response == Response::Queue);
            let most = limited.connections.max_connections_per_flow;
            assert_eq!(most, (!queues).then_some(PER_CLIENT));

            let mut schemas = in_force.schemas.iter().map(|active| &active.schema);
            let schema = schemas.find(|schema| schema.level == SERVICE).unwrap();
            assert_eq!(schema.distinguisher, Some(DistinguisherMethod::SourceIp));
            assert_eq!(schema.deadlines.queue_wait(), WAIT);
        }
    }
}
