//! A way through the cluster in sentences: a paragraph for each node, and one for each place that the
//! packet may go to from there.

use lb_common::verdict::Reason;

use super::text;
use crate::{
    cli::output::plain,
    explain::{
        Report, Verdict,
        across::{Assumption, Journey, Leg, Place, PlaceKind, Problem, Step, Translator},
    },
};

/// What a paragraph is indented by, below that of the node before it.
const INDENT: &str = "  ";
/// Of more places to go to from a node, and of more endpoints of which the same can be said, only the
/// first ones are shown; `-o json` has all of them.
const SHOWN: usize = 16;

pub fn render(journey: &Journey) -> String {
    let (from, client) = (journey.from, &journey.client);
    let client = match (&client.kind, &client.node) {
        (PlaceKind::Outside, _) => format!("{from} is outside the cluster."),
        (PlaceKind::Node, Some(node)) => format!("{from} is node {node} itself."),
        (_, Some(node)) => format!("{from} is a pod on node {node}."),
        (_, None) => format!("{from} is a pod, and no object says on which node."),
    };
    let mut lines = vec![client];
    lines.push(format!("\nFirst, on node {}:", journey.first.node));
    step(&mut lines, &journey.first, INDENT);
    if !journey.assumed.is_empty() {
        lines.push("\nThis takes for granted:".to_owned());
        let assumed = journey.assumed.iter();
        lines.extend(assumed.map(|assumed| format!("- {}", assumption(assumed))));
    }
    // Names of objects may be anything.
    let lines = lines.iter().flat_map(|line| line.split('\n'));
    let lines: Vec<_> = lines.map(plain).collect();
    lines.join("\n") + "\n"
}

/// What happens on a node, and where the packet may go from there.
fn step(lines: &mut Vec<String>, step: &Step, indent: &str) {
    if let Some(report) = &step.decision {
        let text = text::render(report);
        lines.extend(text.lines().map(|line| format!("{indent}{line}")));
    }
    problems(lines, &step.problems, &step.node, indent);
    let mut legs: Vec<_> = step.onward.iter().collect();
    let mut shown = 0;
    while let [first, ..] = legs[..]
        && shown < SHOWN
    {
        let (group, rest): (Vec<_>, _) = legs.iter().partition(|leg| are_alike(first, leg));
        leg(lines, step, &group, indent);
        (legs, shown) = (rest, shown + 1);
    }
    if !legs.is_empty() {
        let more = legs.len();
        lines.push(format!(
            "\n{indent}{more} more endpoints are not shown; -o json shows all."
        ));
    }
}

/// Whether the same can be said of two places to go to, but for their addresses.
fn are_alike(one: &Leg, other: &Leg) -> bool {
    if std::ptr::eq(one, other) {
        return true;
    }
    let is_left_alone = |leg: &Leg| match &leg.then {
        None => true,
        Some(step) => {
            step.onward.is_empty() && step.decision.as_ref().is_some_and(is_plain_arrival)
        }
    };
    let of = |leg: &Leg| {
        (
            leg.from,
            leg.place.clone(),
            leg.answer,
            leg.problems.clone(),
        )
    };
    of(one) == of(other)
        && one.then.is_some() == other.then.is_some()
        && is_left_alone(one)
        && is_left_alone(other)
}

/// Whether a packet is to no Service where it arrives, as to most endpoints.
fn is_plain_arrival(report: &Report) -> bool {
    report.verdict == Verdict::Pass
        && report.reason == Reason::NotService
        && report.service.is_none()
        && report.left_to_node.is_none()
}

