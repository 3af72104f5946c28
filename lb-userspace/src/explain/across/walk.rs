//! Goes with a packet from one node to the next.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use anyhow::{Context as _, bail};
use lb_common::{service::Origin, verdict::Reason};
use lb_objects::{IpFamily, Node, ObjectName};

use super::{
    super::{Question, Report, Target, Verdict},
    cluster::Cluster,
    journey::{Assumption, Journey, Leg, Place, PlaceKind, Problem, Step, Translator},
};
use crate::config::SocketLb;

/// The most nodes on a packet's way: that of the client, that of a node port, and that of the endpoint,
/// twice. Where Services have each other's addresses as endpoints, it could go round in a circle.
const MOST_NODES: usize = 6;
/// The most decisions of one way. Where each of many endpoints is an address of a Service again, there
/// could be any number.
const MOST_DECISIONS: usize = 20_000;

/// Says what node-lb does on a node with the packet that is asked about; `None` if that node does not
/// answer.
pub type Ask<'a> = dyn FnMut(&Arc<Node>, &Question) -> anyhow::Result<Option<Report>> + 'a;

/// Who says what node-lb does on a node, and how much it knows.
pub struct Asked<'a> {
    pub ask: &'a mut Ask<'a>,
    /// Whether agents answer, which know their settings and their addresses.
    pub is_live: bool,
}

/// The way of the packet that is asked about. It comes to node `via` first; without one, to the node of
/// its client, or else to that of its destination.
///
/// # Errors
///
/// If it cannot be told where it comes first, or a question fails.
pub fn walk<'a>(
    cluster: &'a Cluster,
    question: &Question,
    via: Option<&str>,
    asked: Asked<'a>,
) -> anyhow::Result<Journey> {
    let client = cluster.locate(question.from);
    let first = first_node(cluster, question, &client, via)?;
    let mut question = question.clone();
    let mut assumed = Vec::new();
    if client.kind == PlaceKind::Pod
        && question.interface.is_none()
        && let Some(name) = cluster.device_of_pods()
    {
        let name = name.to_owned();
        question.interface = Some(name.clone());
        assumed.push(Assumption::Device { name });
    }
    let is_live = asked.is_live;
    let mut walk = Walk {
        cluster,
        asked,
        decisions: 0,
        nodes: BTreeSet::new(),
        crosses: false,
        replaces: false,
    };
    let step = walk.step(&first, &question, 1)?;
    if !is_live {
        let nodes = walk.nodes.into_iter().collect();
        assumed.push(Assumption::SameSettings { nodes });
        assumed.push(Assumption::NodeAddresses);
    }
    if walk.crosses {
        assumed.push(Assumption::NothingElseTranslates);
    }
    if walk.replaces {
        assumed.push(Assumption::NoTunnel);
    }
    Ok(Journey {
        protocol: question.to.protocol,
        from: question.from,
        to: question.to.address,
        client,
        first: step,
        assumed,
    })
}

/// The name of the node that a packet comes to first.
fn first_node(
    cluster: &Cluster,
    question: &Question,
    client: &Place,
    via: Option<&str>,
) -> anyhow::Result<String> {
    let (from, to) = (question.from, question.to.address);
    let name = match (&client.node, via) {
        (Some(node), Some(via)) if node != via => bail!(
            "{from} is on node {node}, where node-lb meets its packets before they come to {via}: --via \
             is for clients outside"
        ),
        (Some(node), _) => node.clone(),
        (None, Some(via)) => via.to_owned(),
        (None, None) => {
            let of_destination = cluster.locate(to.ip()).node;
            let only = || cluster.only_node().map(|node| node.name.clone());
            of_destination.or_else(only).with_context(|| {
                format!(
                    "no object says which node a packet from {from} to {to} comes to first; name it with \
                     --via NODE"
                )
            })?
        }
    };
    match cluster.node(&name) {
        Some(_) => Ok(name),
        None => bail!("there is no Node {name:?}, so nothing is known of node-lb there"),
    }
}

struct Walk<'a> {
    cluster: &'a Cluster,
    asked: Asked<'a>,
    decisions: usize,
    /// Those that the packet may come to.
    nodes: BTreeSet<String>,
    /// Whether it may go from one node to another.
    crosses: bool,
    /// Whether it may have another source then.
    replaces: bool,
}

