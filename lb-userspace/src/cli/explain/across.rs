//! `node-lb explain --across-nodes`: the whole way of a connection through the cluster.

use std::{net::IpAddr, sync::Arc};

use anyhow::{Context as _, ensure};
use lb_objects::{IpFamily, Node, ObjectName};

use super::{answers::Answers, in_force};
use crate::{
    cli::snapshot::Everything,
    config::Config,
    explain::{
        Question, Report, Target,
        across::{Asked, Journey, walk},
    },
};

/// Where a connection comes from, as the command line has it.
pub enum From {
    /// An address, and the node that it is on, if that is known.
    Address(IpAddr, Option<String>),
    Pod(ObjectName),
}

/// What is to be shown.
pub struct Way {
    pub from: From,
    pub to: Target,
    pub interface: Option<String>,
    /// The node that the packet comes to first.
    pub via: Option<String>,
}

/// The way by what all agents would do, with the objects of the source.
pub fn by_source(config: &Config, way: Way) -> anyhow::Result<Journey> {
    let mut everything = Everything::load(config)?;
    let question = question(&mut everything, &way)?;
    if let Some(in_force) = in_force(&everything.admission, config)? {
        everything.cluster.set_in_force(in_force);
    }
    let cluster = &everything.cluster;
    let mut ask = |node: &Arc<Node>, question: &Question| -> anyhow::Result<Option<Report>> {
        let pods = match cluster.asks_for_identity() {
            true => everything.pods_of(&node.name)?,
            false => Vec::new(),
        };
        Ok(Some(cluster.explain(node, question, pods.into())?))
    };
    let asked = Asked {
        ask: &mut ask,
        is_live: false,
    };
    walk(cluster, &question, way.via.as_deref(), asked)
}

/// The way by what agents have answered. Objects only say where addresses are.
pub fn by_agents(config: &Config, way: Way, answers: &mut Answers) -> anyhow::Result<Journey> {
    let mut everything = Everything::load(config)?;
    let question = question(&mut everything, &way)?;
    let mut ask = |node: &Arc<Node>, question: &Question| Ok(answers.of(node, question));
    let asked = Asked {
        ask: &mut ask,
        is_live: true,
    };
    walk(&everything.cluster, &question, way.via.as_deref(), asked)
}

/// What is asked about the packet on the first node.
fn question(everything: &mut Everything, way: &Way) -> anyhow::Result<Question> {
    let question = Question {
        from: address(everything, &way.from, way.to)?,
        to: way.to,
        interface: way.interface.clone(),
    };
    ensure_one_family(&question)?;
    Ok(question)
}

/// The address that a connection comes from.
fn address(everything: &mut Everything, from: &From, to: Target) -> anyhow::Result<IpAddr> {
    let name = match from {
        From::Address(address, node) => {
            if let Some(node) = node {
                everything.cluster.place(*address, node);
            }
            return Ok(*address);
        }
        From::Pod(name) => name,
    };
    let family = IpFamily::of(to.address.ip());
    let pod = everything.pod(name)?;
    let mut addresses = pod.addresses.iter().copied();
    let of_family = addresses.find(|address| IpFamily::of(*address) == family);
    of_family.with_context(|| format!("pod {name} has no {family} address, and {} has", to.address))
}

/// Without that there is no such packet.
pub fn ensure_one_family(question: &Question) -> anyhow::Result<()> {
    let (from, to) = (question.from, question.to.address);
    ensure!(
        question.is_of_one_family(),
        "--from {from} and --to {to} are not of one IP family"
    );
    Ok(())
}