/// The way to one place, or to several of which the same can be said.
fn leg(lines: &mut Vec<String>, from: &Step, group: &[&Leg], indent: &str) {
    let Some(leg) = group.first() else { return };
    let to = group.iter().take(SHOWN).map(|leg| leg.to.to_string());
    let mut to = to.collect::<Vec<_>>().join(" or ");
    if group.len() > SHOWN {
        to += &format!(" or one of {} more", group.len() - SHOWN);
    }
    let below = format!("{indent}{INDENT}");
    let way = match leg.answer {
        Some(_) => "To",
        None => "On to",
    };
    let place = place(&leg.place, &from.node);
    lines.push(format!("\n{indent}{way} {to}, {place}:"));
    let mut say = |sentence: String| lines.push(format!("{below}{sentence}"));
    let is_here = leg.place.node.as_deref() == Some(&from.node);
    if let Some(source) = leg.from {
        say(match (leg.answer, is_here) {
            (None, _) => format!("The packet goes on from {source}, as it was."),
            (Some(_), true) => format!("The endpoint sees {source} as its client."),
            (Some(_), false) => {
                format!("The packet leaves {} with the source {source}.", from.node)
            }
        });
    }
    match &leg.then {
        None => {}
        Some(then) => match &then.decision {
            Some(report) if is_plain_arrival(report) && then.onward.is_empty() => say(format!(
                "On {} it is to no Service, and node-lb leaves it alone (not-service): {} sees {} as \
                 its client.",
                then.node,
                match leg.answer {
                    Some(_) => "the endpoint",
                    None => "who has that address",
                },
                report.from
            )),
            _ => {
                say(format!("On node {}:", then.node));
                step(lines, then, &format!("{below}{INDENT}"));
            }
        },
    }
    let mut say = |sentence: String| lines.push(format!("{below}{sentence}"));
    match leg.answer {
        Some(Translator::Socket) => say(format!(
            "Answers need no translation: the client's socket on {} is connected to the endpoint.",
            from.node
        )),
        Some(Translator::Flow) if leg.problems.is_empty() => say(format!(
            "Answers come back by {}, which gives them the address that the client has asked for.",
            from.node
        )),
        Some(Translator::Flow) | None => {}
    }
    problems(lines, &leg.problems, &from.node, &below);
}

fn place(place: &Place, from: &str) -> String {
    match (place.kind, &place.node) {
        (PlaceKind::Outside, _) => "which no object places in the cluster".to_owned(),
        (PlaceKind::Pod, None) => "a pod".to_owned(),
        (PlaceKind::Pod, Some(node)) if node == from => "a pod on this node".to_owned(),
        (PlaceKind::Pod, Some(node)) => format!("a pod on node {node}"),
        (PlaceKind::Node, Some(node)) if node != from => format!("node {node} itself"),
        (PlaceKind::Node, _) => "this node itself".to_owned(),
    }
}

/// What goes wrong on a node, or on the way from there.
fn problems(lines: &mut Vec<String>, problems: &[Problem], node: &str, indent: &str) {
    let sentences = problems.iter().map(|found| problem(found, node));
    lines.extend(sentences.map(|sentence| format!("{indent}PROBLEM: {sentence}")));
}

fn problem(problem: &Problem, at: &str) -> String {
    match problem {
        Problem::AnswerAstray => format!(
            "the endpoint answers straight to the client, past {at}: nobody translates the answer, and the \
             client drops it. Either {at} has to replace the source (--detect-local-mode and \
             --cluster-cidr say whose it keeps), or routes have to lead answers back by {at}."
        ),
        Problem::NoNodeAddress => {
            format!("the packet is dropped, because {at} has no address of its IP family.")
        }
        Problem::EndpointsElsewhere { nodes } => match nodes.is_empty() {
            true => "no object says on which node the endpoints are.".to_owned(),
            false => format!(
                "usable endpoints are on {}; send clients there, as load balancers do that ask the \
                 healthCheckNodePort, or use the policy Cluster.",
                names(nodes)
            ),
        },
        Problem::NoNodeObject { node } => format!(
            "an EndpointSlice or a pod names node {node}, and there is no such Node: what happens there \
             cannot be told."
        ),
        Problem::NodeUnknown => {
            "no object says on which node this pod is: what happens there cannot be told."
                .to_owned()
        }
        Problem::NoAnswer { node } => {
            format!("the agent of node {node} has said nothing: what happens there cannot be told.")
        }
        Problem::TooManyNodes => {
            "the packet may come to more nodes, or in more ways, than are followed: do \
            Services have each other's addresses as endpoints?"
                .to_owned()
        }
    }
}

/// Of many, only the first ones.
fn names(nodes: &[String]) -> String {
    let shown = nodes.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    let shown = shown.join(", ");
    match nodes.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn assumption(assumption: &Assumption) -> String {
    match assumption {
        Assumption::SameSettings { nodes } => format!(
            "The agents of {} have the settings given here, and this version of node-lb.",
            names(nodes)
        ),
        Assumption::NodeAddresses => {
            "These nodes have the addresses of their Node objects, and no others.".to_owned()
        }
        Assumption::Device { name } => {
            format!("The client's packets arrive by a device that is named like a pod's, {name}.")
        }
        Assumption::NothingElseTranslates => {
            "Nothing else translates between nodes, such as a CNI's masquerade.".to_owned()
        }
        Assumption::NoTunnel => {
            "No tunnel leads to the endpoints: over one, the source becomes the node's \
            address on the tunnel."
                .to_owned()
        }
    }
}
