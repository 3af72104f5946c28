//! A proposal as YAML, with its reasons as comments.

use std::fmt::Write as _;

use lb_admission::proposal::{Proposal, Proposed, Used};

/// Name of the level of several namespaces.
const TOGETHER: &str = "other-namespaces";

pub fn yaml(proposal: &Proposal) -> String {
    let mut text = format!(
        "# Proposed for {} connections in {:.0} s. Check it, change it, and try it on the same recording:
#   node-lb admission simulate -f FILE --concurrency {seats} --trace RECORDING
# The levels get what their comments say on a node with {seats} seats (--concurrency). Shares are seats:
# half as many again as were enough for 99 % of the time.
",
        proposal.connections,
        proposal.span as f64 / 1e9,
        seats = proposal.seats(),
    );
    for level in &proposal.levels {
        object(&mut text, level);
    }
    text
}

fn object(text: &mut String, level: &Proposed) {
    let Proposed {
        namespaces,
        used,
        seats,
        lendable_percent,
        queuing,
    } = level;
    let name = quoted(&match &namespaces[..] {
        [namespace] => format!("namespace-{namespace}"),
        _ => TOGETHER.to_owned(),
    });
    let namespaces: Vec<_> = namespaces.iter().map(|name| quoted(name)).collect();
    for reason in reasons(used, *lendable_percent, queuing.queues) {
        writeln!(text, "# {reason}").expect("a String takes any text");
    }
    write!(
        text,
        "apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {{name: {name}}}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: {seats}
    lendablePercent: {lendable_percent}
    limitResponse: {{type: Queue, queuing: {{queues: {}, handSize: {}, queueLengthLimit: {}}}}}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {{name: {name}}}
spec:
  priorityLevelConfiguration: {{name: {name}}}
  matchingPrecedence: 1000
  distinguisherMethod: {{type: BySourceIP}}
  rules:
  - subjects: [{{kind: Any}}]
    destinations: [{{namespaces: [{}]}}]
---
",
        queuing.queues,
        queuing.hand_size,
        queuing.queue_length_limit,
        namespaces.join(", ")
    )
    .expect("a String takes any text");
}

/// A name that is text for YAML, whatever it says: a namespace may be called 123 or true.
fn quoted(name: &str) -> String {
    serde_json::Value::from(name).to_string()
}

/// Why a level is as it is, a sentence a line.
fn reasons(used: &Used, lendable_percent: u32, queues: u32) -> Vec<String> {
    let Used {
        connections,
        most,
        enough,
        mean,
        short,
        sources,
        largest,
    } = used;
    let percent = (short * 100.0) as u32;
    let mut reasons = vec![
        format!(
            "{connections} connections: {mean:.1} open on average, {most} at most, {enough} enough for 99 % of the time."
        ),
        match lendable_percent {
            0 => format!(
                "Lends nothing: {percent} % of its seats' time belonged to connections of less than 5 s, and others come back late."
            ),
            _ => format!(
                "Lends {lendable_percent} %: {percent} % of its seats' time belonged to connections of less than 5 s."
            ),
        },
    ];
    if let Some((source, most)) = largest {
        reasons.push(match queues {
            1 => format!("All came from {source}, so there is nothing to queue fairly."),
            _ => {
                format!("From {sources} addresses; {source} had the most, {most} at the same time.")
            }
        });
    }
    reasons
}