impl Walk<'_> {
    /// What happens on a node that has a Node object, the `nth` on the way.
    fn step(&mut self, name: &str, question: &Question, nth: usize) -> anyhow::Result<Step> {
        let mut step = Step {
            node: name.to_owned(),
            decision: None,
            onward: Vec::new(),
            problems: Vec::new(),
        };
        let node = || name.to_owned();
        let Some(object) = self.cluster.node(name) else {
            step.problems.push(Problem::NoNodeObject { node: node() });
            return Ok(step);
        };
        self.decisions += 1;
        if nth > MOST_NODES || self.decisions > MOST_DECISIONS {
            step.problems.push(Problem::TooManyNodes);
            return Ok(step);
        }
        self.nodes.insert(node());
        let Some(report) = (self.asked.ask)(object, question)? else {
            step.problems.push(Problem::NoAnswer { node: node() });
            return Ok(step);
        };
        step.problems.extend(self.elsewhere(name, &report));
        step.onward = match report.verdict {
            Verdict::Forward => {
                let endpoints = report.endpoints.iter();
                let legs = endpoints.map(|endpoint| {
                    let to = Target {
                        address: *endpoint,
                        protocol: report.protocol,
                    };
                    self.leg_to_endpoint(name, &report, to, nth)
                });
                legs.collect::<anyhow::Result<_>>()?
            }
            Verdict::Pass => self.past(name, &report, question, nth)?,
            Verdict::Wait | Verdict::Reject | Verdict::Drop => Vec::new(),
        };
        step.decision = Some(report);
        Ok(step)
    }

    /// The way on to an endpoint that may be chosen.
    fn leg_to_endpoint(
        &mut self,
        node: &str,
        report: &Report,
        to: Target,
        nth: usize,
    ) -> anyhow::Result<Leg> {
        let is_replaced = report.replaces_source(to.address);
        let from = match is_replaced {
            true => report.node_address,
            false => Some(report.from),
        };
        let place = self.cluster.locate(to.address.ip());
        let is_here = place.node.as_deref() == Some(node);
        let mut leg = self.leg(node, from, to, place, nth)?;
        self.replaces |= is_replaced && !is_here && report.node_address != Some(report.from);
        let translator = self.translator(report);
        leg.answer = Some(translator);
        if from.is_none() {
            leg.problems.push(Problem::NoNodeAddress);
        }
        let comes_back = is_replaced || is_here || self.is_on(report.from, node);
        if translator == Translator::Flow && !comes_back {
            leg.problems.push(Problem::AnswerAstray);
        }
        Ok(leg)
    }

    /// The way on of a packet that passes a node untouched: to the node of its destination, if that is
    /// another one.
    fn past(
        &mut self,
        node: &str,
        report: &Report,
        question: &Question,
        nth: usize,
    ) -> anyhow::Result<Vec<Leg>> {
        let place = self.cluster.locate(report.to.ip());
        // What another service proxy does with a Service's packet is not known.
        if report.service.is_some()
            || report.left_to_node.is_some()
            || report.reason == Reason::MartianSource
            || place.node.as_deref() == Some(node)
        {
            return Ok(Vec::new());
        }
        let leg = self.leg(node, Some(report.from), question.to, place, nth)?;
        Ok(vec![leg])
    }

    /// From a node to a place, without what the node does with answers.
    fn leg(
        &mut self,
        node: &str,
        from: Option<IpAddr>,
        to: Target,
        place: Place,
        nth: usize,
    ) -> anyhow::Result<Leg> {
        let is_here = place.node.as_deref() == Some(node);
        self.crosses |= !is_here;
        let then = match (&place.node, from) {
            (Some(next), Some(from)) if !is_here => {
                let question = Question {
                    from,
                    to,
                    interface: None,
                };
                Some(self.step(next, &question, nth + 1)?)
            }
            _ => None,
        };
        let is_lost = place.kind == PlaceKind::Pod && place.node.is_none();
        Ok(Leg {
            from,
            to: to.address,
            place,
            answer: None,
            then,
            problems: is_lost
                .then_some(Problem::NodeUnknown)
                .into_iter()
                .collect(),
        })
    }

    /// Whether packets to an address come to a node because it has it, or its pods have.
    fn is_on(&self, address: IpAddr, node: &str) -> bool {
        self.cluster.locate(address).node.as_deref() == Some(node)
    }

    /// What makes answers the Service's again on the node that has decided.
    fn translator(&self, report: &Report) -> Translator {
        let sockets = self.cluster.config().datapath.socket_lb;
        let by_socket = match report.origin {
            Origin::Node => sockets != SocketLb::Off,
            Origin::Pod | Origin::Outside => false,
        };
        match by_socket {
            true => Translator::Socket,
            false => Translator::Flow,
        }
    }

    /// The nodes that could serve the packet, if this one does not because it has no endpoint.
    fn elsewhere(&self, node: &str, report: &Report) -> Option<Problem> {
        let service = report.service.as_ref()?;
        let service = service.split_once(':').map_or(&**service, |(name, _)| name);
        let name =
            ObjectName::parse(service).filter(|_| report.reason == Reason::NoLocalEndpoints)?;
        let family = IpFamily::of(report.from);
        let nodes = self.cluster.nodes_with_endpoints(&name, family);
        let nodes = nodes.into_iter().filter(|other| other != node);
        Some(Problem::EndpointsElsewhere {
            nodes: nodes.collect(),
        })
    }
}
